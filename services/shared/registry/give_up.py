"""Gives up extractions. The record in the document prevents endless retries.

`fail.py` gives up what failed in its last attempt. An extraction whose worker stopped in its last attempt is
given up by the next worker that takes its job, or by housekeeping if the queue gave the job up.
"""

import structlog

from services.shared.model.artifacts import AlreadyMade, VersionGone, with_failure
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import FailureRecord
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.queue.jobs import WHY_WORKERS_STOP, Jobs
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import Speakers
from services.shared.view.job_records import JobRecord
from speaker_registry.errors import LeaseExpired, SpeakerRegistryError

log = structlog.get_logger(__name__)


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


def give_up_abandoned(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    speaker_id: SpeakerId,
    job: OpenJob,
    *,
    record: JobRecord,
) -> LeaseExpired:
    """Give up an extraction whose worker died or hung in its last attempt. Returns the error of the job."""
    error = LeaseExpired(
        f"The worker stopped before it had made the artifact, and no attempts are left. {WHY_WORKERS_STOP}"
    )
    failure = FailureRecord(
        fingerprint=record.fingerprint or profiles.fingerprint(job.profile),
        build=record.build,
        job=record.id,
        code=error.code,
        message=error.message,
        attempts=record.attempt,
    )
    give_up(speakers, jobs, profiles, speaker_id, job, failure=failure, error=error)
    error.retryable = False  # the queue would allow further starts
    return error
