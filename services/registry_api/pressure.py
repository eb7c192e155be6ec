"""How many requests are at work at the same time: what comes on top waits for its turn, and where too many
wait for too long, is refused soon. Else everybody would wait for everybody, and whoever asks gives up before
the answer is there. (After "controlled delay", as in K. Nichols and V. Jacobson: Controlling Queue Delay, ACM
Queue 10(5), 2012.)

At work is a request from its head until its answer begins, but not while it waits: for the rest of its body,
for a change, for a decoder or the bucket (`slots`). Few at a time, for their threads and the event loop take
the interpreter from each other; how few shows in how late the event loop is. Pure ASGI.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.problems import render
from services.registry_api.routing import WATCHING
from speaker_registry.errors import Unavailable

PATIENCE_SECONDS = 1.0
"""A burst is over in that time."""
CROWDED_PATIENCE_SECONDS = 0.005
"""More would only make refusals late: as many would wait as before, each for longer."""
_QUEUE = 16
"""Requests that wait, at most, for each that may be at work."""
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


class Pressure:
    """Refuses what goes beyond `max_active` for longer than a burst. One per process.

    Not who watches us: taken for dead, others would get our load as well.
    """

    def __init__(self, app: ASGIApp, *, max_active: int) -> None:
        self._app = app
        self.places = Places(max_active)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHING:
            return await self._app(scope, receive, send)
        if not await self.places.take():
            return await render(Request(scope), self._refusal())(scope, receive, send)
        turn = _Turn(self.places)

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

    def _refusal(self) -> Unavailable:
        return Unavailable(
            f"{self.places.limit} requests are at work here, and no more are begun. Ask again in a moment.",
            retry_after_seconds=1,
        )


class Places:
    """For those at work, and the queue of those who wait for one."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._queue: deque[_Waiting] = deque()
        self._crowded_since = self._crowded_at = float("-inf")
        """When there was somebody who waited long, first and last, without calm between."""
        self.taken = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    async def take(self) -> bool:
        """Whether there is a place in time; it is taken then."""
        if self.taken < self.limit:
            self._widen()
            self.taken += 1
            return True
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._queue and now - self._queue[0].since > LONG_WAIT_SECONDS:
            self._note_crowd(now)
        if len(self._queue) >= _QUEUE * self._most:
            return False
        waiting = _Waiting(now, loop.create_future())
        self._queue.append(waiting)
        until = now + (CROWDED_PATIENCE_SECONDS if self._crowded(now) else PATIENCE_SECONDS)
        patience = loop.call_at(until, self._refuse, waiting, until)
        try:
            return await waiting.turn
        except asyncio.CancelledError:
            if waiting.has_place:
                self.change(-1)
            raise
        finally:
            patience.cancel()

    def change(self, change: int) -> None:
        """A request goes to work, or does not any more: then it is somebody else's turn."""
        self.taken += change
        while self._queue and self.taken < self.limit:
            waiting = self._queue.popleft()
            if not waiting.turn.done():
                self._widen()
                self.taken += 1
                waiting.turn.set_result(True)

    def _refuse(self, waiting: "_Waiting", due: float) -> None:
        if waiting.turn.done():
            return
        now = asyncio.get_running_loop().time()
        self._note_crowd(now)
        if now - due > LATE_SECONDS:
            self._limit = max(self._limit - _NARROWED, min(FEWEST, self._most))
        else:
            self._widen()
        self._queue.remove(waiting)
        waiting.turn.set_result(False)

    def _widen(self) -> None:
        self._limit = min(self._limit + _WIDENED, self._most)

    def _note_crowd(self, now: float) -> None:
        if now - self._crowded_at > CALM_SECONDS:
            self._crowded_since = now
        self._crowded_at = now

    def _crowded(self, now: float) -> bool:
        """For longer than a burst."""
        return now - self._crowded_at <= CALM_SECONDS and now - self._crowded_since > PATIENCE_SECONDS


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
    since: float
    turn: "asyncio.Future[bool]"
    """True gives a place."""

    @property
    def has_place(self) -> bool:
        return self.turn.done() and not self.turn.cancelled() and self.turn.result()


class _Turn:
    """One request's place among those at work, which it has already."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._waits = 0
        self._ended = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Meanwhile the place is somebody else's. It is taken again in any case: what has begun is
        finished.
        """
        self._count(-1)
        self._waits += 1
        try:
            yield
        finally:
            self._waits -= 1
            self._count(+1)

    def end(self) -> None:
        self._count(-1)
        self._ended = True

    def _count(self, change: int) -> None:
        if not self._ended and not self._waits:
            self._places.change(change)


_turn: ContextVar[_Turn | None] = ContextVar("turn", default=None)


@contextmanager
def waiting() -> Iterator[None]:
    """Around what a request's task does not work at but waits for."""
    turn = _turn.get()
    if turn is None:
        yield
    else:
        with turn.waiting():
            yield
