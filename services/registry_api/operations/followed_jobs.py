"""Follows a job even after Redis has lost its record or its place in the queue. This module knows no HTTP.

When Redis loses a job's record, the extraction continues, or housekeeping restarts it under another id.
Callers wait for an artifact, not for a record, so the outcome of a lost job is derived from the speaker's
document, and so is that of a job that another one replaced because no worker would have run it. Lost jobs
for the same build of an artifact therefore share one outcome: one that was canceled before its successor
succeeded is shown as succeeded. All other jobs are shown as their records say, whatever has become of their
artifacts since. This process knows the artifact of a job if it has opened, joined or read the job, or
received an event about it (`Jobs.seen`). Other jobs are not found.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from services.shared.model.artifacts import CANCELED
from services.shared.model.records import FailureRecord, Version
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.queue.jobs import Jobs
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from services.shared.view.job_records import JobRecord
from speaker_registry.errors import JobNotFound, Unavailable
from speaker_registry.schemas import JobState


def follow(speakers: Speakers, jobs: Jobs, profiles: Profiles, namespace: str, job_id: str) -> JobRecord:
    """Return the record of a job, or that of the job that replaced it.

    If Redis has lost the record or is unavailable, and this process has seen the job, the record is derived
    from the artifact that the job was to make. It has no `finished_at` in that case, because the time at
    which the job ended is unknown.

    Raises:
        JobNotFound: the job is unknown, or belongs to another namespace.
        Unavailable: Redis cannot be reached, and this process does not know the job.
        VoiceDamaged, VoiceUnreadable: the document of the job's speaker cannot be understood.
    """
    try:
        job = jobs.record(namespace, job_id)
    except (JobNotFound, Unavailable):
        seen = jobs.seen.get(job_id)
        if seen is None or seen.namespace != namespace:
            raise
        if seen.finished and not seen.replaced:
            return seen
        outcome = _outcome(speakers, jobs, profiles, seen)
        return replace(outcome, lost=outcome.state == "superseded")
    jobs.seen.put(job)
    return _outcome(speakers, jobs, profiles, job) if job.replaced else job


def _outcome(speakers: Speakers, jobs: Jobs, profiles: Profiles, job: JobRecord) -> JobRecord:
    """Derive the state of a job from its artifact, or from the job that replaced it."""
    speaker = speakers.read(SpeakerId(job.namespace, job.slug))
    version = speaker.document.version(job.vuid)
    if version is None:
        return _ended(job, "superseded")
    if ended := _by_artifact(job, version, job.fingerprint or profiles.fingerprint(job.profile)):
        return ended
    if speaker.of_view:
        return _by_successor(jobs, profiles, job, speaker, version)
    return _not_started(job) if job.finished else job  # the view cannot say which jobs are open


def _by_artifact(job: JobRecord, version: Version, fingerprint: str) -> JobRecord | None:
    """Return the job as ended by its artifact, failure or cancellation, or None if there is none of them."""
    build = (fingerprint, job.build)
    if any((one.fingerprint, one.build) == build for one in version.artifacts.get(job.profile, ())):
        return _ended(job, "succeeded", stage="done")
    failed = version.failures.get(job.profile, ())
    own = (one for one in failed if one.job == job.id or (one.fingerprint, one.build) == build)
    failure = next(own, None)
    if failure is not None:
        return _given_up(job, failure)
    # A cancellation beside an artifact that is still served leaves no failure, but uses up its build.
    is_served = version.artifact(job.profile, fingerprint) is not None
    is_canceled = is_served and version.outcome(job.profile, *build) == "canceled"
    return _ended(job, "canceled") if is_canceled else None


def _given_up(job: JobRecord, failure: FailureRecord) -> JobRecord:
    if failure.code == CANCELED:
        return _ended(job, "canceled")
    error = {
        "code": failure.code,
        "message": failure.message,
        "retryable": False,
        "attempt": failure.attempts,
    }
    return _ended(job, "failed", attempt=failure.attempts, error=error)


def _by_successor(
    jobs: Jobs, profiles: Profiles, job: JobRecord, speaker: FoundSpeaker, version: Version
) -> JobRecord:
    """Return the job with the state of the job that replaced it, or that housekeeping is about to start."""
    same = [one for one in speaker.open_jobs if (one.vuid, one.profile) == (job.vuid, job.profile)]
    for successor in same:
        if found := _successor(jobs, job, successor):
            return found
    if same or _is_missing(profiles, job.profile, speaker, version):
        return _not_started(job)
    return _ended(job, "superseded")


def _successor(jobs: Jobs, job: JobRecord, other: OpenJob) -> JobRecord | None:
    if other.job_id == job.id:
        return None
    with suppress(JobNotFound, Unavailable):  # Redis may be lost again between the two reads
        found = jobs.record(job.namespace, other.job_id)
        if found.state != "superseded":  # otherwise housekeeping is about to open another one
            return replace(found, id=job.id, created_at=job.created_at)
    return None


def _is_missing(profiles: Profiles, profile: str, speaker: FoundSpeaker, version: Version) -> bool:
    """Return whether housekeeping will start the extraction, because the profile is required."""
    if profile not in profiles.wanted(version):
        return False
    return profiles.status(speaker, version, profiles.get(profile)).state_of_current == "pending"


def _not_started(job: JobRecord) -> JobRecord:
    """Return the job in the state of a job that has not started."""
    return replace(
        job,
        state="queued",
        attempt=0,
        stage="queued",
        started_at=None,
        finished_at=None,
        worker=None,
    )


def _ended(job: JobRecord, state: JobState, **changes: Any) -> JobRecord:
    """Return the job as ended. The time of its end is unknown unless its record has it."""
    return job if job.state == state else replace(job, state=state, **changes)
