"""Keeps the index equal to the facts: rebuilds it, repairs what crashes left unfinished, and deletes garbage.

Any number of processes may run this at once. All of it is idempotent, and a lock in Redis only saves work.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import TypeVar, cast

import structlog
from redis.exceptions import LockError
from redis.lock import Lock

from services.registry_api.maintenance.garbage import erasure_due_in, kind_of, unreachable
from services.shared.bucket.facts import certain_of, read_certain, read_facts, speaker_ids
from services.shared.bucket.keys import (
    SpeakerId,
    is_data,
    is_slug,
    speakers_folder,
)
from services.shared.bucket.store import Listing, ObjectUnavailable, TakeListing
from services.shared.configuration.settings import HousekeepingSettings
from services.shared.index.announcements import SWEEPS_ASKED
from services.shared.index.census import take_census
from services.shared.index.gate import epoch_of
from services.shared.index.jobs import KEPT_SECONDS, JobRecord, Jobs
from services.shared.index.reading import IndexedSpeaker, PendingExtraction
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.refusals import EpochOver
from services.shared.index.script_arguments import SpeakerUpdate
from services.shared.index.speaker_index import LONGEST_PUT_OFF_SECONDS, WINDOW_SECONDS, VersionSelection
from services.shared.index.suspicion import confirmed
from services.shared.model.domain import (
    FailureRecord,
    Record,
    Speaker,
    SpeakerVersion,
    fold,
)
from services.shared.registry.parts import RegistryParts
from services.shared.registry.publication import Publisher
from services.shared.registry.registrar import Registrar
from services.shared.registry.status import unsupported_reason
from services.shared.telemetry.logs import LogThrottle
from services.shared.telemetry.metrics import FOREIGN, GARBAGE, REBUILD_SECONDS, REBUILDS, REPAIRS
from speaker_registry.errors import JobNotFound, LeaseExpired, Unavailable, VoiceDamaged, VoiceUnreadable
from speaker_registry.names import is_namespace

log = structlog.get_logger()

_throttle = LogThrottle(60.0)
_LOOKED_AFTER_AT_A_TIME = 100
"""How many speakers that are due are looked after before anything else is."""
_LOOK_AGAIN_SOON_SECONDS = 3.0
_LOOK_AGAIN_SECONDS = 15.0
_TRY_AGAIN_SECONDS = 60.0
"""The delay before objects that the store failed to return are read again."""
_LOOK_MUCH_LATER_SECONDS = 300.0
_LOCK_SECONDS = 20.0
"""The time for which a lock stays with its holder without renewal. With a longer time, a killed rebuild would
keep the gate closed.
"""

SWEPT = "sr:swept"
"""`began:asked`: when the last finished sweep began, and how many sweeps had been requested by then."""
_SWEEPING = "sr:sweeping"
"""The state of the current or interrupted sweep, as JSON of `_Sweep`."""
_FORGET_SECONDS = 300.0
"""The longest time that one sweep spends on dropping old job records."""
_SWEPT_AT_A_TIME = 64
"""The number of speakers that are swept between two records of the sweep's progress."""
_LISTINGS_APART_SECONDS = 3600.0
"""The least time between the two listings that must agree that an object is garbage. It is much longer than a
cache or replica of the store returns outdated listings.
"""

_ADMITTED_AT_A_TIME = 32
"""The number of speakers that one thread reads and sends to the index in one round trip."""

Item = TypeVar("Item")
Result = TypeVar("Result")
Otherwise = TypeVar("Otherwise")
Listed = tuple[SpeakerId, TakeListing]
Sign = Callable[[], None]
"""Long-running work calls this regularly, to show that it is still alive."""


class _Sweep(Record):
    """The progress of a sweep, stored as JSON in Redis."""

    stamp: str
    """The stamp of the index in which the sweep began. In a later index, all speakers have just been
    examined.
    """
    began: float
    asked: str
    done: str = ""
    """The last speaker that was swept. Empty at the beginning."""

    def lies_before(self, speaker_id: SpeakerId) -> bool:
        """Return whether the speaker is still to be swept."""
        done = SpeakerId.parse(self.done) if self.done else None
        return done is None or (speaker_id.namespace, speaker_id.slug) > (done.namespace, done.slug)


