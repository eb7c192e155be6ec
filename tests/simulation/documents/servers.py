"""The Redis servers of a simulated world. They watch what becomes of each copy, and tell the ledger."""

from collections.abc import Callable
from typing import Any

from tests.memory_redis import MemoryServer
from tests.simulation.documents.request import current_request


class WatchedServer(MemoryServer):
    """A server that notes which revision of which speaker replaced which in which generation."""

    def __init__(self, name: str, now: Callable[[], float], ledger: Any) -> None:
        super().__init__(name, lambda: now() + self.skew)
        self.skew = 0.0
        self._ledger = ledger

    def hset(self, key: str, field: str = "", value: Any = None, *, mapping: Any = None) -> None:
        if field == "rev" and ":s:" in key:
            self._note(key, int(self.hget(key, field) or 0), int(value))
        super().hset(key, field, value, mapping=mapping)

    def _note(self, key: str, before: int, after: int) -> None:
        _, generation, _, speaker = key.split(":", 3)
        self.data.setdefault(applied_key(generation), []).append((speaker, before, after))
        self._ledger.applied(generation, speaker, before, after, by=current_request())


def applied_key(generation: str) -> str:
    return f"applied:{generation}"
