"""Limits on one client: the amount that is read from it before other clients get their turn, and the time
that the server waits for it. This module knows no HTTP.
"""

import asyncio
from collections.abc import Callable
from enum import Enum

_PACE_SECONDS = 0.01
MAX_PIECES = 250
"""Maximum number of pieces of bodies that are read from one connection in `_PACE_SECONDS`."""
_SMALL_READ_BYTES = 4096
SMALL_READ_PIECES = 50
"""Number of pieces that a read of fewer than `_SMALL_READ_BYTES` counts as, because it wakes the application
like a large read.
"""
_MAX_ANSWERS = 64
"""Other connections get their turn after the lane has sent this many answers to one client."""


class Pace:
    """Decides when reading from a client must pause, and resumes it later.

    Args:
        read_on: is called at the end of a pause.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, read_on: Callable[[], None]) -> None:
        self._loop = loop
        self._read_on = read_on
        self.pieces = 0
        """The pieces of bodies that were read lately."""
        self.answers = 0
        """The requests that the lane has answered since other connections had their turn."""
        self._pieces_since = 0.0
        self._pauses = False

    def count_read(self, size: int) -> None:
        """Count a read of `size` bytes that continues a request."""
        if size < _SMALL_READ_BYTES:
            self.pieces += SMALL_READ_PIECES

    def pauses(self) -> bool:
        """Return whether the client has sent as much as may be read without a pause. If so, a pause
        begins.
        """
        if self._pauses:
            return True
        if self.answers >= _MAX_ANSWERS:
            self._pauses = True
            self._loop.call_soon(self._end_pause)
            return True
        if self.pieces <= MAX_PIECES:
            return False
        now = self._loop.time()
        if now - self._pieces_since > _PACE_SECONDS:
            self.pieces, self._pieces_since = 0, now
            return False
        self._pauses = True
        self._loop.call_later(_PACE_SECONDS, self._end_pause)
        return True

    def _end_pause(self) -> None:
        self._pauses, self.answers = False, 0
        self.pieces, self._pieces_since = 0, self._loop.time()
        self._read_on()


class Awaited(Enum):
    """The part of a request or answer that the server waits for."""

    HEAD = "head"
    REST = "rest of an answered request"
    REQUEST = "next request"


class Deadline:
    """Calls `passed` when the server has waited too long for the same thing.

    Setting a deadline is cheap: a timer that is already running is kept, because most deadlines never pass.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, passed: Callable[[Awaited], None]) -> None:
        self._loop = loop
        self._passed = passed
        self.awaited: Awaited | None = None
        """The server waits for this, or for nothing if it is None. Users may set it to None."""
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, awaited: Awaited, seconds: float) -> None:
        """Begin to wait for something, unless the server already waits for it."""
        if awaited is self.awaited:
            return
        self.awaited, self._due = awaited, self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._check)

    def cancel(self) -> None:
        """Stop waiting, so that `passed` is not called."""
        self.awaited = None
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self.awaited is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._check)
        else:
            self._passed(self.awaited)
