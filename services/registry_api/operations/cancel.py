"""Cancels extraction jobs. This module knows no HTTP.

A cancellation is recorded in the document as a failure that uses up the build. So a worker that still
publishes the artifact is refused, and housekeeping does not restart the extraction.
"""

import structlog

from services.shared.model.artifacts import CANCELED, AlreadyMade, VersionGone, with_failure
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import FailureRecord
from services.shared.model.speaker import SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.queue.rq_jobs import preparation_queue
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import Speakers
from services.shared.view.job_records import JobRecord
from speaker_registry.errors import JobFinished, PermissionDenied

log = structlog.get_logger(__name__)

_MESSAGE = "The extraction was canceled. To start it again, extract with force."


def cancel(
    speakers: Speakers,
    jobs: Jobs,
    profiles: Profiles,
    namespace: str,
    job_id: str,
    *,
    by: str,
    is_operator: bool,
) -> JobRecord:
    """Cancel a job that has not finished. If its artifact was published first, nothing is canceled.

    Canceling a canceled job changes nothing. An artifact that was served before is still served. The voice
    counts as failed for the job's profile until an extraction is forced, or until the profile's fingerprint
    changes. If the profile had no worker yet, the first worker's fingerprint counts as such a change.

    Args:
        is_operator: True if the caller may cancel the jobs of campaigns, too.

    Returns:
        The canceled job.

    Raises:
        JobNotFound, Unavailable.
        PermissionDenied: the job is one of a campaign, and the caller is no operator.
        JobFinished: the job has ended otherwise, or its artifact is in the document.
    """
    record = jobs.record(namespace, job_id)
    if record.finished and record.state != CANCELED:
        raise _finished(record)
    if not is_operator:
        _refuse_for_campaign(profiles, record)
    speaker_id = SpeakerId(record.namespace, record.slug)
    job = jobs.open_job(speaker_id, record)
    if record.state != CANCELED and _commit(speakers, profiles, speaker_id, record, by=by):
        jobs.end(speaker_id, job, "succeeded")
        raise _finished(jobs.record(namespace, job_id))
    jobs.end(speaker_id, job, "canceled")
    jobs.remove(job)
    log.info("job.canceled", job_id=job_id, speaker=str(speaker_id), profile=record.profile)
    canceled = jobs.record(namespace, job_id)
    jobs.seen.put(canceled)  # a later build of the artifact hides this one in the document
    return canceled


def _commit(
    speakers: Speakers, profiles: Profiles, speaker_id: SpeakerId, record: JobRecord, *, by: str
) -> bool:
    """Use up the build of a job. Returns True if its artifact was published first, so that nothing is
    canceled.
    """
    failure = FailureRecord(
        fingerprint=record.fingerprint or profiles.fingerprint(record.profile),
        build=record.build,
        job=record.id,
        code=CANCELED,
        message=_MESSAGE,
        attempts=record.attempt,
    )

    def use_up(document: SpeakerDocument) -> SpeakerDocument:
        version = document.version(record.vuid)
        known = version.failures.get(record.profile, ()) if version else ()
        if any((one.job, one.code) == (record.id, CANCELED) for one in known):
            return document  # an earlier attempt of the same request used it up
        new = failure.having(ahead=profiles.is_ahead(record.profile, failure.fingerprint))
        return with_failure(document, record.vuid, record.profile, new, profiles.required)

    try:
        speakers.change(speaker_id, use_up, by=by, did="cancel")
    except AlreadyMade:
        document = speakers.read(speaker_id).document
        outcome = document.outcome(record.vuid, record.profile, failure.fingerprint, record.build)
        return outcome == "succeeded"
    except VersionGone:
        pass  # the job no longer makes anything
    return False


def _refuse_for_campaign(profiles: Profiles, job: JobRecord) -> None:
    """Raise `PermissionDenied` if a campaign needs the job. The campaign would count the voice as failed, and
    would not promote its encoder for all the other namespaces.
    """
    document = profiles.documents({job.profile}).get(job.profile)
    campaign = document.open_campaign if document else None
    if campaign and job.queue == preparation_queue(job.profile, campaign.fingerprint):
        raise PermissionDenied(
            f"Job '{job.id}' belongs to campaign '{campaign.id}' of profile '{job.profile}', which prepares "
            "the voices of all namespaces; needed: a key for any namespace ('*').",
            param="job_id",
        )


def _finished(job: JobRecord) -> JobFinished:
    return JobFinished(
        f"Job '{job.id}' is in state '{job.state}'; only a queued or processing job can be canceled.",
        param="job_id",
    )
