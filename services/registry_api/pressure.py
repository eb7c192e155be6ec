"""How many requests are at work at the same time: what comes on top waits for its turn, and where there is
always somebody waiting, is refused soon. Else everybody would wait for everybody, and whoever asks gives up
before the answer is there. (After "controlled delay", as in K. Nichols and V. Jacobson: Controlling Queue
Delay, ACM Queue 10(5), 2012.)

At work is a request from its head until its answer begins, but not while it waits: for the rest of its body,
for a change, for its turn to decode. Few at a time, for their threads and the event loop take the interpreter
from each other. Pure ASGI.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.problems import render
from services.registry_api.routing import WATCHING
from speaker_registry.errors import Unavailable

PATIENCE_SECONDS = 1.0
"""A burst is over in that time."""
BUSY_SECONDS = 1.0
"""What goes on for longer is no burst."""
BUSY_PATIENCE_SECONDS = 0.02
"""More would only make refusals late: as many would wait as before, each for longer."""
_QUEUE = 16
"""Requests that wait, at most, for each that may be at work."""


class Pressure:
    """Refuses what goes beyond `max_active` for longer than a burst. One per process.

    Not who watches us: taken for dead, others would get our load as well.
    """

    def __init__(self, app: ASGIApp, *, max_active: int) -> None:
        self._app = app
        self._max_active = max_active
        self._queue: deque[asyncio.Future[bool]] = deque()
        """Those who wait for a place: True gives them one."""
        self._none_waited_at = float("-inf")
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHING:
            return await self._app(scope, receive, send)
        if not await self._place():
            return await render(Request(scope), self._refusal())(scope, receive, send)
        turn = _Turn(self)

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

    async def _place(self) -> bool:
        """Whether there is one in time; it is taken then."""
        if self.active < self._max_active:
            self.active += 1
            return True
        if len(self._queue) >= _QUEUE * self._max_active:
            return False
        loop = asyncio.get_running_loop()
        if not self._queue:
            self._none_waited_at = loop.time()
        busy = loop.time() - self._none_waited_at > BUSY_SECONDS
        turn: asyncio.Future[bool] = loop.create_future()
        self._queue.append(turn)
        seconds = BUSY_PATIENCE_SECONDS if busy else PATIENCE_SECONDS
        patience = loop.call_later(seconds, self._end_patience, turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.change(-1)
            raise
        finally:
            patience.cancel()

    def _end_patience(self, turn: "asyncio.Future[bool]") -> None:
        if not turn.done():
            self._queue.remove(turn)
            turn.set_result(False)

    def change(self, change: int) -> None:
        """A request goes to work, or does not any more: then it is somebody else's turn."""
        self.active += change
        while self._queue and self.active < self._max_active:
            turn = self._queue.popleft()
            if not turn.done():
                self.active += 1
                turn.set_result(True)

    def _refusal(self) -> Unavailable:
        return Unavailable(
            f"{self._max_active} requests are at work here, and no more are begun. Ask again in a moment.",
            retry_after_seconds=1,
        )


class _Turn:
    """One request's place among those at work, which it has already."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure
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
            self._pressure.change(change)


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
