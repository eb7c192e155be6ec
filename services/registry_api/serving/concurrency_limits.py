"""How much of this process one caller may hold at the same time, so that others find room.

`rate_limits` counts how often callers ask; here is counted what they keep: requests that wait, uploads that
arrive.
A tenant may have many keys, so there are two shares: one of each key, so that one program leaves room for the
tenant's others, and one of all keys of a namespace together, so that a tenant leaves room for the others.
Each process counts for itself. Knows no routes.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.registry_api.protocol.callers import Caller
from speaker_registry.errors import RateLimited

RETRY_SECONDS = 1


class ConcurrencyLimits:
    """What callers hold of one thing. Used by the event loop alone.

    Args:
        what: names the thing in the refusal. of_key, of_namespace: how many one key, or all keys of one
            namespace together, may hold; None: any number.
    """

    def __init__(self, what: str, *, of_key: int | None = None, of_namespace: int | None = None) -> None:
        self._what = what
        self._max = {"API key": of_key, "namespace": of_namespace}
        self._held: Counter[tuple[str, str]] = Counter()  # bounded: who holds nothing is not in it

    def acquire(self, caller: Caller, namespace: str, amount: int = 1) -> None:
        """Raises `RateLimited`, and takes nothing, if that would be more than one of the two shares."""
        holders = _holders(caller, namespace)
        for holder in holders:
            maximum = self._max[holder[0]]
            if maximum is not None and self._held[holder] + amount > maximum:
                self._forget_idle(holder)
                raise RateLimited(
                    f"This {holder[0]} has {self._what} beyond its share of {maximum}. "
                    "Wait until some are done.",
                    retry_after_seconds=RETRY_SECONDS,
                )
        for holder in holders:
            self._held[holder] += amount

    def release(self, caller: Caller, namespace: str, amount: int = 1) -> None:
        for holder in _holders(caller, namespace):
            self._held[holder] -= amount
            self._forget_idle(holder)

    @contextmanager
    def hold(self, caller: Caller, namespace: str) -> Iterator[None]:
        """One of them, for as long as the context lasts. Raises `RateLimited`."""
        self.acquire(caller, namespace)
        try:
            yield
        finally:
            self.release(caller, namespace)

    def _forget_idle(self, holder: tuple[str, str]) -> None:
        if self._held[holder] <= 0:
            del self._held[holder]


def _holders(caller: Caller, namespace: str) -> list[tuple[str, str]]:
    """Whose shares are used."""
    return [("API key", caller.counted_id), ("namespace", namespace)]
