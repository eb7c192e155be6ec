"""Which request goes on next where only so many may at the same time. Knows no HTTP.

Each tenant has a queue of its own, and the next request is of the tenant that has been served for the
shortest time. A tenant that comes back starts level with the others: it has saved nothing up. (Start-time
fair queueing: P. Goyal, H. Vin and H. Cheng, IEEE/ACM Transactions on Networking 5(5), 1997.)

What has begun is never interrupted. So while several tenants ask, none of them may have more than its share
at the same time, also where that leaves a place free: the next request of another tenant finds it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from speaker_registry.errors import RateLimited, SpeakerRegistryError, Unavailable

RETRY_SECONDS = 1
ABOUT_SECONDS = 10.0
"""A tenant that has asked within this time has a share."""


@dataclass(slots=True)
class _Tenant:
    asked_at: float = 0.0
    held: int = 0
    """Requests that were admitted and have not left."""
    served_seconds: float = 0.0
    """On the scale of `FairQueue._level`."""
    queue: "deque[_Request]" = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """One that waits. `admitted`: False where it has waited long enough."""

    since: float
    admitted: "asyncio.Future[bool]"


class FairQueue:
    """Admits up to `limit` requests at a time. Used by one event loop alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken = 0
        self._tenants: dict[str, _Tenant] = {}
        """Those that asked lately, and those that hold or want something. The one that asked last is last."""
        self._waiting: dict[str, _Tenant] = {}
        self._level = 0.0
        """For how long the tenant that was admitted last had been served when it was."""

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """Wait to be admitted, however long it takes, and leave at the end."""
        await self.admit(tenant)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self.leave(tenant, loop.time() - began)

    async def admit(self, tenant: str, wait_seconds: float | None = None) -> bool:
        """Whether the request was admitted in time. If so, it has to `leave`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        request = _Request(now, loop.create_future())
        asking = self._asking(tenant, now)
        asking.queue.append(request)
        self._waiting[tenant] = asking
        self._go_on()
        if request.admitted.done():
            return True
        give_up = None
        if wait_seconds is not None:
            give_up = loop.call_at(now + wait_seconds, self._give_up, request)
        try:
            return await request.admitted
        except asyncio.CancelledError:
            if request.admitted.done() and not request.admitted.cancelled() and request.admitted.result():
                self.leave(tenant, 0.0)
            raise
        finally:
            if give_up is not None:
                give_up.cancel()
            with suppress(ValueError):  # it was admitted
                asking.queue.remove(request)

    def come_back(self, tenant: str) -> None:
        """A request that left, only because it waited for something, goes on. It is never kept waiting here:
        what has begun is finished.
        """
        self._asking(tenant, asyncio.get_running_loop().time()).held += 1
        self.taken += 1

    def leave(self, tenant: str, seconds: float) -> None:
        """A request that was admitted has ended or waits for something, and was served for so long."""
        leaving = self._tenants[tenant]
        leaving.held -= 1
        leaving.served_seconds += seconds
        self.taken -= 1
        self._go_on()

    def share(self) -> int:
        """So many requests of one tenant are admitted at the same time."""
        return max(min(1, self.limit), self.limit // max(1, len(self._tenants)))

    def refusal(self, tenant: str, otherwise: str) -> SpeakerRegistryError:
        """What to raise for a request that was not admitted in time: `RateLimited` where it waited for others
        of its own tenant, else `Unavailable`, which says `otherwise`.
        """
        asking, share = self._tenants.get(tenant), self.share()
        if asking is None or self.alone(tenant) or asking.held < share:
            return Unavailable(otherwise, retry_after_seconds=RETRY_SECONDS)
        return RateLimited(
            f"This namespace has {asking.held} such requests under way here; its share while others ask is "
            f"{share}. Ask again in a moment.",
            retry_after_seconds=RETRY_SECONDS,
        )

    def alone(self, tenant: str) -> bool:
        """Whether no other tenant has asked lately."""
        return self._tenants.keys() <= {tenant}

    def waiting(self, tenant: str) -> int:
        """How many of its requests wait."""
        asking = self._tenants.get(tenant)
        return len(asking.queue) if asking is not None else 0

    def waits_seconds(self, tenant: str) -> float:
        """For how long the first request in the tenant's queue has waited."""
        asking = self._tenants.get(tenant)
        if asking is None or not asking.queue:
            return 0.0
        return asyncio.get_running_loop().time() - asking.queue[0].since

    def _asking(self, name: str, now: float) -> _Tenant:
        tenant = self._tenants.pop(name, None) or _Tenant()
        tenant.asked_at = now
        self._tenants[name] = tenant
        self._forget(now)
        return tenant

    def _forget(self, now: float) -> None:
        while True:
            name, oldest = next(iter(self._tenants.items()))
            if now - oldest.asked_at <= ABOUT_SECONDS:
                return
            del self._tenants[name]
            if oldest.held or oldest.queue:
                oldest.asked_at = now
                self._tenants[name] = oldest

    def _go_on(self) -> None:
        while self.taken < self.limit and (name := self._next()) is not None:
            tenant = self._waiting[name]
            request = tenant.queue.popleft()
            if request.admitted.done():
                continue
            self._level = tenant.served_seconds = max(self._level, tenant.served_seconds)
            tenant.held += 1
            self.taken += 1
            request.admitted.set_result(True)

    def _next(self) -> str | None:
        """The tenant whose turn it is; None if those that wait have their share."""
        self._waiting = {name: tenant for name, tenant in self._waiting.items() if tenant.queue}
        share = self.share()
        free = [name for name, tenant in self._waiting.items() if tenant.held < share]
        return min(free, key=lambda name: self._waiting[name].served_seconds, default=None)

    def _give_up(self, request: _Request) -> None:
        if not request.admitted.done():
            request.admitted.set_result(False)
