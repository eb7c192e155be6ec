"""Long polls: requests that wait until something changes. Knows no voices.

`LongPolls` follows the index's event stream and wakes the requests an event may concern. Requests that wait
for the same answer share one read of the state, so a read costs the same for one request and for a thousand.
An event only causes a read. The state is also read every second without any event, so a lost event delays an
answer by a second. Every event is also passed to a callback.
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
from services.shared.bucket.keys import namespace_of
from services.shared.index.speaker_index import EVENTS
from services.shared.telemetry.logs import LogThrottle

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
POLL_SECONDS = 1.0
"""The state is read again after this time, even if no event has come."""
_POLLS_PER_SECOND = 100
"""All shared polls together cause at most this many reads a second without events. When there are more polls
than that, each reads less often than every `POLL_SECONDS`.
"""
_REPLAYED_SECONDS = 600
"""A process that starts reads the events of this long before its start."""
_MAX_PARALLEL_READS = 2
"""Reads run beside the requests, which need the processor too. Namespaces take turns."""

Result = TypeVar("Result")


class LongPolls:
    """The long polls of one process. `follow` must run as a task of the event loop."""

    def __init__(self, url: str, on_event: Callable[[Mapping[str, Any]], object]) -> None:
        """Set up long polls without connecting yet.

        Args:
            url: address of Redis.
            on_event: called in the event loop with every event. Some events are passed twice.
        """
        self._on_event = on_event
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        self._polls: dict[str, dict[Hashable, _SharedPoll[Any]]] = {}
        """Shared polls by speaker, then by question. Connections bound it: each has a waiting request."""
        self._reads = FairQueue(_MAX_PARALLEL_READS)
        self.closing: Callable[[], bool] = lambda: False
        """Returns whether the process is shutting down. Waiting requests are answered then."""

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
        """Read the state, in a thread, until `done` accepts it, and return the latest state.

        Also returns when `seconds` have passed, the client has hung up (`abandoned`), or the process is
        shutting down. Raises what `read` raises. Calls with the same `speaker` and `question` share their
        reads, so their `read` functions must return the same.

        Args:
            wake_on_progress: also read at events of a job that goes on. Each extraction has several; where
                only its end matters, they cause no read.
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


def _parse_position(position: str) -> tuple[int, int]:
    """Split the id of an event into milliseconds of the server's clock and a number within that time."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number)


class _SharedPoll(Generic[Result]):
    """One state that requests wait for to change. A task of its own reads it for all of them."""

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
        """Requests that receive the result of the next read to begin."""
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
