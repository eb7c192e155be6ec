"""Makes an API key. The key that makes it names it first, so that whoever ends that one ends all it made."""

from collections import Counter
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
from services.registry_api.keys.keyring import (
    KEPT_SECONDS,
    MAX_KEYS,
    MAX_KEYS_OF_NAMESPACE,
    MAX_KEYS_OF_OPERATORS,
)
from speaker_registry.errors import InvalidRequest, PermissionDenied, QuotaExceeded, Unavailable
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

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
    """Make a key. Its token is stored nowhere.

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
    _check_namespace(namespace)
    _check_expiry(expires_at, now)
    maker = keys.look(created_by)
    _check_room(keys.all(ANY_NAMESPACE), namespace, by_operator=by_operator)
    token = new_token()
    record = ApiKeyRecord(
        id=token.id,
        secret_sha256=token.sha256,
        name=name,
        namespace=namespace,
        scopes=tuple(sorted(set(scopes))),
        created_at=now,
        created_by=created_by,
        expires_at=_end_within_makers(maker, expires_at),
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


def withdraw(keys: HeldKeys, key_id: str, *, by: str) -> None:
    """End a key whose token no caller was given. If that fails, nobody can use the key all the same."""
    with suppress(Unavailable):
        keys.change(key_id, partial(ended, at=AT_ONCE, now=keys.now(), by=by), by=by, did="withdraw")


def _end_within_makers(maker: ApiKey | None, expires_at: int | None) -> int | None:
    """Return the expiry of a new key, no later than the end of its maker. Raises `PermissionDenied`."""
    if maker is None or maker.ends_at is None:
        return expires_at
    if expires_at is not None and expires_at > maker.ends_at:
        raise PermissionDenied(
            f"'expires_at' is {expires_at}; accepted: up to {maker.ends_at}, at which API key "
            f"{maker.record.id!r} itself ends.",
            param="expires_at",
        )
    return maker.ends_at if expires_at is None else expires_at


def _check_room(keys: list[ApiKey], namespace: str, *, by_operator: bool) -> None:
    """Raise `QuotaExceeded` if there are too many keys. Its message tells a tenant nothing about the keys of
    other tenants.
    """
    later = f"Revoke some: they are deleted {KEPT_SECONDS // 86_400} days later."
    if Counter(key.record.namespace for key in keys)[namespace] >= MAX_KEYS_OF_NAMESPACE:
        raise QuotaExceeded(
            f"There are {MAX_KEYS_OF_NAMESPACE} API keys in namespace {namespace!r}, which is the "
            f"largest number for one namespace. {later}"
        )
    if by_operator and len(keys) >= MAX_KEYS_OF_OPERATORS:
        raise QuotaExceeded(
            f"There are {MAX_KEYS_OF_OPERATORS} API keys, which is the largest number. {later}"
        )
    if not by_operator and len(keys) >= MAX_KEYS:
        raise QuotaExceeded("This registry takes no more API keys now; only its operators can make room.")


def _check_namespace(namespace: str) -> None:
    if namespace != ANY_NAMESPACE and not is_namespace(namespace):
        raise InvalidRequest(
            f"'namespace' is {namespace[:80]!a}; accepted: {ACCEPTED_NAMESPACES}, or '*' for all.",
            param="namespace",
        )


def _check_expiry(expires_at: int | None, now: int) -> None:
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest(
            f"'expires_at' is {expires_at}, which has passed; accepted: Unix seconds after {now}.",
            param="expires_at",
        )
