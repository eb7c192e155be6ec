"""Records why an extraction failed, and gives it up if no attempts are left. An attempt does not count if its
worker has handed the job back.
"""

from services.shared.model.records import FailureRecord
from services.shared.queue.jobs import Jobs
from services.shared.registry.give_up import give_up
from services.shared.registry.profiles import Profiles
from services.shared.registry.publish import Attempt
from services.shared.registry.speakers import Speakers
from speaker_registry.errors import JobNotFound, SpeakerRegistryError, Unavailable


class JobHandedBack(Unavailable):
    """The bucket or Redis is away, and the worker stops or is cut off. Another worker has to run the job."""

    counted = False
    """The attempt does not count, in the queue either. Otherwise a few restarts during one outage would use
    up the attempts of sound clips.
    """
    expected = True
    """No fault: workers log it without a traceback."""


def fail(
    speakers: Speakers, jobs: Jobs, profiles: Profiles, attempt: Attempt, error: SpeakerRegistryError
) -> None:
    """Record that an attempt failed. The extraction is given up if the error is permanent or no attempts are
    left. After `JobHandedBack` the job may be tried once more than before.

    Nothing happens if a later attempt has begun.
    """
    if not _is_last(jobs, attempt):
        return
    if isinstance(error, JobHandedBack):
        # The limit rises instead, because the numbers of attempts tell later attempts from earlier ones.
        limit = attempt.max_attempts + 1
        jobs.put_back(attempt.speaker_id, attempt.job, error, attempt.number, max_attempts=limit)
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


def _is_last(jobs: Jobs, attempt: Attempt) -> bool:
    """Return whether this is the job's latest attempt. Returns False if Redis has lost the job."""
    try:
        return jobs.record(attempt.speaker_id.namespace, attempt.job.job_id).attempt == attempt.number
    except JobNotFound:
        return False
