"""A worker begins an attempt at a job, and publishes the artifact that it has made.

If two workers make the same artifact, the document names that of the first, and the bytes of the other are
collected as garbage. Bytes of a version that was deleted meanwhile are removed at once, because the voice may
be erased already. This module knows no encoder.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import structlog

from services.shared.bucket.stored_bytes import StoredBytes
from services.shared.model.artifacts import AlreadyMade, VersionGone, with_artifact
from services.shared.model.document import SpeakerDocument
from services.shared.model.packaging import package
from services.shared.model.records import ArtifactRecord, Version
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.model.swept import with_swept
from services.shared.queue.jobs import Jobs
from services.shared.registry.change import Change
from services.shared.registry.give_up import give_up_abandoned
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import ARTIFACTS_BYTES, FoundSpeaker, Speakers
from speaker_registry.artifact import ComputedOn
from speaker_registry.engine import Profile
from speaker_registry.errors import JobNotFound, SpeakerRegistryError

log = structlog.get_logger(__name__)

_ATTEMPTS_OF_ABANDONED = 2
"""Number of attempts that a job whose workers stop gets at least. The first may share its batch with the clip
that ended the worker, and only the second shows that it was this clip.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """The profile, encoder, worker and machine that make artifacts. They are recorded in each artifact's
    manifest.
    """

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

    speaker_id: SpeakerId
    job: OpenJob
    number: int
    max_attempts: int
    version: Version
    provenance: Provenance
    build: int
    replaces: ArtifactRecord | None
    """The artifact that this job makes again because its bytes were reported as lost."""
    started: float
    traceparent: str | None = None
    """The W3C trace context of the request that asked for the extraction."""

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def profile(self) -> str:
        return self.provenance.profile.name

    @property
    def fingerprint(self) -> str:
        return self.provenance.fingerprint


class EncoderReplaced(Exception):
    """The job is for the encoder that has just become the current one, so another worker has to run it."""

    expected = True
    """No fault: workers log it without a traceback."""


def start(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    speaker_id: SpeakerId,
    job_id: str,
    *,
    provenance: Provenance,
) -> Attempt | None:
    """Begin an attempt at a job. Returns None if the job or its artifact is no longer wanted.

    Raises:
        EncoderReplaced: the job is still wanted but is for another encoder.
        LeaseExpired: the worker stopped in the last attempt. The job is given up.
    """
    speaker = speakers.read(speaker_id)
    job = next((one for one in speaker.open_jobs if one.job_id == job_id), None)
    if job is None:
        return None  # it has ended, or Redis lost it and another job was opened
    version = speaker.document.version(job.vuid)
    of_another = job.fingerprint not in {"", provenance.fingerprint}
    if version is None or version.clip is None or of_another:
        # The version was deleted, or another encoder was promoted meanwhile.
        if version is not None and of_another and profiles.is_current_now(job.profile, job.fingerprint):
            raise EncoderReplaced(f"{job.profile}: the job is for {job.fingerprint}")
        jobs.end(speaker_id, job, "superseded")
        return None
    return _begin(speakers, jobs, profiles, speaker, job, version=version, provenance=provenance)


def _begin(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    speaker: FoundSpeaker,
    job: OpenJob,
    *,
    version: Version,
    provenance: Provenance,
) -> Attempt | None:
    try:
        record = jobs.record(speaker.id.namespace, job.job_id)
    except JobNotFound:
        return None
    highest = version.highest_build(job.profile, provenance.fingerprint)
    build = record.build if job.fingerprint else highest + 1
    made = version.artifact(job.profile, provenance.fingerprint)
    if outcome := version.outcome(job.profile, provenance.fingerprint, build):
        jobs.end(speaker.id, job, outcome)
        return None
    if record.attempt >= max(record.max_attempts, _ATTEMPTS_OF_ABANDONED):
        raise give_up_abandoned(speakers, jobs, profiles, speaker.id, job, record=record)
    max_attempts = max(record.max_attempts, record.attempt + 1)
    number = jobs.begin(
        speaker.id,
        job,
        worker=provenance.worker,
        fingerprint=provenance.fingerprint,
        build=build,
        max_attempts=max_attempts,
    )
    if number is None:
        return None
    return Attempt(
        speaker_id=speaker.id,
        job=job,
        number=number,
        max_attempts=max_attempts,
        version=version,
        provenance=provenance,
        build=build,
        replaces=None if record.forced else made,
        started=speakers.clock.monotonic(),
        traceparent=record.traceparent,
    )


