"""Sweeps the registry: repairs every speaker, deletes garbage, and drops old job records.

A sweep may take hours. Its progress is in Redis, so that an interrupted sweep is continued by any process.
"""

from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from typing import cast

import redis
import structlog

from services.registry_api.maintenance.each_speaker import in_parallel, safely
from services.registry_api.maintenance.garbage_collector import GarbageCollector
from services.registry_api.maintenance.repairs import LOOK_MUCH_LATER_SECONDS, Repairs
from services.shared.bucket.facts import speaker_ids
from services.shared.bucket.keys import SpeakerId
from services.shared.configuration.settings import HousekeepingSettings
from services.shared.index.gate import epoch_of
from services.shared.index.jobs import KEPT_SECONDS, Jobs
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.refusals import EpochOver
from services.shared.index.speaker_index import LONGEST_PUT_OFF_SECONDS, WINDOW_SECONDS
from services.shared.model.domain import Record
from services.shared.registry.parts import RegistryParts
from services.shared.telemetry.metrics import GARBAGE

log = structlog.get_logger()

SWEPT = "sr:swept"
"""`began:asked`: when the last finished sweep began, and how many sweeps had been requested by then."""
_ENCODERS = "sr:swept_encoders"
"""This key holds the encoders of all profiles as the last finished sweep, or the rebuild, found them."""
_SWEEPS_ASKED = "sr:sweeps_asked"
"""Counts how often housekeeping was asked to look at every speaker."""
_REQUIRED = "sr:required"
"""This key holds the profiles that the process that started last requires of every voice."""
_SWEEPING = "sr:sweeping"
"""The state of the current or interrupted sweep, as JSON of `_Progress`."""
_FORGET_SECONDS = 300.0
"""The longest time that one sweep spends on dropping old job records."""


class _Progress(Record):
    """The progress of a sweep, stored as JSON in Redis."""

    stamp: str
    """The stamp of the index in which the sweep began. In a later index, all speakers have just been
    examined.
    """
    began: float
    asked: str
    encoders: str = ""
    done: str = ""
    """The last speaker that was swept. Empty at the beginning."""

    def lies_before(self, speaker_id: SpeakerId) -> bool:
        """Return whether the speaker is still to be swept."""
        done = SpeakerId.parse(self.done) if self.done else None
        return done is None or (speaker_id.namespace, speaker_id.slug) > (done.namespace, done.slug)


