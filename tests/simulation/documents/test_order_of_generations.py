"""A new generation is first named in the bucket and then in Redis. One history in which the order counts.

The order has a second rule beside it: a process trusts what Redis names only if the bucket names it too. So a
wrong order alone does no harm, which random histories cannot show. Only with both rules gone is an
acknowledged change missing from an answer.
"""

from collections.abc import Callable
from contextlib import ExitStack, suppress

import pytest

from services.shared.bucket.layout import VIEW
from services.shared.view.generation import Generation
from speaker_registry.errors import Unavailable
from tests.memory_redis import MemoryServer
from tests.memory_registry import Fingerprints, MemoryQueue, OwnTime, Registry
from tests.memory_store import MemoryStore
from tests.simulation.documents.mistakes import Mistake

WRONG_ORDER = Mistake(
    owner=Generation,
    function="_begin_generation",
    changes={
        "if not self._document.begin(named, generation):": "if False:",
        'log.info("view.begun", generation=generation)': "self._document.begin(named, generation)",
    },
)
REDIS_ALONE = Mistake(
    owner=Generation,
    function="_check_or_begin",
    changes={
        "if is_held and stamp.generation == named.generation:": (
            "if is_held and (stamp.generation == named.generation or not self._held):"
        )
    },
)


class InterruptedStore(MemoryStore):
    """A store that lets others act just before `_view.json` is replaced."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__(now)
        self.before_view: Callable[[], None] | None = None

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        if key == VIEW and (act := self.before_view):
            self.before_view = None
            act()
        return super().swap(key, data, etag=etag)


def _acknowledged_and_seen() -> tuple[int, int]:
    """Return how many versions a writer was told of, and how many a reader of the next generation sees.

    A second Redis takes over. While its generation begins, a process that has just started reads from it, and
    a process that still uses the first Redis registers a version.
    """
    clock, queue, fingerprints = OwnTime(), MemoryQueue(), Fingerprints()
    store = InterruptedStore(clock.now)
    first, second = (MemoryServer(name, clock.now) for name in ("first", "second"))
    writer = Registry(clock, store, lambda: first, queue, fingerprints)
    beginner, reader = (Registry(clock, store, lambda: second, queue, fingerprints) for _ in range(2))
    told = len(writer.register("wren", 1).speaker.document.versions)

    def others_act() -> None:
        nonlocal told
        reader.find("wren")
        with suppress(Unavailable):  # the writer is asked to send it again, and so is not owed anything
            told = len(writer.register("wren", 2).speaker.document.versions)

    store.before_view = others_act
    beginner.generation.check()
    return told, len(reader.find("wren").document.versions)


@pytest.mark.parametrize("mistakes", [(), (WRONG_ORDER,), (REDIS_ALONE,)], ids=["none", "order", "Redis"])
def test_a_reader_of_the_next_generation_sees_what_was_acknowledged(mistakes: tuple[Mistake, ...]) -> None:
    """Each of the two rules is enough."""
    with ExitStack() as made:
        for mistake in mistakes:
            made.enter_context(mistake.made())
        told, seen = _acknowledged_and_seen()
    assert seen >= told


def test_without_either_rule_an_acknowledged_version_is_missing() -> None:
    """The history would show it, if both rules were broken."""
    with WRONG_ORDER.made(), REDIS_ALONE.made():
        told, seen = _acknowledged_and_seen()
    assert (told, seen) == (2, 1)
