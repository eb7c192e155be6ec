"""Sweeps the registry: settles every speaker, removes garbage and deleted voices, and drops old job records.

A sweep may take hours. Its progress is in Redis, beside the generations of the view, so that an interrupted
sweep is continued by any process.
"""

import hashlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import cast

import redis
import structlog

from services.registry_api.maintenance.each_speaker import in_parallel
from services.shared.bucket.layout import bytes_folder, documents_prefix, speaker_of
from services.shared.bucket.store import Store
from services.shared.configuration.api import HousekeepingSettings
from services.shared.model.records import Record
from services.shared.model.speaker import SpeakerId, is_slug
from services.shared.queue.jobs import Jobs
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import Speakers
from services.shared.telemetry.metrics import GARBAGE
from services.shared.view.job_records import KEPT_SECONDS
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.names import is_namespace

log = structlog.get_logger()

SWEPT = "sr:swept"
"""The key of the last finished sweep, as `began:asked:made_with`: when it began (Unix seconds), how many
sweeps had been requested by then, and a hash of the required profiles and of the encoders.
"""
SWEEPS_ASKED = "sr:sweeps_asked"
"""The key of the number of sweeps that were requested so far."""
_SWEEPING = "sr:sweeping"
"""The state of the current or interrupted sweep, as JSON of `_Progress`."""
_FORGET_SECONDS = 300.0
"""The longest time that one sweep spends on dropping the old job records of a namespace."""


class _Progress(Record):
    """The progress of a sweep, stored as JSON in Redis."""

    began: int
    asked: str
    made_with: str
    done: str = ""
    """The last speaker that was swept. Empty at the beginning."""

    def lies_before(self, speaker_id: SpeakerId) -> bool:
        """Return whether the speaker has not been swept yet."""
        done = SpeakerId.parse(self.done) if self.done else None
        return done is None or (speaker_id.namespace, speaker_id.slug) > (done.namespace, done.slug)


