"""Repairs queues after crashes: jobs of a dead worker go back to the queue, or end as failed.

Every worker runs this every few seconds. Each job is handled under WATCH, so it is handled once, however many
processes run this at the same time. The lock only saves work. This module does not run jobs.
"""

import time
from collections.abc import Mapping, Sequence
from typing import cast

import structlog
from redis.client import Pipeline
from redis.exceptions import ResponseError, WatchError
from rq.defaults import RQ_KEY_PREFIX
from rq.job import JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry
from rq.scripts import acquire_or_refresh_lock, release_lock
from rq.utils import now
from rq.worker_registration import clean_worker_registry

from services.shared.queue.rq_jobs import JobQueue, JobRefusedError, QueuedJob, job_key, profile_of
from services.shared.telemetry.metrics import JOBS

log = structlog.get_logger(__name__)

LOCK_SECONDS = 3
"""A process that is killed while it holds the lock blocks the others for this long. RQ's own lock would last
15 minutes.
"""

BATCH = 1000
"""The number of entries of an intermediate queue that one run examines."""


class QueueMaintenance:
    """Maintains queues. Call `run` every few seconds on the same object, which remembers since when jobs have
    been between queue and worker.

    Args:
        queues: the queues to maintain.
        owner: a unique name of this process, for the lock.
        stuck_seconds: how long a job may stay between queue and worker before it is handed back.
    """

    def __init__(self, queues: Sequence[JobQueue], *, owner: str, stuck_seconds: float = 15) -> None:
        self.queues = queues
        self._owner = owner
        self._stuck_seconds = stuck_seconds
        self._first_seen: dict[str, dict[bytes, float]] = {}  # bounded: queues x BATCH

    def run(self) -> None:
        """Maintain all queues once. Raises redis-py's errors. Problems with single jobs are only logged."""
        for queue in self.queues:
            lock = f"sr:maintenance:{queue.name}"
            if acquire_or_refresh_lock(queue.connection, lock, self._owner, LOCK_SECONDS) == "taken":
                continue
            try:
                self._maintain(queue)
            finally:
                release_lock(queue.connection, lock, self._owner)

    def _maintain(self, queue: JobQueue) -> None:
        reap(queue)
        self._sweep(queue)
        FinishedJobRegistry(queue=queue).cleanup()
        FailedJobRegistry(queue=queue).cleanup()
        clean_worker_registry(queue)

    def _sweep(self, queue: JobQueue) -> None:
        """Hand back jobs that were taken from the queue but not started, because their worker died in
        between.
        """
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


def reap(queue: JobQueue) -> int:
    """End the executions whose leases have run out. Returns how many.

    Their jobs go back to the queue, or have failed if no retry is left.
    """
    registry = queue.started_job_registry.key
    entries = cast(list[bytes], queue.connection.zrange(registry, 0, -1))  # as many as jobs that run now
    with queue.connection.pipeline(transaction=False) as pipeline:
        for entry in entries:
            pipeline.exists(lease_key(entry))
        leased = pipeline.execute()
    expired = [entry for entry, has_lease in zip(entries, leased, strict=True) if not has_lease]
    return sum(_reap_one(queue, registry, entry) for entry in expired)


def lease_key(entry: bytes) -> bytes:
    """Return the key of RQ's record of an execution. Each heartbeat sets it to expire one lease later.

    The key expires by Redis' clock. The scores of RQ's registry come from the clocks of workers, so by them a
    dead worker whose clock is fast would keep its jobs.
    """
    return f"{RQ_KEY_PREFIX}:execution:".encode() + entry


def _reap_one(queue: JobQueue, registry: str, entry: bytes) -> bool:
    job_id, _, execution = entry.partition(b":")
    with queue.connection.pipeline() as pipeline:
        pipeline.watch(job_key(job_id), lease_key(entry))  # type: ignore[no-untyped-call]
        if pipeline.zscore(registry, entry) is None or pipeline.exists(lease_key(entry)):
            return False  # it has finished, or its worker sent a heartbeat
        stored = _read(pipeline, job_id)
        pipeline.multi()
        pipeline.zrem(registry, entry)
        outcome = _end_execution(queue, job_id, execution.decode(errors="replace"), stored, pipeline)
        try:
            pipeline.execute()
        except WatchError:
            return False  # its worker or another process was faster
    if outcome:
        JOBS.labels(profile_of(queue.name), outcome).inc()
    return True


def _read(pipeline: Pipeline, job_id: bytes) -> Mapping[bytes, bytes] | Exception:
    try:
        return cast(Mapping[bytes, bytes], pipeline.hgetall(job_key(job_id)))
    except ResponseError as error:
        return error


def _end_execution(
    queue: JobQueue,
    job_id: bytes,
    execution: str,
    stored: Mapping[bytes, bytes] | Exception,
    pipeline: Pipeline,
) -> str | None:
    """Add the commands that end an execution. Returns its outcome, as a label of the metrics, or None if the
    job needs nothing more.
    """
    if not stored:
        return None
    try:
        job = queue.load(job_id, stored)
    except JobRefusedError as error:
        queue.quarantine(job_id, stored, str(error), pipeline)
        return "quarantined"
    if job.get_status(refresh=False) != JobStatus.STARTED or job.execution not in ("", execution):
        return None  # it has finished, was canceled, or was started again since
    return _retry_or_fail(queue, job, pipeline)


def _retry_or_fail(queue: JobQueue, job: QueuedJob, pipeline: Pipeline) -> str:
    if job.retries_left:
        log.warning("job.abandoned", job_id=job.id, attempt=job.attempt, retries_left=job.retries_left)
        job.enqueue_at_front_on_retry = True  # it has waited in the queue already
        job.retry(queue, pipeline)
        return "abandoned"
    reason = f"its worker died or hung in each of {job.attempt} attempts"
    log.error("job.given_up", job_id=job.id, attempt=job.attempt)
    job.ended_at = now()
    job.set_status(JobStatus.FAILED, pipeline=pipeline)
    job._handle_failure(f"AbandonedJobError: {reason}", pipeline, worker_name=job.worker_name or "")
    return "given_up"
