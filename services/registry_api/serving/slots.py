"""Slots of slow dependencies: a decoder, the bucket, reading the API keys."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

from anyio import NoEventLoopError, from_thread

from services.registry_api.serving.admission import pause_request, tenant_of_request
from services.registry_api.serving.fair_queue import FairQueue
from services.registry_api.serving.recheck import check_after_wait

_MAX_WAITING_PER_SLOT = 8
"""This many requests of one tenant may wait for each slot there is."""


class Slots:
    """Limits how many requests use a slow dependency at once.

    The caller of a request is checked again after the request has waited for a slot, and once more after it
    has used the dependency, because its key may end during a slow read.

    Requests that hold a slot or wait for one do not count as active, so a slow bucket or decoder cannot block
    requests that don't need it. A limited number of requests wait, in a queue per tenant. They occupy no
    thread, because threads are few and all other requests need them too.

    Args:
        count: how many requests may use the dependency at once.
        wait_seconds: how long a request may wait for a slot.
        refusal: the error message for a request that gets no slot although its tenant is within its share.
    """

    def __init__(self, count: int, *, wait_seconds: float, refusal: str) -> None:
        self.count = count
        self._queue = FairQueue(count)
        self._wait_seconds = wait_seconds
        self._refusal = refusal
        self._held: ContextVar[bool] = ContextVar("held", default=False)
        """True while the current request holds a slot."""

    @asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Hold a slot for as long as the context lasts.

        Raises:
            RateLimited, Unavailable: no slot came free in time, or too many requests of the tenant wait.
            InvalidApiKey: the key or the session of the request has ended while it waited for the slot, or
                while it held it. The slot is released before that last check.
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
            await check_after_wait(since)

    @contextmanager
    def hold_in_thread(self) -> Iterator[None]:
        """Hold a slot from a worker thread of a request, for as long as the context lasts.

        Does nothing in a thread that belongs to no request, and if the request holds a slot already. While it
        waits for the slot the request counts as active: its thread waits with it, and threads are few. Raises
        the same errors as `hold`.
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
        self._held.set(True)
        try:
            with _pause_request_from_thread():
                yield
        finally:
            self._held.set(False)
            from_thread.run_sync(self._release, tenant, since)
        from_thread.run(check_after_wait, since)

    async def _acquire(self, tenant: str) -> float:
        """Acquire a slot, and return when that was, by the event loop's clock."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        full = self._queue.waiting(tenant) >= _MAX_WAITING_PER_SLOT * self.count
        if full or not await self._queue.acquire(tenant, self._wait_seconds):
            raise self._queue.refusal(tenant, self._refusal)
        since = loop.time()
        try:  # while holding the slot, because a key may end during a second wait
            await check_after_wait(asked)
        except BaseException:
            self._release(tenant, since)
            raise
        return since

    def _release(self, tenant: str, since: float) -> None:
        self._queue.release(tenant, asyncio.get_running_loop().time() - since)


@contextmanager
def _pause_request_from_thread() -> Iterator[None]:
    """Pause the current request like `pause_request`, from a worker thread."""
    pause = pause_request()
    from_thread.run_sync(pause.__enter__)
    try:
        yield
    finally:
        from_thread.run_sync(pause.__exit__, None, None, None)
