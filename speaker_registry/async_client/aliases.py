"""Aliases of voices, for asyncio: which version each stands for, and moving them."""

from collections.abc import AsyncIterator

from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.calls import Alias
from speaker_registry.schemas import VoiceAlias


class AsyncAliases(AsyncPlanExecutor):
    def aliases(self, voice: str, *, limit: int | None = None) -> AsyncIterator[VoiceAlias]:
        """Iterate over the aliases of a voice. See `RegistryClient.aliases`."""
        return self._pages(self._calls.aliases(voice, limit))

    async def alias(self, voice: str, alias: str = "default") -> Alias:
        """Get an alias of a voice. See `RegistryClient.alias`."""
        return await self._run(self._calls.alias(voice, alias))

    async def move_alias(self, voice: str, alias: str, version: int, *, if_match: str | None = None) -> Alias:
        """Point an alias to a version, or make a new alias. See `RegistryClient.move_alias`."""
        return await self._run(self._noticed(voice, self._calls.move_alias(voice, alias, version, if_match)))

    async def remove_alias(self, voice: str, alias: str, *, if_match: str | None = None) -> None:
        """Remove an alias. `default` stays, and moves to new versions by itself again.

        See `RegistryClient.remove_alias`.
        """
        await self._run(self._noticed(voice, self._calls.remove_alias(voice, alias, if_match)))

    async def rollback(self, voice: str, to: int | None = None) -> Alias:
        """Move `default` to an older version. See `RegistryClient.rollback`."""
        return await self._run(self._noticed(voice, self._calls.rollback(voice, to)))
