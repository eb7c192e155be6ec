"""Passes the events of the view on to the listeners of this process, each in order and without a gap.

A listener gets events as `EventStream` receives them. Having taken some, it is woken for the next ones only
after a pause, which is longer the more listeners there are. The number of events that it has not taken yet is
bounded: a listener that falls too far behind misses events, and so do all listeners when a new view begins.
This module knows no HTTP.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.registry_api.keys.key_document import KeyDocument
from services.registry_api.serving.event_stream import Event, EventStream, order_of
from services.shared.telemetry.metrics import EVENT_LISTENERS

MAX_BEHIND = 1000
"""Maximum number of events that a listener may leave untaken before it misses events."""
_PAUSE_SECONDS_EACH = 0.001
"""The pause between two times that a listener takes events, for each listener of the process. To send events
to a listener takes about 60 µs, however many they are, so that up to 1000 listeners together occupy about 6 %
of a processor.
"""
_MAX_PAUSE_SECONDS = 1.0
_MAX_FRAMES = 1000
"""Largest number of rendered events that are kept for the other listeners of the process."""
_PAGE = 500
"""Number of earlier events that are read at a time."""
_EVENT_ID = r"\d{1,20}-\d{1,20}"
_POSITION = re.compile(rf"([0-9a-f]{{0,32}})-({_EVENT_ID})", re.ASCII)


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A position in the event stream of one view, just after an event."""

    generation: str
    """The generation of the view. Positions of different generations cannot be compared. Empty if a process
    that had not reached Redis yet sent the position.
    """
    event_id: str
    """The event's id in Redis."""

    def __str__(self) -> str:
        return f"{self.generation}-{self.event_id}"


def parse_position(text: str) -> StreamPosition | None:
    """Parse the text of a `StreamPosition`. Returns None if the text is not that of a position."""
    match = _POSITION.fullmatch(text)
    return StreamPosition(match[1], match[2]) if match else None


class Listener:
    """A listener of the event feed, with the events that it has not taken yet. Must only be used from the
    event loop.
    """

    def __init__(self, wants: Callable[[Event], bool], pause_seconds: Callable[[], float]) -> None:
        self._wants = wants
        self._pause_seconds = pause_seconds
        self._paused_until = float("-inf")
        self._waking: asyncio.TimerHandle | None = None
        """Ends the present `wait` when the pause is over. None: no event has arrived in the pause."""
        self._after: tuple[int, int] | None = None
        """The listener gets only events after this one."""
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self.has_missed_events = False
        """True if the listener has missed events. It still gets later events."""

    def skip_until(self, event_id: str) -> None:
        """Leave out all events up to this one, because the client has them. A process that has just started
        passes on the events of the last minutes.
        """
        self._after = order_of(event_id)

    def tell(self, event: Event) -> None:
        """Queue an event for the listener if it wants the event, and wake it if its pause is over or half of
        its queue is full.
        """
        if not self._wants(event) or self._has(event):
            return
        if len(self._events) >= MAX_BEHIND:
            self.mark_missed()
        self._events.append(event)
        pause = self._paused_until - time.monotonic()
        if pause <= 0 or len(self._events) > MAX_BEHIND // 2:
            self._news.set()
        elif self._waking is None:
            self._waking = asyncio.get_running_loop().call_later(pause, self._news.set)

    def mark_missed(self) -> None:
        """Drop the events that were not taken, and note that the listener has missed events."""
        self._after = None  # the server may have gone back, or the ids may be those of another view
        self._events.clear()
        self.has_missed_events = True
        self._news.set()

    def _has(self, event: Event) -> bool:
        return self._after is not None and order_of(event["id"]) <= self._after

    def wake(self) -> None:
        """End the present `wait`, even if there is no event."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait until there are events to take, events were missed or `wake` is called. Raises TimeoutError
        after `seconds`.
        """
        await asyncio.wait_for(self._news.wait(), seconds)

    def take(self) -> list[Event]:
        """Return the events that have arrived since the last call. A pause begins if there are any."""
        taken = list(self._events)
        self._events.clear()
        self._news.clear()
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if taken:
            self._paused_until = time.monotonic() + self._pause_seconds()
        return taken


class EventFeed:
    """The listeners of one process. Must only be used from its event loop."""

    def __init__(self, events: EventStream) -> None:
        self._stream = events
        self._listeners: set[Listener] = set()  # bounded: each has a waiting request
        events.subscribe(self._on_event, self._on_events_missed)

    @property
    def position(self) -> StreamPosition:
        """The position just after the last event that this process received."""
        return StreamPosition(self._stream.generation, self._stream.position)

    @contextmanager
    def listen(self, wants: Callable[[Event], bool]) -> Iterator[Listener]:
        """Yield a listener that gets all events from now on for which `wants` returns true."""
        listener = Listener(wants, self._pause_seconds)
        self._listeners.add(listener)
        EVENT_LISTENERS.inc()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            EVENT_LISTENERS.dec()

    async def catch_up(self, listener: Listener, position: StreamPosition) -> list[Event]:
        """Return the events after a position that this process has received already. The listener gets the
        later ones. Call this as soon as it listens.

        If some events are gone, the result is empty, and the listener is marked as one that has missed
        events. Raises the errors of the Redis client.
        """
        found: list[Event] | None = None
        if position.generation and position.generation == self._stream.generation:
            listener.skip_until(position.event_id)
            found = await self._between(position.event_id, self._stream.position)
        if found is None or listener.has_missed_events:
            listener.mark_missed()
            return []
        return found

    async def _between(self, after: str, until: str) -> list[Event] | None:
        """Return the events after one event up to another. Returns None if some of them are gone."""
        if not await self._stream.has(after):
            return None
        found: list[Event] = []
        while len(found) <= MAX_BEHIND:
            page = await self._stream.read(found[-1]["id"] if found else after, until, _PAGE)
            found += page
            if len(page) < _PAGE:
                return found
        return None  # after so many events, the client should read everything again

    def wake(self) -> None:
        """Wake all listeners, so that they notice that the process is stopping or their key has ended."""
        for listener in self._listeners:
            listener.wake()

    def _pause_seconds(self) -> float:
        return min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS_EACH * len(self._listeners))

    def _on_event(self, event: Event) -> None:
        if event["what"] == KeyDocument.UPDATED:
            self.wake()
        for listener in self._listeners:
            listener.tell(event)

    def _on_events_missed(self) -> None:
        for listener in self._listeners:
            listener.mark_missed()


class Frames:
    """Renders events for all listeners of a process, which take the same events within about a second. Must
    only be used from the event loop.
    """

    def __init__(self, render: Callable[[Event, object], bytes]) -> None:
        self._render = render
        self._held: dict[int, tuple[Event, bytes]] = {}
        """Rendered events by the identity of the event, which stays its own while the event is held here."""

    def render(self, event: Event, position: object) -> bytes:
        """Render an event, but only once if the same object is passed again soon. The position of an event
        must always be the same.
        """
        held = self._held.get(id(event))
        if held is None:
            if len(self._held) >= _MAX_FRAMES:
                del self._held[next(iter(self._held))]  # the oldest
            held = self._held[id(event)] = event, self._render(event, position)
        return held[1]