class Sweeps:
    """Decides when a sweep is due, and sweeps."""

    def __init__(
        self,
        parts: RegistryParts,
        repairs: Repairs,
        garbage: GarbageCollector,
        settings: HousekeepingSettings,
        sweep_keys: Callable[[], object],
    ) -> None:
        """`sweep_keys`: deletes what is left of API keys that ended long ago."""
        self._store = parts.store
        self._index = parts.index
        self._clock = parts.clock
        self._catalogue = parts.catalogue
        self._profiles = parts.profile_records
        self._repairs = repairs
        self._garbage = garbage
        self._settings = settings
        self._sweep_keys = sweep_keys

    def require(self, profiles: Iterable[str]) -> None:
        """Record the profiles that this process requires of every voice.

        If they have changed, every voice is looked at.
        """
        required = ",".join(sorted(profiles))
        with unavailable_without_redis():
            known = self._index.ungated.set(_REQUIRED, required, get=True)
        if known is not None and known != required:
            ask_for_sweep(self._index.ungated)

    def note_encoders(self) -> None:
        """Note the encoders of all profiles before a rebuild, which looks at every voice as a sweep does.

        Those that an interrupted rebuild has noted stay.
        """
        self._profiles.look_anew()
        with unavailable_without_redis():
            self._index.redis.set(_ENCODERS, self._encoders(), nx=True)

    def is_due(self) -> bool:
        """Return whether a sweep was requested, a profile is made with another encoder since the last one, or
        that is too old.

        One more is due after a loss of Redis, once all writes that were under way then have landed.
        """
        keys = (SWEPT, _SWEEPS_ASKED, _ENCODERS)
        with unavailable_without_redis():
            swept, asked, encoders = cast(list[str | None], self._index.redis.mget(keys))
        at, _, answered = (swept or "0:0").partition(":")
        if answered != (asked or "0") or self._encoders_differ(encoders):
            return True
        now, began, settled = self._clock.now(), float(at), self._index.epoch / 100 + WINDOW_SECONDS
        by_another_clock = began - now > LONGEST_PUT_OFF_SECONDS  # a clock that has been set back since
        due = max(settled, began + self._settings.sweep_seconds)
        return by_another_clock or now > due or began < settled < now

    def steps(self) -> Iterator[None]:
        """Sweep one speaker at each step, and then drop old job records. Continues an interrupted sweep."""
        progress = self._begin()
        swept = self._store.sweep_temporary(timedelta(seconds=self._settings.grace_seconds))
        GARBAGE.labels("temporary").inc(swept)
        self._sweep_keys()
        self._index.epochs.sweep()
        speakers = list(speaker_ids(self._store))
        left = [speaker_id for speaker_id in speakers if progress.lies_before(speaker_id)]
        swept_in_order = in_parallel(self._sweep, left, self._settings.sweep_threads)
        for speaker_id, _ in zip(left, swept_in_order, strict=True):
            self._note(progress.model_copy(update={"done": str(speaker_id)}))
            yield
        yield from self._forget_jobs({one.namespace for one in speakers}, progress.began - KEPT_SECONDS)
        self._end(progress)

    def _begin(self) -> _Progress:
        """Begin a sweep, or continue the one that was interrupted in this index."""
        stamp = self._index.stamp
        with unavailable_without_redis():
            asked, noted = cast(list[str | None], self._index.redis.mget(_SWEEPS_ASKED, _SWEEPING))
        begun = _Progress.model_validate_json(noted) if noted else None
        if begun is not None and begun.stamp == stamp:
            log.info("sweep.resumed", began=begun.began)
            return begun
        self._profiles.look_anew()
        return _Progress(stamp=stamp, began=self._clock.now(), asked=asked or "0", encoders=self._encoders())

    def _encoders(self) -> str:
        return self._profiles.made_with(self._catalogue.names)

    def _encoders_differ(self, encoders: str | None) -> bool:
        """Return whether a profile is made with another encoder than it was."""
        if self._encoders() == encoders:
            return False
        self._profiles.look_anew()  # this process may be the last to hear of it
        return self._encoders() != encoders

    def _sweep(self, speaker_id: SpeakerId) -> None:
        again = safely(self._repairs.repair, speaker_id, otherwise=LOOK_MUCH_LATER_SECONDS)
        safely(self._garbage.collect, speaker_id, otherwise=0)
        # Redis may have been lost since the delete, and with it the time of the erasure.
        due_in = safely(self._garbage.erasure_due_in, speaker_id, otherwise=None)
        for seconds in (again, due_in):
            if seconds is not None:
                self._index.look_within(speaker_id, seconds)

    def _note(self, progress: _Progress) -> None:
        with unavailable_without_redis():
            self._index.redis.set(_SWEEPING, progress.to_json())

    def _forget_jobs(self, namespaces: set[str], moment: float) -> Iterator[None]:
        """Drop the records of jobs that ended before `moment`, for at most `_FORGET_SECONDS`.

        The next sweep continues with the rest.
        """
        jobs, deadline = Jobs(self._index), self._clock.monotonic() + _FORGET_SECONDS
        for namespace in namespaces:
            while jobs.forget_before(namespace, moment):
                yield
                if self._clock.monotonic() > deadline:
                    log.warning("jobs.not_all_forgotten", seconds=_FORGET_SECONDS)
                    return

    def _end(self, progress: _Progress) -> None:
        """Record that the sweep is finished.

        If Redis was lost meanwhile, another sweep stays due, because the counter that `asked` came from is
        gone.
        """
        try:
            self._index.swept(f"{progress.began}:{progress.asked}", epoch=epoch_of(progress.stamp))
            with unavailable_without_redis():
                self._index.redis.set(_ENCODERS, progress.encoders)
        except EpochOver:
            log.info("sweep.overtaken", began=progress.began)
        else:
            log.info("sweep.done", seconds=round(self._clock.now() - progress.began, 1))


def ask_for_sweep(client: redis.Redis) -> None:
    """Ask housekeeping to look at every speaker. Raises `Unavailable`."""
    with unavailable_without_redis():
        client.incr(_SWEEPS_ASKED)