def publish(
    speakers: Speakers,
    blobs: StoredBytes,
    jobs: Jobs,
    profiles: Profiles,
    attempt: Attempt,
    *,
    tensors: Mapping[str, np.ndarray],
    used_seconds: float | None = None,
) -> bool:
    """Store an artifact and start serving it. Returns False if it came too late.

    Args:
        used_seconds: the length of the audio that the tensors cover, if it is not the whole clip.

    Raises:
        InvalidArtifact: the tensors do not match the profile.
        DocumentFull: the document of the voice has no room for another artifact.
        Unavailable: the artifact was not published, or could not be shown. Publish it again.
    """
    speaker_id, vuid, lost = attempt.speaker_id, attempt.version.vuid, attempt.replaces
    with speakers.changing(speaker_id, by=attempt.provenance.worker) as change:
        data, record = _pack(speakers, attempt, tensors, change.token, used_seconds)
        blobs.store_artifact(speaker_id, vuid, record.object, data)
        if lost is not None and blobs.has_artifact(speaker_id, attempt.version, lost):
            jobs.end(speaker_id, attempt.job, "succeeded")  # a node of the store was outdated
            return True

        def add(document: SpeakerDocument) -> SpeakerDocument:
            is_ahead = profiles.is_ahead(attempt.profile, attempt.fingerprint)
            return with_artifact(
                document,
                vuid,
                attempt.profile,
                record.having(ahead=is_ahead),
                profiles.required,
                extractor=attempt.provenance.extractor,
                instead_of=lost.object if lost else None,
            )

        try:
            change.commit(
                add,
                did="publish",
                done=lambda document: record.object in document.names_of_bytes,
                max_bytes=speakers.max_document_bytes + ARTIFACTS_BYTES,
            )
        except (AlreadyMade, VersionGone) as error:
            if isinstance(error, VersionGone):
                _remove(speakers, blobs, attempt, record.object)
            return _end_late(jobs, attempt, change, error)
    jobs.end(speaker_id, attempt.job, "succeeded")
    log.info(
        "artifact.published",
        job_id=attempt.job_id,
        profile=attempt.profile,
        seconds=record.seconds_spent,
    )
    return True


def _end_late(jobs: Jobs, attempt: Attempt, change: Change, error: AlreadyMade | VersionGone) -> bool:
    """End a job whose artifact exists already, was canceled, or is no longer wanted."""
    made = (attempt.version.vuid, attempt.profile, attempt.fingerprint, attempt.build)
    outcome = change.ask(lambda document: document.outcome(*made))
    jobs.end(attempt.speaker_id, attempt.job, outcome or "superseded")
    log.info("artifact.late", job_id=attempt.job_id, profile=attempt.profile, reason=error.message)
    return outcome == "succeeded"


def _remove(speakers: Speakers, blobs: StoredBytes, attempt: Attempt, object_id: str) -> None:
    """Remove the bytes of an artifact whose version is gone, because an erasure may have ended before they
    arrived. If that fails, the garbage sweep removes them.

    A change fences their id first, as in the garbage sweep. Its success proves that the document does not
    name them, even if an earlier answer about the document was outdated.
    """

    def fence(document: SpeakerDocument) -> SpeakerDocument:
        return with_swept(document, {object_id}, gone=(), now=speakers.now())

    with suppress(SpeakerRegistryError):
        document = speakers.change(attempt.speaker_id, fence, by=attempt.provenance.worker, did="sweep")
        if object_id in document.swept:
            blobs.remove_artifact(attempt.speaker_id, attempt.version.vuid, object_id)


def _pack(
    speakers: Speakers,
    attempt: Attempt,
    tensors: Mapping[str, np.ndarray],
    object_id: str,
    used_seconds: float | None,
) -> tuple[bytes, ArtifactRecord]:
    provenance = attempt.provenance
    return package(
        attempt.version,
        provenance.profile,
        tensors,
        fingerprint=provenance.fingerprint,
        object_id=object_id,
        build=attempt.build,
        extractor=provenance.extractor,
        untrained=provenance.untrained,
        computed_on=provenance.computed_on,
        used_seconds=used_seconds,
        seconds_spent=round(speakers.clock.monotonic() - attempt.started, 4),
    )
