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
ACTIVE_SECONDS = 10.0
"""A tenant that has asked within this time has a share."""


@dataclass(slots=True)
class _Tenant:
    last_request_at: float = 0.0
    running: int = 0
    """Requests that were admitted and have not left."""
    served_seconds: float = 0.0
    """On the scale of `FairQueue._virtual_time`."""
    queue: "deque[_Waiter]" = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """One that waits. `granted`: False where it has waited long enough."""

    since: float
    granted: "asyncio.Future[bool]"


class FairQueue:
    """Admits up to `limit` requests at a time. Used by one event loop alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self._tenants: dict[str, _Tenant] = {}
        """Those that asked lately, and those that hold or want something. The one that asked last is last."""
        self._waiting: dict[str, _Tenant] = {}
        self._virtual_time = 0.0
        """For how long the tenant that was admitted last had been served when it was."""

    @asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Wait to be admitted, however long it takes, and leave at the end."""
        await self.acquire(tenant)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self.release(tenant, loop.time() - began)

    async def acquire(self, tenant: str, wait_seconds: float | None = None) -> bool:
        """Whether the request was admitted in time. If so, it has to `release`."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        waiter = _Waiter(now, loop.create_future())
        state = self._tenant(tenant, now)
        state.queue.append(waiter)
        self._waiting[tenant] = state
        self._dispatch()
        if waiter.granted.done():
            return True
        timer = None
        if wait_seconds is not None:
            timer = loop.call_at(now + wait_seconds, self._time_out, waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            if waiter.granted.done() and not waiter.granted.cancelled() and waiter.granted.result():
                self.release(tenant, 0.0)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            with suppress(ValueError):  # it was admitted
                state.queue.remove(waiter)

    def resume(self, tenant: str) -> None:
        """A request that left, only because it waited for something, goes on. It is never kept waiting here:
        what has begun is finished.
        """
        self._tenant(tenant, asyncio.get_running_loop().time()).running += 1
        self.running += 1

    def release(self, tenant: str, seconds: float) -> None:
        """A request that was admitted has ended or waits for something, and was served for so long."""
        state = self._tenants[tenant]
        state.running -= 1
        state.served_seconds += seconds
        self.running -= 1
        self._dispatch()

    def share(self) -> int:
        """So many requests of one tenant are admitted at the same time."""
        return max(min(1, self.limit), self.limit // max(1, len(self._tenants)))

    def refusal(self, tenant: str, otherwise: str) -> SpeakerRegistryError:
        """What to raise for a request that was not admitted in time: `RateLimited` where it waited for others
        of its own tenant, else `Unavailable`, which says `otherwise`.
        """
        state, share = self._tenants.get(tenant), self.share()
        if state is None or self.is_only_tenant(tenant) or state.running < share:
            return Unavailable(otherwise, retry_after_seconds=RETRY_SECONDS)
        return RateLimited(
            f"This namespace has {state.running} such requests under way here; its share while others ask is "
            f"{share}. Ask again in a moment.",
            retry_after_seconds=RETRY_SECONDS,
        )

    def is_only_tenant(self, tenant: str) -> bool:
        """Whether no other tenant has asked lately."""
        return self._tenants.keys() <= {tenant}

    def waiting(self, tenant: str) -> int:
        """How many of its requests wait."""
        state = self._tenants.get(tenant)
        return len(state.queue) if state is not None else 0

    def longest_wait_seconds(self, tenant: str) -> float:
        """For how long the first request in the tenant's queue has waited."""
        state = self._tenants.get(tenant)
        if state is None or not state.queue:
            return 0.0
        return asyncio.get_running_loop().time() - state.queue[0].since

    def _tenant(self, name: str, now: float) -> _Tenant:
        tenant = self._tenants.pop(name, None) or _Tenant()
        tenant.last_request_at = now
        self._tenants[name] = tenant
        self._forget_inactive(now)
        return tenant

    def _forget_inactive(self, now: float) -> None:
        while True:
            name, oldest = next(iter(self._tenants.items()))
            if now - oldest.last_request_at <= ACTIVE_SECONDS:
                return
            del self._tenants[name]
            if oldest.running or oldest.queue:
                oldest.last_request_at = now
                self._tenants[name] = oldest

    def _dispatch(self) -> None:
        while self.running < self.limit and (name := self._next_tenant()) is not None:
            tenant = self._waiting[name]
            waiter = tenant.queue.popleft()
            if waiter.granted.done():
                continue
            self._virtual_time = tenant.served_seconds = max(self._virtual_time, tenant.served_seconds)
            tenant.running += 1
            self.running += 1
            waiter.granted.set_result(True)

    def _next_tenant(self) -> str | None:
        """The tenant whose turn it is; None if those that wait have their share."""
        self._waiting = {name: tenant for name, tenant in self._waiting.items() if tenant.queue}
        share = self.share()
        free = [name for name, tenant in self._waiting.items() if tenant.running < share]
        return min(free, key=lambda name: self._waiting[name].served_seconds, default=None)

    def _time_out(self, waiter: _Waiter) -> None:
        if not waiter.granted.done():
            waiter.granted.set_result(False)
