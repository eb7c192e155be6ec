"""Repairs queues after crashes: jobs of a dead worker go back to the queue, or end as failed.

Every worker runs this every few seconds. Each job is handled under WATCH, so it is handled once, however many
processes run this at the same time. The lock only saves work. This module does not run jobs.
"""

import time
from collections.abc import Sequence
from typing import cast

import structlog
from rq.registry import FailedJobRegistry, FinishedJobRegistry
from rq.scripts import acquire_or_refresh_lock, release_lock
from rq.worker_registration import clean_worker_registry

from services.shared.queue.reaping import LatestAttempt, reap, without_records
from services.shared.queue.rq_jobs import JobQueue

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
        latest_attempt: puts back the record of a job whose worker died.
    """

    def __init__(
        self,
        queues: Sequence[JobQueue],
        *,
        owner: str,
        stuck_seconds: float = 15,
        latest_attempt: LatestAttempt = without_records,
    ) -> None:
        self.queues = queues
        self._owner = owner
        self._stuck_seconds = stuck_seconds
        self._latest_attempt = latest_attempt
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
        reap(queue, self._latest_attempt)
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
