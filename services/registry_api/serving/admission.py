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
from services.registry_api.protocol.routing import WATCHING
from services.registry_api.serving.fair_queue import FairQueue
from speaker_registry.errors import SpeakerRegistryError

PATIENCE_SECONDS = 1.0
"""A burst is over in that time."""
CROWDED_PATIENCE_SECONDS = 0.005
"""More would only make refusals late: as many would wait as before, each for longer."""
REFUSAL_INTERVAL_SECONDS = 0.01
"""Between two refusals of one tenant while others ask, up to the patience of a burst. Callers that ask again
at once, whatever they are told, would otherwise keep the event loop busy with refusals.
"""
LONG_WAIT_SECONDS = 0.2
CALM_SECONDS = 0.5
"""When nobody has waited long for that time, it was a burst."""
LATE_SECONDS = 0.01
"""For the event loop. What it has to refuse is late as well then."""
FEWEST = 2
"""So many may always be at work."""
_NARROWED, _WIDENED = 0.1, 0.01
"""Places that a late refusal takes, and that whatever is in time gives back: at equilibrium one in ten is
late.
"""
_CROWDS = 10_000
"""Tenants whose crowds are remembered."""


class Pressure:
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
        self.places = Places(max_active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHING:
            return await self._app(scope, receive, send)
        tenant = self._tenant_of(scope)
        if not await self.places.take(tenant):
            return await render(Request(scope), self.places.refusal(tenant))(scope, receive, send)
        turn = _Turn(self.places.queue, tenant)

        async def receive_waiting() -> Message:
            with turn.waiting():
                return await receive()

        async def send_and_end(message: Message) -> None:
            turn.end()
            await send(message)

        before = _turn.set(turn)
        try:
            return await self._app(scope, receive_waiting, send_and_end)
        finally:
            turn.end()
            _turn.reset(before)


class Places:
    """For those at work: how many there are, and how long a request waits for one."""

    def __init__(self, most: int) -> None:
        self.queue = FairQueue(most)
        self._most = most
        self._limit = float(most)
        self._crowds: LRUCache[str, _Crowd] = LRUCache(_CROWDS)

    async def take(self, tenant: str) -> bool:
        """Whether there is a place in time; it is taken then."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        patience = self._patience_seconds(tenant, now)
        if await self.queue.admit(tenant, patience):
            self._limit_to(self._limit + _WIDENED)
            return True
        self._note_crowd(tenant, loop.time())
        late = loop.time() - (now + patience) > LATE_SECONDS
        self._limit_to(self._limit - _NARROWED if late else self._limit + _WIDENED)
        return False

    def refusal(self, tenant: str) -> SpeakerRegistryError:
        """What is said to a request that got none."""
        at_work = f"{self.queue.limit} requests are at work here, and no more are begun."
        return self.queue.refusal(tenant, f"{at_work} Ask again in a moment.")

    def _limit_to(self, limit: float) -> None:
        self._limit = min(max(limit, FEWEST), self._most)
        self.queue.limit = int(self._limit)

    def _patience_seconds(self, tenant: str, now: float) -> float:
        if self.queue.waits_seconds(tenant) > LONG_WAIT_SECONDS:
            self._note_crowd(tenant, now)
        crowd = self._crowds.get(tenant)
        if crowd is None or not crowd.lasts(now):
            return PATIENCE_SECONDS
        if self.queue.alone(tenant):
            return CROWDED_PATIENCE_SECONDS
        crowd.refuses_at = max(now, crowd.refuses_at + REFUSAL_INTERVAL_SECONDS)
        crowd.refuses_at = min(crowd.refuses_at, now + PATIENCE_SECONDS)
        return max(crowd.refuses_at - now, CROWDED_PATIENCE_SECONDS)

    def _note_crowd(self, tenant: str, now: float) -> None:
        self._crowds.setdefault(tenant, _Crowd(now, now)).note(now)


@dataclass(slots=True)
class _Crowd:
    """Requests of one tenant that wait long."""

    since: float
    at: float
    """When there was one, first and last, without calm between."""
    refuses_at: float = float("-inf")
    """When the last of those that wait is to be refused."""

    def note(self, now: float) -> None:
        if now - self.at > CALM_SECONDS:
            self.since = now
        self.at = now

    def lasts(self, now: float) -> bool:
        """For longer than a burst."""
        return now - self.at <= CALM_SECONDS and now - self.since > PATIENCE_SECONDS


class _Turn:
    """One request's place among those at work, which it has already."""

    def __init__(self, queue: FairQueue, tenant: str) -> None:
        self.tenant = tenant
        self._queue = queue
        self._began = asyncio.get_running_loop().time()
        self._waits = 0
        self._ended = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile the place is somebody else's. It is taken again in any case: what has begun is
        finished.
        """
        self._leave()
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self._come_back()

    def end(self) -> None:
        self._leave()
        self._ended = True

    def _leave(self) -> None:
        if not self._ended and not self._waits:
            self._queue.leave(self.tenant, asyncio.get_running_loop().time() - self._began)

    def _come_back(self) -> None:
        if not self._ended and not self._waits:
            self._began = asyncio.get_running_loop().time()
            self._queue.come_back(self.tenant)


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


def tenant_of_request() -> str:
    """Whose request is at work; the same for all that is done for no request."""
    turn = _turn.get()
    return turn.tenant if turn is not None else ""


@contextmanager
def waiting() -> Iterator[None]:
    """Around what a request's task does not work at but waits for."""
    turn = _turn.get()
    if turn is None:
        yield
    else:
        with turn.waiting():
            yield
