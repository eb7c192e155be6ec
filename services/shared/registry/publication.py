"""Publishes the results of extraction jobs: reads the clip of a job, and stores its artifact or failure.

No result creates or revives a speaker, because it is committed under the id of its version. `begin` refuses a
result if the version is dead or another attempt took over. A result that is stored nevertheless lies under a
dead version and is swept. Knows no encoder and no HTTP.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import structlog

from services.shared.audio import ReferenceAudio
from services.shared.bucket.blobs import store_artifact
from services.shared.bucket.facts import commit, list_several_times, read_facts
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import DATED_WITHIN, ObjectUnavailable, Store
from services.shared.index.jobs import Jobs
from services.shared.index.reading import PendingExtraction
from services.shared.index.refusals import Rivals
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from services.shared.model.clock import Clock
from services.shared.model.domain import (
    AHEAD,
    AliasFact,
    ArtifactFact,
    ArtifactRecord,
    FailureRecord,
    SpeakerVersion,
    UnreadableFact,
    fold_artifacts,
)
from services.shared.model.packaging import package
from services.shared.queue.rq_jobs import is_preparation
from services.shared.registry.parts import RegistryParts
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.promotion import Promoter
from services.shared.registry.repair import Decode, sound_rendition
from services.shared.registry.status import Statuses
from speaker_registry.artifact import ComputedOn, canonical_json
from speaker_registry.engine import Profile
from speaker_registry.errors import ExtractorFailed, JobNotFound, SpeakerRegistryError, Unavailable

log = structlog.get_logger()

_NEXT_SECOND = 1.1 + DATED_WITHIN.total_seconds()
"""After this many seconds, no write that the store dates to the current second can still land."""
PUBLISH_SECONDS = 600.0
"""An attempt must commit its artifact this long after it took the job. Later, it no longer counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """What makes the artifacts of a profile. The manifest of each artifact records it."""

    profile: Profile
    fingerprint: str
    extractor: Mapping[str, Any]
    untrained: bool
    worker: str
    computed_on: ComputedOn | None = None
    """The machine that computes the artifacts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One start of a job by a worker."""

    job_id: str
    number: int
    max_attempts: int
    speaker_id: SpeakerId
    version: SpeakerVersion
    pending: PendingExtraction
    akey: str
    build: int
    provenance: Provenance
    started: float
    """The time when the attempt began, on the monotonic clock."""
    traceparent: str | None = None
    """The W3C trace context of the request that asked for the extraction."""
    ahead: bool = False
    """True if the artifact is made ahead of the promotion of its encoder."""

    @property
    def token(self) -> str:
        """Identifies this attempt among all attempts of all jobs."""
        return f"{self.job_id.removeprefix('job_')}-{self.number:03d}"


