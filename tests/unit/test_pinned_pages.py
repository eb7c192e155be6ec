"""Tests of pages of speakers with the pinned ones first, on a registry in memory."""

from collections.abc import Callable

import pytest

from services.shared.model.changes import edited
from services.shared.model.speaker import SpeakerId
from services.shared.registry.pinned_pages import page_pinned_first
from services.shared.view.keys import pinned_key
from speaker_registry.names import parse_speaker_name
from tests.memory_registry import NS, Registry, World

NAMES = ("ann marie", "robin", "wren", "Zoë")


@pytest.fixture
def registry(world: World) -> Registry:
    registry = world.process()
    for number, name in enumerate(NAMES):
        registry.register(name, number)
    registry.rebuild()
    return registry


def id_of(name: str) -> SpeakerId:
    return SpeakerId.of(NS, parse_speaker_name(name))


def pin(registry: Registry, name: str, *, pinned: bool = True) -> None:
    registry.speakers.change(
        id_of(name),
        lambda document: edited(document, document.about.having(pinned=pinned), ()),
        by="key",
        did="edit",
    )


def walk(registry: Registry, limit: int, between: Callable[[int], object] = lambda _: None) -> list[str]:
    """Return the names on all pages, and call `between` with the number of the pages read after each."""
    found, cursor, more, read = list[str](), "", True, 0
    while more:
        listed = page_pinned_first(registry.speakers, registry.store, NS, after=cursor, limit=limit)
        found += [one.document.newest.name for one in listed.speakers]
        cursor, more, read = listed.last, listed.more, read + 1
        between(read)
    return found


def test_pinned_speakers_come_first_and_all_after_them(registry: Registry) -> None:
    assert walk(registry, 1) == list(NAMES)
    pin(registry, "Zoë")
    pin(registry, "robin")
    for limit in (1, 2, 3):
        assert walk(registry, limit) == ["robin", "Zoë", *NAMES]
    assert walk(registry, 4) == ["robin", "Zoë", "ann marie", "wren"], "one page has all"


@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("after", range(1, 6))
def test_a_speaker_that_is_pinned_or_unpinned_between_two_pages_is_listed(
    registry: Registry, name: str, after: int, *, pinned: bool
) -> None:
    """An engine drops a voice that a manifest lacks, although it was there all the time."""
    for one in ("robin", "Zoë", *([] if pinned else [name])):
        pin(registry, one, pinned=one != name or not pinned)
    found = walk(registry, 1, lambda read: pin(registry, name, pinned=pinned) if read == after else None)
    assert set(found) == set(NAMES)


@pytest.mark.parametrize("after", range(1, 6))
def test_a_list_leaves_nobody_out_when_the_view_goes_or_comes_back(
    world: World, registry: Registry, after: int
) -> None:
    """Cursors of pinned speakers mean nothing in the bucket, so the list begins there from the start."""
    for name in ("robin", "Zoë", "wren"):
        pin(registry, name)

    def lose_and_rebuild(read: int) -> None:
        if read == after:
            world.lose_redis()
        if read == after + 1:
            registry.rebuild()

    assert set(walk(registry, 1, lose_and_rebuild)) == set(NAMES)


def test_the_bucket_alone_has_pinned_speakers_first_only_on_a_single_page(
    world: World, registry: Registry
) -> None:
    pin(registry, "Zoë")
    world.lose_redis()
    assert sorted(walk(registry, 2)) == sorted(NAMES)
    assert walk(registry, 4)[0] == "Zoë"


def test_deleted_and_unpinned_speakers_are_not_among_the_pinned(registry: Registry) -> None:
    for name in NAMES:
        pin(registry, name)
    pin(registry, "robin", pinned=False)
    registry.delete("wren")
    names = registry.speakers.view.names(NS, limit=9, pinned=True)
    assert names == ["ann marie", "zoë"]
    assert walk(registry, 2) == ["ann marie", "Zoë", "ann marie", "robin", "Zoë"]


def test_a_speaker_that_is_unpinned_while_a_page_is_read_is_listed_once(
    world: World, registry: Registry
) -> None:
    """The names of pinned speakers are read before the documents, which may have changed meanwhile."""
    world.server.data[pinned_key(registry.generation.for_reading(), NS)] = {"wren": 0.0}
    assert walk(registry, 2) == list(NAMES)
