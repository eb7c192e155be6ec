"""A fair queue, which decides which request runs next if only a limited number may run at once. This module
knows no HTTP.

Each tenant has a queue of its own. The next request comes from the tenant that has been served for the
shortest time. A tenant that sent no requests for a while starts level with the other tenants, and gains
nothing from the pause. (Start-time fair queueing: P. Goyal, H. Vin and H. Cheng, IEEE/ACM Transactions on
Networking 5(5), 1997.)

A running request is never interrupted. So while several tenants are active, each may only have its share of
requests running, even if that leaves capacity unused, so that the next request of another tenant can run at
once.

While several tenants are active, each is granted only one request in each turn of the event loop. Requests
that end within one turn, as most refusals do, would otherwise all be answered in the same turn, and a request
of another tenant, which takes several turns, would wait for all of them each time.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from speaker_registry.errors import RateLimited, SpeakerRegistryError, Unavailable

RETRY_SECONDS = 1
ACTIVE_SECONDS = 10.0
"""A tenant is active, and has a share of the limit, for this long after its latest request."""


@dataclass(slots=True)
class _Tenant:
    last_request_at: float = 0.0
    running: int = 0
    """Number of the tenant's requests that have acquired and not released yet."""
    resumed: int = 0
    """Number of these that were resumed. A request that ends or pauses is first counted as a resumed one."""
    served_seconds: float = 0.0
    """Time that the tenant's requests ran, on the scale of `FairQueue._virtual_time`."""
    had_turn: bool = False
    """True if the tenant was granted a request in this turn of the event loop and must wait for the next."""
    queue: "deque[_Waiter]" = field(default_factory=deque)


@dataclass(frozen=True, slots=True, eq=False)
class _Waiter:
    """A request in a tenant's queue."""

    since: float
    granted: "asyncio.Future[bool]"
    """True once the request may run, False once it has waited too long."""


class FairQueue:
    """Lets up to `limit` requests run at once. Must only be used from one event loop."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.running = 0
        self._tenants: dict[str, _Tenant] = {}
        """Tenants that sent a request lately, or have requests running or waiting. The latest come last."""
        self._waiting: dict[str, _Tenant] = {}
        self._virtual_time = 0.0
        """The `served_seconds` at which the latest request was granted."""

    @asynccontextmanager
    async def slot(self, tenant: str, wait_seconds: float | None = None) -> AsyncIterator[None]:
        """Wait for permission to run, and release it when the context ends.

        The context begins without permission after `wait_seconds`. Without them, it waits however long that
        takes.
        """
        granted = await self.acquire(tenant, wait_seconds)
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            if granted:
                self.release(tenant, loop.time() - began)

    async def acquire(self, tenant: str, wait_seconds: float | None = None) -> bool:
        """Wait for permission to run, and return whether it was granted within `wait_seconds`.

        If it was, the caller must `release` in the end. Without `wait_seconds` there is no time limit.
        """
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
            with suppress(ValueError):  # the request was granted, so it left the queue
                state.queue.remove(waiter)

    def resume(self, tenant: str) -> None:
        """Let a request run again after it released only because it had to wait for something else.

        It never waits here, even beyond the limit: a request that has begun is finished.
        """
        state = self._tenant(tenant, asyncio.get_running_loop().time())
        state.running += 1
        state.resumed += 1
        self.running += 1

    def release(self, tenant: str, seconds: float) -> None:
        """Record that a request has ended after running for `seconds`."""
        self._stop(tenant, seconds)
        self._dispatch()

    def pause(self, tenant: str, seconds: float) -> None:
        """Record that a request, after running for `seconds`, may have to wait for something else.

        Another one is granted in the next turn of the event loop, unless this one has resumed by then. If the
        request need not wait, because its body has arrived already, as for most requests, no other takes its
        place.
        """
        self._stop(tenant, seconds)
        asyncio.get_running_loop().call_soon(self._dispatch)

    def _stop(self, tenant: str, seconds: float) -> None:
        state = self._tenants[tenant]
        state.running -= 1
        state.resumed = max(0, state.resumed - 1)
        state.served_seconds += seconds
        self.running -= 1

    def share(self) -> int:
        """Return how many requests of one tenant may run at once: an equal part of the limit, at least 1."""
        return max(min(1, self.limit), self.limit // max(1, len(self._tenants)))

    def refusal(self, tenant: str, otherwise: str) -> SpeakerRegistryError:
        """Return the error for a request that was not granted in time.

        It is `RateLimited` if the request waited for others of its own tenant, and else `Unavailable` with
        the message `otherwise`.
        """
        state, share = self._tenants.get(tenant), self.share()
        if state is None or self.is_only_tenant(tenant) or state.running < share:
            return Unavailable(otherwise, retry_after_seconds=RETRY_SECONDS)
        return RateLimited(
            f"This namespace has {state.running} such requests running on this server; its share is {share} "
            "while other namespaces send requests. Try again in a moment.",
            retry_after_seconds=RETRY_SECONDS,
        )

    def is_only_tenant(self, tenant: str) -> bool:
        """Return whether no other tenant has sent a request lately."""
        return self._tenants.keys() <= {tenant}

    def waiting(self, tenant: str) -> int:
        """Return how many requests of the tenant wait."""
        state = self._tenants.get(tenant)
        return len(state.queue) if state is not None else 0

    def longest_wait_seconds(self, tenant: str) -> float:
        """Return how long the first request in the tenant's queue has waited; 0 if none waits."""
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
        while self._has_room() and (name := self._next_tenant()) is not None:
            tenant = self._waiting[name]
            waiter = tenant.queue.popleft()
            if waiter.granted.done():
                continue
            self._virtual_time = tenant.served_seconds = max(self._virtual_time, tenant.served_seconds)
            tenant.running += 1
            self.running += 1
            waiter.granted.set_result(True)
            if not self.is_only_tenant(name):
                tenant.had_turn = True
                asyncio.get_running_loop().call_soon(self._begin_turn, tenant)

    def _begin_turn(self, tenant: _Tenant) -> None:
        tenant.had_turn = False
        self._dispatch()

    def _has_room(self) -> bool:
        """Return whether one more request may run.

        Resumed requests beyond their tenant's share take nothing from the shares of other tenants.
        """
        if self.running < self.limit:
            return True
        share = self.share()
        beyond = (min(one.resumed, max(0, one.running - share)) for one in self._tenants.values())
        return self.running - sum(beyond) < self.limit

    def _next_tenant(self) -> str | None:
        """Return the tenant to serve next. None if every tenant with waiting requests has its share, or has
        had its turn.
        """
        self._waiting = {name: tenant for name, tenant in self._waiting.items() if tenant.queue}
        share = self.share()
        free = [name for name, one in self._waiting.items() if one.running < share and not one.had_turn]
        return min(free, key=lambda name: self._waiting[name].served_seconds, default=None)

    def _time_out(self, waiter: _Waiter) -> None:
        if not waiter.granted.done():
            waiter.granted.set_result(False)
