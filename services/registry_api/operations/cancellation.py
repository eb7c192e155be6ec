"""Cancels extraction jobs. Knows no HTTP.

A cancellation is recorded as a failure fact. Without it, housekeeping would start the extraction of a
required profile again.
"""

import structlog

from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord, Jobs
from services.shared.index.reading import PendingExtraction
from services.shared.index.refusals import voice_unreadable
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.domain import FailureRecord, SpeakerVersion
from services.shared.registry.parts import RegistryParts
from services.shared.registry.publication import record_failure
from speaker_registry.errors import JobFinished

log = structlog.get_logger()

CANCELED = "canceled"
"""The state of a canceled job, and the code of the failure fact of a canceled extraction."""
_MESSAGE = "The extraction was canceled. To start it again, extract with force."


def cancel(parts: RegistryParts, namespace: str, job_id: str) -> JobRecord:
    """Cancel a job that has not finished. A worker that is processing it publishes nothing.

    Canceling a canceled job changes nothing. An artifact that was served before is still served. The voice
    counts as failed for the job's profile until an extraction is forced, or until the profile's fingerprint
    changes. If the profile had no worker yet, the first worker's fingerprint counts as such a change.

    Returns:
        The canceled job.

    Raises:
        JobNotFound, Unavailable.
        JobFinished: the job has ended otherwise, or its artifact is already being stored.
        VoiceUnreadable: the record of the job's version cannot be read now.
    """
    jobs = Jobs(parts.index)
    job = jobs.get(namespace, job_id)
    if job.state == CANCELED:
        return job
    _check_unfinished(job)
    speaker_id = SpeakerId(job.namespace, job.slug)
    indexed = parts.index.look(speaker_id, VersionSelection(vuid=job.vuid))
    version = indexed.speaker.by_vuid(job.vuid)
    if version is None and job.vuid in indexed.speaker.unreadable:
        raise voice_unreadable(job.name)  # its job may be running nevertheless
    pending = next((one for one in indexed.pending_extractions if one.job_id == job_id), None)
    if version is None or pending is None:  # the artifact is no longer wanted
        parts.index.set_job(speaker_id, job_id, CANCELED)
    else:
        _record_cancellation(parts, speaker_id, version, pending, job)
    parts.dispatcher.remove(job_id, job.queue)
    job = jobs.get(namespace, job_id)
    if job.state != CANCELED:
        _check_unfinished(job)
        raise _publishing(job)
    log.info("job.canceled", job_id=job_id, speaker=str(speaker_id), profile=job.profile)
    return job


def _check_unfinished(job: JobRecord) -> None:
    if job.finished:
        raise JobFinished(
            f"Job '{job.id}' is in state '{job.state}'; only a queued or processing job can be canceled.",
            param="job_id",
        )
    if job.stage == "publishing":
        raise _publishing(job)


def _publishing(job: JobRecord) -> JobFinished:
    return JobFinished(
        f"Job '{job.id}' is storing its artifact; it is too late to cancel it.", param="job_id"
    )


def _record_cancellation(
    parts: RegistryParts,
    speaker_id: SpeakerId,
    version: SpeakerVersion,
    pending: PendingExtraction,
    job: JobRecord,
) -> None:
    record = FailureRecord(
        profile=job.profile,
        fingerprint=pending.fingerprint or parts.profile_records.fingerprint(job.profile),
        build=job.build,
        attempt=f"{parts.clock.new_id()}-{job.id.removeprefix('job_')}-cancel",
        code=CANCELED,
        message=_MESSAGE,
        attempts=job.attempt,
    )
    record_failure(
        parts.store,
        parts.index,
        speaker_id,
        version=version,
        pending=pending,
        record=record,
        error=None,
    )