class Sweeps:
    """Decides when a sweep is due, and sweeps."""

    def __init__(
        self,
        *,
        store: Store,
        speakers: Speakers,
        jobs: Jobs,
        profiles: Profiles,
        records: ProfileRecords,
        settings: HousekeepingSettings,
        sweep_keys: Callable[[], object],
    ) -> None:
        """Use these parts. `sweep_keys` deletes API keys that ended long ago."""
        self._store = store
        self._speakers = speakers
        self._redis = speakers.generation.redis
        self._jobs = jobs
        self._profiles = profiles
        self._records = records
        self._settings = settings
        self._sweep_keys = sweep_keys
        self._swept_with = ""
        """The hash of this process with which it last knew of a finished sweep."""
        self._tolerated: tuple[str, str] | None = None
        """The hash of a sweep for other profiles, and that of this process, if no sweep follows from them."""

    def is_due(self) -> bool:
        """Return whether a sweep is due: one was requested, an encoder or the required profiles of this
        process have changed since the last sweep, or the last sweep was too long ago.
        """
        with unavailable_without_redis():
            swept, asked = cast(list[str | None], self._redis.mget(SWEPT, SWEEPS_ASKED))
        if swept is None:  # there was no sweep, or Redis has lost the record of the last one
            return True
        began, answered, made_with = (*swept.split(":", 2), "")[:3]
        if answered != (asked or "0") or self._differs(made_with):
            return True
        age = self._speakers.now() - float(began)
        return age > self._settings.sweep_seconds or age < 0

    def steps(self, sweep_one: Callable[[SpeakerId], object]) -> Iterator[None]:
        """Sweep one speaker at each step. Continues an interrupted sweep."""
        progress = self._begin()
        swept = self._store.sweep_temporary(timedelta(seconds=self._settings.grace_seconds))
        GARBAGE.labels("temporary").inc(swept)
        self._sweep_keys()
        for namespace in filter(is_namespace, self._store.folders("")):
            ids = [one for one in self._speakers_of(namespace) if progress.lies_before(one)]
            swept_in_order = in_parallel(sweep_one, ids, self._settings.sweep_threads)
            for speaker_id, _ in zip(ids, swept_in_order, strict=True):
                self._note(progress.having(done=str(speaker_id)))
                yield
            yield from self._forget_jobs(namespace, progress.began - KEPT_SECONDS)
        self._end(progress)

    def _forget_jobs(self, namespace: str, moment: float) -> Iterator[None]:
        """Drop the records of jobs that were created before `moment`, for at most `_FORGET_SECONDS`.

        The next sweep continues with the rest.
        """
        deadline = self._speakers.clock.monotonic() + _FORGET_SECONDS
        while self._jobs.records.forget_before(namespace, moment):
            yield
            if self._speakers.clock.monotonic() > deadline:
                log.warning("jobs.not_all_forgotten", seconds=_FORGET_SECONDS)
                return

    def _speakers_of(self, namespace: str) -> list[SpeakerId]:
        """Return all speakers that have a document, or bytes of an upload that never made one, sorted by
        slug.
        """
        listed = self._store.list(documents_prefix(namespace)).objects
        documents = {one for stored in listed if (one := speaker_of(stored.key))}
        folders = filter(is_slug, self._store.folders(bytes_folder(namespace)))
        return sorted(documents | {SpeakerId(namespace, one) for one in folders}, key=lambda one: one.slug)

    def _begin(self) -> _Progress:
        """Begin a sweep, or continue the one that was interrupted."""
        with unavailable_without_redis():
            asked, noted = cast(list[str | None], self._redis.mget(SWEEPS_ASKED, _SWEEPING))
        if noted:
            begun = _Progress.model_validate_json(noted)
            log.info("sweep.resumed", began=begun.began)
            return begun
        self._records.clear_cache()
        return _Progress(began=self._speakers.now(), asked=asked or "0", made_with=self._made_with())

    def _made_with(self) -> str:
        required = ",".join(sorted(profile.name for profile in self._profiles.required))
        basis = f"{required} {self._records.made_with(self._profiles.names)}"
        return hashlib.sha256(basis.encode()).hexdigest()[:16]

    def _differs(self, made_with: str) -> bool:
        """Return whether the last sweep was for other profiles or encoders than those of this process. While
        the document of a profile cannot be read, its encoder is not known, and the answer is False.

        If this process knows of a sweep for its own, another process made the last one for the profiles that
        *it* has. No sweep follows from that, or the two would sweep in turns for ever.
        """
        if self._is_own(made_with):
            return False
        if self._tolerated == (made_with, self._made_with()):
            return False
        self._records.clear_cache()  # this process may not know of the change yet
        if self._is_own(made_with):
            return False
        if any(map(self._records.problem, self._profiles.names)):
            return False
        if self._made_with() != self._swept_with:
            return True
        self._tolerated = (made_with, self._swept_with)
        log.warning(
            "sweep.profiles_differ",
            reason="API processes have different SPEAKER_PROFILES, are of different releases, or could not "
            "all read the documents of profiles. Each sweep is for the profiles of the process that began "
            "it.",
        )
        return False

    def _is_own(self, made_with: str) -> bool:
        """Return whether a finished sweep was for the profiles and encoders of this process, and remember
        that it was.
        """
        own = self._made_with()
        if own == made_with:
            self._swept_with = own
        return own == made_with

    def _note(self, progress: _Progress) -> None:
        with unavailable_without_redis():
            self._redis.set(_SWEEPING, progress.model_dump_json())

    def _end(self, progress: _Progress) -> None:
        with unavailable_without_redis():
            pipeline = self._redis.pipeline(transaction=True)
            pipeline.set(SWEPT, f"{progress.began}:{progress.asked}:{progress.made_with}")
            pipeline.delete(_SWEEPING)
            pipeline.execute()
        self._is_own(progress.made_with)  # the next look may be after that of a process with other profiles
        log.info("sweep.done", seconds=self._speakers.now() - progress.began)


def ask_for_sweep(client: redis.Redis) -> None:
    """Request a sweep, in which housekeeping checks every speaker. Raises `Unavailable`."""
    with unavailable_without_redis():
        client.incr(SWEEPS_ASKED)
