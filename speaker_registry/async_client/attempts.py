"""Requests that a task can give up without harm to the connections that other tasks share.

httpx loses a connection of its pool if a task is canceled just after the pool has made or assigned one, or
while it takes one back. When all are lost, every later request fails. A cancel scope of anyio, on which httpx
is built, does no harm as soon as the connection is in use.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

_MAX_REQUESTS = 100
"""As many requests at once as httpx opens connections by default. Further ones wait here and not for httpx,
which loses a connection that becomes free just when a request stops waiting for it.
"""
_CLOSING_SECONDS = 1.0
"""Maximum time to wait until the connection of a request that was given up is closed."""
_Answer = TypeVar("_Answer")
Trace = Callable[[str, Any], Awaitable[None]]
"""The extension `trace` of a request. httpx calls it with the name of each event of the request."""


class Attempts:
    """Executes the requests of one client. One that is given up before it has a connection ends by itself.

    Args:
        traced: The requests go through a pool of httpx, which traces them. Other transports are canceled at
            once.
    """

    def __init__(self, *, traced: bool) -> None:
        self._traced = traced
        self._given_up: set[asyncio.Task[Any]] = set()
        self._places = asyncio.Semaphore(_MAX_REQUESTS)

    async def answer(self, send: Callable[[Trace], Awaitable[_Answer]], seconds: float) -> _Answer:
        """Return what `send` returns. It must send one request, with the trace that it is called with.

        Raises:
            TimeoutError: There is no answer after `seconds`.
        """
        until = asyncio.get_running_loop().time() + seconds
        async with asyncio.timeout_at(until):
            await self._places.acquire()
        attempt = _Attempt(uses_connection=not self._traced)
        task = asyncio.create_task(attempt.execute(send))
        task.add_done_callback(_take_error)
        task.add_done_callback(lambda _: self._places.release())
        try:
            await asyncio.wait([task], timeout=until - asyncio.get_running_loop().time())
        finally:
            if not task.done():
                await self._give_up(task, attempt)
        if not task.done():
            raise TimeoutError
        return task.result()

    async def _give_up(self, task: "asyncio.Task[Any]", attempt: "_Attempt") -> None:
        self._given_up.add(task)
        task.add_done_callback(self._given_up.discard)
        attempt.give_up()
        if attempt.is_canceled:
            await asyncio.wait([task], timeout=_CLOSING_SECONDS)

    async def close(self) -> None:
        """End the requests that were given up. The connections are not usable afterwards."""
        for task in self._given_up:
            task.cancel()
        await asyncio.gather(*self._given_up, return_exceptions=True)


class _Attempt:
    def __init__(self, *, uses_connection: bool) -> None:
        self._scope = anyio.CancelScope()
        self._uses_connection = uses_connection
        self._is_given_up = False

    @property
    def is_canceled(self) -> bool:
        return self._scope.cancel_called

    def give_up(self) -> None:
        self._is_given_up = True
        self._cancel_if_harmless()

    async def execute(self, send: Callable[[Trace], Awaitable[_Answer]]) -> _Answer:
        with self._scope:
            return await send(self._trace)
        raise TimeoutError

    async def _trace(self, event: str, _: Any) -> None:
        self._uses_connection |= event.endswith(".send_request_headers.started")
        self._cancel_if_harmless()

    def _cancel_if_harmless(self) -> None:
        if self._uses_connection and self._is_given_up:
            self._scope.cancel()


def _take_error(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from logging an error that nobody waits for any more."""
    if not task.cancelled():
        task.exception()