class Housekeeper:
    """Repairs, rebuilds and sweeps. Call `turn` about once a second, or let `run` do so in its own thread."""

    def __init__(
        self,
        parts: RegistryParts,
        registrar: Registrar,
        settings: HousekeepingSettings,
        sweep_keys: Callable[[], object] | None = None,
    ) -> None:
        """`sweep_keys`: deletes what is left of API keys that ended long ago; called in each sweep."""
        self._registrar = registrar
        self._store = parts.store
        self._index = parts.index
        self._clock = parts.clock
        self._announcements = parts.announcements
        self._catalogue = parts.catalogue
        self._dispatcher = parts.dispatcher
        self._publisher = Publisher(parts, registrar)
        self._settings = settings
        self._sweep_keys = sweep_keys
        self._requirements_told = False
        self._stop = threading.Event()
        self._not_admitted: set[SpeakerId] = set()
        """The speakers that the last rebuild could not admit."""

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
            with self._only_one("rebuild") as sign:
                self.rebuild(sign)
        if not self._requirements_told:
            self._announcements.require(self._catalogue.required)
            self._requirements_told = True
        self._look_after_due()
        if self._sweep_is_due():
            with self._only_one("sweep") as sign:
                self.sweep(sign)

    def _look_after_due(self) -> None:
        for speaker_id, seen in self._index.due(_LOOKED_AFTER_AT_A_TIME):
            seconds = self._safely(self._look_after, speaker_id, otherwise=_LOOK_MUCH_LATER_SECONDS)
            self._index.look_again(speaker_id, seconds, seen=seen)

    @contextmanager
    def _only_one(self, what: str) -> Iterator[Sign]:
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
            yield self._keeping(lock)
        finally:
            try:
                with unavailable_without_redis():
                    lock.release()
            except (LockError, Unavailable):
                log.info("housekeeping.lock_lost", what=what)

    def _keeping(self, lock: Lock) -> Sign:
        kept = self._clock.monotonic()

        def keep() -> None:
            nonlocal kept
            if self._clock.monotonic() - kept > _LOCK_SECONDS / 4:
                kept = self._clock.monotonic()
                with suppress(LockError, Unavailable), unavailable_without_redis():
                    lock.reacquire()

        return keep

    # -- rebuild after a loss of Redis after a loss of Redis

    def rebuild(self, sign: Sign = lambda: None) -> int:
        """Admit every speaker of the bucket to the index. Returns how many the index did not know yet.

        Reads and writes are served meanwhile: a request that needs a speaker admits it. An interrupted
            rebuild continues where it was, because speakers that the index knows are not read again. Raises
            `Unavailable`.
        """
        began, result = self._clock.monotonic(), "failed"
        self._index.open()
        try:
            admitted, done = self._admit_all(self._index.epoch, sign)
            result = "done" if done else "stopped"
        except EpochOver:
            result = "lost"
            raise
        finally:
            REBUILDS.labels(result).inc()
        REBUILD_SECONDS.observe(self._clock.monotonic() - began)
        log.info("index.rebuilt", speakers=admitted, done=done)
        return admitted

    def _admit_all(self, epoch: int, sign: Sign) -> tuple[int, bool]:
        """Return how many speakers were admitted, and whether all were examined."""
        self._not_admitted.clear()
        admitted, looked_at = 0, self._clock.monotonic()
        # Reading a local folder is limited by the processor, so threads would only slow each other down.
        threads = 1 if self._store.is_local else self._settings.rebuild_threads
        batches = _batches(self._listings(), _ADMITTED_AT_A_TIME)
        for updates in self._in_parallel(self._read_unknown, batches, threads):
            if self._stop.is_set():
                return admitted, False
            admitted += self._tell_many(updates, epoch)
            sign()
            if self._clock.monotonic() - looked_at >= self._settings.turn_seconds:
                self._look_after_due()
                looked_at = self._clock.monotonic()
        admitted += self._admit_missed()
        self._index.forget_older(self._is_known)
        self._index.set_complete(epoch)
        return admitted, True

    def _admit_missed(self) -> int:
        """Admit speakers that the first listing omitted, because a complete index treats unknown names as no
        voice.

        Only names are listed, which costs little.
        """
        admitted = 0
        for some in _batches(speaker_ids(self._store), _ADMITTED_AT_A_TIME):
            for speaker_id in set(self._index.unknown(some)) - self._not_admitted:
                admitted += self._or_keep_unknown(self._index.admit, speaker_id) or 0
        return admitted

    def _tell_many(self, speakers: Sequence[tuple[SpeakerId, SpeakerUpdate]], epoch: int) -> int:
        """Admit some speakers. Returns how many were admitted."""
        try:
            self._index.tell_many(speakers, epoch=epoch)
            return len(speakers)
        except Unavailable:
            raise
        except Exception:
            log.exception("speakers.told_one_by_one")  # one of them has inconsistent facts
            return sum(self._tell(speaker_id, update, epoch) for speaker_id, update in speakers)

    def _tell(self, speaker_id: SpeakerId, update: SpeakerUpdate, epoch: int) -> bool:
        def tell(speaker_id: SpeakerId) -> bool:
            self._index.tell(speaker_id, update, epoch=epoch)
            return True

        return self._or_keep_unknown(tell, speaker_id) is not None

    def _or_keep_unknown(self, work: Callable[[SpeakerId], Result], speaker_id: SpeakerId) -> Result | None:
        """Return the result of `work`, or None if the speaker cannot be admitted.

        The index then remembers that the name exists, so that it is not registered as a new one.
        """
        found = self._safely(work, speaker_id, otherwise=None)
        if found is None:
            self._index.keep_unknown(speaker_id)
            self._not_admitted.add(speaker_id)
        return found

    def _listings(self) -> Iterator[Listed]:
        """Yield each speaker of the bucket with a function that lists its facts."""
        for namespace in filter(is_namespace, self._store.folders("")):
            for slug, take in self._store.listings(speakers_folder(namespace), skips=is_data):
                if is_slug(slug):
                    yield SpeakerId(namespace, slug), take

    def _read_unknown(self, some: Sequence[Listed]) -> list[tuple[SpeakerId, SpeakerUpdate]]:
        """Read the facts of those speakers that the index does not know yet."""
        unknown = set(self._index.unknown([speaker_id for speaker_id, _ in some]))
        read = [
            (speaker_id, self._or_keep_unknown(partial(self._read, take), speaker_id))
            for speaker_id, take in some
            if speaker_id in unknown
        ]
        return [(speaker_id, update) for speaker_id, update in read if update]

    def _read(self, take: TakeListing, speaker_id: SpeakerId) -> SpeakerUpdate:
        """Read the facts of a speaker, and decide whether it has to be examined again."""
        listing = take()
        truth = certain_of(self._store, listing)
        look = self._is_unfinished(speaker_id, truth) or self._has_to_erase(truth, listing)
        return SpeakerUpdate(truth, listing.taken_at.timestamp(), look)

    def _has_to_erase(self, truth: Speaker, listing: Listing) -> bool:
        grace = timedelta(seconds=self._settings.deleted_grace_seconds)
        return truth.tombstone > 0 and erasure_due_in(listing, deleted_grace=grace) is not None

    def _is_unfinished(self, speaker_id: SpeakerId, truth: Speaker) -> bool:
        """Return whether a speaker has something left to extract, to promote or to read again."""
        if truth.damaged or truth.unreadable:
            return True
        indexed = IndexedSpeaker(truth)
        return self._registrar.promotable(speaker_id, indexed) or any(
            self._registrar.profile_status(indexed, version, profile).state == "pending"
            for version in truth.versions
            for profile in self._registrar.wanted(version)
        )

    def _is_known(self, speaker_id: SpeakerId) -> bool:
        return bool(self._store.list(speaker_id.prefix).objects)

    def _in_parallel(
        self, work: Callable[[Item], Result], items: Iterable[Item], threads: int
    ) -> Iterator[Result]:
        """Yield the result of `work` for each item, in order.

        The work runs on threads, because it mostly waits for the bucket. No more items are taken ahead than
        there are threads.
        """
        pool, under_way = ThreadPoolExecutor(threads), deque[Future[Result]]()
        try:
            for item in items:
                under_way.append(pool.submit(work, item))
                if len(under_way) > threads:
                    yield under_way.popleft().result()
            while under_way:
                yield under_way.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    # -- repair of one speaker

    def _safely(
        self, work: Callable[[SpeakerId], Result], speaker_id: SpeakerId, *, otherwise: Otherwise
    ) -> Result | Otherwise:
        """Return the result of `work`, or `otherwise` if it fails for this speaker.

        A failure of one speaker must not block the work on other speakers, nor keep the gate closed.
        """
        try:
            return work(speaker_id)
        except (ObjectUnavailable, VoiceDamaged, VoiceUnreadable) as error:
            log.error("speaker.unreadable", speaker=str(speaker_id), error=str(error))
            return otherwise
        except Unavailable:
            raise
        except Exception:
            log.exception("speaker.skipped", speaker=str(speaker_id))
            return otherwise

    def _look_after(self, speaker_id: SpeakerId) -> float | None:
        """Settle a speaker, and erase its deleted data once the grace period has ended.

        Returns in how many seconds to examine the speaker again, or None if nothing is left to do.
        """
        again = self.settle(speaker_id), self._erase(speaker_id)
        return min((seconds for seconds in again if seconds is not None), default=None)

    def _erase(self, speaker_id: SpeakerId) -> float | None:
        """Erase deleted data if it is due.

        Returns in how many seconds the grace period ends, or None if nothing is left to erase.
        """
        due_in = self._erasure_due_in(speaker_id)
        if due_in is None or due_in > 0:
            return due_in
        self.collect_garbage(speaker_id)
        return None

    def _erasure_due_in(self, speaker_id: SpeakerId) -> float | None:
        if not self._index.look(speaker_id).speaker.tombstone:
            return None  # nothing was ever deleted, so a listing is not needed
        grace = timedelta(seconds=self._settings.deleted_grace_seconds)
        return erasure_due_in(self._store.list(speaker_id.prefix), deleted_grace=grace)

    def settle(self, speaker_id: SpeakerId) -> float | None:
        """Apply facts that did not reach the index, start missing extractions, replace lost jobs, and
        promote.

        Returns in how many seconds to examine the speaker again, or None if it is settled.
        """
        epoch, listed = self._index.epoch, self._clock.now()
        truth = read_certain(self._store, speaker_id)
        if _artifacts(truth) - _artifacts(self._index.load(speaker_id).speaker):
            # An artifact that is applied now stays in force, so the listing must not have omitted an earlier
            # one.
            truth = read_certain(self._store, speaker_id, listings=2)
        self._index.tell(speaker_id, SpeakerUpdate(truth, listed), epoch=epoch)
        indexed = self._index.load(speaker_id)
        if indexed.census == "pending":
            take_census(self._store, self._index, speaker_id, self._clock)
            indexed = self._index.load(speaker_id)
        unreadable, under_way = indexed.speaker.unreadable, bool(indexed.pending_extractions)
        if not truth.undecided and not unreadable:  # else artifacts that seem to be missing may exist
            if self._check_pending_extractions(speaker_id, indexed):
                indexed = self._index.load(speaker_id)
            under_way = self._extract_missing(speaker_id, indexed) > 0 or bool(indexed.pending_extractions)
        self._registrar.promote(speaker_id)
        if truth.undecided:
            return _LOOK_AGAIN_SOON_SECONDS
        if unreadable:
            return _TRY_AGAIN_SECONDS
        if indexed.speaker.damaged:  # perhaps by one wrong answer of the store, or it will be restored
            return _LOOK_MUCH_LATER_SECONDS
        return _LOOK_AGAIN_SECONDS if under_way else None

    def _extract_missing(self, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> int:
        """Start the missing extractions. Returns how many."""
        begun = 0
        for version in indexed.speaker.versions:
            for profile in [status.profile for status in self._registrar.missing(indexed, version)]:
                about = {"speaker": str(speaker_id), "vuid": version.vuid, "profile": profile.name}
                log.info("extraction.resumed", **about)
                REPAIRS.labels("extraction_resumed").inc()
                self._registrar.claim(speaker_id, version, profile)
                begun += 1
        return begun

    def _check_pending_extractions(self, speaker_id: SpeakerId, indexed: IndexedSpeaker) -> int:
        """Replace pending extractions whose job no worker will run. Returns how many there were."""
        lost, live = 0, {version.vuid for version in indexed.speaker.versions}
        for pending in indexed.pending_extractions:
            state = self._dispatcher.state(pending.job_id, pending.profile)
            if pending.vuid not in live or state != "alive":
                self._replace(speaker_id, pending, state)
                lost += 1
        return lost

    def _replace(self, speaker_id: SpeakerId, pending: PendingExtraction, state: str) -> None:
        """End a pending extraction whose job is in that state or is no longer wanted, and start another if
        needed.
        """
        # Read again, and only this version: a voice may have a thousand versions with one pending extraction
        # each.
        version = self._index.look(speaker_id, VersionSelection(vuid=pending.vuid)).speaker.by_vuid(
            pending.vuid
        )
        job = self._job(speaker_id, pending)
        if version is None or job is None:
            self._close(speaker_id, pending, "superseded")
        elif self._akey(pending, version, job) in version.artifacts:
            self._close(speaker_id, pending, "succeeded")
        elif state == "failed":
            self._give_up(speaker_id, pending, version, job)
        else:
            self._start_anew(speaker_id, pending, version, job)

    def _close(self, speaker_id: SpeakerId, pending: PendingExtraction, state: str) -> None:
        REPAIRS.labels("job_closed").inc()
        self._index.set_job(speaker_id, pending.job_id, state, landing=pending)

    def _job(self, speaker_id: SpeakerId, pending: PendingExtraction) -> JobRecord | None:
        try:
            return Jobs(self._index).get(speaker_id.namespace, pending.job_id)
        except JobNotFound:
            return None

    def _akey(self, pending: PendingExtraction, version: SpeakerVersion, job: JobRecord) -> str:
        """Return the key of the artifact that a pending extraction is to make."""
        return version.artifact_key(pending.profile, self._fingerprint(pending), job.build)

    def _fingerprint(self, pending: PendingExtraction) -> str:
        announced = self._announcements.current(pending.profile)
        return pending.fingerprint or (announced.fingerprint if announced else "")

    def _start_anew(
        self, speaker_id: SpeakerId, pending: PendingExtraction, version: SpeakerVersion, job: JobRecord
    ) -> None:
        """Replace a job that the queue has lost, if its artifact is still wanted."""
        log.warning("job.lost", job_id=pending.job_id, speaker=str(speaker_id))
        REPAIRS.labels("job_lost").inc()
        self._index.set_job(speaker_id, pending.job_id, "superseded")
        profile = self._catalogue.get(pending.profile)
        if unsupported_reason(version, profile) is None:
            self._registrar.claim(speaker_id, version, profile, steal=pending.job_id, force=job.forced)
        # For the case that no claim took it over: its artifact exists, or another fingerprint is wanted now.
        self._index.set_job(speaker_id, pending.job_id, "superseded", landing=pending)

    def _give_up(
        self, speaker_id: SpeakerId, pending: PendingExtraction, version: SpeakerVersion, job: JobRecord
    ) -> None:
        """Record the failure of a job that the queue has given up, because its workers died."""
        REPAIRS.labels("job_given_up").inc()
        error = LeaseExpired(f"The worker died or hung each of the {job.attempt} times it tried.")
        record = FailureRecord(
            profile=pending.profile,
            fingerprint=self._fingerprint(pending),
            build=job.build,
            attempt=f"{self._clock.new_id()}-{pending.job_id.removeprefix('job_')}-end",
            code=error.code,
            message=error.message,
            attempts=job.attempt,
        )
        self._publisher.give_up(speaker_id, pending, self._akey(pending, version, job), record, error)

    # -- sweep of all speakers

    def _sweep_is_due(self) -> bool:
        """Return whether a sweep was requested, or the last one is too old.

        One more is due after a loss of Redis, once all writes that were under way then have landed.
        """
        with unavailable_without_redis():
            swept, asked = cast(list[str | None], self._index.redis.mget(SWEPT, SWEEPS_ASKED))
        at, _, answered = (swept or "0:0").partition(":")
        if answered != (asked or "0"):
            return True
        now, began, settled = self._clock.now(), float(at), self._index.epoch / 100 + WINDOW_SECONDS
        by_another_clock = began - now > LONGEST_PUT_OFF_SECONDS  # a clock that has been set back since
        due = max(settled, began + self._settings.sweep_seconds)
        return by_another_clock or now > due or began < settled < now

    def sweep(self, sign: Sign = lambda: None) -> None:
        """Settle every speaker, delete garbage, and drop old job records. Continues an interrupted sweep.

        A sweep may take hours. Speakers that are due are repaired meanwhile.
        """
        sweep = self._begin_sweep()
        swept = self._store.sweep_temporary(timedelta(seconds=self._settings.grace_seconds))
        GARBAGE.labels("temporary").inc(swept)
        self._announcements.look_anew()
        if self._sweep_keys is not None:
            self._sweep_keys()
        self._index.epochs.sweep()
        speakers = list(speaker_ids(self._store))
        left = [speaker_id for speaker_id in speakers if sweep.lies_before(speaker_id)]
        for at in range(0, len(left), _SWEPT_AT_A_TIME):
            if self._stop.is_set():
                return
            some = left[at : at + _SWEPT_AT_A_TIME]
            for _ in self._in_parallel(self._sweep_one, some, self._settings.sweep_threads):
                sign()
            self._note(sweep.model_copy(update={"done": str(some[-1])}))
            self._look_after_due()
            sign()
        namespaces = {speaker_id.namespace for speaker_id in speakers}
        self._forget_jobs(namespaces, sweep.began - KEPT_SECONDS, sign)
        self._end_sweep(sweep)

    def _forget_jobs(self, namespaces: Iterable[str], moment: float, sign: Sign) -> None:
        """Drop the records of jobs that ended before `moment`, for at most `_FORGET_SECONDS`.

        The next sweep continues with the rest.
        """
        jobs, deadline = Jobs(self._index), self._clock.monotonic() + _FORGET_SECONDS
        for namespace in namespaces:
            while jobs.forget_before(namespace, moment):
                sign()
                if self._clock.monotonic() > deadline:
                    log.warning("jobs.not_all_forgotten", seconds=_FORGET_SECONDS)
                    return

    def _begin_sweep(self) -> _Sweep:
        """Begin a sweep, or continue the one that was interrupted in this index."""
        stamp = self._index.stamp
        with unavailable_without_redis():
            asked, told = cast(list[str | None], self._index.redis.mget(SWEEPS_ASKED, _SWEEPING))
        begun = _Sweep.model_validate_json(told) if told else None
        if begun is not None and begun.stamp == stamp:
            log.info("sweep.resumed", began=begun.began)
            return begun
        return _Sweep(stamp=stamp, began=self._clock.now(), asked=asked or "0")

    def _sweep_one(self, speaker_id: SpeakerId) -> None:
        again = self._safely(self.settle, speaker_id, otherwise=_LOOK_MUCH_LATER_SECONDS)
        self._safely(self.collect_garbage, speaker_id, otherwise=0)
        # Redis may have been lost since the delete, and with it the time of the erasure.
        due_in = self._safely(self._erasure_due_in, speaker_id, otherwise=None)
        for seconds in (again, due_in):
            if seconds is not None:
                self._index.look_within(speaker_id, seconds)

    def _note(self, sweep: _Sweep) -> None:
        with unavailable_without_redis():
            self._index.redis.set(_SWEEPING, sweep.to_json())

    def _end_sweep(self, sweep: _Sweep) -> None:
        """Record that the sweep is finished.

        If Redis was lost meanwhile, another sweep stays due, because the counter that `asked` came from is
        gone.
        """
        try:
            self._index.swept(f"{sweep.began}:{sweep.asked}", epoch=epoch_of(sweep.stamp))
        except EpochOver:
            log.info("sweep.overtaken", began=sweep.began)
        else:
            log.info("sweep.done", seconds=round(self._clock.now() - sweep.began, 1))

    def collect_garbage(self, speaker_id: SpeakerId) -> int:
        """Delete the garbage of one speaker. Returns how many objects were deleted."""
        listing = self._store.list(speaker_id.prefix)
        facts = list(read_facts(self._store, listing))
        truth = fold(facts)
        if truth.damaged or truth.unreadable:
            log.warning("garbage.left_alone", speaker=str(speaker_id), unreadable=len(truth.unreadable))
            return 0  # the record may come back from a backup, or the store may return it again
        found = unreachable(
            listing,
            facts,
            self._index.load(speaker_id).speaker,
            grace=timedelta(seconds=self._settings.grace_seconds),
            deleted_grace=timedelta(seconds=self._settings.deleted_grace_seconds),
        )
        FOREIGN.inc(found.foreign)
        keys = [*self._confirmed(speaker_id, listing, found.presumed), *found.certain]
        if keys:
            self._store.delete(keys)  # deletes the rest even if one cannot be deleted
            log.info("garbage.collected", speaker=str(speaker_id), objects=len(keys))
            for key in keys:
                GARBAGE.labels(kind_of(key)).inc()
        return len(keys)

    def _confirmed(self, speaker_id: SpeakerId, listing: Listing, presumed: Sequence[str]) -> list[str]:
        """Return the keys that an earlier listing showed to be garbage as well."""
        apart = min(self._settings.grace_seconds, _LISTINGS_APART_SECONDS)
        return confirmed(
            self._index,
            speaker_id,
            presumed,
            at=listing.taken_at.timestamp(),
            apart_seconds=apart,
            kept_seconds=3 * max(self._settings.sweep_seconds, apart),
        )


def _artifacts(speaker: Speaker) -> set[tuple[str, str]]:
    """Return (vuid, akey) of all artifacts in force."""
    return {(version.vuid, akey) for version in speaker.versions for akey in version.artifacts}


def _batches(items: Iterator[Item], size: int) -> Iterator[tuple[Item, ...]]:
    return iter(lambda: tuple(islice(items, size)), ())
