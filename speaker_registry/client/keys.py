"""API keys: making, replacing, revoking and listing them."""

from collections.abc import Iterable, Iterator

from speaker_registry.arguments import key_request
from speaker_registry.client.executor import PlanExecutor
from speaker_registry.schemas import ApiKey, NewApiKey


class Keys(PlanExecutor):
    def create_key(
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

        The call is not retried if its answer is lost, or after a server error, because each attempt could
        make one more key that is unknown to the caller. Use `api_keys` to see whether the key was made, and
        `revoke_key` to revoke it.

        Args:
            name: Free text that tells people what the key is for.
            scopes: Permissions of the key, such as `voices:read` or `engine`. See `speaker_registry.scopes`.
            namespace: Namespace whose voices the key can use. Defaults to the caller's own. `*` means every
                namespace.
            expires_at: Expiry time in Unix seconds. By default the key expires together with this client's
                own key, or never if that does not expire.
            requests_per_minute: Rate limit of the key. Defaults to the limit of the registry.
            uploads_per_minute: Limit of uploads per minute. Defaults to the limit of the registry.

        Raises:
            InvalidRequest: An argument is not accepted.
            QuotaExceeded: There are as many keys as the registry allows.
            PermissionDenied: This client's key may not make such a key, or expires before the new key would.
            Unavailable: The registry did not answer. The key may have been made nevertheless.
        """
        wanted = key_request(
            name,
            scopes,
            namespace=namespace,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            uploads_per_minute=uploads_per_minute,
        )
        return self._run(self._calls.create_key(wanted))

    def rotate_key(self, key_id: str, *, grace_seconds: int = 86_400) -> NewApiKey:
        """Replace an API key with a new one with the same permissions.

        The old key is accepted for another `grace_seconds`. Like `create_key`, the call is not retried if its
        answer is lost, or after a server error.

        Args:
            key_id: Id of the old key. The whole key is accepted too, but only its id is sent.
            grace_seconds: Seconds until the old key is refused. The default is one day.

        Raises:
            ApiKeyNotFound: There is no such key.
            ApiKeyEnded: The old key is revoked or has expired.
            PermissionDenied: This client's key expires before the old key does.
            Unavailable: The registry did not answer. There may be a new key nevertheless, and the old one may
                end.
        """
        return self._run(self._calls.rotate_key(key_id, grace_seconds))

    def revoke_key(self, key_id: str, *, children: bool = False) -> None:
        """Revoke an API key. The call returns when no process accepts the key any more.

        Args:
            key_id: Id of the key. The whole key is accepted too, but only its id is sent.
            children: Also revoke the keys that were made with this key, the keys made with those, and so on.
        """
        self._run(self._calls.revoke_key(key_id, children=children))

    def api_keys(self, *, limit: int | None = None) -> Iterator[ApiKey]:
        """Iterate over the namespace's API keys, oldest first, without their secrets.

        If this client's key is valid in every namespace and no namespace was given, the list covers all
        namespaces.
        """
        return self._pages(self._calls.keys(limit))
