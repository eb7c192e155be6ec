"""What keeps a request waiting for somebody else: a decoder, the bucket, a look at the keys."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from anyio import NoEventLoopError, from_thread

from services.registry_api.serving.admission import pause_request, tenant_of_request
from services.registry_api.serving.fair_queue import FairQueue

_MAX_WAITING_PER_SLOT = 8
"""Requests of one tenant that wait, at most, for each slot there is."""


class Slots:
    """Limits how many requests use a slow dependency at once. They hold no worker slot meanwhile, so a slow
    bucket or decoder cannot block requests that don't need it. A few others wait here, tenant by tenant and
    without a thread each: threads are few, and all other requests need them too.

    Args:
        count: at the same time. wait_seconds: for a slot. refusal: what a request is told that gets none
            while others of all tenants have them.
    """

    def __init__(self, count: int, *, wait_seconds: float, refusal: str) -> None:
        self.count = count
        self._queue = FairQueue(count)
        self._wait_seconds = wait_seconds
        self._refusal = refusal
        self._held: ContextVar[bool] = ContextVar("held", default=False)
        """Whether this request has a slot already."""

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Raises `RateLimited` or `Unavailable` if none came free in time, or too many of the tenant's
        requests wait.
        """
        tenant = tenant_of_request()
        with pause_request():
            since = await self._acquire(tenant)
            self._held.set(True)
            try:
                yield
            finally:
                self._held.set(False)
                self._release(tenant, since)

    @contextmanager
    def hold_in_thread(self) -> Iterator[None]:
        """The same for what a request does in a worker thread. Does nothing in threads of no request, and
        where the request has a slot already.

        The request counts as at work while it waits: its thread waits with it, and threads are few.
        """
        if self._held.get():
            yield
            return
        tenant = tenant_of_request()
        try:
            since = from_thread.run(self._acquire, tenant)
        except NoEventLoopError:
            yield
            return
        try:
            with _pause_request_from_thread():
                yield
        finally:
            from_thread.run_sync(self._release, tenant, since)

    async def _acquire(self, tenant: str) -> float:
        """Returns when."""
        full = self._queue.waiting(tenant) >= _MAX_WAITING_PER_SLOT * self.count
        if full or not await self._queue.acquire(tenant, self._wait_seconds):
            raise self._queue.refusal(tenant, self._refusal)
        return asyncio.get_running_loop().time()

    def _release(self, tenant: str, since: float) -> None:
        self._queue.release(tenant, asyncio.get_running_loop().time() - since)


@contextmanager
def _pause_request_from_thread() -> Iterator[None]:
    """In a worker thread: the request does not count as at work."""
    pause = pause_request()
    from_thread.run_sync(pause.__enter__)
    try:
        yield
    finally:
        from_thread.run_sync(pause.__exit__, None, None, None)
