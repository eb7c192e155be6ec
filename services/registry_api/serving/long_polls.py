"""Waiting for something to change: follows the index's event stream and wakes those who wait. Knows no
voices.

All who wait for the same answer share the looks at it, so a look costs the same for one and for a thousand.
Events only wake: the looks say what is true, and one is taken every second anyway, so a lost event costs
a second. Whoever else wants to hear of all events is handed each.
"""

import asyncio
import contextvars
import json
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any, Generic, TypeVar

import redis.asyncio
import structlog
from starlette.concurrency import run_in_threadpool

from services.registry_api.serving.admission import pause_request
from services.registry_api.serving.fair_queue import FairQueue
from services.shared.index.speaker_index import EVENTS
from services.shared.telemetry.logs import LogThrottle

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
POLL_SECONDS = 1.0
"""Without any event."""
_POLLS_PER_SECOND = 100
"""Without any event, of all watches together: where there are more, each of them looks less often."""
_REPLAYED_SECONDS = 600
"""A process that starts hears of what happened so long before."""
_MAX_PARALLEL_READS = 2
"""They run beside the requests, which need the processor too. Namespaces take turns."""

Result = TypeVar("Result")


class LongPolls:
    """One per process; `follow` runs as a task of its loop."""

    def __init__(self, url: str, on_event: Callable[[Mapping[str, Any]], object]) -> None:
        """`on_event`: called in the loop with every event, some of them twice."""
        self._on_event = on_event
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        self._polls: dict[str, dict[Hashable, _SharedPoll[Any]]] = {}
        """By speaker, then by question. Bounded by the connections: each has somebody who waits."""
        self._reads = FairQueue(_MAX_PARALLEL_READS)
        self.closing: Callable[[], bool] = lambda: False
        """Whether the process is to end: then nobody is kept waiting."""

    async def follow(self) -> None:
        """Read the stream until cancelled. Redis may come and go."""
        last_position: str | None = None
        interrupted = True
        while True:
            try:
                if interrupted:
                    last_position, interrupted = await self._resume_after(last_position), False
                for position, fields in await self._read_after(last_position or "0-0"):
                    last_position = position
                    event = json.loads(fields["d"])
                    self._wake(event)
                    self._on_event(event)
            except asyncio.CancelledError:
                await self._redis.aclose()
                raise
            except (redis.RedisError, OSError, ValueError, KeyError) as error:
                if _throttle.due(type(error)):
                    log.warning("changes.interrupted", error=type(error).__name__)
                interrupted = True
                await asyncio.sleep(0.5)

    async def _resume_after(self, last_position: str | None) -> str:
        """Return the position to read on from after `last_position`.

        Redis's own `$` is another position at each call, so events between two calls would be lost.
        """
        entries: Any = await self._redis.xrevrange(EVENTS, count=1)
        newest = str(entries[0][0]) if entries else "0-0"
        if last_position is None:
            return f"{max(0, _parse_position(newest)[0] - 1000 * _REPLAYED_SECONDS)}-0"
        # The server may be another one, which has not come as far.
        return min(last_position, newest, key=_parse_position)

    async def _read_after(self, last_position: str) -> list[tuple[str, dict[str, str]]]:
        streams: Any = await self._redis.xread({EVENTS: last_position}, block=2000, count=500)
        return [entry for _, entries in streams or [] for entry in entries]

    def _wake(self, event: Mapping[str, Any]) -> None:
        is_progress = event.get("type") == "job.updated" and event.get("state") == "processing"
        for poll in self._polls.get(event["speaker"], {}).values():
            if poll.wake_on_progress or not is_progress:
                poll.due.set()

    async def wait_until(
        self,
        speaker: str,
        question: Hashable,
        seconds: float,
        read: Callable[[], Result],
        done: Callable[[Result], bool],
        abandoned: Callable[[], Awaitable[bool]],
        *,
        wake_on_progress: bool = False,
    ) -> Result:
        """Look, in a thread, until `done` says so, the time is up, the caller hung up, or the process ends.

        Calls with the same `speaker` and `question` share their looks, so their `read` must answer the same.

        Args:
            wake_on_progress: also read at events of a job that goes on. Each extraction has several; where
                only its end matters, they cause no read.

        Returns what was seen last. Raises what `read` raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with pause_request(), self._join(speaker, question, read, wake_on_progress) as poll:
            result = await poll.first_read()
            while not done(result) and not self.closing() and not await abandoned():
                left = deadline - loop.time()
                if left <= 0:
                    break
                with suppress(TimeoutError):
                    result = await asyncio.wait_for(poll.next_read(), left)
            return result

    @property
    def waiting(self) -> int:
        """How many requests wait for anything now."""
        return sum(poll.waiter_count for polls in self._polls.values() for poll in polls.values())

    @contextmanager
    def _join(
        self, speaker: str, question: Hashable, read: Callable[[], Result], wake_on_progress: bool
    ) -> Iterator["_SharedPoll[Result]"]:
        polls = self._polls.setdefault(speaker, {})
        poll = polls.get(question)
        if poll is None:
            slot = partial(self._reads.slot, _namespace_of(speaker))
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


def _parse_position(position: str) -> tuple[int, int]:
    """Of an event in the stream: milliseconds of the server's clock, and a number within one."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number)


def _namespace_of(speaker: str) -> str:
    return speaker.partition("/")[0]


class _SharedPoll(Generic[Result]):
    """One question that somebody waits to have answered differently. Its looks run as a task of their own."""

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
        """Set: the next look is due now."""
        self._read = read
        self._slot = slot
        self._interval = interval
        self._waiters: list[asyncio.Future[Result]] = []
        """Those who are told what the next look shows that begins."""
        # Not in the context of the request that came first: its log lines and spans are its own.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def first_read(self) -> Result:
        """What a look shows that begins from now on."""
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
                except Exception as error:  # noqa: BLE001 - raised by those who wait
                    for future in waiters:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for future in waiters:
                        if not future.done():
                            future.set_result(result)
