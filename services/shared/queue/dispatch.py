"""Hands jobs to workers through RQ. Only this module knows both our job ids and RQ's states."""

from collections.abc import Mapping
from typing import cast

from redis import Redis
from rq.job import JobStatus

from services.shared.model.pictures import DRAWING
from services.shared.queue.lost_jobs import is_lost
from services.shared.queue.reaping import LatestAttempt, reap
from services.shared.queue.rq_jobs import (
    PICTURES_QUEUE,
    JobQueue,
    QueuedJob,
    enqueue,
    is_queue_name,
    job_key,
    profile_of,
    queue_name,
    status_of,
)
from services.shared.telemetry import tracing
from services.shared.view.redis_access import unavailable_without_redis
from speaker_registry.errors import ClipDamaged

EXTRACT = "extract"
DRAW = "draw"
"""The names under which a worker's handlers are registered."""

_ALIVE = {
    JobStatus.STARTED.value,
    JobStatus.SCHEDULED.value,
    JobStatus.DEFERRED.value,
}


class RqDispatcher:
    """Hands jobs to workers through RQ. Implements `jobs.Dispatcher`."""

    def __init__(self, connection: Redis, *, job_seconds: int) -> None:
        self._connection = connection
        self._job_seconds = job_seconds

    def enqueue(self, job_id: str, queue: str, arguments: Mapping[str, str | int | None]) -> None:
        """Put a job into its queue.

        Enqueuing the same job twice is not an error, because the first call's answer may have been lost.
        """
        about = {"job.id": job_id, "profile": profile_of(queue)}
        with unavailable_without_redis(), tracing.span("enqueue", kind="producer", attributes=about):
            enqueue(self._queue(queue), job_id, EXTRACT, arguments, timeout_seconds=self._job_seconds)

    def state(self, job_id: str, profile: str) -> str:
        """Return the state of a job.

        It is `waiting` (in a queue), `alive` (running, or to be queued later), `failed` (RQ gave it up) or
        `gone` (finished, forgotten, never enqueued, or no longer in the queue although it waits).
        """
        with unavailable_without_redis():
            status = status_of(self._queue(queue_name(profile)), job_id)
            if status == JobStatus.QUEUED.value:
                return "gone" if is_lost(self._connection, job_id) else "waiting"
        if status == JobStatus.FAILED.value:
            return "failed"
        return "alive" if status in _ALIVE else "gone"

    def remove(self, job_id: str, queue: str) -> None:
        """Remove a job from the queue. A worker that has already taken it finds out when it publishes."""
        with unavailable_without_redis():
            self._queue(queue).remove_waiting(job_id)

    def reap(self, latest_attempt: LatestAttempt) -> None:
        """Take jobs from workers that died or hang, see `reaping`."""
        with unavailable_without_redis():
            queues = self._known_queues()
            with self._connection.pipeline(transaction=False) as pipeline:
                for queue in queues:
                    pipeline.zcard(queue.started_job_registry.key)
                started = pipeline.execute()
            for queue, count in zip(queues, started, strict=True):
                if count:
                    reap(queue, latest_attempt)

    def draw(self, speaker: str, vuid: str) -> str | None:
        """Ask workers for the pictures of a version's clip, unless they were asked already.

        Returns None, or whole sentences that say why they could not draw them. In that case, workers are not
        asked again for a day, unless the bucket had lost the clip, which may have been restored since.
        """
        job_id, about = _drawing_id(vuid), {"speaker": speaker, "vuid": vuid}
        with unavailable_without_redis():
            queue = JobQueue(PICTURES_QUEUE, connection=self._connection)
            finished = status_of(queue, job_id) == JobStatus.FINISHED.value
            result = QueuedJob(job_id, self._connection).return_value() if finished else None
            if finished or is_lost(self._connection, job_id):
                # The bucket had lost the clip, or the pictures or the job have been lost.
                self._connection.delete(job_key(job_id.encode()))
            enqueue(queue, job_id, DRAW, about, timeout_seconds=self._job_seconds)
            if status_of(queue, job_id) == JobStatus.FAILED.value:
                return "The worker's log says why. Workers try again when they are asked a day later."
            match result:
                case {ClipDamaged.code: str(cause)}:
                    return f"{cause} Workers have been asked to try again."
            return None

    def forget_drawing(self, vuid: str) -> None:
        """Forget what the last drawing of a version's clip found, because the clip was uploaded again."""
        with unavailable_without_redis():
            queue = JobQueue(PICTURES_QUEUE, connection=self._connection)
            if status_of(queue, _drawing_id(vuid)) == JobStatus.FINISHED.value:
                self._connection.delete(job_key(_drawing_id(vuid).encode()))

    def _known_queues(self) -> list[JobQueue]:
        """Return the queues that jobs were put into, also those of former profiles and of campaigns."""
        keys = cast(set[bytes], self._connection.smembers(JobQueue.redis_queues_keys))
        prefix = JobQueue.redis_queue_namespace_prefix
        names = [key.decode(errors="replace").removeprefix(prefix) for key in keys]
        return [self._queue(name) for name in names if is_queue_name(name)]

    def _queue(self, name: str) -> JobQueue:
        return JobQueue(name, connection=self._connection)


def _drawing_id(vuid: str) -> str:
    return f"draw-{DRAWING}-{vuid}"
