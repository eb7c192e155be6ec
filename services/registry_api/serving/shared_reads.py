"""Shares reads: if several requests need the same read at the same moment, it is done only once."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from contextlib import nullcontext
from typing import Any, TypeVar

from services.registry_api.serving.admission import pause_request
from services.registry_api.serving.recheck import check_after_wait, set_check

Result = TypeVar("Result")


class SharedReads:
    """The reads that are under way in one process. Must only be used from its event loop."""

    def __init__(self) -> None:
        self._under_way: dict[Hashable, asyncio.Task[Any]] = {}  # bounded: each has a request that waits

    async def read(
        self, key: Hashable, read: Callable[[], Awaitable[Result]], *, computes: bool = False
    ) -> Result:
        """Return the result of `read`, or that of a running read for the same key.

        The read goes on if the request that began it is abandoned, and also if the key of that request ends:
        each request is checked for itself afterwards. Errors of the read and of the check are passed on.

        Args:
            computes: whether the read keeps the processor busy. If so, the request that begins it counts as
                active until it ends.
        """
        task, began = self._under_way.get(key), asyncio.get_running_loop().time()
        begins = task is None
        if task is None:
            task = self._under_way[key] = asyncio.create_task(_awaited(read))
            task.add_done_callback(lambda done: self._end(key, done))
        with nullcontext() if computes and begins else pause_request():
            result: Result = await asyncio.shield(task)
        await check_after_wait(began)
        return result

    def _end(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        del self._under_way[key]
        if not task.cancelled():
            task.exception()  # otherwise asyncio would log it if every request was gone


async def _awaited(read: Callable[[], Awaitable[Result]]) -> Result:
    set_check(None)
    return await read()
