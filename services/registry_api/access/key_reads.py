"""Reads API keys for requests. Requests that need the same key at the same moment share one read. This module
knows neither secrets nor callers.
"""

import asyncio
from contextlib import AsyncExitStack

from starlette.concurrency import run_in_threadpool

from services.registry_api.keys.api_keys import ApiKey
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.serving.admission import pause_request, tenant_of_request
from services.registry_api.serving.recheck import set_check
from services.registry_api.serving.slots import Slots

_MAX_READS = 4
"""Maximum number of threads that read keys from the bucket, or wait for another thread that does."""
_WAIT_SECONDS = 10.0


class KeyReads:
    """The reads of keys in one process. Must only be used from its event loop."""

    def __init__(self) -> None:
        self._slots = Slots(
            _MAX_READS,
            wait_seconds=_WAIT_SECONDS,
            refusal="API keys cannot be read just now. Try again in a moment.",
        )
        self._next: dict[tuple[str, str], asyncio.Task[ApiKey | None]] = {}
        """The reads that have not begun yet, by tenant and key. Bounded: each has a request that waits."""

    async def read(self, keys: HeldKeys, key_id: str) -> ApiKey | None:
        """Return a key in any state, or None if there is none.

        A request shares only a read that begins after the request has asked for it, because a read that has
        begun may miss that the key has ended since.

        Raises:
            RateLimited, Unavailable: the key cannot be read now.
        """
        wanted = tenant_of_request(), key_id
        task = self._next.get(wanted)
        if task is None:
            task = self._next[wanted] = asyncio.create_task(self._read(keys, wanted))
            task.add_done_callback(_retrieve_error)
        with pause_request():
            return await asyncio.shield(task)

    async def _read(self, keys: HeldKeys, wanted: tuple[str, str]) -> ApiKey | None:
        set_check(None)  # a check would need the key that is being read
        async with AsyncExitStack() as held:
            try:
                await held.enter_async_context(self._slots.hold())
            finally:
                del self._next[wanted]
            return await run_in_threadpool(keys.read, wanted[1])


def _retrieve_error(task: "asyncio.Task[ApiKey | None]") -> None:
    """Retrieve the error of a read, because asyncio would log it if all requests that waited were gone."""
    if not task.cancelled():
        task.exception()
