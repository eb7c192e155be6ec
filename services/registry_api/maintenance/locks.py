"""Locks in Redis, which keep several processes from doing the same work. Correctness needs no lock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
from redis.exceptions import LockError
from redis.lock import Lock

from services.shared.model.clock import Clock
from services.shared.view.generation import Generation
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

LOCK_SECONDS = 20.0
"""A lock that is not renewed expires after this time. With a longer time, lists would stay incomplete after a
rebuild was killed.
"""
_POLL_SECONDS = 0.02
"""Seconds between two attempts of a process that waits for a lock."""

RenewLock = Callable[[], None]
"""A function that long-running work calls regularly, to keep its lock."""


@contextmanager
def only_one(
    generation: Generation, clock: Clock, what: str, *, wait_seconds: float = 0.0
) -> Iterator[RenewLock]:
    """Hold a lock on the work. Raises `Unavailable` if another process still holds it after `wait_seconds`.

    Losing it midway is harmless. A new generation of the view has locks of its own, so that the lock of a
    dead process cannot delay its rebuild.
    """
    name = f"sr:{generation.for_reading()}:lock:{what}"
    lock = generation.redis.lock(
        name, timeout=LOCK_SECONDS, sleep=_POLL_SECONDS, blocking_timeout=wait_seconds, thread_local=False
    )
    with unavailable_without_redis():
        if not lock.acquire():
            raise Unavailable(f"Another process is working on the {what}.", retry_after_seconds=1)
    try:
        yield _renewing(lock, clock)
    finally:
        try:
            with unavailable_without_redis():
                lock.release()
        except (LockError, Unavailable):
            log.info("lock.lost", what=what)


def _renewing(lock: Lock, clock: Clock) -> RenewLock:
    renewed = clock.monotonic()

    def renew() -> None:
        nonlocal renewed
        if clock.monotonic() - renewed > LOCK_SECONDS / 4:
            renewed = clock.monotonic()
            with suppress(LockError, Unavailable), unavailable_without_redis():
                lock.reacquire()

    return renew
