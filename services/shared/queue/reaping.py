"""Takes jobs from workers that died or hang: they go back to the queue, or have failed if no retry is left.

Workers do so for their own queues, and housekeeping for all queues, because a queue may have no worker. Each
job is handled under WATCH, so it is handled once, however many processes do this at the same time.
"""

from collections.abc import Callable, Mapping
from typing import cast

import structlog
from redis.client import Pipeline
from redis.exceptions import ResponseError, WatchError
from rq.defaults import RQ_KEY_PREFIX
from rq.job import JobStatus
from rq.utils import now

from services.shared.queue.rq_jobs import JobQueue, JobRefusedError, QueuedJob, job_key, profile_of
from services.shared.telemetry.metrics import JOBS

log = structlog.get_logger(__name__)

LatestAttempt = Callable[[str, str], Callable[[], None]]
"""Takes a speaker and the id of a job. Returns a function that puts back the job's record, for those who
follow the job. The function does nothing if another attempt has begun meanwhile.
"""


def without_records(_speaker: str, _job_id: str) -> Callable[[], None]:
    """Return a function that does nothing, for jobs that have no record."""
    return lambda: None


def reap(queue: JobQueue, latest_attempt: LatestAttempt = without_records) -> int:
    """End the executions whose leases have run out. Returns how many."""
    registry = queue.started_job_registry.key
    entries = cast(list[bytes], queue.connection.zrange(registry, 0, -1))  # as many as jobs that run now
    with queue.connection.pipeline(transaction=False) as pipeline:
        for entry in entries:
            pipeline.exists(lease_key(entry))
        leased = pipeline.execute()
    expired = [entry for entry, has_lease in zip(entries, leased, strict=True) if not has_lease]
    return sum(_reap_one(queue, registry, entry, latest_attempt) for entry in expired)


def lease_key(entry: bytes) -> bytes:
    """Return the key of RQ's record of an execution. Each heartbeat sets it to expire one lease later.

    The key expires by Redis' clock. The scores of RQ's registry come from the clocks of workers, so by them a
    dead worker whose clock is fast would keep its jobs.
    """
    return f"{RQ_KEY_PREFIX}:execution:".encode() + entry


def _reap_one(
    queue: JobQueue, registry: str, entry: bytes, latest_attempt: LatestAttempt = without_records
) -> bool:
    job_id, _, execution = entry.partition(b":")
    with queue.connection.pipeline() as pipeline:
        pipeline.watch(job_key(job_id), lease_key(entry))  # type: ignore[no-untyped-call]
        stored = _read(pipeline, job_id)
        job = _load(queue, job_id, stored)
        speaker = str(job.kwargs.get("speaker", "")) if isinstance(job, QueuedJob) else ""
        # Before the lease is looked at: as long as this execution is listed, no later attempt can begin.
        put_back = latest_attempt(speaker, job_id.decode(errors="replace"))
        if pipeline.zscore(registry, entry) is None or pipeline.exists(lease_key(entry)):
            return False  # it has finished, or its worker sent a heartbeat
        pipeline.multi()
        pipeline.zrem(registry, entry)
        outcome = None
        if isinstance(job, JobRefusedError):
            queue.quarantine(job_id, stored, str(job), pipeline)
            outcome = "quarantined"
        elif job is not None and _is_run_by(job, execution.decode(errors="replace")):
            outcome = _retry_or_fail(queue, job, pipeline)
        try:
            pipeline.execute()
        except WatchError:
            return False  # its worker or another process was faster
    if outcome == "abandoned":
        put_back()
    if outcome:
        JOBS.labels(profile_of(queue.name), outcome).inc()
    return True


def _read(pipeline: Pipeline, job_id: bytes) -> Mapping[bytes, bytes] | Exception:
    try:
        return cast(Mapping[bytes, bytes], pipeline.hgetall(job_key(job_id)))
    except ResponseError as error:
        return error


def _load(
    queue: JobQueue, job_id: bytes, stored: Mapping[bytes, bytes] | Exception
) -> QueuedJob | JobRefusedError | None:
    """Return a job, or what is wrong with it, or None if Redis does not have it any more."""
    try:
        return queue.load(job_id, stored) if stored else None
    except JobRefusedError as error:
        return error


def _is_run_by(job: QueuedJob, execution: str) -> bool:
    """Return False if the job has finished, was canceled, or was started again since."""
    return job.get_status(refresh=False) == JobStatus.STARTED and job.execution in ("", execution)


def _retry_or_fail(queue: JobQueue, job: QueuedJob, pipeline: Pipeline) -> str:
    if job.retries_left:
        log.warning("job.abandoned", job_id=job.id, attempt=job.attempt, retries_left=job.retries_left)
        queue.put_back(job, pipeline)
        return "abandoned"
    reason = f"its worker died or hung in each of {job.attempt} attempts"
    log.error("job.given_up", job_id=job.id, attempt=job.attempt)
    job.ended_at = now()
    job.set_status(JobStatus.FAILED, pipeline=pipeline)
    job._handle_failure(f"AbandonedJobError: {reason}", pipeline, worker_name=job.worker_name or "")
    return "given_up"
