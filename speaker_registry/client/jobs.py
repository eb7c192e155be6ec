"""Extraction jobs: listing and counting them, waiting for them, and canceling them."""

from collections.abc import Iterator

from speaker_registry.client.executor import PlanExecutor
from speaker_registry.schemas import Job, JobSummary
from speaker_registry.waiting import wait_job


class Jobs(PlanExecutor):
    def jobs(
        self,
        *,
        state: str | None = None,
        voice: str | None = None,
        profile: str | None = None,
        created_after: float | None = None,
        limit: int | None = None,
    ) -> Iterator[Job]:
        """Iterate over the extraction jobs. Pages are requested as they are needed.

        Args:
            state: Only jobs in this state, such as `queued` or `failed`.
            voice: Only jobs of the voice with this name.
            profile: Only jobs of this profile.
            created_after: Only jobs that were created after this time, in Unix seconds.
            limit: Maximum number of jobs.
        """
        return self._pages(self._calls.jobs(state, voice, profile, created_after, limit))

    def jobs_summary(self) -> JobSummary:
        """Count the extraction jobs by state and profile, with the oldest ones and the rates of the last
        minute, hour and day. This takes one request, however many jobs there are.
        """
        return self._run(self._calls.jobs_summary())

    def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """Get a job.

        Args:
            wait: Seconds that the registry may hold the answer back until the job changes, at most 60.
        """
        return self._run(self._calls.job(job_id, wait))

    def cancel(self, job_id: str) -> Job:
        """Cancel a job that has not finished. Canceling a job twice is not an error.

        A worker that is processing the job publishes nothing.

        Raises:
            JobNotFound: There is no such job.
            JobFinished: The job has ended in another way, or its artifact is being stored.
            PermissionDenied: The job belongs to a campaign, and the API key is for one namespace.
        """
        return self._run(self._calls.cancel(job_id))

    def wait_job(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until a job has finished. Its `state` and `error` tell how it ended.

        Raises:
            JobNotFound: There is no such job.
            ArtifactNotReady: The job did not finish within `timeout` seconds.
        """
        return self._run(wait_job(self._policy, job_id, timeout))
