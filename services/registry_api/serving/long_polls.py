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
LOOK_AGAIN_SECONDS = 1.0
"""Without any event."""
_LOOKS_PER_SECOND = 100
"""Without any event, of all watches together: where there are more, each of them looks less often."""
_HEARD_BACK_SECONDS = 600
"""A process that starts hears of what happened so long before."""
_LOOKS_AT_ONCE = 2
"""They run beside the requests, which need the processor too. Namespaces take turns."""

Seen = TypeVar("Seen")


class Changes:
    """One per process; `follow` runs as a task of its loop."""

    def __init__(self, url: str, hear: Callable[[Mapping[str, Any]], object]) -> None:
        """`hear`: called in the loop with every event, some of them twice."""
        self._hear = hear
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        self._watches: dict[str, dict[Hashable, _Watch[Any]]] = {}
        """By speaker, then by question. Bounded by the connections: each has somebody who waits."""
        self._looks = FairQueue(_LOOKS_AT_ONCE)
        self.closing: Callable[[], bool] = lambda: False
        """Whether the process is to end: then nobody is kept waiting."""

    async def follow(self) -> None:
        """Read the stream until cancelled. Redis may come and go."""
        last: str | None = None
        interrupted = True
        while True:
            try:
                if interrupted:
                    last, interrupted = await self._resume_after(last), False
                for position, fields in await self._read_after(last or "0-0"):
                    last = position
                    event = json.loads(fields["d"])
                    self._wake(event)
                    self._hear(event)
            except asyncio.CancelledError:
                await self._redis.aclose()
                raise
            except (redis.RedisError, OSError, ValueError, KeyError) as error:
                if _throttle.due(type(error)):
                    log.warning("changes.interrupted", error=type(error).__name__)
                interrupted = True
                await asyncio.sleep(0.5)

    async def _resume_after(self, last: str | None) -> str:
        """Where to go on from, after `last` was read. Redis's own `$` is another place each time: what came
        between is lost.
        """
        entries: Any = await self._redis.xrevrange(EVENTS, count=1)
        newest = str(entries[0][0]) if entries else "0-0"
        if last is None:
            return f"{max(0, _place(newest)[0] - 1000 * _HEARD_BACK_SECONDS)}-0"
        return min(last, newest, key=_place)  # the server may be another one, which has not come as far

    async def _read_after(self, last: str) -> list[tuple[str, dict[str, str]]]:
        streams: Any = await self._redis.xread({EVENTS: last}, block=2000, count=500)
        return [entry for _, entries in streams or [] for entry in entries]

    def _wake(self, event: Mapping[str, Any]) -> None:
        goes_on = event.get("type") == "job.updated" and event.get("state") == "processing"
        for watch in self._watches.get(event["speaker"], {}).values():
            if watch.of_progress or not goes_on:
                watch.changed.set()

    async def wait_until(
        self,
        speaker: str,
        question: Hashable,
        seconds: float,
        look: Callable[[], Seen],
        done: Callable[[Seen], bool],
        abandoned: Callable[[], Awaitable[bool]],
        *,
        of_progress: bool = False,
    ) -> Seen:
        """Look, in a thread, until `done` says so, the time is up, the caller hung up, or the process ends.

        Calls with the same `speaker` and `question` share their looks, so their `look` must answer the same.

        Args:
            of_progress: whether it matters how far a job has come that goes on. Each extraction has several
                such events. Where only its end matters, they cause no look.

        Returns what was seen last. Raises what `look` raises.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        with pause_request(), self._joined(speaker, question, look, of_progress) as watch:
            seen = await watch.first_look()
            while not done(seen) and not self.closing() and not await abandoned():
                left = deadline - loop.time()
                if left <= 0:
                    break
                with suppress(TimeoutError):
                    seen = await asyncio.wait_for(watch.next_look(), left)
            return seen

    @property
    def waiting(self) -> int:
        """How many requests wait for anything now."""
        return sum(watch.joined for watches in self._watches.values() for watch in watches.values())

    @contextmanager
    def _joined(
        self, speaker: str, question: Hashable, look: Callable[[], Seen], of_progress: bool
    ) -> Iterator["_Watch[Seen]"]:
        watches = self._watches.setdefault(speaker, {})
        watch = watches.get(question)
        if watch is None:
            turn = partial(self._looks.turn, _namespace_of(speaker))
            watch = watches[question] = _Watch(look, turn, self._interval, of_progress)
        watch.joined += 1
        try:
            yield watch
        finally:
            watch.joined -= 1
            if not watch.joined:
                watch.end()
                del watches[question]
                if not watches:
                    del self._watches[speaker]

    def _interval(self) -> float:
        many = sum(len(watches) for watches in self._watches.values())
        return max(LOOK_AGAIN_SECONDS, many / _LOOKS_PER_SECOND)


def _place(position: str) -> tuple[int, int]:
    """Of an event in the stream: milliseconds of the server's clock, and a number within one."""
    milliseconds, _, number = position.partition("-")
    return int(milliseconds), int(number)


def _namespace_of(speaker: str) -> str:
    return speaker.partition("/")[0]


class _Watch(Generic[Seen]):
    """One question that somebody waits to have answered differently. Its looks run as a task of their own."""

    def __init__(
        self,
        look: Callable[[], Seen],
        turn: Callable[[], AbstractAsyncContextManager[None]],
        interval: Callable[[], float],
        of_progress: bool,
    ) -> None:
        self.joined = 0
        self.of_progress = of_progress
        self.changed = asyncio.Event()
        """Set: the next look is due now."""
        self._look = look
        self._turn = turn
        self._interval = interval
        self._waiting: list[asyncio.Future[Seen]] = []
        """Those who are told what the next look shows that begins."""
        # Not in the context of the request that came first: its log lines and spans are its own.
        self._task = asyncio.create_task(self._run(), context=contextvars.Context())

    async def first_look(self) -> Seen:
        """What a look shows that begins from now on."""
        self.changed.set()
        return await self.next_look()

    def next_look(self) -> "asyncio.Future[Seen]":
        future: asyncio.Future[Seen] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        return future

    def end(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.changed.wait(), self._interval())
            async with self._turn():
                self.changed.clear()
                told, self._waiting = self._waiting, []
                try:
                    seen = await run_in_threadpool(self._look)
                except Exception as error:  # noqa: BLE001 - raised by those who wait
                    for future in told:
                        if not future.done():
                            future.set_exception(error)
                else:
                    for future in told:
                        if not future.done():
                            future.set_result(seen)
