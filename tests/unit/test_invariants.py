"""Tests that what ARCHITECTURE says about the tests of its invariants is true."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", (ROOT / "ARCHITECTURE.md").read_text(), re.MULTILINE)
"""The number of each invariant, and the cell of its table that names its tests."""


def named(cell: str) -> list[Path]:
    """Return the files and folders of tests that a cell names. A name without a folder is of the folder
    before it.
    """
    found: list[Path] = []
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", cell):
        folder = found[-1] if found and "/" not in name else ROOT / "tests"
        found.append((folder if folder.is_dir() else folder.parent) / name)
    return found


def runs_before_a_change_lands(path: Path) -> bool:
    """Return whether `make test` runs a test of the file, or of a file in the folder."""
    if path.is_dir():
        return any(map(runs_before_a_change_lands, path.glob("test_*.py")))
    module = ast.parse(path.read_text())
    marks = [ast.unparse(one) for one in module.body if isinstance(one, ast.Assign)]
    if any(one.startswith("pytestmark") and "mark.slow" in one for one in marks):
        return False
    tests = [one for one in ast.walk(module) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    return any(
        one.name.startswith("test_")
        and not any("mark.slow" in ast.unparse(mark) for mark in one.decorator_list)
        for one in tests
    )


def test_the_table_is_read():
    assert len(ROWS) >= 20
    assert len({path for _, cell in ROWS for path in named(cell)}) >= 20


@pytest.mark.parametrize(("number", "cell"), ROWS)
def test_every_file_that_an_invariant_names_has_a_test_that_runs_before_a_change_lands(
    number: str, cell: str
):
    """A test that is slow runs before a release only, and until then nothing would hold the invariant."""
    for path in named(cell):
        assert path.exists(), f"ARCHITECTURE.md, invariant {number}: {path} does not exist"
        if path.name.startswith("test_") or path.is_dir():
            assert runs_before_a_change_lands(path), f"ARCHITECTURE.md, invariant {number}: {path} is slow"
