"""Admission control: how many requests are active at once, which ones wait, and which ones are refused.

Requests beyond the limit wait in the queue of their tenant, and tenants take turns (`fair_queue`). When too
many requests of one tenant wait for too long, its further requests are refused soon. Otherwise they would all
wait for each other, and callers would give up before their answers arrive. (After FQ-CoDel, RFC 8290.)

A request is active from its head until its answer begins, except while it waits for the rest of its body, for
a change, for a decoder or for the bucket (`slots`). Few requests are active at once, because their threads
and the event loop compete for the interpreter. The lag of the event loop determines the limit. This module is
pure ASGI.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from cachetools import LRUCache
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.routing import MONITORING_PATHS
from services.registry_api.protocol.signals import BUSY
from services.registry_api.serving.fair_queue import FairQueue
from speaker_registry.errors import SpeakerRegistryError

WAIT_LIMIT_SECONDS = 1.0
"""A request may wait this long to be admitted. A burst of requests is over within this time."""
OVERLOAD_WAIT_LIMIT_SECONDS = 0.005
"""A request of an overloaded tenant may wait this long. With a longer limit, just as many requests would
wait, but each for longer, so refusals would only come later.
"""
REFUSAL_INTERVAL_SECONDS = 0.01
"""Time between two refusals of one tenant while other tenants send requests; no refusal comes later than
after `WAIT_LIMIT_SECONDS`. Callers that ignore `Retry-After` would otherwise keep the event loop busy with
refusals.
"""
LONG_WAIT_SECONDS = 0.2
"""A request that waits longer than this is a sign of overload."""
RECOVERY_SECONDS = 0.5
"""The overload of a tenant ends when none of its requests has waited long for this time."""
MAX_LOOP_LAG_SECONDS = 0.01
"""The event loop may lag by this much. The lag is measured by how late a refusal comes."""
MIN_ACTIVE = 2
"""This many requests may be active at once, however late the event loop is."""
_DECREASE, _INCREASE = 0.1, 0.01
"""A late refusal lowers the limit of active requests by the first; a punctual refusal or an admission raises
it by the second. At equilibrium, one outcome in eleven is a late refusal.
"""
_MAX_OVERLOADS = 10_000
"""The overloads of this many tenants are remembered."""


class LoadShedding:
    """Middleware that refuses requests beyond `max_active` once they exceed it for longer than a burst.

    A process has one instance. Health checks and metrics are never refused: if a replica counted as dead, its
    load would move to the others.

    Args:
        tenant_of: returns the tenant in whose queue a request waits, from the request's head alone.
    """

    def __init__(
        self, app: ASGIApp, *, max_active: int, tenant_of: Callable[[Scope], str] = lambda _: ""
    ) -> None:
        self._app = app
        self._tenant_of = tenant_of
        self.admission = AdmissionControl(max_active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in MONITORING_PATHS:
            return await self._app(scope, receive, send)
        tenant = self._tenant_of(scope)
        if not await self.admission.acquire(tenant):
            scope[BUSY] = True
            return await render(Request(scope), self.admission.refusal(tenant))(scope, receive, send)
        current = _AdmittedRequest(self.admission.queue, tenant)

        async def receive_while_paused() -> Message:
            with current.paused():
                return await receive()

        async def send_answer(message: Message) -> None:
            current.answer_begins()
            await send(message)

        before = _current_request.set(current)
        try:
            return await self._app(scope, receive_while_paused, send_answer)
        finally:
            current.answer_begins()
            _current_request.reset(before)


class AdmissionControl:
    """Decides how many requests are active at once, and how long a request may wait to be admitted."""

    def __init__(self, max_active: int) -> None:
        self.queue = FairQueue(max_active)
        self._max_active = max_active
        self._limit = float(max_active)
        self._overloads: LRUCache[str, _TenantOverload] = LRUCache(_MAX_OVERLOADS)

    async def acquire(self, tenant: str) -> bool:
        """Wait to become active, and return whether that happened within the tenant's wait limit."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        wait_limit = self._wait_limit_seconds(tenant, now)
        if await self.queue.acquire(tenant, wait_limit):
            self._set_limit(self._limit + _INCREASE)
            return True
        self._note_long_wait(tenant, loop.time())
        lagging = loop.time() - (now + wait_limit) > MAX_LOOP_LAG_SECONDS
        self._set_limit(self._limit - _DECREASE if lagging else self._limit + _INCREASE)
        return False

    def refusal(self, tenant: str) -> SpeakerRegistryError:
        """Return the error for a request that was not admitted in time."""
        limit = self.queue.limit
        return self.queue.refusal(
            tenant,
            f"This server is busy with {limit} requests and starts no more. Try again in a moment.",
        )

    def _set_limit(self, limit: float) -> None:
        self._limit = min(max(limit, MIN_ACTIVE), self._max_active)
        self.queue.limit = int(self._limit)

    def _wait_limit_seconds(self, tenant: str, now: float) -> float:
        if self.queue.longest_wait_seconds(tenant) > LONG_WAIT_SECONDS:
            self._note_long_wait(tenant, now)
        overload = self._overloads.get(tenant)
        if overload is None or not overload.lasts(now):
            return WAIT_LIMIT_SECONDS
        if self.queue.is_only_tenant(tenant):
            return OVERLOAD_WAIT_LIMIT_SECONDS
        overload.refuses_at = max(now, overload.refuses_at + REFUSAL_INTERVAL_SECONDS)
        overload.refuses_at = min(overload.refuses_at, now + WAIT_LIMIT_SECONDS)
        return max(overload.refuses_at - now, OVERLOAD_WAIT_LIMIT_SECONDS)

    def _note_long_wait(self, tenant: str, now: float) -> None:
        self._overloads.setdefault(tenant, _TenantOverload(now, now)).note_long_wait(now)


