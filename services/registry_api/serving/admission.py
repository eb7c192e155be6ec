"""How many requests are at work at the same time. What comes on top waits in the queue of its tenant, and
tenants take turns (`fair_queue`). Where too many of one tenant wait for too long, its requests are refused
soon: else they would all wait for each other, and callers give up before the answer is there. (After
FQ-CoDel, RFC 8290.)

At work is a request from its head until its answer begins, but not while it waits: for the rest of its body,
for a change, for a decoder or the bucket (`slots`). Few at a time, for their threads and the event loop take
the interpreter from each other; how few shows in how late the event loop is. Pure ASGI.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from cachetools import LRUCache
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.problems import render
from services.registry_api.protocol.routing import MONITORING_PATHS
from services.registry_api.serving.fair_queue import FairQueue
from speaker_registry.errors import SpeakerRegistryError

WAIT_LIMIT_SECONDS = 1.0
"""A burst is over in that time."""
OVERLOAD_WAIT_LIMIT_SECONDS = 0.005
"""More would only make refusals late: as many would wait as before, each for longer."""
REFUSAL_INTERVAL_SECONDS = 0.01
"""Between two refusals of one tenant while others ask, up to the patience of a burst. Callers that ask again
at once, whatever they are told, would otherwise keep the event loop busy with refusals.
"""
LONG_WAIT_SECONDS = 0.2
RECOVERY_SECONDS = 0.5
"""When nobody has waited long for that time, it was a burst."""
MAX_LOOP_LAG_SECONDS = 0.01
"""For the event loop. What it has to refuse is late as well then."""
MIN_ACTIVE = 2
"""So many may always be at work."""
_DECREASE, _INCREASE = 0.1, 0.01
"""Places that a late refusal takes, and that whatever is in time gives back: at equilibrium one in ten is
late.
"""
_MAX_OVERLOADS = 10_000
"""Tenants whose crowds are remembered."""


class LoadShedding:
    """Refuses what goes beyond `max_active` for longer than a burst. One per process.

    Not who watches us: taken for dead, others would get our load as well.

    Args:
        tenant_of: whose queue a request waits in, told from its head alone.
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
    """For those at work: how many there are, and how long a request waits for one."""

    def __init__(self, max_active: int) -> None:
        self.queue = FairQueue(max_active)
        self._max_active = max_active
        self._limit = float(max_active)
        self._overloads: LRUCache[str, _TenantOverload] = LRUCache(_MAX_OVERLOADS)

    async def acquire(self, tenant: str) -> bool:
        """Whether there is a place in time; it is taken then."""
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
        """What is said to a request that got none."""
        at_work = f"{self.queue.limit} requests are at work here, and no more are begun."
        return self.queue.refusal(tenant, f"{at_work} Ask again in a moment.")

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
    """Requests of one tenant that wait long."""

    since: float
    last_at: float
    """When there was one, first and last, without calm between."""
    refuses_at: float = float("-inf")
    """When the last of those that wait is to be refused."""

    def note_long_wait(self, now: float) -> None:
        if now - self.last_at > RECOVERY_SECONDS:
            self.since = now
        self.last_at = now

    def lasts(self, now: float) -> bool:
        """For longer than a burst."""
        return now - self.last_at <= RECOVERY_SECONDS and now - self.since > WAIT_LIMIT_SECONDS


class _AdmittedRequest:
    """One request's place among those at work, which it has already."""

    def __init__(self, queue: FairQueue, tenant: str) -> None:
        self.tenant = tenant
        self._queue = queue
        self._began = asyncio.get_running_loop().time()
        self._pauses = 0
        self._answered = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Meanwhile the place is somebody else's. It is taken again in any case: what has begun is
        finished.
        """
        self._release()
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._resume()

    def answer_begins(self) -> None:
        self._release()
        self._answered = True

    def _release(self) -> None:
        if not self._answered and not self._pauses:
            self._queue.release(self.tenant, asyncio.get_running_loop().time() - self._began)

    def _resume(self) -> None:
        if not self._answered and not self._pauses:
            self._began = asyncio.get_running_loop().time()
            self._queue.resume(self.tenant)


_current_request: ContextVar[_AdmittedRequest | None] = ContextVar("current_request", default=None)


def tenant_of_request() -> str:
    """Whose request is at work; the same for all that is done for no request."""
    current = _current_request.get()
    return current.tenant if current is not None else ""


@contextmanager
def pause_request() -> Iterator[None]:
    """Around what a request's task does not work at but waits for."""
    current = _current_request.get()
    if current is None:
        yield
    else:
        with current.paused():
            yield
