"""Makes an API key. Its maker's document records it first, so that ending the maker can end all keys that it
made.
"""

from collections.abc import Iterable
from contextlib import suppress
from functools import partial

import structlog

from services.registry_api.keys.api_keys import (
    ANY_NAMESPACE,
    AT_ONCE,
    ApiKey,
    ApiKeyRecord,
    Token,
    new_token,
)
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_document import ended, made_as, with_child
from services.registry_api.keys.key_rules import (
    check_expiry,
    check_namespace,
    check_room,
    end_within_makers,
)
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)


def make(
    keys: HeldKeys,
    *,
    name: str,
    namespace: str,
    scopes: Iterable[str],
    created_by: str,
    expires_at: int | None = None,
    requests_per_minute: int | None = None,
    uploads_per_minute: int | None = None,
    by_operator: bool = False,
    first: str | None = None,
) -> tuple[Token, ApiKey]:
    """Make a key. The token itself is not stored.

    A key ends no later than the API key that made it, so that no holder of a key can prolong its access by
    making another one. Keys made by the bootstrap key or by a JWT have no such limit.

    Args:
        created_by: id of the API key that makes this one, or another name of the caller.
        expires_at: Unix seconds. None means as late as allowed.
        by_operator: the caller may use any namespace.
        first: see `ApiKeyRecord`.

    Raises:
        InvalidRequest: the namespace or the expiry is not accepted.
        PermissionDenied: the key would end after the key that makes it.
        InvalidApiKey: the key that makes it has ended meanwhile.
        QuotaExceeded: there are too many keys.
        Unavailable: the bucket does not answer. A key whose token no caller has is ended, if possible.
    """
    now = keys.now()
    check_namespace(namespace)
    check_expiry(expires_at, now)
    maker = read_maker(keys, created_by)
    check_room(keys.all(ANY_NAMESPACE), namespace, by_operator=by_operator)
    token = new_token()
    record = ApiKeyRecord(
        id=token.id,
        secret_sha256=token.sha256,
        name=name,
        namespace=namespace,
        scopes=tuple(sorted(set(scopes))),
        created_at=now,
        created_by=created_by,
        expires_at=end_within_makers(expires_at, maker),
        requests_per_minute=requests_per_minute,
        uploads_per_minute=uploads_per_minute,
        first=first,
    )
    if maker is not None:
        keys.change(created_by, partial(with_child, child=token.id, now=now), by=created_by, did="make")
    try:
        keys.change(token.id, partial(made_as, record=record), by=created_by, did="make")
    except Unavailable:
        withdraw(keys, token.id, by=created_by)
        raise
    log.info("key.made", key_id=record.id, namespace=namespace, by=created_by)
    return token, ApiKey(record)


def read_maker(keys: HeldKeys, key_id: str) -> ApiKey | None:
    """Return the key that is about to make another one. Returns None for a maker without a document: the
    bootstrap key, or a person with a JWT.

    Raises:
        InvalidApiKey: the maker has ended. Without this check, `PermissionDenied` would be raised, because
            the new key would outlive its maker.
        Unavailable: the bucket does not answer.
    """
    maker = keys.read(key_id)
    if maker is not None:
        keys.check_active(maker)
    return maker


def withdraw(keys: HeldKeys, key_id: str, *, by: str) -> None:
    """End a key whose token was given to nobody. If that fails, the key still cannot be used."""
    with suppress(Unavailable):
        keys.change(key_id, partial(ended, at=AT_ONCE, now=keys.now(), by=by), by=by, did="withdraw")
