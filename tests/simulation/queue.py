"""The job queue as far as it matters here: at least once, under leases, with a bounded number of starts;
lost with Redis.

Stands for RQ with our worker on it. Knows job ids and the arguments they came with.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LEASE_SECONDS = 35.0
"""A job in the hand of a dead or hung worker comes back after this."""
STARTS = 4
RESULT_SECONDS = 300.0


@dataclass
class ModelledJob:
    id: str
    profile: str
    arguments: Mapping[str, Any]
    state: str = "queued"
    starts: int = 0
    holder: object = None
    held_since: float = 0.0
    ended_at: float = 0.0


@dataclass
class ModelledQueue:
    jobs: dict[str, ModelledJob] = field(default_factory=dict)

    def enqueue(self, job_id: str, profile: str, arguments: Mapping[str, Any]) -> None:
        self.jobs.setdefault(job_id, ModelledJob(job_id, profile, arguments))

    def remove(self, job_id: str) -> None:
        """Remove the job unless a worker has taken it."""
        job = self.jobs.get(job_id)
        if job is not None and job.state == "queued":
            del self.jobs[job_id]

    def state(self, job_id: str, now: float) -> str:
        job = self.jobs.get(job_id)
        if job is None or (job.state == "finished" and now - job.ended_at > RESULT_SECONDS):
            return "gone"
        return {"queued": "alive", "started": "alive", "failed": "failed", "finished": "gone"}[job.state]

    def waiting(self) -> list[ModelledJob]:
        return [job for job in self.jobs.values() if job.state == "queued"]

    def start(self, job: ModelledJob, holder: object, now: float) -> None:
        job.state, job.holder, job.held_since = "started", holder, now
        job.starts += 1

    def finish(self, job_id: str, holder: object, now: float, *, again: bool) -> None:
        """The holder is done with it. Who lost the job meanwhile has no say."""
        job = self.jobs.get(job_id)
        if job is None or job.state != "started" or job.holder is not holder:
            return
        self._end_start(job, now) if again else self._end(job, "finished", now)

    def reap(self, job: ModelledJob, now: float) -> None:
        """Its holder died or hangs."""
        self._end_start(job, now)

    def _end_start(self, job: ModelledJob, now: float) -> None:
        if job.starts >= STARTS:
            self._end(job, "failed", now)
        else:
            job.state, job.holder = "queued", None

    def _end(self, job: ModelledJob, state: str, now: float) -> None:
        job.state, job.holder, job.ended_at = state, None, now

    def snapshot(self) -> dict[str, ModelledJob]:
        return {job_id: copy.copy(job) for job_id, job in self.jobs.items()}
