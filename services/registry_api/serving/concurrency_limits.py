"""Limits on the resources of this process that one caller may occupy at once, so that some remain for others.

`rate_limits` counts how often callers send requests. This module counts what they keep occupied: waiting
requests, arriving requests, arriving uploads, and files that are being sent. Requests with a key have two
limits: one for each key, so that one program leaves room for the tenant's other programs, and one for all
keys of a namespace together, so that one tenant, which may have many keys, leaves room for other tenants.
Requests without a key are counted by the client's address, and all of them together, because a client may
have many addresses. Each process counts for itself. This module knows no routes.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from services.registry_api.protocol.callers import Caller
from speaker_registry.errors import RateLimited, Unavailable

RETRY_SECONDS = 1

_Holder = tuple[str, str]
"""A key, a namespace, an address or all addresses: the kind as error messages call it, and which one it is.
"""
_ALL_ADDRESSES: _Holder = ("group of all clients without an API key", "")


class ConcurrencyLimits:
    """Limits how much of one thing each caller holds at once. Must only be used from the event loop.

    Args:
        what: names the thing in error messages.
        of_key: how much one key may hold; None: any amount.
        of_namespace: how much all keys of one namespace may hold together; None: any amount.
        of_address: how much clients without a key at one address may hold together; None: any amount.
        of_addresses: how much all clients without a key may hold together; None: any amount.
    """

    def __init__(
        self,
        what: str,
        *,
        of_key: int | None = None,
        of_namespace: int | None = None,
        of_address: int | None = None,
        of_addresses: int | None = None,
    ) -> None:
        self._what = what
        self._max = {
            "API key": of_key,
            "namespace": of_namespace,
            "address": of_address,
            _ALL_ADDRESSES[0]: of_addresses,
        }
        self._held: Counter[_Holder] = Counter()  # bounded: a caller that holds nothing has no entry

    def acquire(self, caller: Caller, namespace: str, amount: int = 1) -> None:
        """Record that the caller holds `amount` more.

        Raises:
            RateLimited: the limit of the key or of the namespace would be exceeded. Nothing is acquired then.
        """
        self._acquire(_holders(caller, namespace), amount)

    def release(self, caller: Caller, namespace: str, amount: int = 1) -> None:
        self._release(_holders(caller, namespace), amount)

    def hold(self, caller: Caller, namespace: str) -> AbstractContextManager[None]:
        """Return a context that holds one. Entering it raises `RateLimited` as `acquire` does."""
        return self._hold(_holders(caller, namespace))

    def hold_for_address(self, address: str) -> AbstractContextManager[None]:
        """Return a context that holds one for a client without a key. Entering it raises `RateLimited` if the
        client's address, or all addresses together, hold too many.
        """
        return self._hold([("address", address), _ALL_ADDRESSES])

    @contextmanager
    def _hold(self, holders: list[_Holder]) -> Iterator[None]:
        self._acquire(holders, 1)
        try:
            yield
        finally:
            self._release(holders, 1)

    def _acquire(self, holders: list[_Holder], amount: int) -> None:
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

    def _release(self, holders: list[_Holder], amount: int) -> None:
        for holder in holders:
            self._held[holder] -= amount
            self._forget_idle(holder)

    def _forget_idle(self, holder: _Holder) -> None:
        if self._held[holder] <= 0:
            del self._held[holder]


class ByteBudget:
    """Limits how many bytes of one thing are in memory at once, over all callers and for each namespace. Must
    only be used from the event loop.

    Args:
        what: names the thing in error messages.
        max_bytes: how many bytes all callers may hold together.
        of_namespace: how many bytes all keys of one namespace may hold together; None: any number.
    """

    def __init__(self, what: str, max_bytes: int, *, of_namespace: int | None = None) -> None:
        self._what = what
        self._free = max_bytes
        self._shares = ConcurrencyLimits(f"bytes of {what}", of_namespace=of_namespace)

    def acquire(self, owner: tuple[Caller, str] | None, size: int) -> None:
        """Record that a caller of a namespace holds `size` more bytes. None: a caller without a key.

        Raises:
            RateLimited: the limit of the namespace would be exceeded. Nothing is acquired then.
            Unavailable: the bytes for all callers are used up. Nothing is acquired then.
        """
        if size > self._free:
            raise Unavailable(
                f"This server has no memory left for {self._what}. Try again in a moment.",
                retry_after_seconds=RETRY_SECONDS,
            )
        if owner is not None:
            self._shares.acquire(*owner, size)
        self._free -= size

    def release(self, owner: tuple[Caller, str] | None, size: int) -> None:
        self._free += size
        if owner is not None:
            self._shares.release(*owner, size)


def _holders(caller: Caller, namespace: str) -> list[_Holder]:
    """Return the two holders whose limits apply: the key, and the namespace."""
    return [("API key", caller.counted_id), ("namespace", namespace)]
