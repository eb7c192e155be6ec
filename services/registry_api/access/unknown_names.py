"""Limits how many names without a voice one API key may ask for.

A voice that the view lacks is read from the bucket, because only the bucket can show that it does not exist.
So a caller that asks for many unknown names could exhaust the bucket for everybody. Each process counts for
itself.
"""

from threading import Lock

from cachetools import TTLCache

from services.registry_api.access.rate_limits import MINUTE, RateLimits
from services.registry_api.protocol.callers import Caller
from speaker_registry.errors import RateLimited

_REMEMBERED_SECONDS = 5.0
"""A name that is asked for again within this time causes no read of the bucket, so it is not counted."""
_MAX_NAMES = 50_000
_MAX_CALLERS = 10_000


class UnknownNames:
    """Counts the names of voices that callers asked for and that do not exist, minute by minute. Thread-safe.

    Args:
        rates: the rate limits, whose clock defines the minutes.
        per_minute: how many such names one caller may ask for. None sets no limit.
    """

    def __init__(self, rates: RateLimits, per_minute: int | None) -> None:
        self._rates = rates
        self._per_minute = per_minute
        self._lock = Lock()
        self._names: TTLCache[tuple[str, str], bool] = TTLCache(_MAX_NAMES, _REMEMBERED_SECONDS, rates.now)
        self._counts: TTLCache[tuple[str, int], int] = TTLCache(_MAX_CALLERS, 2 * MINUTE, rates.now)

    def check(self, caller: Caller) -> None:
        """Raise `RateLimited` if the caller has asked for too many names in this minute."""
        if self._per_minute is None:
            return
        with self._lock:
            count = self._counts.get((caller.counted_id, self._rates.minute()), 0)
        if count >= self._per_minute:
            raise RateLimited(
                f"This API key has asked for {self._per_minute} voices that do not exist in this minute. "
                "Wait for the next minute, and list the existing voices with GET /v1/voices.",
                retry_after_seconds=self._rates.reset_seconds(),
            )

    def note(self, caller: Caller, name: str) -> None:
        """Count a name that belongs to no voice."""
        if self._per_minute is None:
            return
        asked, counted = (caller.counted_id, name), (caller.counted_id, self._rates.minute())
        with self._lock:
            if asked not in self._names:
                self._names[asked] = True
                self._counts[counted] = self._counts.get(counted, 0) + 1
