"""The registry as a service, for asyncio: whether it can serve requests, and how much a caller may use."""

from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.schemas import Health, Quota


class AsyncService(AsyncPlanExecutor):
    async def health(self) -> Health:
        """Ask once whether the registry can serve requests. See `RegistryClient.health`."""
        return await self._run(self._calls.health())

    async def quota(self) -> Quota:
        """Get the limits of the namespace and this API key, and how much of them is used.

        See `RegistryClient.quota`.
        """
        return await self._run(self._calls.quota())
