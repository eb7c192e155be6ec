"""Faults of the store of a registry in memory: calls that fail, or during which something else happens."""

from collections.abc import Callable
from typing import Any

from services.shared.bucket.stored_bytes import StoredBytes
from speaker_registry.errors import Unavailable
from tests.memory_registry import Registry, World


class Faulty:
    """A store that fails at the next calls of some of its methods, before or after they are done."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.faults: list[tuple[str, str, Callable[[], None]]] = []
        """Each is a method, `before` or `after`, and what happens then."""

    def __getattr__(self, method: str) -> Any:
        does = getattr(self._store, method)
        if not self.faults or self.faults[0][0] != method:
            return does

        def call(*args: Any, **options: Any) -> Any:
            _, when, happens = self.faults.pop(0)
            if when == "before":
                happens()
            found = does(*args, **options)
            if when == "after":
                happens()
            return found

        return call


def lost() -> None:
    raise Unavailable("The object store did not answer.")


def with_faults(world: World, *faults: tuple[str, str, Callable[[], None]]) -> Registry:
    """Return a process whose store fails so."""
    registry = world.process()
    store = Faulty(world.store)
    registry.speakers.documents.stored._store = store  # type: ignore[assignment]
    registry.blobs = StoredBytes(store)  # type: ignore[arg-type]
    registry.generation.for_reading()
    store.faults = list(faults)
    return registry
