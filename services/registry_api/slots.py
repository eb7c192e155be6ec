"""What keeps a request waiting for somebody else: a decoder, the bucket, a look at the keys."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from anyio import NoEventLoopError, from_thread

from services.registry_api.pressure import waiting
from speaker_registry.errors import Unavailable

_QUEUE = 8
"""Requests that wait, at most, for each that has a slot."""


class Slots:
    """As many requests at a time as that somebody bears. They are not at work meanwhile: however slow he is,
    requests that do not need him go on. A few others wait here, without a thread each: threads are few, and
    all other requests need them too.

    Args:
        many: at the same time. wait_seconds: for a slot. refusal: what is said to whom there is none for.
    """

    def __init__(self, many: int, *, wait_seconds: float, refusal: str) -> None:
        self.many = many
        self._slots = asyncio.Semaphore(many)
        self._wait_seconds = wait_seconds
        self._refusal = refusal
        self._waiting = 0
        self._held: ContextVar[bool] = ContextVar("held", default=False)
        """Whether this request has a slot already."""

    @asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """Raises `Unavailable` if none came free in time, or too many wait for one."""
        with waiting():
            await self._acquire()
            self._held.set(True)
            try:
                yield
            finally:
                self._held.set(False)
                self._slots.release()

    @contextmanager
    def one_in_thread(self) -> Iterator[None]:
        """The same for what a request does in a worker thread. Does nothing in threads of no request, and
        where the request has a slot already.

        The request counts as at work while it waits: its thread waits with it, and threads are few.
        """
        if self._held.get():
            yield
            return
        try:
            from_thread.run(self._acquire)
        except NoEventLoopError:
            yield
            return
        try:
            with _meanwhile():
                yield
        finally:
            from_thread.run_sync(self._slots.release)

    async def _acquire(self) -> None:
        if self._waiting >= _QUEUE * self.many:
            raise self._unavailable()
        self._waiting += 1
        try:
            await asyncio.wait_for(self._slots.acquire(), self._wait_seconds)
        except TimeoutError:
            raise self._unavailable() from None
        finally:
            self._waiting -= 1

    def _unavailable(self) -> Unavailable:
        return Unavailable(self._refusal, retry_after_seconds=1)


@contextmanager
def _meanwhile() -> Iterator[None]:
    """In a worker thread: the request does not count as at work."""
    waits = waiting()
    from_thread.run_sync(waits.__enter__)
    try:
        yield
    finally:
        from_thread.run_sync(waits.__exit__, None, None, None)
