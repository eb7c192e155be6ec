"""Tests of how the API keeps garbage collections short."""

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from services.registry_api.serving.garbage import Survivors

Install = Callable[[Survivors], None]


class Node:
    """An object that can be in a reference cycle."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def survive() -> Iterator[Install]:
    """Installs a callback, and removes it and thaws everything at the end. All that earlier tests left is
    frozen meanwhile, because each full collection would take a second to scan it.
    """
    before = list(gc.callbacks)
    gc.freeze()
    yield gc.callbacks.append
    gc.callbacks[:] = before
    gc.unfreeze()


def is_scanned(thing: object) -> bool:
    """Return whether the next full collection scans an object."""
    return any(one is thing for one in gc.get_objects())


def test_what_survived_a_full_collection_is_not_scanned_again(survive: Install):
    """A full collection freezes what survives it. A younger collection does not."""
    survive(Survivors(lambda: 0))
    kept = [Node()]
    gc.collect(1)
    assert is_scanned(kept)
    gc.collect()
    assert not is_scanned(kept)


def test_frozen_garbage_is_found_when_the_frozen_objects_have_doubled(
    survive: Install,
):
    """A cycle that became garbage after it was frozen stays until twice as many objects are frozen."""
    frozen = 1_000
    survive(Survivors(lambda: frozen))
    node = Node()
    lives = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert lives() is not None
    frozen = 2_001
    gc.collect()
    assert lives() is None


def test_frozen_objects_are_counted_rarely(survive: Install):
    """The frozen objects are counted again when they can have doubled, because counting takes time."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 210_000

    survive(Survivors(count))
    for _ in range(9):
        gc.collect()
    assert counted == 1
    gc.collect()
    assert counted == 2
