"""Rate limits: requests and uploads per minute, by key and by namespace, over all API processes together.

Redis counts them minute by minute. The minute of a limit begins with the first request that is counted, and
Redis alone measures it, because the clocks of processes may differ. A process takes chunks of a hundredth of
a limit from Redis and hands them out itself, so that few requests wait for Redis. While Redis is unavailable
nothing is counted: reads continue, and uploads fail anyway. This module knows no routes.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import redis
from cachetools import LRUCache
from starlette.concurrency import run_in_threadpool

from services.registry_api.protocol.callers import Caller
from services.shared.configuration.access import RateSettings
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.errors import RateLimited, Unavailable
from speaker_registry.schemas import Rate

MINUTE = 60
REQUESTS, UPLOADS = "requests", "uploads"
_CHUNKS_PER_LIMIT = 100
_MAX_COUNTS = 30_000
"""Number of limits whose counts are remembered. The least recently used ones are forgotten first."""


@dataclass(slots=True)
class _MinuteCount:
    """The count of one limit in one minute, as far as this process knows."""

    ends_at: float
    """The end of the minute by the clock of this process."""
    left_in_process: int = 0
    """Amount taken from Redis and not given out yet."""
    left_in_redis: int = 0
    """Amount that no process had taken when Redis last answered."""
    exhausted: bool = False
    """True if nothing is left in Redis until the next minute."""
    fetching: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the request that takes the next chunk. Other requests would each take another one."""

    def holds_at(self, now: float) -> bool:
        """Return whether the minute lasts. It has yet to begin only if the clock was set back."""
        return self.ends_at - MINUTE <= now < self.ends_at

    def reset_seconds(self, now: float) -> int:
        """Return the seconds until the next minute begins."""
        return max(1, math.ceil(self.ends_at - now))

    def add(self, chunk: int, per_minute: int, taken: int) -> None:
        """Record that this process took `chunk` from Redis, where `taken` of `per_minute` are now used."""
        self.left_in_process += max(0, min(chunk, per_minute - (taken - chunk)))
        self.left_in_redis = max(0, per_minute - taken)
        self.exhausted = self.left_in_redis == 0


@dataclass(frozen=True, slots=True)
class Limit:
    """A number of requests or uploads a minute, for one key or one namespace."""

    what: str
    subject: str
    per_minute: int | None
    """None if there is no limit."""


