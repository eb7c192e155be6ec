"""Keeps the index equal to the facts: rebuilds it, repairs what crashes left unfinished, and deletes garbage.

Any number of processes may run this at once. All of it is idempotent, and a lock in Redis only saves work.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
from redis.exceptions import LockError
from redis.lock import Lock

from services.registry_api.maintenance.each_speaker import safely
from services.registry_api.maintenance.garbage_collector import GarbageCollector
from services.registry_api.maintenance.rebuild import Rebuild
from services.registry_api.maintenance.repairs import LOOK_MUCH_LATER_SECONDS, Repairs
from services.registry_api.maintenance.sweep import Sweeps
from services.registry_api.operations import Operations
from services.shared.bucket.keys import SpeakerId
from services.shared.configuration.settings import HousekeepingSettings
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.refusals import EpochOver
from services.shared.registry.parts import RegistryParts
from services.shared.telemetry.logs import LogThrottle
from services.shared.telemetry.metrics import REBUILD_SECONDS, REBUILDS
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_REPAIRED_AT_A_TIME = 100
"""How many speakers that are due are repaired before anything else is done."""
_LOCK_SECONDS = 20.0
"""The time for which a lock stays with its holder without renewal. With a longer time, a killed rebuild would
keep the gate closed.
"""

RenewLock = Callable[[], None]
"""Long-running work calls this regularly, to keep its lock."""


class Housekeeper:
    """Repairs, rebuilds and sweeps. Call `turn` about once a second, or let `run` do so in its own thread."""

    def __init__(
        self,
        parts: RegistryParts,
        operations: Operations,
        settings: HousekeepingSettings,
        sweep_keys: Callable[[], object],
    ) -> None:
        """`sweep_keys`: deletes what is left of API keys that ended long ago; called in each sweep."""
        self._store = parts.store
        self._index = parts.index
        self._clock = parts.clock
        self._catalogue = parts.catalogue
        self._settings = settings
        self.repairs = Repairs(parts, operations)
        self.garbage = GarbageCollector(parts.store, parts.index, settings)
        self.sweeps = Sweeps(parts, self.repairs, self.garbage, settings, sweep_keys)
        self._requirements_told = False
        self._stop = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Call `turn` until `stop` is set. Errors are logged, and the work is tried again."""
        self._stop = stop
        while not stop.is_set():
            try:
                self.turn()
            except Unavailable as error:
                if _throttle.due(str(error)):
                    log.warning("housekeeping.put_off", error=str(error))
            except Exception:
                log.exception("housekeeping.failed")
            stop.wait(self._settings.turn_seconds)

    def turn(self) -> None:
        """Rebuild an incomplete index, repair the speakers that are due, and sweep if that is due."""
        self._index.open()
        if not self._index.complete():
            with self._only_one("rebuild") as renew:
                self.rebuild(renew)
        if not self._requirements_told:
            self.sweeps.require(self._catalogue.required)
            self._requirements_told = True
        self._repair_due()
        if self.sweeps.is_due():
            with self._only_one("sweep") as renew:
                self.sweep(renew)

    def rebuild(self, renew: RenewLock = lambda: None) -> int:
        """Admit every speaker of the bucket to the index. Returns how many the index did not know yet.

        Raises:
            Unavailable: bucket or Redis is unavailable. The next rebuild continues.
        """
        began, result = self._clock.monotonic(), "failed"
        self._index.open()
        self.sweeps.note_encoders()
        threads = self._settings.rebuild_threads
        rebuild = Rebuild(self._store, self._index, self.repairs, self.garbage, threads)
        try:
            done = self._finish(rebuild.steps(), renew)
            result = "done" if done else "stopped"
        except EpochOver:
            result = "lost"
            raise
        finally:
            REBUILDS.labels(result).inc()
        REBUILD_SECONDS.observe(self._clock.monotonic() - began)
        log.info("index.rebuilt", speakers=rebuild.admitted, done=done)
        return rebuild.admitted

    def sweep(self, renew: RenewLock = lambda: None) -> None:
        """Repair every speaker, delete garbage, and drop old job records. Continues an interrupted sweep."""
        self._finish(self.sweeps.steps(), renew)

    def _finish(self, steps: Iterator[None], renew: RenewLock) -> bool:
        """Take all steps of long work, and repair the speakers that are due meanwhile.

        Returns False if the process has to stop before the last step.
        """
        repaired_at = self._clock.monotonic()
        for _ in steps:
            renew()
            if self._clock.monotonic() - repaired_at >= self._settings.turn_seconds:
                self._repair_due()
                repaired_at = self._clock.monotonic()
            if self._stop.is_set():
                return False
        return True

    def _repair_due(self) -> None:
        for speaker_id, seen in self._index.due(_REPAIRED_AT_A_TIME):
            seconds = safely(self._repair_and_erase, speaker_id, otherwise=LOOK_MUCH_LATER_SECONDS)
            self._index.look_again(speaker_id, seconds, seen=seen)

    def _repair_and_erase(self, speaker_id: SpeakerId) -> float | None:
        """Repair a speaker, and erase its deleted data once the grace period has ended.

        Returns in how many seconds to examine the speaker again, or None if nothing is left to do.
        """
        again = self.repairs.repair(speaker_id), self.garbage.erase_if_due(speaker_id)
        return min((seconds for seconds in again if seconds is not None), default=None)

    @contextmanager
    def _only_one(self, what: str) -> Iterator[RenewLock]:
        """Hold a lock on the work. Raises `Unavailable` if another process holds it. Losing it midway is
        harmless.
        """
        # A server that was killed with its clients restores their locks from its log, so names include the
        # stamp.
        name = f"sr:lock:{what}:{self._index.stamp}"
        lock = self._index.ungated.lock(name, timeout=_LOCK_SECONDS, blocking=False, thread_local=False)
        with unavailable_without_redis():
            if not lock.acquire():
                raise Unavailable(f"Another process is doing the {what}.", retry_after_seconds=1)
        try:
            yield self._renewing(lock)
        finally:
            try:
                with unavailable_without_redis():
                    lock.release()
            except (LockError, Unavailable):
                log.info("housekeeping.lock_lost", what=what)

    def _renewing(self, lock: Lock) -> RenewLock:
        renewed = self._clock.monotonic()

        def renew() -> None:
            nonlocal renewed
            if self._clock.monotonic() - renewed > _LOCK_SECONDS / 4:
                renewed = self._clock.monotonic()
                with suppress(LockError, Unavailable), unavailable_without_redis():
                    lock.reacquire()

        return renew