class Publisher:
    """Publishes the artifacts of a worker, and is the worker's only access to bucket and index."""

    def __init__(
        self,
        *,
        store: Store,
        index: SpeakerIndex,
        profiles: ProfileRecords,
        clock: Clock,
        promoter: Promoter,
        decode: Decode | None = None,
    ) -> None:
        """`decode` decodes uploaded clips. It is required only for `read_clip`."""
        self._store = store
        self._index = index
        self._profiles = profiles
        self._clock = clock
        self._promoter = promoter
        self._decode = decode
        self._jobs = Jobs(index)

    @classmethod
    def over(cls, parts: RegistryParts, decode: Decode | None = None) -> Self:
        """Return a publisher with a promoter of its own."""
        statuses = Statuses(parts.catalogue, parts.profile_records, parts.served)
        return cls(
            store=parts.store,
            index=parts.index,
            profiles=parts.profile_records,
            clock=parts.clock,
            promoter=Promoter(parts.store, parts.index, statuses, parts.clock),
            decode=decode,
        )

    def in_service(self) -> bool:
        """Return whether bucket and index answer and the index is trusted."""
        try:
            self._store.check()
            return self._index.gate_open()
        except Unavailable:
            return False

    def take(self, job_id: str, speaker_id: SpeakerId, provenance: Provenance) -> Attempt | None:
        """Start an attempt at a job. Returns None if the job or its artifact is no longer wanted."""
        try:
            job = self._jobs.get(speaker_id.namespace, job_id)
        except JobNotFound:
            return None
        pending = PendingExtraction(job.vuid, job.profile, job.fingerprint, job_id, processing=True)
        if job.fingerprint not in {"", provenance.fingerprint}:
            # Another encoder was promoted since. Housekeeping starts what is still wanted.
            self._index.set_job(speaker_id, job_id, "superseded", landing=pending)
            return None
        number = self._index.start(speaker_id, job_id, pending, worker=provenance.worker)
        if not number:
            return None
        version = self._index.look(speaker_id, VersionSelection(vuid=job.vuid)).speaker.by_vuid(job.vuid)
        if version is None or version.record.clip is None:
            return None
        akey = version.artifact_key(job.profile, provenance.fingerprint, job.build)
        if akey in version.artifacts:
            self._index.set_job(speaker_id, job_id, "succeeded", landing=pending)
            return None
        return Attempt(
            job_id=job_id,
            number=number,
            max_attempts=job.max_attempts,
            speaker_id=speaker_id,
            version=version,
            pending=pending,
            akey=akey,
            build=job.build,
            provenance=provenance,
            started=self._clock.monotonic(),
            traceparent=job.traceparent,
            ahead=is_preparation(job.queue),
        )

    def read_clip(self, attempt: Attempt) -> ReferenceAudio:
        """Return the decoded clip of the version. If the bucket has lost it, it is restored.

        Raises:
            ClipDamaged: the bucket has lost the clip, and it cannot be restored.
            ExtractorFailed: the bucket serves other objects but not the clip. The job is tried again later,
                and other jobs do not wait for it.
        """
        assert self._decode is not None
        try:
            return sound_rendition(self._store, attempt.speaker_id, attempt.version, self._decode)
        except ObjectUnavailable:
            raise ExtractorFailed("The clip cannot be read from the bucket now.") from None

    def progress(self, attempt: Attempt, stage: str, done: int) -> None:
        """Report the stage of a job to callers that follow it. Failures are logged and ignored."""
        try:
            self._index.set_job(
                attempt.speaker_id, attempt.job_id, "processing", {"stage": stage, "done": done}
            )
        except Unavailable as error:
            log.warning("job.progress_lost", job_id=attempt.job_id, error=str(error))

    def publish(
        self, attempt: Attempt, tensors: Mapping[str, np.ndarray], used_seconds: float | None = None
    ) -> bool:
        """Check an artifact, store it, and put it in force. Returns False if it came too late to count.

        Args:
            used_seconds: how many seconds of audio the tensors cover, if not the whole clip.

        Raises:
            InvalidArtifact: the tensors do not match the profile.
            Unavailable: the artifact was not published. Publish it again.
        """
        data, record = self._package(attempt, tensors, used_seconds)
        speaker_id, vuid = attempt.speaker_id, attempt.version.vuid
        blob_key = store_artifact(self._store, speaker_id, vuid, attempt.akey, record, data=data)
        if not self._may_publish(attempt, record):
            self._store.delete([blob_key])
            return self._close_late(attempt)
        if self._clock.monotonic() - attempt.started > PUBLISH_SECONDS:
            raise Unavailable("The attempt took too long to be committed.", retry_after_seconds=1)
        fact_key = speaker_id.artifact_fact_key(vuid, attempt.akey, record)
        commit(self._store, fact_key, record.to_json().encode())
        in_force = self._put_in_force(attempt, record)
        if in_force != record.winner:
            self._store.delete([fact_key, blob_key])
        log.info(
            "artifact.published", job_id=attempt.job_id, profile=record.profile, seconds=record.seconds_spent
        )
        # If two profiles became ready at the same time, neither promotion in `_put_in_force` saw both.
        self._promoter.promote_or_put_off(speaker_id)
        return in_force is not None

    def _may_publish(self, attempt: Attempt, record: ArtifactRecord) -> bool:
        answer = self._index.begin(
            attempt.speaker_id,
            attempt.job_id,
            attempt.number,
            attempt.pending,
            attempt.akey,
            token=record.attempt,
        )
        return answer == 1

    def _put_in_force(self, attempt: Attempt, record: ArtifactRecord) -> str | None:
        """Put the artifact that landed first in force, and promote. Returns what `put_in_force` returns."""
        apply = partial(
            self._index.apply_artifact,
            attempt.speaker_id,
            attempt.version.vuid,
            attempt.akey,
            job_id=attempt.job_id,
            claimed=attempt.pending.fingerprint,
            promotion=self._prepare_promotion(attempt),
        )
        return put_in_force(apply, record, partial(self._winner, attempt), self._clock)

    def _package(
        self, attempt: Attempt, tensors: Mapping[str, np.ndarray], used_seconds: float | None
    ) -> tuple[bytes, ArtifactRecord]:
        provenance = attempt.provenance
        return package(
            attempt.version.record,
            provenance.profile,
            tensors,
            fingerprint=provenance.fingerprint,
            attempt=self._unique(attempt),
            build=attempt.build,
            extractor=provenance.extractor,
            untrained=provenance.untrained,
            computed_on=provenance.computed_on,
            used_seconds=used_seconds,
            seconds_spent=round(self._clock.monotonic() - attempt.started, 4),
        )

    def _unique(self, attempt: Attempt) -> str:
        """Return a unique id that sorts after earlier ids.

        Repeated publishes of one attempt get different ids, and so do two attempts that get the same number
        because Redis was rolled back. What the first of them stored may be in force already, or land later.
        """
        return f"{self._clock.new_id()}-{attempt.token}{AHEAD if attempt.ahead else ''}"

    def _winner(self, attempt: Attempt, listings: int) -> ArtifactRecord | None:
        return landed_first(self._store, attempt.speaker_id, attempt.version.vuid, attempt.akey, listings)

    def _close_late(self, attempt: Attempt) -> bool:
        """End a job whose artifact another attempt published, or whose version is gone.

        The job stays open if the other attempt belongs to the same job.
        """
        indexed = self._index.look(attempt.speaker_id, VersionSelection(vuid=attempt.version.vuid))
        version = indexed.speaker.by_vuid(attempt.version.vuid)
        done = version is not None and attempt.akey in version.artifacts
        if done or self._is_last(attempt):
            state = "succeeded" if done else "superseded"
            self._index.set_job(attempt.speaker_id, attempt.job_id, state, landing=attempt.pending)
        return done

    def _is_last(self, attempt: Attempt) -> bool:
        """Return whether this is the job's latest attempt. Returns False if Redis has lost the job."""
        try:
            return self._jobs.get(attempt.speaker_id.namespace, attempt.job_id).attempt == attempt.number
        except JobNotFound:
            return False

    def fail(self, attempt: Attempt, error: SpeakerRegistryError) -> None:
        """Record that an attempt failed.

        The job returns to the queue if the error is retryable and attempts are left. Otherwise the extraction
        is given up for good. Nothing happens if a later attempt was started.
        """
        if not self._is_last(attempt):
            return
        if error.retryable and attempt.number < attempt.max_attempts:
            fields = {"error": _error_json(error, attempt.number), "stage": "queued", "done": 0}
            self._index.set_job(attempt.speaker_id, attempt.job_id, "queued", fields)
            return
        record = FailureRecord(
            profile=attempt.provenance.profile.name,
            fingerprint=attempt.provenance.fingerprint,
            build=attempt.build,
            attempt=self._unique(attempt),
            code=error.code,
            message=error.message,
            attempts=attempt.number,
        )
        record_failure(
            self._store,
            self._index,
            attempt.speaker_id,
            version=attempt.version,
            pending=attempt.pending,
            record=record,
            error=error,
        )

    def _prepare_promotion(self, attempt: Attempt) -> AliasFact | None:
        """Prepare the promotion that takes effect together with the artifact.

        A caller that sees the version ready then also sees `default` at it, if `default` is to move.
        """
        completing = (attempt.version.vuid, attempt.provenance.profile.name)
        try:
            current = self._profiles.fingerprint(attempt.provenance.profile.name)
            if current != attempt.provenance.fingerprint:
                return None  # the encoder was upgraded in the meantime, so this artifact is stale
            return self._promoter.prepare(attempt.speaker_id, completing=completing)
        except Unavailable:
            return None


