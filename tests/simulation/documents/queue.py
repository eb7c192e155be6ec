"""The queue of all profiles as far as it matters here: at least once, under leases, and lost with Redis."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from services.shared.queue.reaping import LatestAttempt
from services.shared.queue.rq_jobs import profile_of

LEASE_SECONDS = 35.0
"""A job in the hand of a process that died or hangs comes back after this."""
_STARTS = 4


@dataclass
class TakenJob:
    """A job in the queue, or in the hand of a worker."""

    id: str
    profile: str
    arguments: Mapping[str, Any]
    starts: int = 0
    taken_until: float | None = None


class LeasedQueue:
    """Hands out jobs. A job leaves when its holder is done with it, or after too many starts."""

    def __init__(self) -> None:
        self.jobs: dict[str, TakenJob] = {}
        self.failed: set[str] = set()

    def enqueue(self, job_id: str, queue: str, arguments: Mapping[str, Any]) -> None:
        self.jobs.setdefault(job_id, TakenJob(job_id, profile_of(queue), arguments))

    def state(self, job_id: str, profile: str) -> str:
        if job_id in self.failed:
            return "failed"
        return "alive" if job_id in self.jobs else "gone"

    def remove(self, job_id: str, queue: str) -> None:
        job = self.jobs.get(job_id)
        if job is not None and job.taken_until is None:
            del self.jobs[job_id]

    def reap(self, latest_attempt: LatestAttempt) -> None:
        """Do nothing, because `take` does so with the time of the simulation."""

    def take(self, now: float) -> TakenJob | None:
        """Take the oldest job that waits."""
        self._reap(now)
        job = next((one for one in self.jobs.values() if one.taken_until is None), None)
        if job is not None:
            job.starts += 1
            job.taken_until = now + LEASE_SECONDS
        return job

    def finish(self, job: TakenJob) -> None:
        """Say that a worker is done with a job, unless it has been put back or taken by another since."""
        if self.jobs.get(job.id) is job and job.taken_until is not None:
            del self.jobs[job.id]

    def put_back(self, job: TakenJob) -> None:
        if self.jobs.get(job.id) is job:
            job.taken_until = None

    def _reap(self, now: float) -> None:
        for job in list(self.jobs.values()):
            if job.taken_until is not None and job.taken_until < now:
                job.taken_until = None
                if job.starts >= _STARTS:
                    del self.jobs[job.id]
                    self.failed.add(job.id)

    def snapshot(self) -> dict[str, TakenJob]:
        return deepcopy(self.jobs)
