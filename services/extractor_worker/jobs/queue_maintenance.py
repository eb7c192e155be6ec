"""What keeps queues in order after a crash: jobs that a dead worker held come back, or end as failed.

Every worker runs it every few seconds, and any other process may: jobs are decided on under WATCH, so any
number of processes at once gives each job one verdict; the lock only spares the work. Does not run jobs.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import cast

import structlog
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError, WatchError
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry
from rq.scripts import acquire_or_refresh_lock, release_lock
from rq.utils import current_timestamp, now
from rq.worker_registration import clean_worker_registry

from services.shared.queue.rq_jobs import JobQueue, JobRefusedError, QueuedJob, job_key, profile_of
from services.shared.telemetry.metrics import JOBS

log = structlog.get_logger(__name__)

LOCK_SECONDS = 3
"""A process killed while it holds the lock stops the others for so long; with RQ's lock, for 15 minutes."""

BATCH = 1000
"""Entries looked at in one run."""

OnAbandoned = Callable[[str, str], None]
"""Called with (job id, reason) once a job was given up. Not called if we die just then: reconcile as well."""

_Verdict = tuple[str | None, str | None]
"""A start that was ended: how, as the metrics say it, and why the job was given up, if it was."""


class QueueMaintenance:
    """Maintains some queues. `run` it every few seconds; keep the object, it remembers what it saw.

    Args:
        queues: those to look after.
        owner: unique name of this process, for the lock.
        stuck_seconds: how long a job may lie between queue and worker before it is handed back.
        on_abandoned: told of jobs given up.

    """

    def __init__(
        self,
        queues: Sequence[JobQueue],
        *,
        owner: str,
        stuck_seconds: float = 15,
        on_abandoned: OnAbandoned | None = None,
    ) -> None:
        self.queues = queues
        self._owner = owner
        self._stuck_seconds = stuck_seconds
        self._on_abandoned = on_abandoned
        self._first_seen: dict[str, dict[bytes, float]] = {}  # bounded: queues x BATCH

    def run(self) -> None:
        """Raises redis-py's errors; what is wrong with single jobs is logged and does not stop it."""
        for queue in self.queues:
            lock = f"sr:maintenance:{queue.name}"
            if acquire_or_refresh_lock(queue.connection, lock, self._owner, LOCK_SECONDS) == "taken":
                continue
            try:
                self._maintain(queue)
            finally:
                release_lock(queue.connection, lock, self._owner)

    def _maintain(self, queue: JobQueue) -> None:
        reap(queue, on_abandoned=self._on_abandoned)
        self._sweep(queue)
        FinishedJobRegistry(queue=queue).cleanup()
        FailedJobRegistry(queue=queue).cleanup()
        clean_worker_registry(queue)

    def _sweep(self, queue: JobQueue) -> None:
        """Hand back what was taken from the queue and never started: its worker died in between."""
        moment, before = time.monotonic(), self._first_seen.get(queue.name, {})
        taken = cast(list[bytes], queue.connection.lrange(queue.intermediate_queue_key, 0, BATCH - 1))
        seen = {job_id: before.get(job_id, moment) for job_id in taken}
        stuck = [job_id for job_id, since in seen.items() if moment - since >= self._stuck_seconds]
        self._first_seen[queue.name] = {
            job_id: since for job_id, since in seen.items() if job_id not in stuck
        }
        if stuck:
            with queue.connection.pipeline() as pipeline:
                for job_id in stuck:
                    queue.hand_back(job_id, pipeline)
                returned = sum(pipeline.execute())
            queue.wake()
            log.warning("queue.swept", queue=queue.name, found=len(stuck), returned=returned)


def reap(queue: JobQueue, *, on_abandoned: OnAbandoned | None = None) -> int:
    """End starts whose lease ran out: back to the queue, or failed if no retry is left. Returns how many."""
    registry = queue.started_job_registry.key
    expired = queue.connection.zrangebyscore(registry, 0, current_timestamp(), start=0, num=BATCH)
    return sum(_reap_one(queue, registry, cast(bytes, entry), on_abandoned) for entry in expired)


def _reap_one(queue: JobQueue, registry: str, entry: bytes, on_abandoned: OnAbandoned | None) -> bool:
    job_id, _, execution = entry.partition(b":")
    with queue.connection.pipeline() as pipeline:
        pipeline.watch(job_key(job_id))  # type: ignore[no-untyped-call]
        lease = pipeline.zscore(registry, entry)
        if lease is None or lease > current_timestamp():
            return False  # finished, or beating again
        stored = _read(pipeline, job_id)
        pipeline.multi()
        pipeline.zrem(registry, entry)
        verdict, reason = _decide(queue, job_id, execution.decode(errors="replace"), stored, pipeline)
        try:
            pipeline.execute()
        except WatchError:
            return False  # its worker or another process was faster
    if verdict:
        JOBS.labels(profile_of(queue.name), verdict).inc()
    if reason and on_abandoned:
        _tell(on_abandoned, job_id.decode(errors="replace"), reason)
    return True


def _read(pipeline: Pipeline, job_id: bytes) -> Mapping[bytes, bytes] | Exception:
    try:
        return cast(Mapping[bytes, bytes], pipeline.hgetall(job_key(job_id)))
    except ResponseError as error:
        return error


def _decide(
    queue: JobQueue,
    job_id: bytes,
    execution: str,
    stored: Mapping[bytes, bytes] | Exception,
    pipeline: Pipeline,
) -> _Verdict:
    """Queue the commands that end this start."""
    if not stored:
        return None, None
    try:
        job = queue.load(job_id, stored)
    except JobRefusedError as error:
        queue.quarantine(job_id, stored, str(error), pipeline)
        return "quarantined", str(error)
    if job.get_status(refresh=False) != JobStatus.STARTED or job.execution not in ("", execution):
        return None, None  # finished, canceled, or started again since: not this start's to decide
    return _retry_or_fail(queue, job, pipeline)


def _retry_or_fail(queue: JobQueue, job: QueuedJob, pipeline: Pipeline) -> _Verdict:
    if job.retries_left:
        log.warning("job.abandoned", job_id=job.id, attempt=job.attempt, retries_left=job.retries_left)
        job.enqueue_at_front_on_retry = True  # it has waited its turn already
        job.retry(queue, pipeline)
        return "abandoned", None
    reason = f"its worker died or hung in each of {job.attempt} attempts"
    log.error("job.given_up", job_id=job.id, attempt=job.attempt)
    job.ended_at = now()
    job.set_status(JobStatus.FAILED, pipeline=pipeline)
    job._handle_failure(f"AbandonedJobError: {reason}", pipeline, worker_name=job.worker_name or "")
    return "given_up", reason


def _tell(on_abandoned: OnAbandoned, job_id: str, reason: str) -> None:
    try:
        on_abandoned(job_id, reason)
    except RedisError:
        raise
    except Exception:
        log.exception("job.on_abandoned_failed", job_id=job_id)
