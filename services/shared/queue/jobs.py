"""Opens and joins jobs, begins attempts at them, reports their progress, and ends them.

A job is a claim with a record in the view, and an entry in the queue of its profile. The loss of any of them
loses no artifact: housekeeping starts the extractions of artifacts that documents lack.
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from services.shared.model.clock import Clock
from services.shared.model.records import Version
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.queue.reaping import LatestAttempt
from services.shared.queue.rq_jobs import preparation_queue, queue_name
from services.shared.queue.seen_jobs import SeenJobs
from services.shared.telemetry import tracing
from services.shared.view.job_records import STAGES, JobRecord, JobRecords, Stage
from services.shared.view.open_jobs import OpenJobs
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import JobNotFound, LeaseExpired, SpeakerRegistryError, Unavailable
from speaker_registry.schemas import JobState

WHY_WORKERS_STOP = (
    "It died, or an attempt took longer than SPEAKER_JOB_SECONDS, which its log calls 'worker.hung'."
)


class Dispatcher(Protocol):
    """Hands jobs to workers. A job carries ids only: no audio, no names and no transcripts."""

    def enqueue(self, job_id: str, queue: str, arguments: Mapping[str, Any]) -> None:
        """Put a job into a queue. Enqueuing the same job twice does no harm."""

    def state(self, job_id: str, profile: str) -> str:
        """Return `waiting` (in a queue), `alive` (running, or about to), `failed` (given up) or `gone`."""
        ...

    def remove(self, job_id: str, queue: str) -> None:
        """Remove a job that is no longer wanted from its queue, unless a worker has taken it already."""

    def reap(self, latest_attempt: LatestAttempt) -> None:
        """Take jobs from workers that died or hang: they wait again, or are given up. A job that waits again
        is put back with what `latest_attempt` returned for it.
        """

    def draw(self, speaker: str, vuid: str) -> str | None:
        """Ask workers for the pictures of a version's clip, unless they were asked already.

        Returns None, or whole sentences that say why they could not draw them.
        """
        ...

    def forget_drawing(self, vuid: str) -> None:
        """Forget what the last drawing of a version's clip found, because the clip was uploaded again."""


