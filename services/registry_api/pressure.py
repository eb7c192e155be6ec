"""How many requests are at work at the same time: what comes on top is refused at once. Else everybody would
wait for everybody, and whoever asks gives up before the answer is there.

At work is a request from its head until its answer begins, but not while it waits: for the rest of its body,
for a change, for its turn to decode. Pure ASGI.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.problems import render
from services.registry_api.routing import WATCHING
from speaker_registry.errors import Unavailable


class Pressure:
    """Refuses what goes beyond `max_active`. One per process.

    Not who watches us: taken for dead, others would get our load as well.
    """

    def __init__(self, app: ASGIApp, *, max_active: int) -> None:
        self._app = app
        self._max_active = max_active
        self.active = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in WATCHING:
            return await self._app(scope, receive, send)
        if self.active >= self._max_active:
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

    def _refusal(self) -> Unavailable:
        return Unavailable(
            f"{self._max_active} requests are at work here, and no more are begun. Ask again in a moment.",
            retry_after_seconds=1,
        )


class _Turn:
    """One request's place among those at work."""

    def __init__(self, pressure: Pressure) -> None:
        self._pressure = pressure
        self._waits = 0
        self._ended = False
        pressure.active += 1

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
            self._pressure.active += change


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
