"""Follows the view's event stream for one process, and holds the process's lease on it.

Listeners receive every event, in order. While `is_fresh` is true, they have received every event of an
acknowledged change that takes something away from readers, so they may serve answers from memory: see
`shared/view/leases.py`.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import redis.asyncio
import structlog

from services.shared.bucket.layout import profile_of
from services.shared.telemetry.logs import LogThrottle
from services.shared.view.away import ViewAway
from services.shared.view.generation import Generation
from services.shared.view.keys import events_key
from services.shared.view.leases import LEASE_SECONDS, Leases, Renewal
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_REPLAYED_SECONDS = 600
"""A process that starts also reads the events of this long before its start."""
_RENEWAL_SECONDS = 0.25
"""Time between two renewals of the lease. It is short enough that the lease outlasts a few late answers."""
_BATCH_SECONDS = 0.002
"""After a batch of events the stream is read again no earlier than this, so that many events cost few
reads.
"""
_RETRY_SECONDS = 0.5
_READ = 100
"""Largest number of entries that are read at a time. After a loss of Redis, each entry may concern a hundred
speakers.
"""

TAKES = "takes"
"""The field that marks events that take something away from readers."""
Event = Mapping[str, Any]
"""The content of an event. `id` is its position in the stream."""
Result = TypeVar("Result")


class EventStream:
    """Follows the event stream for one process. `follow` must run as a task of the event loop.

    Args:
        url: the address of Redis.
        generation: the view that the events are about.
        leases: grants the process's lease.
        process: the id of the process.
        now: returns the seconds of a clock that also counts while the machine is suspended, because leases
            expire then too.
    """

    def __init__(
        self,
        url: str,
        generation: Generation,
        leases: Leases,
        *,
        process: str,
        now: Callable[[], float],
    ) -> None:
        self.now = now
        self.generation = ""
        """The generation whose events the listeners receive. Empty until the first one is known."""
        self._view = generation
        self._leases = leases
        self._process = process
        self._listeners: list[Callable[[Event], object]] = []
        self._missing: list[Callable[[], object]] = []
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        # It has a thread of its own, because all threads of requests may be waiting for this process to apply
        # an event.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="lease")
        self._position: str | None = None
        """The id of the last event that the listeners received."""
        self._renewed_position = ""
        self._renewed_at = 0.0
        self._interrupted = True
        self.lease_ends = float("-inf")
        """Time at which this process's lease ends, on the clock `now`."""

    def subscribe(
        self, on_event: Callable[[Event], object], events_missed: Callable[[], object] | None = None
    ) -> None:
        """Register functions to be called in the event loop.

        Args:
            on_event: called with each event. Some events are passed twice.
            events_missed: called when any number of events may have been missed, or another generation of the
                view is in use.
        """
        self._listeners.append(on_event)
        if events_missed is not None:
            self._missing.append(events_missed)

    @property
    def position(self) -> str:
        """The id in Redis of the last event that the listeners received."""
        return self._position or "0-0"

    @property
    def is_fresh(self) -> bool:
        """True while this process has a lease, and so may answer reads from memory."""
        return self.now() < self.lease_ends

    async def follow(self) -> None:
        """Read the stream until cancelled, even if Redis is unavailable at times.

        Each turn also checks whether the task was cancelled. redis-py sends commands with `asyncio.wait_for`,
        which in Python 3.11 loses a cancellation that arrives just after the command was sent. The process
        would then wait for this task for ever when it stops.
        """
        try:
            while not _is_cancelled():
                try:
                    if await self.turn():
                        await asyncio.sleep(_BATCH_SECONDS)
                except Exception as error:  # noqa: BLE001 - otherwise the process would stop following
                    self.interrupt()
                    if _throttle.due(type(error)):
                        log.warning("changes.interrupted", error=type(error).__name__)
                    await asyncio.sleep(_RETRY_SECONDS)
        finally:
            await self._leave()

    def interrupt(self) -> None:
        """Make the next turn find its position again, because a turn has failed."""
        self._interrupted = True

    async def turn(self) -> bool:
        """Read the next events, pass them to the listeners, and renew the lease if that is due.

        Returns whether there were any events.
        """
        generation = await self._in_thread(self._view.for_reading)
        if self._interrupted or generation != self.generation:
            await self._begin(generation)
            self._interrupted = False
        return await self._read_on()

    async def _begin(self, generation: str) -> None:
        """Find the position from which to read on, in the stream of the generation in use."""
        if generation != self.generation:
            self._on_events_missed()
            self.generation, self._position = generation, None if not self.generation else "0-0"
        resumed = await self._resume_after(self._position)
        if self._position is not None and order_of(resumed) < order_of(self._position):
            self._on_events_missed()  # this server has lost events, perhaps also some that nobody received
        self._position = self._renewed_position = resumed

    @property
    def _stream(self) -> str:
        return events_key(self.generation)

    async def _resume_after(self, last_position: str | None) -> str:
        """Return the position to read on from after `last_position`.

        Redis's own `$` is another position at each call, so events between two calls would be lost.
        """
        entries: Any = await self._redis.xrevrange(self._stream, count=1)
        newest = str(entries[0][0]) if entries else "0-0"
        if last_position is None:
            return f"{max(0, order_of(newest)[0] - 1000 * _REPLAYED_SECONDS)}-0"
        # This may be another server than before, which lags behind.
        return min(last_position, newest, key=order_of)

    async def _read_on(self) -> bool:
        assert self._position is not None
        block = max(1, int(1000 * (self._renewed_at + _RENEWAL_SECONDS - self.now())))
        streams: Any = await self._redis.xread({self._stream: self._position}, block=block, count=_READ)
        due = self.now() >= self._renewed_at + _RENEWAL_SECONDS
        for position, fields in (entry for _, entries in streams or [] for entry in entries):
            self._position = position
            due |= TAKES in fields
            for event in _events_of(position, fields):
                for on_event in self._listeners:
                    on_event(event)
        if due:
            await self._renew(self._position)
        return bool(streams)

    async def read(self, after: str, until: str, count: int) -> list[Event]:
        """Return the events of up to `count` entries after the position `after`, up to and including the
        position `until`.
        """
        entries: Any = await self._redis.xrange(self._stream, f"({after}", until, count)
        return [event for position, fields in entries for event in _events_of(position, fields)]

    async def has(self, position: str) -> bool:
        """Return whether the event at this position is still in the stream, and therefore all later events
        too.
        """
        return bool(await self._redis.xrange(self._stream, position, position, 1))

    async def _renew(self, applied: str) -> None:
        asked_at = self.now()
        renew = partial(self._leases.renew, self.generation, self._process, applied, self._renewed_position)
        try:
            answer = await self._in_thread(renew)
        except ViewAway:  # if another generation began, the next turn tells the listeners
            self.lease_ends = float("-inf")
            raise
        if answer is Renewal.GRANTED:
            self.lease_ends = asked_at + LEASE_SECONDS
        elif answer is Renewal.TRIMMED:
            self._on_events_missed()
        if answer is not Renewal.BEHIND:
            self._renewed_at = asked_at
        self._renewed_position = applied

    def _on_events_missed(self) -> None:
        self.lease_ends = float("-inf")
        for events_missed in self._missing:
            events_missed()

    async def _leave(self) -> None:
        self.lease_ends = float("-inf")
        with suppress(Unavailable):  # the lease runs out by itself
            await self._in_thread(partial(self._leases.end, self._process))
        self._thread.shutdown(wait=False)
        await self._redis.aclose()

    async def _in_thread(self, do: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, do)


def _is_cancelled() -> bool:
    """Return whether the current task was cancelled, even if the `CancelledError` was lost."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _events_of(position: str, fields: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the events of an entry of the stream. An entry may stand for the same event of several speakers.

    An event about the document of a profile names the profile.
    """
    profile = profile_of(fields.get("document", ""))
    event = {**fields, **({"profile": profile} if profile else {}), "id": position}
    if (speakers := fields.get("speakers")) is None:
        yield event
        return
    for speaker in json.loads(speakers):
        yield {**event, "speaker": speaker}


def order_of(event_id: str) -> tuple[int, int]:
    """Return the id of an event as two numbers, which compare as the events follow one another: milliseconds
    of the server's clock, and a number within that time.
    """
    milliseconds, _, number = event_id.partition("-")
    return int(milliseconds), int(number)