class RateLimits:
    """The rate limits of one process. Must only be used from its event loop."""

    def __init__(
        self, client: redis.Redis | None, settings: RateSettings, *, now: Callable[[], float] = time.time
    ) -> None:
        """Set up rate limits.

        Args:
            client: a connection to Redis that works whatever state the view is in; None: nothing is limited.
            settings: the default limits.
            now: the clock, in seconds since the epoch.
        """
        self._redis = client
        self._settings = settings
        self.now = now
        self._counts: LRUCache[tuple[str, str], _MinuteCount] = LRUCache(_MAX_COUNTS)

    @classmethod
    def unlimited(cls) -> "RateLimits":
        """Return rate limits that limit nothing, for a registry without keys."""
        # The constructor of the settings would read those that are not named from the environment.
        settings = RateSettings.model_construct(
            requests_per_minute=None,
            uploads_per_minute=None,
            namespace_requests_per_minute=None,
            namespace_uploads_per_minute=None,
        )
        return cls(None, settings)

    def default_per_minute(self, what: str) -> int | None:
        """Return the limit of a key that has no limit of its own; None if there is no limit."""
        settings = self._settings
        return settings.uploads_per_minute if what == UPLOADS else settings.requests_per_minute

    def limits_for(self, caller: Caller, namespace: str, what: str) -> tuple[Limit, Limit]:
        """Return the limits of the caller and of the namespace that its request is about."""
        settings = self._settings
        if what == UPLOADS:
            own, shared = caller.uploads_per_minute, settings.namespace_uploads_per_minute
        else:
            own, shared = caller.requests_per_minute, settings.namespace_requests_per_minute
        subject = f"key:{caller.counted_id}"
        own_limit = Limit(what, subject, own or self.default_per_minute(what))
        return own_limit, Limit(what, f"namespace:{namespace}", shared)

    async def take(self, limit: Limit) -> Rate:
        """Count one request or upload, and return the limit with its remaining amount.

        Raises:
            RateLimited: the limit is reached in this minute.
        """
        if limit.per_minute is None:
            return self.rate(limit, None)
        count = self.count(limit)
        if not count.left_in_process and not count.exhausted:
            await self._take_chunk(limit, count, limit.per_minute)
        if not count.left_in_process:
            raise self._refusal(limit, count)
        count.left_in_process -= 1
        return self.rate(limit, count)

    async def _take_chunk(self, limit: Limit, count: _MinuteCount, per_minute: int) -> None:
        chunk = max(1, per_minute // _CHUNKS_PER_LIMIT)
        async with count.fetching:
            while not count.left_in_process and not count.exhausted:
                count.add(chunk, per_minute, await self._taken(limit, count, chunk))

    def taking(self, limits: Sequence[Limit]) -> "Taking":
        """Return an object that counts requests against several limits at once, without waiting."""
        return Taking(self, [limit for limit in limits if limit.per_minute is not None])

    async def usage(self, caller: Caller, namespace: str, what: str) -> tuple[Rate, Rate]:
        """Return the remaining amounts of the caller and of the namespace, without counting anything."""
        own, shared = self.limits_for(caller, namespace, what)
        return await self._read_usage(own), await self._read_usage(shared)

    async def _read_usage(self, limit: Limit) -> Rate:
        if limit.per_minute is None:
            return self.rate(limit, None)
        count = self.count(limit)
        count.add(0, limit.per_minute, await self._taken(limit, count, 0))
        return self.rate(limit, count)

    def rate(self, limit: Limit, count: _MinuteCount | None) -> Rate:
        """Return a limit with its remaining amount. `count` is None if there is no limit."""
        remaining = count.left_in_process + count.left_in_redis if count is not None else None
        reset_seconds = count.reset_seconds(self.now()) if count is not None else self.reset_seconds()
        return Rate(limit=limit.per_minute, remaining=remaining, reset_seconds=reset_seconds)

    def count(self, limit: Limit) -> _MinuteCount:
        """Return the count of a limit in this minute."""
        now = self.now()
        count = self._counts.get((limit.what, limit.subject))
        if count is None or not count.holds_at(now):
            count = self._counts[limit.what, limit.subject] = _MinuteCount(now + MINUTE)
        return count

    async def _taken(self, limit: Limit, count: _MinuteCount, chunk: int) -> int:
        """Take `chunk` from Redis, and return how much all processes together have taken in this minute."""
        key = f"sr:rate:{limit.what}:{limit.subject}"
        try:
            taken, seconds_left = await run_in_threadpool(self._add, key, chunk)
        except Unavailable:
            return chunk
        count.ends_at = self.now() + seconds_left  # later than the end in Redis by the way of the answer
        return taken

    def _add(self, key: str, chunk: int) -> tuple[int, float]:
        """Take `chunk`, and return how much is taken, and for how many seconds the minute still lasts."""
        assert self._redis is not None, "there is no limit"
        with unavailable_without_redis():
            pipeline = self._redis.pipeline(transaction=False)
            pipeline.incrby(key, chunk)
            pipeline.expire(key, MINUTE, nx=True)
            pipeline.pttl(key)
            taken, _, milliseconds = pipeline.execute()
            return int(taken), max(0, milliseconds) / 1000

    def _refusal(self, limit: Limit, count: _MinuteCount) -> RateLimited:
        whose = "this API key" if limit.subject.startswith("key:") else "this namespace"
        return RateLimited(
            f"The limit of {limit.per_minute} {limit.what} a minute for {whose} is reached. Wait for the "
            "next minute.",
            retry_after_seconds=count.reset_seconds(self.now()),
        )

    def minute(self) -> int:
        """Return the number of the present minute, for counts that this process does not share."""
        return int(self.now() // MINUTE)

    def reset_seconds(self) -> int:
        """Return the seconds until the next `minute` begins."""
        return math.ceil(MINUTE - self.now() % MINUTE)


class Taking:
    """Counts the requests of one caller about one namespace, as long as that needs no round trip.

    Args:
        limits: the limits to count against. Each has a `per_minute`.
    """

    def __init__(self, rates: RateLimits, limits: Sequence[Limit]) -> None:
        self._rates = rates
        self._limits = limits
        self._counts: list[_MinuteCount] = []

    def take(self) -> "Left | None":
        """Count one request, and return the remaining amount of the limit that is closest.

        Returns None if nothing was counted: a limit is reached, or this process has to ask Redis first.
        """
        if not self._limits:
            return _UNLIMITED
        now = self._rates.now()
        if not self._counts or not all(count.holds_at(now) for count in self._counts):
            self._counts = [self._rates.count(limit) for limit in self._limits]
        for count in self._counts:
            if not count.left_in_process:
                return None
        closer, closest_count, least = self._limits[0], self._counts[0], math.inf
        for limit, count in zip(self._limits, self._counts, strict=True):
            count.left_in_process -= 1
            remaining = count.left_in_process + count.left_in_redis
            if remaining < least:
                closer, closest_count, least = limit, count, remaining
        return Left(closer.per_minute, int(least), closest_count.reset_seconds(now))


class Left(NamedTuple):
    """The remaining amount of a limit, with the fields of `Rate`. It is made for every answer from memory, so
    it is cheap.
    """

    limit: int | None
    remaining: int | None
    reset_seconds: int


_UNLIMITED = Left(None, None, 0)


def closest(rates: Iterable[Rate]) -> Rate:
    """Return the limit with the smallest remaining amount."""
    return min(rates, key=lambda rate: math.inf if rate.limit is None else rate.remaining or 0)
