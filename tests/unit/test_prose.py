"""Docstrings stand alone: a reader may see only one of them, in an editor or a search result."""

from pathlib import Path

import pytest

from tools.half_sentences import CHECKED, ROOT, Docstring, docstrings

MOST = 0.02
"""A few whole sentences begin with one of the words as well."""
MOST_OF_A_FILE = 0.1


def test_few_docstrings_are_half_sentences():
    """`python -m tools.half_sentences` lists them."""
    found = list(docstrings([ROOT / name for name in CHECKED]))
    halves = [f"{one.path}:{one.line}" for one in found if one.is_half_a_sentence]
    assert len(halves) < MOST * len(found), f"{len(halves)} of {len(found)}: {', '.join(halves[:20])}, …"


@pytest.mark.parametrize("folder", ["services", "speaker_registry"])
def test_no_file_of_the_product_is_full_of_half_sentences(folder: str):
    """One file that reads badly is not excused by all the others."""
    by_file = {path: list(docstrings([path])) for path in sorted((ROOT / folder).rglob("*.py"))}
    halves = {path: sum(one.is_half_a_sentence for one in found) for path, found in by_file.items()}
    assert not [
        f"{path.relative_to(ROOT)}: {halves[path]} of {len(found)}"
        for path, found in by_file.items()
        if halves[path] > max(1, MOST_OF_A_FILE * len(found))
    ]


@pytest.mark.parametrize(
    ("text", "half"),
    [
        ("Of one voice.", True),
        ("With less left than that, keys are looked at anew.", True),
        ("`whose` keys are meant.", True),
        ("Return the keys of one voice.", False),
        ("The keys of one voice.", False),
    ],
)
def test_a_half_sentence_is_known_by_its_first_word(text: str, half: bool):
    """Prepositions, relative pronouns and conjunctions complete the name above."""
    assert Docstring(Path("any.py"), 1, text).is_half_a_sentence is half


def test_texts_below_attributes_count_as_docstrings(tmp_path: Path):
    """Editors and documentation show them alike."""
    (tmp_path / "module.py").write_text('"""A module."""\n\nLIMIT = 3\n"""Of one voice."""\n')
    assert [one.text for one in docstrings([tmp_path])] == ["A module.", "Of one voice."]