@dataclass(slots=True)
class _TenantOverload:
    """A series of long waits of one tenant's requests. Times are those of the event loop."""

    since: float
    """Time at which the first long wait of the series was seen."""
    last_at: float
    """Time at which the latest long wait was seen. The series ends `RECOVERY_SECONDS` after it."""
    refuses_at: float = float("-inf")
    """Time at which the last of the tenant's waiting requests is to be refused."""

    def note_long_wait(self, now: float) -> None:
        if now - self.last_at > RECOVERY_SECONDS:
            self.since = now
        self.last_at = now

    def lasts(self, now: float) -> bool:
        """Return whether the series goes on and has lasted longer than a burst."""
        return now - self.last_at <= RECOVERY_SECONDS and now - self.since > WAIT_LIMIT_SECONDS


class _AdmittedRequest:
    """One request that was admitted. It is active until its answer begins, except while it is paused."""

    def __init__(self, queue: FairQueue, tenant: str) -> None:
        self.tenant = tenant
        self._queue = queue
        self._began = asyncio.get_running_loop().time()
        self._pauses = 0
        self._answered = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let another request be active meanwhile.

        Afterwards this request is active again at once, even beyond the limit: a request that has begun is
        finished.
        """
        if self._is_active():
            self._queue.pause(self.tenant, self._seconds())
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._resume()

    def answer_begins(self) -> None:
        if self._is_active():
            self._queue.release(self.tenant, self._seconds())
        self._answered = True

    def _is_active(self) -> bool:
        return not self._answered and not self._pauses

    def _seconds(self) -> float:
        return asyncio.get_running_loop().time() - self._began

    def _resume(self) -> None:
        if self._is_active():
            self._began = asyncio.get_running_loop().time()
            self._queue.resume(self.tenant)


_current_request: ContextVar[_AdmittedRequest | None] = ContextVar("current_request", default=None)


def tenant_of_request() -> str:
    """Return the tenant of the current request, or the empty string outside a request."""
    current = _current_request.get()
    return current.tenant if current is not None else ""


@contextmanager
def pause_request() -> Iterator[None]:
    """Do not count the current request as active while it waits. Does nothing outside a request."""
    current = _current_request.get()
    if current is None:
        yield
    else:
        with current.paused():
            yield
