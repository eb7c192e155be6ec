"""API keys, for asyncio: making, replacing, revoking and listing them."""

from collections.abc import AsyncIterator, Iterable

from speaker_registry.arguments import key_request
from speaker_registry.async_client.executor import AsyncPlanExecutor
from speaker_registry.schemas import ApiKey, NewApiKey


class AsyncKeys(AsyncPlanExecutor):
    async def create_key(
        self,
        name: str,
        scopes: Iterable[str],
        *,
        namespace: str | None = None,
        expires_at: int | None = None,
        requests_per_minute: int | None = None,
        uploads_per_minute: int | None = None,
    ) -> NewApiKey:
        """Make an API key. The secret `key` is in this answer and nowhere else.

        See `RegistryClient.create_key`.
        """
        wanted = key_request(
            name,
            scopes,
            namespace=namespace,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            uploads_per_minute=uploads_per_minute,
        )
        return await self._run(self._calls.create_key(wanted))

    async def rotate_key(self, key_id: str, *, grace_seconds: int = 86_400) -> NewApiKey:
        """Replace an API key with a new one with the same permissions.

        See `RegistryClient.rotate_key`.
        """
        return await self._run(self._calls.rotate_key(key_id, grace_seconds))

    async def revoke_key(self, key_id: str, *, children: bool = False) -> None:
        """Revoke an API key. The call returns when no process accepts the key any more.

        See `RegistryClient.revoke_key`.
        """
        await self._run(self._calls.revoke_key(key_id, children=children))

    def api_keys(self, *, limit: int | None = None) -> AsyncIterator[ApiKey]:
        """Iterate over the namespace's API keys, oldest first, without their secrets.

        See `RegistryClient.api_keys`.
        """
        return self._pages(self._calls.keys(limit))
