"""Tests of the pages about engines: what the code knows is on them as it is. Each profile has one page."""

import pytest

from services.shared.model.profiles import BUILT_IN
from tools.engine_facts import PAGES, ROOT, facts, facts_on

FOLDER = ROOT / "docs" / "engines"
WRITTEN_BY_HAND = ("How to connect it", "What is exact")


def test_each_profile_has_one_page():
    """Whoever connects an engine finds the page about it."""
    described = [profile for page in PAGES.values() for profile in page.profiles]
    assert sorted(described) == sorted(BUILT_IN)
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_of_its_engine_what_the_code_knows(name: str):
    """`python -m tools.engine_facts` writes these sections: tensors, weights, ways, proof and licence."""
    text = (FOLDER / f"{name}.md").read_text()
    assert facts_on(text) == facts(PAGES[name])
    for heading in WRITTEN_BY_HAND:
        assert f"\n## {heading}\n" in text
