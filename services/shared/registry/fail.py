"""Records why an extraction failed. The record in the document prevents endless retries."""

import structlog

from services.shared.model.artifacts import AlreadyMade, VersionGone, with_failure
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import FailureRecord
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.profiles import Profiles
from services.shared.registry.publish import Attempt
from services.shared.registry.speakers import Speakers
from speaker_registry.errors import JobNotFound, SpeakerRegistryError

log = structlog.get_logger(__name__)


def fail(
    speakers: Speakers, jobs: Jobs, profiles: Profiles, attempt: Attempt, error: SpeakerRegistryError
) -> None:
    """Record that an attempt failed. The extraction is given up if the error is permanent or no attempts are
    left.

    Nothing happens if a later attempt has begun.
    """
    if not _is_last(jobs, attempt):
        return
    if error.retryable and attempt.number < attempt.max_attempts:
        jobs.put_back(attempt.speaker_id, attempt.job, error, attempt.number)
        return
    failure = FailureRecord(
        fingerprint=attempt.fingerprint,
        build=attempt.build,
        job=attempt.job.job_id,
        code=error.code,
        message=error.message,
        attempts=attempt.number,
    )
    give_up(speakers, jobs, profiles, attempt.speaker_id, attempt.job, failure=failure, error=error)


def give_up(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    speaker_id: SpeakerId,
    job: OpenJob,
    *,
    failure: FailureRecord,
    error: SpeakerRegistryError,
) -> None:
    """Record that an extraction is given up, and end its job. An artifact that another job has made stays."""

    def give(document: SpeakerDocument) -> SpeakerDocument:
        record = failure.having(ahead=profiles.is_ahead(job.profile, failure.fingerprint))
        return with_failure(document, job.vuid, job.profile, record, profiles.required)

    try:
        speakers.change(speaker_id, give, by=job.job_id, did="fail")
    except AlreadyMade:
        document = speakers.read(speaker_id).document
        outcome = document.outcome(job.vuid, job.profile, failure.fingerprint, failure.build)
        jobs.end(speaker_id, job, outcome or "superseded")
    except VersionGone:
        jobs.end(speaker_id, job, "superseded")
    else:
        jobs.end(speaker_id, job, "failed", error, failure.attempts)
        log.warning("artifact.failed", job_id=job.job_id, profile=job.profile, code=error.code)


def _is_last(jobs: Jobs, attempt: Attempt) -> bool:
    """Return whether this is the job's latest attempt. Returns False if Redis has lost the job."""
    try:
        return jobs.record(attempt.speaker_id.namespace, attempt.job.job_id).attempt == attempt.number
    except JobNotFound:
        return False
