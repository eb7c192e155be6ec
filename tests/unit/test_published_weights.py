"""Tests of what weights.yaml says of each profile's weights, and that the documentation says the same."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from services.shared.model.profiles import BUILT_IN
from services.shared.model.published_weights import published_weights
from speaker_registry.engine import PublishedWeights
from tools.licence_table import table

PAGE = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
FACTS = {"repo": "example/model", "licence": "MIT", "files": {"config.json": None}}


def test_every_profile_has_weights_and_all_weights_have_a_profile():
    """Weights that no profile uses have no terms to show."""
    assert BUILT_IN.keys() == published_weights().keys()


def test_what_can_be_extracted_has_files_and_what_cannot_has_none():
    """They are what is fetched, and what an extractor reads."""
    for name, profile in BUILT_IN.items():
        assert bool(profile.weights.files) != bool(profile.not_extractable), name


def test_a_repository_at_one_commit_holds_one_content_under_a_name():
    """Profiles that share files, such as Qwen's codec, must not disagree about them."""
    seen: dict[tuple[str, str | None, str], str | None] = {}
    for weights in published_weights().values():
        for name, sha256 in weights.files.items():
            assert seen.setdefault((weights.repo, weights.commit, name), sha256) == sha256


def test_terms_that_forbid_are_explained():
    """A licence that is no open one needs a word on what it asks."""
    for name, weights in published_weights().items():
        free = weights.licence in {"Apache-2.0", "MIT", "BSD-3-Clause", "CC-BY-4.0"}
        assert free or weights.notes, name


def test_the_documentation_shows_the_terms_as_they_are():
    """`python -m tools.licence_table` makes the table."""
    shown = PAGE.partition("made by tools/licence_table.py -->\n")[2].partition("\n<!--")[0]
    assert shown == table()


def test_a_notice_breaks_no_table():
    """Each is one cell."""
    assert all(re.fullmatch(r"[^|\n]+", weights.notes or "–") for weights in published_weights().values())


@pytest.mark.parametrize(
    "wrong",
    [
        {"commit": "main"},
        {"commit": "F" * 40},
        {"repo": "https://example.org/model"},
        {"files": {"config.json": "0" * 63}},
        {"files": {"config.json": "sha256:" + "0" * 64}},
        {"files": {"../config.json": None}},
        {"files": {"/etc/passwd": None}},
        {"files": {"*.json": None}},
        {"license": "MIT"},
    ],
)
def test_a_slip_of_the_pen_is_refused(wrong: dict[str, object]):
    """The mistake is found at the start, and not when a file is fetched."""
    assert PublishedWeights.model_validate(FACTS).files == {"config.json": None}
    with pytest.raises(ValidationError):
        PublishedWeights.model_validate(FACTS | wrong)
