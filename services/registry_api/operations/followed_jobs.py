"""Finds jobs even after Redis has lost their records.

When Redis loses a job's record, the extraction continues, or housekeeping starts it again under another id.
Callers wait for an artifact, not for a record, so a lost job is found by what it was to make. This process
remembers that for each job that it claimed, joined or was asked about, and for the jobs of other processes,
which the index's events report (`SeenJobs`). A job that this process has never seen is not found.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

from services.registry_api.operations.cancellation import CANCELED
from services.registry_api.operations.speakers import Speakers
from services.shared.bucket.keys import SpeakerId
from services.shared.index.gate import GateClosed
from services.shared.index.jobs import JobRecord, Jobs, SeenJobs
from services.shared.index.leases import Leases
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.refusals import voice_unreadable
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from services.shared.model.clock import Clock
from services.shared.model.domain import SpeakerVersion
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.status import Statuses
from speaker_registry.errors import JobNotFound, Unavailable
from speaker_registry.schemas import JobState

_JUST_ENDED_SECONDS = 60.0
"""Leases last a second. The rest is for clocks of workers that are wrong."""


class FollowedJobs(Jobs):
    """`Jobs` that also finds what became of lost jobs, if this process has seen them."""

    def __init__(
        self,
        *,
        index: SpeakerIndex,
        profiles: ProfileRecords,
        leases: Leases,
        clock: Clock,
        speakers: Speakers,
        statuses: Statuses,
        seen_jobs: SeenJobs,
    ) -> None:
        super().__init__(index)
        self._speaker_index = index
        self._profiles = profiles
        self._leases = leases
        self._clock = clock
        self._speakers = speakers
        self._statuses = statuses
        self._seen = seen_jobs

    def get(self, namespace: str, job_id: str) -> JobRecord:
        """Return a job's record.

        If Redis has lost the record or is unavailable, and this process has seen the job, the record is
        derived from the artifact that the job was to make. It has no `finished_at`, because nothing tells
        when the job ended.

        Raises:
            JobNotFound: the job is unknown, or belongs to another namespace.
            Unavailable: Redis cannot be reached, and this process does not know the job.
            VoiceUnreadable: the record of the job's version cannot be read now.
        """
        try:
            job = super().get(namespace, job_id)
        except (JobNotFound, Unavailable):
            seen = self._seen.get(job_id)
            if seen is None or seen.namespace != namespace:
                raise
            if seen.finished and seen.state != "superseded":
                return seen
            outcome = self._outcome(seen)
            return replace(outcome, lost=outcome.state == "superseded")
        self._seen.put(job)
        if job.state == "succeeded" and job.finished_at is not None:
            self._settle(job.finished_at)
        return self._outcome(job) if job.state == "superseded" else job

    def _settle(self, finished_at: float) -> None:
        """Wait until no process serves what the artifact of a job replaced, if the job has just ended.

        Workers end a job in the moment in which they put its artifact in force, and do not wait themselves.
        """
        if abs(self._clock.now() - finished_at) < _JUST_ENDED_SECONDS:
            self._leases.settle()

    def _outcome(self, job: JobRecord) -> JobRecord:
        """Derive the job's state from its artifact, or from the job that replaced it."""
        speaker_id = SpeakerId(job.namespace, job.slug)
        try:
            indexed, certain = self._speaker_index.look(speaker_id, VersionSelection(vuid=job.vuid)), True
        except (GateClosed, Unavailable):
            indexed, certain = self._speakers.look_up(speaker_id), False
        version = indexed.speaker.by_vuid(job.vuid)
        if version is None and job.vuid in indexed.speaker.unreadable:
            raise voice_unreadable(job.name)
        if version is None:
            return _ended(job, "superseded")
        if ended := self._by_artifact(job, version):
            return ended
        if certain:
            return self._by_successor(job, indexed, version)
        return _not_started(job) if job.finished else job

    def _by_artifact(self, job: JobRecord, version: SpeakerVersion) -> JobRecord | None:
        fingerprint = job.fingerprint or self._profiles.fingerprint(job.profile)
        akey = version.artifact_key(job.profile, fingerprint, job.build)
        if akey in version.artifacts:
            return _ended(job, "succeeded", stage="done", done=job.total)
        failure = version.failures.get(akey)
        if failure is None:
            return None
        if failure.code == CANCELED:
            return _ended(job, "canceled")
        error = {
            "code": failure.code,
            "message": failure.message,
            "retryable": False,
            "attempt": failure.attempts,
        }
        return _ended(job, "failed", attempt=failure.attempts, error=error)

    def _by_successor(self, job: JobRecord, indexed: IndexedSpeaker, version: SpeakerVersion) -> JobRecord:
        wanted = (job.vuid, job.profile)
        pending_extractions = [
            pending for pending in indexed.pending_extractions if (pending.vuid, pending.profile) == wanted
        ]
        for pending in pending_extractions:
            if pending.job_id != job.id:
                # Redis may be lost again between the two reads. Then the successor is lost, too.
                with suppress(JobNotFound, Unavailable):
                    successor = super().get(job.namespace, pending.job_id)
                    if successor.state != "superseded":  # else a successor of its own is about to be claimed
                        return replace(successor, id=job.id, created_at=job.created_at)
        missing = [status.profile.name for status in self._statuses.missing(indexed, version)]
        if pending_extractions or job.profile in missing:  # housekeeping is about to start it again
            return _not_started(job)
        return _ended(job, "superseded")


def _not_started(job: JobRecord) -> JobRecord:
    """Return the job as one that has not started."""
    return replace(
        job,
        state="queued",
        attempt=0,
        stage="queued",
        done=0,
        started_at=None,
        finished_at=None,
        worker=None,
    )


def _ended(job: JobRecord, state: JobState, **changes: Any) -> JobRecord:
    """Return the job as one that has ended. When it ended is not known, unless its record says so."""
    return job if job.state == state else replace(job, state=state, **changes)
