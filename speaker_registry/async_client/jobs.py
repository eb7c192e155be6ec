"""Extraction jobs, for asyncio: listing and counting them, waiting for them, and canceling them."""

from collections.abc import AsyncIterator

from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.schemas import Job, JobSummary
from speaker_registry.waiting import wait_job


class AsyncJobs(AsyncPlanExecutor):
    def jobs(
        self,
        *,
        state: str | None = None,
        voice: str | None = None,
        profile: str | None = None,
        created_after: float | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Job]:
        """Iterate over the extraction jobs. Pages are requested as they are needed.

        See `RegistryClient.jobs`.
        """
        return self._pages(self._calls.jobs(state, voice, profile, created_after, limit))

    async def jobs_summary(self) -> JobSummary:
        """Count the extraction jobs by state and profile.

        See `RegistryClient.jobs_summary`.
        """
        return await self._run(self._calls.jobs_summary())

    async def job(self, job_id: str, *, wait: float = 0.0) -> Job:
        """Get a job.

        See `RegistryClient.job`.
        """
        return await self._run(self._calls.job(job_id, wait))

    async def cancel(self, job_id: str) -> Job:
        """Cancel a job that has not finished. Canceling a job twice is not an error.

        See `RegistryClient.cancel`.
        """
        return await self._run(self._calls.cancel(job_id))

    async def wait_job(self, job_id: str, timeout: float = 600.0) -> Job:
        """Wait until a job has finished. Its `state` and `error` tell how it ended.

        See `RegistryClient.wait_job`.
        """
        return await self._run(wait_job(self._policy, job_id, timeout))