class Jobs:
    """Opens, changes and ends jobs. Every method may raise `ViewAway` or `Unavailable`."""

    def __init__(
        self,
        claims: OpenJobs,
        records: JobRecords,
        dispatcher: Dispatcher,
        clock: Clock,
        *,
        max_attempts: int = 3,
    ) -> None:
        self.records = records
        self.seen = SeenJobs()
        self.before_open: Callable[[], None] = lambda: None
        """`extract` calls this function right before it opens a job for a caller's request. The function
        raises an error of the registry to refuse that. `Jobs.open` does not call it, because housekeeping,
        repairs and campaigns open jobs for no caller.
        """
        self._claims = claims
        self._dispatcher = dispatcher
        self._clock = clock
        self._max_attempts = max_attempts

    def open(
        self,
        speaker_id: SpeakerId,
        version: Version,
        profile: str,
        fingerprint: str,
        *,
        forced: bool = False,
        ahead: bool = False,
        mends: bool = False,
    ) -> OpenJob:
        """Open a job for an artifact of a version, or join the open one. Returns the job.

        Args:
            fingerprint: that of the profile's current encoder. Empty while no worker has announced one.
            forced: make the artifact even if there is one already.
            mends: make the artifact because its bytes are lost.
            ahead: give the job to workers that have this encoder, although it is not the current one.
        """
        queue = preparation_queue(profile, fingerprint) if ahead else queue_name(profile)
        job_id = f"job_{self._clock.new_id()}"
        job = OpenJob(version.vuid, profile, fingerprint, job_id, processing=False, mends=mends)
        fields = {
            "id": job.job_id,
            "ns": speaker_id.namespace,
            "slug": speaker_id.slug,
            "name": version.name,
            "vuid": version.vuid,
            "number": str(version.number),
            "profile": profile,
            "fingerprint": fingerprint,
            "build": str(version.highest_build(profile, fingerprint) + 1),
            "forced": "true" if forced else "false",
            "max_attempts": str(self._max_attempts),
            "queue": queue,
            **({"given_id": version.given_id} if version.given_id else {}),
            **({"traceparent": parent} if (parent := tracing.traceparent()) else {}),
        }
        claimed = self._claims.claim(speaker_id, job, fields)
        self.seen.put_claimed({**fields, "id": claimed.job_id}, at=self._clock.now())
        if claimed.job_id == job.job_id:
            self._dispatcher.enqueue(job.job_id, queue, {"job": job.job_id, "speaker": str(speaker_id)})
        return claimed

    def begin(
        self,
        speaker_id: SpeakerId,
        job: OpenJob,
        *,
        worker: str | None,
        fingerprint: str,
        build: int,
        max_attempts: int,
    ) -> int | None:
        """Begin an attempt at a job. Returns its number, or None if the job has ended or is not known."""
        fields = {"fingerprint": fingerprint, "build": str(build), "max_attempts": str(max_attempts)}
        fields["stage"] = STAGES[0]
        return self._claims.begin(speaker_id, job, {**fields, **({"worker": worker} if worker else {})})

    def report(self, speaker_id: SpeakerId, job: OpenJob, attempt: int, stage: Stage) -> None:
        """Report the stage of a job to clients that follow it, and renew its claim. Nothing happens if a
        later attempt has begun.
        """
        self._claims.report(speaker_id, job, {"stage": stage}, attempt=attempt)

    def put_back(
        self,
        speaker_id: SpeakerId,
        job: OpenJob,
        error: SpeakerRegistryError,
        attempt: int,
        *,
        max_attempts: int | None = None,
    ) -> None:
        """Report that an attempt failed and that the queue will retry the job. Nothing happens if a later
        attempt has begun.

        Args:
            max_attempts: the number of attempts that the job may have from now on. By default it stays.
        """
        fields = {"error": error_json(error, attempt), "stage": "queued"}
        if max_attempts is not None:
            fields["max_attempts"] = str(max_attempts)
        self._claims.put_back(speaker_id, job, fields, attempt=attempt)

    def reap(self) -> None:
        """Take jobs from workers that died or hang. Workers do so too, but there may be none."""
        self._dispatcher.reap(self.latest_attempt)

    def latest_attempt(self, speaker: str, job_id: str) -> Callable[[], None]:
        """Return a function that puts a job back whose worker died or hangs, for `reaping`. It does nothing
        if another attempt has begun until it is called, and while the view is away.
        """
        with suppress(JobNotFound, Unavailable, ValueError):
            speaker_id = SpeakerId.parse(speaker)
            record = self.record(speaker_id.namespace, job_id)
            if record.state == "processing":
                return partial(self._put_back_lost, speaker_id, record)
        return lambda: None

    def _put_back_lost(self, speaker_id: SpeakerId, record: JobRecord) -> None:
        error = LeaseExpired(f"The worker stopped while it made the artifact. {WHY_WORKERS_STOP}")
        with suppress(Unavailable):
            self.put_back(speaker_id, self.open_job(speaker_id, record), error, record.attempt)

    def open_job(self, speaker_id: SpeakerId, record: JobRecord) -> OpenJob:
        """Return the open job of a record, to change or end it."""
        unclaimed = OpenJob(
            record.vuid,
            record.profile,
            record.fingerprint,
            record.id,
            processing=record.state == "processing",
        )
        return self._claims.find(speaker_id, record.id) or unclaimed

    def keep(self, speaker_id: SpeakerId, job: OpenJob) -> str:
        """Renew the claim of a job that a worker runs or will run. Returns the dispatcher's `state` of the
        job.

        A job that waits in a queue while its record says `processing` is put back. Its worker was taken for
        dead while it took the job, and began the job afterwards.
        """
        # This comes first: if the job waits afterwards, every attempt that has begun by now was given up.
        put_back = self.latest_attempt(str(speaker_id), job.job_id) if job.processing else None
        state = self._dispatcher.state(job.job_id, job.profile)
        if state in {"waiting", "alive"} and self._claims.renew(speaker_id, job) is None:
            return "gone"
        if state == "waiting" and put_back is not None:
            put_back()
        return state

    def end(
        self,
        speaker_id: SpeakerId,
        job: OpenJob,
        state: JobState,
        error: SpeakerRegistryError | None = None,
        attempt: int = 0,
    ) -> bool:
        """End a job. Returns False if it had ended already, which changes nothing."""
        fields = {"error": error_json(error, attempt)} if error else {}
        if state == "succeeded":
            fields["stage"] = "done"
        return self._claims.end(speaker_id, job, state, fields)

    def replace(self, speaker_id: SpeakerId, job: OpenJob) -> bool:
        """End a job that no worker will run, because another job is about to make its artifact. Returns False
        if it had ended already. Those who ask for the job hear about the other one.
        """
        return self._claims.end(speaker_id, job, "superseded", {"replaced": "true"})

    def forget_drawing(self, version: Version) -> None:
        """Forget what the last drawing of a version's clip found, because the clip was uploaded again."""
        self._dispatcher.forget_drawing(version.vuid)

    def remove(self, job: OpenJob) -> None:
        """Remove a job from its queue. A worker that has already taken it finds out when it publishes."""
        self._dispatcher.remove(job.job_id, queue_name(job.profile))
        if job.fingerprint:
            self._dispatcher.remove(job.job_id, preparation_queue(job.profile, job.fingerprint))

    def record(self, namespace: str, job_id: str) -> JobRecord:
        """Return the record of a job. Raises `JobNotFound`."""
        return self.records.get(namespace, job_id)


def error_json(error: SpeakerRegistryError, attempt: int) -> str:
    """Return an error as JSON for the record of a job."""
    members = {"code": error.code, "message": error.message, "retryable": error.retryable}
    return canonical_json({**members, "attempt": attempt})
