"""A test that the product stays made of small parts."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES, MAX_CLASS_LINES = 450, 300


def too_long(path: Path) -> Iterator[str]:
    """Name a file, and its classes, that have too many lines."""
    text = path.read_text()
    lines = text.count("\n")
    if lines > MAX_FILE_LINES:
        yield f"{path.name} has {lines} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_CLASS_LINES:
                yield f"{path.name}: {node.name} has {lines} lines"


@pytest.mark.parametrize("folder", ["services", "speaker_registry"])
def test_no_file_and_no_class_of_the_product_is_long(folder: str):
    """A long one is several in one, and is better divided where it has a seam."""
    assert not [one for path in sorted((ROOT / folder).rglob("*.py")) for one in too_long(path)]


def test_a_long_file_and_a_long_class_are_found(tmp_path: Path):
    """One line more than the limit is too long."""
    path = tmp_path / "module.py"
    path.write_text("class Long:\n" + "    a = 1\n" * MAX_CLASS_LINES)
    assert list(too_long(path)) == ["module.py: Long has 301 lines"]
    path.write_text("a = 1\n" * (MAX_FILE_LINES + 1))
    assert list(too_long(path)) == ["module.py has 451 lines"]
