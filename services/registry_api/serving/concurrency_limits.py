"""Limits on the resources of this process that one caller may occupy at once, so that some remain for others.

`rate_limits` counts how often callers send requests. This module counts what they keep occupied: waiting
requests, and arriving uploads. A tenant may have many keys, so there are two limits: one for each key, so
that one program leaves room for the tenant's other programs, and one for all keys of a namespace together, so
that one tenant leaves room for other tenants. Each process counts for itself. This module knows no routes.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from services.registry_api.protocol.callers import Caller
from speaker_registry.errors import RateLimited

RETRY_SECONDS = 1


class ConcurrencyLimits:
    """Limits how much of one thing each caller holds at once. Must only be used from the event loop.

    Args:
        what: names the thing in error messages.
        of_key: how much one key may hold; None: any amount.
        of_namespace: how much all keys of one namespace may hold together; None: any amount.
    """

    def __init__(self, what: str, *, of_key: int | None = None, of_namespace: int | None = None) -> None:
        self._what = what
        self._max = {"API key": of_key, "namespace": of_namespace}
        self._held: Counter[tuple[str, str]] = Counter()  # bounded: a caller that holds nothing has no entry

    def acquire(self, caller: Caller, namespace: str, amount: int = 1) -> None:
        """Record that the caller holds `amount` more.

        Raises:
            RateLimited: the limit of the key or of the namespace would be exceeded. Nothing is acquired then.
        """
        holders = _holders(caller, namespace)
        for holder in holders:
            maximum = self._max[holder[0]]
            if maximum is not None and self._held[holder] + amount > maximum:
                self._forget_idle(holder)
                raise RateLimited(
                    f"This {holder[0]} has reached its limit of {maximum} {self._what} at once on this "
                    "server. Wait until some are done.",
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
        """Acquire one for as long as the context lasts. Raises `RateLimited` as `acquire` does."""
        self.acquire(caller, namespace)
        try:
            yield
        finally:
            self.release(caller, namespace)

    def _forget_idle(self, holder: tuple[str, str]) -> None:
        if self._held[holder] <= 0:
            del self._held[holder]


def _holders(caller: Caller, namespace: str) -> list[tuple[str, str]]:
    """Return the two holders whose limits apply: the key, and the namespace."""
    return [("API key", caller.counted_id), ("namespace", namespace)]
