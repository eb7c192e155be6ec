"""The loop of housekeeping, which decides which task is due. The modules of the tasks hold the rules.

Any number of processes may run this at once. All of it is idempotent, and a lock in Redis only saves work.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial

import structlog

from services.registry_api.maintenance.each_speaker import safely
from services.registry_api.maintenance.erase import erase, erasure_due_in
from services.registry_api.maintenance.garbage_sweep import sweep as sweep_bytes
from services.registry_api.maintenance.locks import RenewLock, only_one
from services.registry_api.maintenance.rebuild import CHECK_SECONDS, CheckDue, rebuild
from services.registry_api.maintenance.settle import checker, settle
from services.registry_api.maintenance.sweep import Sweeps
from services.shared.bucket.store import Store
from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.configuration.api import HousekeepingSettings
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import Speakers
from services.shared.telemetry.logs import LogThrottle
from services.shared.telemetry.metrics import REBUILD_SECONDS, REBUILDS
from services.shared.view.away import ViewAway
from services.shared.view.copies import Listed
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_CHECKED_AT_A_TIME = 100
"""Maximum number of due speakers that are checked before other tasks get their turn."""
_NOTICED_SECONDS = 0.1
"""A new view begins to be filled within this time."""
RECHECK_SECONDS = 300.0
"""A speaker whose document is damaged, or that could not be settled, is checked again after this time."""
_LISTED_AGAIN_SECONDS = (60.0, 3600.0)
"""The bucket is listed again this long after the first listing of a generation, and then daily."""
_DAY_SECONDS = 86_400.0


class Stopped(Exception):
    """Raised in the middle of long work when the process is stopping."""


class Housekeeping:
    """Rebuilds the view, settles speakers and sweeps. Call `turn` about once a second, or let `run` do so in
    its own thread.
    """

    def __init__(
        self,
        *,
        store: Store,
        speakers: Speakers,
        blobs: StoredBytes,
        jobs: Jobs,
        profiles: Profiles,
        records: ProfileRecords,
        settings: HousekeepingSettings,
        sweep_keys: Callable[[], object],
        forget_voice: Callable[[SpeakerId], object],
    ) -> None:
        """Use these parts.

        Args:
            sweep_keys: deletes API keys that ended long ago. It is called in each sweep.
            forget_voice: removes the name of an erased voice from what housekeeping does not know.
        """
        self._store = store
        self._speakers = speakers
        self._blobs = blobs
        self._jobs = jobs
        self._profiles = profiles
        self._records = records
        self._settings = settings
        self._forget_voice = forget_voice
        self._clock = speakers.clock
        self._sweeps = Sweeps(
            store=store,
            speakers=speakers,
            jobs=jobs,
            profiles=profiles,
            records=records,
            settings=settings,
            sweep_keys=sweep_keys,
        )
        self._grace = timedelta(seconds=settings.grace_seconds)
        self._deleted_grace = timedelta(seconds=settings.deleted_grace_seconds)
        self._stop = threading.Event()
        self._checked_at = 0.0

    def run(self, stop: threading.Event) -> None:
        """Call `turn` until `stop` is set. Errors are logged, and the work is tried again."""
        self.stop_when(stop)
        while not stop.is_set():
            generation = self._speakers.generation.last_used
            try:
                self.turn()
            except Stopped:
                return
            except Unavailable as error:
                if _throttle.due(str(error)):
                    log.warning("housekeeping.put_off", error=str(error))
            except Exception:
                log.exception("housekeeping.failed")
            self._pause(generation)

    def _pause(self, generation: str) -> None:
        """Wait for the next turn. It comes early if the view of `generation` was lost."""
        ends = self._clock.monotonic() + self._settings.turn_seconds
        while (left := ends - self._clock.monotonic()) > 0:
            is_ending = self._stop.wait(min(left, _NOTICED_SECONDS))
            if is_ending or self._speakers.generation.last_used != generation:
                return

    def stop_when(self, stop: threading.Event) -> None:
        """End long work by raising `Stopped` once `stop` is set."""
        self._stop = stop

    def turn(self) -> None:
        """List the bucket if that is due, check the speakers that are due, take jobs from workers that died,
        and sweep if that is due.
        """
        if listing_is_due(self._speakers.view.listed()):
            with self._only_one("rebuild") as renew:
                self.rebuild(renew)
        self._check_due()
        if self._sweeps.is_due():
            with self._only_one("sweep") as renew:
                self.sweep(renew)

    def rebuild(self, renew: RenewLock = lambda: None) -> int:
        """Update the view to the state of the bucket. Returns the number of documents that the view lacked.

        Raises `Unavailable` if bucket or Redis is unavailable. The next rebuild then continues.
        """
        began, result = self._clock.monotonic(), "failed"
        generation = self._speakers.generation.for_reading()
        try:
            applied = rebuild(
                self._store,
                self._speakers,
                schedule=self._check_schedule,
                put_back=lambda: self._records.put_back(self._profiles.names),
                threads=self._settings.rebuild_threads,
                between=lambda: self._between(renew),
            )
            result = "done"
        except Stopped:
            result = "stopped"
            raise
        except ViewAway:
            result = "lost"
            raise
        finally:
            REBUILDS.labels(result).inc()
        REBUILD_SECONDS.observe(self._clock.monotonic() - began)
        forgotten = self._speakers.view.forget_others(generation)
        log.info("view.rebuilt", speakers=applied, forgotten_keys=forgotten)
        return applied

    def sweep(self, renew: RenewLock = lambda: None) -> None:
        """Settle every speaker and remove garbage. Continues an interrupted sweep.

        A sweep may take hours, so it is interrupted when Redis was lost and the bucket must be listed.
        """
        for _ in self._sweeps.steps(self._sweep_one):
            if self._between(renew) and listing_is_due(self._speakers.view.listed()):
                log.info("sweep.interrupted")
                return

    def check(self, speaker_id: SpeakerId) -> float | None:
        """Settle a speaker, and erase voices and versions that were deleted longer ago than the grace period.

        Returns the number of seconds until the next check of the speaker, or None if nothing is left to do.
        """
        again = (
            settle(self._speakers, self._jobs, self._profiles, speaker_id),
            erase(
                self._speakers,
                self._blobs,
                speaker_id,
                grace=self._deleted_grace,
                forget_voice=self._forget_voice,
            ),
        )
        return min((seconds for seconds in again if seconds is not None), default=None)

    def _check_due(self) -> None:
        """Check the speakers that are due, and take jobs from workers that died."""
        self._checked_at = self._clock.monotonic()
        for due in self._speakers.agenda.due(_CHECKED_AT_A_TIME):
            again = safely(self.check, due.speaker_id, otherwise=RECHECK_SECONDS)
            self._speakers.agenda.checked(due, again_in=again)
        self._jobs.reap()

    def _sweep_one(self, speaker_id: SpeakerId) -> None:
        again = safely(self.check, speaker_id, otherwise=RECHECK_SECONDS)
        remove = partial(sweep_bytes, self._speakers, self._blobs, grace=self._grace)
        safely(remove, speaker_id, otherwise=0)
        if again is not None:
            self._speakers.agenda.check_within({speaker_id: again})

    def _check_schedule(self) -> CheckDue:
        """Return what tells when a speaker must be checked whose document the view lacked."""
        now, needs_check = self._speakers.now(), checker(self._profiles)

        def due(document: SpeakerDocument) -> float | None:
            if needs_check(document):
                return CHECK_SECONDS
            return erasure_due_in(document, self._deleted_grace, now=now)

        return due

    def _between(self, renew: RenewLock) -> bool:
        """Renew the lock of long work. If the time of a turn has passed, do what each turn does.

        Returns whether that time had passed.
        """
        renew()
        is_time = self._clock.monotonic() - self._checked_at >= self._settings.turn_seconds
        if is_time:
            self._check_due()
        if self._stop.is_set():
            raise Stopped
        return is_time

    def _only_one(self, what: str) -> AbstractContextManager[RenewLock]:
        return only_one(self._speakers.generation, self._clock, what)


def listing_is_due(listed: Listed | None) -> bool:
    """Return whether the bucket has to be listed: at first, after a minute, after an hour, and then daily.

    Otherwise an outdated listing, from an outdated node of the store, would never be corrected.
    """
    if listed is None or listed.last >= _DAY_SECONDS:
        return True
    return any(listed.first >= after > listed.first - listed.last for after in _LISTED_AGAIN_SECONDS)
