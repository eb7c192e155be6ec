"""Tests of pages of speakers, from the view and from the bucket, on a registry in memory."""

import pytest
from structlog.testing import capture_logs

from services.shared.model.document import SpeakerDocument
from services.shared.registry import pages
from services.shared.registry.pages import speaker_page
from tests.memory_registry import NS, Registry, World

NAMES = ("ann marie", "robin", "wren", "Zoë")


@pytest.fixture
def registry(world: World) -> Registry:
    registry = world.process()
    for number, name in enumerate(NAMES):
        registry.register(name, number)
    return registry


def walk(registry: Registry, limit: int, *, switch_after: int = 10**6) -> list[str]:
    """Return the names on all pages. The view becomes whole after so many of them."""
    found, cursor, more, read = [], "", True, 0
    while more:
        if read == switch_after:
            registry.rebuild()
        listed = speaker_page(registry.speakers, registry.store, NS, after=cursor, limit=limit)
        found += [one.document.newest.name for one in listed.speakers]
        cursor, more, read = listed.last, listed.more, read + 1
    return found


def test_pages_of_a_whole_view_are_in_the_order_of_names(registry: Registry) -> None:
    registry.rebuild()
    assert walk(registry, 2) == list(NAMES)
    assert not speaker_page(registry.speakers, registry.store, NS, limit=9).of_bucket


def test_pages_of_the_bucket_lead_to_every_voice(world: World, registry: Registry) -> None:
    """A view that is being rebuilt holds some voices, and a list of these alone would hide the others."""
    world.lose_redis()
    listed = speaker_page(registry.speakers, registry.store, NS, limit=9)
    assert listed.of_bucket
    assert sorted(walk(registry, 1)) == sorted(NAMES)
    assert all(not one.of_view for one in listed.speakers)


@pytest.mark.parametrize("switch_after", [1, 2, 3])
def test_a_list_that_goes_on_in_the_view_leaves_nobody_out(
    world: World, registry: Registry, switch_after: int
) -> None:
    """The two orders differ. A voice may be listed twice, but every one is."""
    world.lose_redis()
    assert set(walk(registry, 1, switch_after=switch_after)) == set(NAMES)


def test_a_deleted_voice_is_on_no_page(world: World, registry: Registry) -> None:
    """Its document stays, and is read for a page of the bucket."""
    registry.delete("robin")
    world.lose_redis()
    assert "robin" not in walk(registry, 1)


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 9])
def test_a_document_that_is_not_understood_hides_no_other_voice(
    world: World, registry: Registry, limit: int, *, newer: bool
) -> None:
    """One bad object must not fail every list while the view is away. It is logged for the operator."""
    key = f"{NS}/s/robin.json"
    data, at = world.store.objects[key]
    newest = SpeakerDocument(needs=("consent-ends",), revision=9).to_bytes()
    world.store.objects[key] = (newest if newer else data[:-20], at)
    world.lose_redis()
    with capture_logs() as logs:
        assert sorted(walk(registry, limit)) == sorted({*NAMES} - {"robin"})
    told = {line["event"] for line in logs if line.get("speaker") == f"{NS}/robin"}
    assert told == {"document.newer" if newer else "document.damaged"}


def test_a_search_examines_so_many_names_however_few_it_finds(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "NAMES_SEARCHED", 2)
    registry.rebuild()
    listed = speaker_page(registry.speakers, registry.store, NS, limit=5, part="wren")
    assert (listed.speakers, listed.more, listed.last) == ([], True, "robin")
