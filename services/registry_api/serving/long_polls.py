"""Long polls: requests that wait until something changes. This module knows no voices.

`LongPolls` receives the view's events and wakes the requests that an event may concern. Requests that wait
for the same answer share one read of the state, so a read costs the same for one request and for a thousand.
An event only causes a read. The state is also read every second without any event, so a lost event delays an
answer by a second.
"""

import asyncio
import contextvars
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from services.registry_api.serving.admission import pause_request
from services.registry_api.serving.fair_queue import FairQueue
from services.registry_api.serving.hanging_up import noticing
from services.shared.model.speaker import namespace_of

POLL_SECONDS = 1.0
"""The state is read again after this time, even if no event has come."""
_POLLS_PER_SECOND = 100
"""All shared polls together cause at most this many reads a second without events. When there are more polls
than that, each reads less often than every `POLL_SECONDS`.
"""
_MAX_PARALLEL_READS = 2
"""Reads run beside the requests, which need the processor too. Namespaces take turns."""

Result = TypeVar("Result")


class LongPolls:
    """The long polls of one process."""

    def __init__(self) -> None:
        self._polls: dict[str, dict[Hashable, _SharedPoll[Any]]] = {}
        """Shared polls by speaker, then by question. Connections bound it: each has a waiting request."""
        self._reads = FairQueue(_MAX_PARALLEL_READS)
        self.closing: Callable[[], bool] = lambda: False
        """Returns whether the process is shutting down. Waiting requests are answered then."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Wake the requests that an event may concern."""
        is_progress = event.get("what") == "job" and event.get("state") == "processing"
        for poll in self._polls_of(event["speaker"]):
            if poll.wake_on_progress or not is_progress:
                poll.due.set()

    def _polls_of(self, speaker: str) -> Iterable["_SharedPoll[Any]"]:
        return self._polls.get(speaker, {}).values()

    def events_missed(self) -> None:
        """Wake all requests, because any number of events may have been missed."""
        for polls in self._polls.values():
            for poll in polls.values():
                poll.due.set()

    async def wait_until(
        self,
        speaker: str,
        question: Hashable,
        seconds: float,
        read: Callable[[], Result],
        done: Callable[[Result], bool],
        receive: Receive,
        *,
        wake_on_progress: bool = False,
    ) -> Result:
        """Read the state, in a thread, until `done` accepts it, and return the latest state.

        Also returns when `seconds` have passed, the client has hung up, or the process is shutting
        down. Raises what `read` raises. Calls with the same `speaker` and `question` share their
        reads, so their `read` functions must return the same.

        Args:
            receive: the function that receives the messages of the request, the last of which is that its
                client has hung up.
            wake_on_progress: also read when a job reports progress. Each extraction does so several times,
                so leave this off if only its end matters.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with pause_request(), self._join(speaker, question, read, wake_on_progress) as poll:
            async with noticing(receive) as hanging_up:
                result = await poll.first_read()
                while not done(result) and not self.closing() and not hanging_up.done():
                    left = deadline - loop.time()
                    if left <= 0:
                        break
                    result = await _first_of(poll.next_read(), hanging_up, left, otherwise=result)
                return result

    @property
    def waiting(self) -> int:
        """The number of requests that are waiting now."""
        return sum(poll.waiter_count for polls in self._polls.values() for poll in polls.values())

    @contextmanager
    def _join(
        self, speaker: str, question: Hashable, read: Callable[[], Result], wake_on_progress: bool
    ) -> Iterator["_SharedPoll[Result]"]:
        polls = self._polls.setdefault(speaker, {})
        poll = polls.get(question)
        if poll is None:
            slot = partial(self._reads.slot, namespace_of(speaker))
            poll = polls[question] = _SharedPoll(read, slot, self._interval, wake_on_progress)
        poll.waiter_count += 1
        try:
            yield poll
        finally:
            poll.waiter_count -= 1
            if not poll.waiter_count:
                poll.end()
                del polls[question]
                if not polls:
                    del self._polls[speaker]

    def _interval(self) -> float:
        poll_count = sum(len(polls) for polls in self._polls.values())
        return max(POLL_SECONDS, poll_count / _POLLS_PER_SECOND)


async def _first_of(
    read: "asyncio.Future[Result]", other: "asyncio.Future[None]", seconds: float, *, otherwise: Result
) -> Result:
    """Return the result of `read`, or `otherwise` if it does not come before the other event or in time."""
    try:
        both: set[asyncio.Future[Any]] = {read, other}
        await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return read.result() if read.done() else otherwise
    finally:
        read.cancel()


class _SharedPoll(Generic[Result]):
    """One state whose change requests wait for. A separate task reads it for all of them."""

    def __init__(
        self,
        read: Callable[[], Result],
        slot: Callable[[], AbstractAsyncContextManager[None]],
        interval: Callable[[], float],
        wake_on_progress: bool,
    ) -> None:
        self.waiter_count = 0
        self.wake_on_progress = wake_on_progress
        self.due = asyncio.Event()
        """Set when the next read is due now."""
        self._read = read
        self._slot = slot
        self._interval = interval
        self._waiters: list[asyncio.Future[Result]] = []
        """Requests that receive the result of the next read that begins."""
        # An empty context keeps the reads out of the log lines and spans of the first request that waits.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def first_read(self) -> Result:
        """Return the result of a read that begins from now on."""
        self.due.set()
        return await self.next_read()

    def next_read(self) -> "asyncio.Future[Result]":
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiters.append(future)
        return future

    def end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.due.wait(), self._interval())
            async with self._slot():
                self.due.clear()
                waiters, self._waiters = self._waiters, []
                try:
                    result = await run_in_threadpool(self._read)
                except Exception as error:  # noqa: BLE001 - raised in the requests that wait
                    for future in waiters:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for future in waiters:
                        if not future.done():
                            future.set_result(result)
