"""Waiting for something to change: follows the index's event stream and wakes who waits. Knows no voices.

Events only wake: whoever waits looks again for itself, and looks once a second anyway, so a lost event costs
a second.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import redis.asyncio
import structlog
from starlette.concurrency import run_in_threadpool

from services.registry_api.pressure import waiting
from services.shared.index import EVENTS
from services.shared.logs import Seldom

log = structlog.get_logger()

_seldom = Seldom(60.0)
LOOK_AGAIN_SECONDS = 1.0
"""Without any event."""

Seen = TypeVar("Seen")


class Changes:
    """One per process; `follow` runs as a task of its loop."""

    def __init__(self, url: str) -> None:
        self._redis = redis.asyncio.Redis.from_url(url, decode_responses=True, socket_timeout=10)
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self.closing: Callable[[], bool] = lambda: False
        """Whether the process is to end: then nobody is kept waiting."""

    async def follow(self) -> None:
        """Read the stream until cancelled. Redis may come and go."""
        last: str | None = None
        while True:
            try:
                last = last or await self._newest()
                for position, fields in await self._read_after(last):
                    last = position
                    self._wake(json.loads(fields["d"])["speaker"])
            except asyncio.CancelledError:
                await self._redis.aclose()
                raise
            except (redis.RedisError, OSError, ValueError, KeyError) as error:
                if _seldom.due(type(error)):
                    log.warning("changes.interrupted", error=type(error).__name__)
                last = None  # the server may be another one
                await asyncio.sleep(0.5)

    async def _newest(self) -> str:
        """Where to go on from. Redis's own `$` is another place each time: what came between is lost."""
        entries: Any = await self._redis.xrevrange(EVENTS, count=1)
        return str(entries[0][0]) if entries else "0-0"

    async def _read_after(self, last: str) -> list[tuple[str, dict[str, str]]]:
        streams: Any = await self._redis.xread({EVENTS: last}, block=2000, count=500)
        return [entry for _, entries in streams or [] for entry in entries]

    def _wake(self, speaker: str) -> None:
        for event in self._waiting.get(speaker, ()):
            event.set()

    async def wait_until(
        self,
        speaker: str,
        seconds: float,
        look: Callable[[], Seen],
        done: Callable[[Seen], bool],
        abandoned: Callable[[], Awaitable[bool]],
    ) -> Seen:
        """Look, in a thread, until `done` says so, the time is up, nobody waits any more, or we are to end.

        Returns what was seen last.
        """
        deadline = asyncio.get_running_loop().time() + seconds
        with self._subscribed(speaker) as changed:
            while True:
                changed.clear()
                seen = await run_in_threadpool(look)
                left = deadline - asyncio.get_running_loop().time()
                if done(seen) or left <= 0 or self.closing() or await abandoned():
                    return seen
                with suppress(TimeoutError), waiting():
                    await asyncio.wait_for(changed.wait(), min(left, LOOK_AGAIN_SECONDS))

    @property
    def waiting(self) -> int:
        """Who waits for anything now."""
        return sum(len(events) for events in self._waiting.values())

    @contextmanager
    def _subscribed(self, speaker: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting.setdefault(speaker, set()).add(event)
        try:
            yield event
        finally:
            self._waiting[speaker].discard(event)
            if not self._waiting[speaker]:
                del self._waiting[speaker]
