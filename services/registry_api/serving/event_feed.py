"""Passes the events of the view on to the listeners of this process, each in order and without a gap.

A listener is told of events as `EventStream` hears them. What it does not take in time is bounded: a listener
that falls too far behind loses its place, and so does everyone when another view is in use. Knows no HTTP.
"""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from services.registry_api.keys.key_document import KeyDocument
from services.registry_api.serving.event_stream import Event, EventStream
from services.shared.telemetry.metrics import EVENT_LISTENERS

MAX_BEHIND = 1000
"""A listener that has not taken so many events has fallen too far behind."""
_PAGE = 500
"""Earlier events are read this many at a time."""
_POSITION = r"\d{1,20}-\d{1,20}"
_PLACE = re.compile(rf"([0-9a-f]{{1,32}})-({_POSITION})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the stream of one view, behind an event."""

    generation: str
    """The generation of the view. The events of another one have other places."""
    position: str
    """The event's id in Redis."""

    def __str__(self) -> str:
        return f"{self.generation}-{self.position}"


def parse_place(text: str) -> Place | None:
    """Parse what `str` of a `Place` returned. Returns None if the text is no such thing."""
    match = _PLACE.fullmatch(text)
    return Place(match[1], match[2]) if match else None


class Listener:
    """One listener. Only used from the event loop."""

    def __init__(self, wants: Callable[[Event], bool]) -> None:
        self._wants = wants
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self.has_lost_place = False
        """True if events were missed. Those that follow are told all the same."""

    def tell(self, event: Event) -> None:
        """Keep an event for the listener, if it is wanted."""
        if not self._wants(event):
            return
        if len(self._events) >= MAX_BEHIND:
            self.lose_place()
        self._events.append(event)
        self._news.set()

    def lose_place(self) -> None:
        self._events.clear()
        self.has_lost_place = True
        self._news.set()

    def wake(self) -> None:
        """End the present `wait`, although there may be no event."""
        self._news.set()

    async def wait(self, seconds: float) -> None:
        """Wait for an event, for a lost place or for `wake`. Raises TimeoutError after `seconds`."""
        await asyncio.wait_for(self._news.wait(), seconds)

    def take(self) -> list[Event]:
        """Return the events that have come since the last call."""
        taken = list(self._events)
        self._events.clear()
        self._news.clear()
        return taken


class EventFeed:
    """The listeners of one process. Must only be used from its event loop."""

    def __init__(self, events: EventStream) -> None:
        self._stream = events
        self._listeners: set[Listener] = set()  # bounded: each has a waiting request
        self.keys_changed = 0
        """Counts the events that may have ended an API key."""
        events.subscribe(self._hear, self._miss)

    @property
    def place(self) -> Place:
        """The place behind the last event that was heard."""
        return Place(self._stream.generation, self._stream.position)

    @contextmanager
    def listen(self, wants: Callable[[Event], bool]) -> Iterator[Listener]:
        """Yield a listener that is told of the events from now on that `wants` accepts."""
        listener = Listener(wants)
        self._listeners.add(listener)
        EVENT_LISTENERS.inc()
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            EVENT_LISTENERS.dec()

    async def since(self, place: Place) -> list[Event] | None:
        """Return the events behind a place up to the last that was heard, or None if some are gone.

        Raises what the client of Redis raises.
        """
        if place.generation != self._stream.generation or not await self._stream.has(place.position):
            return None
        found: list[Event] = []
        until = self._stream.position
        while len(found) <= MAX_BEHIND:
            page = await self._stream.read(found[-1]["id"] if found else place.position, until, _PAGE)
            found += page
            if len(page) < _PAGE:
                return found
        return None  # as many as this are read anew more cheaply

    def wake(self) -> None:
        """Wake all listeners, so that they see that the process is to stop."""
        for listener in self._listeners:
            listener.wake()

    def _hear(self, event: Event) -> None:
        if event["what"] == KeyDocument.UPDATED:
            self.keys_changed += 1
            self.wake()
        for listener in self._listeners:
            listener.tell(event)

    def _miss(self) -> None:
        self.keys_changed += 1
        for listener in self._listeners:
            listener.lose_place()