def _error_json(error: SpeakerRegistryError, attempt: int) -> str:
    return canonical_json(
        {"code": error.code, "message": error.message, "retryable": error.retryable, "attempt": attempt}
    )


def record_failure(
    store: Store,
    index: SpeakerIndex,
    speaker_id: SpeakerId,
    *,
    version: SpeakerVersion,
    pending: PendingExtraction,
    record: FailureRecord,
    error: SpeakerRegistryError | None,
) -> None:
    """Commit the failure of an extraction as a fact, and end its job.

    The fact survives a loss of Redis and keeps the job from being tried for ever.

    Args:
        error: why the extraction was given up, or None if a caller canceled the job.
    """
    akey = version.artifact_key(record.profile, record.fingerprint, record.build)
    commit(store, speaker_id.failure_key(version.vuid, akey, record), record.to_json().encode())
    index.apply_failure(
        speaker_id,
        version.vuid,
        akey,
        record,
        job_id=pending.job_id,
        claimed=pending.fingerprint,
        error=_error_json(error, record.attempts) if error else None,
        canceled=error is None,
    )
    if error is not None:
        log.warning("artifact.failed", job_id=pending.job_id, profile=record.profile, code=record.code)


def landed_first(
    store: Store, speaker_id: SpeakerId, vuid: str, akey: str, listings: int
) -> ArtifactRecord | None:
    """Return the record that landed first for one artifact. Normally there is only one.

    The bucket is listed `listings` times, because one listing may omit an object that exists.
    """
    listing = list_several_times(store, speaker_id.artifact_prefix(vuid, akey), listings)
    facts = list(read_facts(store, listing))
    if any(isinstance(fact, UnreadableFact) for fact in facts):
        raise ObjectUnavailable(
            "The records that say which artifact landed first cannot be read.", retry_after_seconds=60
        )
    return fold_artifacts(fact for fact in facts if isinstance(fact, ArtifactFact)).get(vuid, {}).get(akey)


def put_in_force(
    apply: Callable[..., str | None],
    record: ArtifactRecord,
    winner: Callable[[int], ArtifactRecord | None],
    clock: Clock,
) -> str | None:
    """Put the artifact that landed first in force in the index.

    If the index allowed another publish of the same artifact, the other artifact may land within the same
    second as this one. Which of them counts is certain only after that second, so this call waits for its
    end.

    Args:
        apply: `SpeakerIndex.apply_artifact` with all arguments but `record` and `alone`.
        record: the artifact that the caller has just stored.
        winner: returns which artifact landed first, from the given number of listings.

    Returns:
        `ArtifactRecord.winner` of the artifact in force, or None if the version is dead.
    """
    try:
        return apply(record=winner(1) or record, alone=record.attempt)
    except Rivals:
        clock.sleep(_NEXT_SECOND)
        return apply(record=winner(2) or record, alone=None)
