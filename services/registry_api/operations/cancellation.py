"""Canceling extraction jobs.

That an extraction was canceled is a fact, as that it failed is: otherwise housekeeping would start the
extraction of a required profile again. Knows no HTTP.
"""

import structlog

from services.shared.bucket.facts import commit
from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord, Jobs
from services.shared.index.reading import PendingExtraction
from services.shared.index.speaker_index import VersionSelection, voice_unreadable
from services.shared.model.domain import FailureRecord, SpeakerVersion
from services.shared.registry.parts import RegistryParts
from speaker_registry.errors import JobFinished

log = structlog.get_logger()

CANCELED = "canceled"
"""The code of the failure that a canceled extraction leaves."""
_MESSAGE = "It was canceled. Extract it with force to have it made after all."


def cancel(parts: RegistryParts, namespace: str, job_id: str) -> JobRecord:
    """End a job that has not finished. Its worker, if it has one, publishes nothing of it.

    Canceling a canceled job changes nothing. What was served before serves on. The voice counts as failed for
    the job's profile until somebody extracts it with force, or the profile's artifacts are made with
    something newer. A profile that had no worker yet is made with something newer once it has one.

    Returns:
        The job, canceled.

    Raises:
        JobNotFound; JobFinished: it has ended otherwise, or its artifact is being stored; Unavailable.
        VoiceUnreadable: the record of its version cannot be read now.
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
        raise voice_unreadable(job.name)  # its job may be under way all the same
    pending = next((one for one in indexed.pending_extractions if one.job_id == job_id), None)
    if version is None or pending is None:  # nobody waits for its artifact any more
        parts.index.set_job(speaker_id, job_id, CANCELED)
    else:
        _give_up(parts, speaker_id, version, pending, job)
    parts.dispatcher.remove(job_id, job.profile)
    job = jobs.get(namespace, job_id)
    if job.state != CANCELED:
        _check_unfinished(job)
        raise _publishing(job)
    log.info("job.canceled", job_id=job_id, speaker=str(speaker_id), profile=job.profile)
    return job


def _check_unfinished(job: JobRecord) -> None:
    if job.finished:
        raise JobFinished(
            f"Job '{job.id}' is {job.state}; only one that is queued or processing can be canceled.",
            param="job_id",
        )
    if job.stage == "publishing":
        raise _publishing(job)


def _publishing(job: JobRecord) -> JobFinished:
    return JobFinished(
        f"Job '{job.id}' is storing its artifact; it is too late to cancel it.", param="job_id"
    )


def _give_up(
    parts: RegistryParts,
    speaker_id: SpeakerId,
    version: SpeakerVersion,
    pending: PendingExtraction,
    job: JobRecord,
) -> None:
    announced = parts.announcements.current(job.profile)
    fingerprint = pending.fingerprint or (announced.fingerprint if announced else "")
    akey = version.artifact_key(job.profile, fingerprint, job.build)
    record = FailureRecord(
        profile=job.profile,
        fingerprint=fingerprint,
        build=job.build,
        attempt=f"{parts.clock.new_id()}-{job.id.removeprefix('job_')}-cancel",
        code=CANCELED,
        message=_MESSAGE,
        attempts=job.attempt,
    )
    commit(parts.store, speaker_id.failure_key(version.vuid, akey, record), record.to_json().encode())
    parts.index.apply_failure(
        speaker_id,
        version.vuid,
        akey,
        record,
        job_id=job.id,
        claimed=pending.fingerprint,
        canceled=True,
    )
