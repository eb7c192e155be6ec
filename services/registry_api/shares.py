"""How much of this process one caller may hold at the same time, so that others find room.

`rates` counts how often callers ask; here is counted what they keep: requests that wait, uploads that arrive.
Each process counts for itself. Knows no routes.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.registry_api.callers import Caller
from speaker_registry.errors import RateLimited

RETRY_SECONDS = 1


class Shares:
    """What callers hold of one thing. Used by the event loop alone.

    Args:
        most: that one caller may hold; None: any amount. what: names the thing in the refusal.
    """

    def __init__(self, most: int | None, what: str) -> None:
        self._most = most
        self._what = what
        self._held: Counter[str] = Counter()  # bounded: who holds nothing is not in it

    def take(self, caller: Caller, amount: int = 1) -> None:
        """Raises `RateLimited` if that would be more than the caller's share."""
        held = self._held[caller.counts_as] + amount
        if self._most is not None and held > self._most:
            raise RateLimited(
                f"This API key has {self._what} beyond its share of {self._most}. Wait until some are done.",
                retry_after_seconds=RETRY_SECONDS,
            )
        self._held[caller.counts_as] = held

    def give_back(self, caller: Caller, amount: int = 1) -> None:
        self._held[caller.counts_as] -= amount
        if self._held[caller.counts_as] <= 0:
            del self._held[caller.counts_as]

    @contextmanager
    def held(self, caller: Caller) -> Iterator[None]:
        """One of them, for as long as the context lasts. Raises `RateLimited`."""
        self.take(caller)
        try:
            yield
        finally:
            self.give_back(caller)
