"""Counts the artifacts that a worker has made lately. The worker reports the counts with its heartbeats."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable

_MINUTES = 60


class Throughput:
    """The artifacts of each profile that were made within the last hour, to the minute. Safe to use from
    several threads.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._minutes: deque[tuple[int, Counter[str]]] = deque(maxlen=_MINUTES)
        """The minutes in which anything was made, each with the number of artifacts by profile."""

    def count(self, profile: str) -> None:
        """Count an artifact that was made now."""
        with self._lock:
            now = self._minute()
            if not self._minutes or self._minutes[-1][0] != now:
                self._minutes.append((now, Counter()))
            self._minutes[-1][1][profile] += 1

    def last_hour(self) -> dict[str, int]:
        """Return the number of artifacts by profile."""
        with self._lock:
            since = self._minute() - _MINUTES
            recent = (made for minute, made in self._minutes if minute > since)
            return dict(sum(recent, Counter[str]()))

    def _minute(self) -> int:
        return int(self._monotonic() // 60)
