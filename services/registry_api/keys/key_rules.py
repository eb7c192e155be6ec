"""The rules for new API keys: their number, namespaces and expiry. This module knows no storage."""

from collections import Counter
from collections.abc import Collection

from services.registry_api.keys.api_keys import ANY_NAMESPACE, ApiKey
from speaker_registry.errors import ApiKeyNotFound, InvalidRequest, PermissionDenied, QuotaExceeded
from speaker_registry.names import ACCEPTED_NAMESPACES, KEY_ID_LETTERS, is_namespace

MAX_KEYS = 10_000
"""Largest number of keys, including those that ended lately, because each process holds all of them."""
MAX_KEYS_OF_NAMESPACE = 1_000
"""Largest number of keys of one namespace, so that one tenant cannot use up the quota of all tenants."""
MAX_KEYS_OF_OPERATORS = MAX_KEYS + 1_000
"""Largest number of keys for callers that may use any namespace. Operators can still make keys when tenants
have reached their limit.
"""
KEPT_SECONDS = 30 * 24 * 3600
"""A key that has ended is shown for this long."""


def check_namespace(namespace: str) -> None:
    if namespace != ANY_NAMESPACE and not is_namespace(namespace):
        raise InvalidRequest(
            f"'namespace' is {namespace[:80]!a}; accepted: {ACCEPTED_NAMESPACES}, or '*' for all.",
            param="namespace",
        )


def check_expiry(expires_at: int | None, now: float) -> None:
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest(
            f"'expires_at' is {expires_at}, which has passed; accepted: Unix seconds after {now:.0f}.",
            param="expires_at",
        )


def check_room(keys: Collection[ApiKey], namespace: str, *, by_operator: bool) -> None:
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


def end_within_makers(expires_at: int | None, maker: ApiKey | None) -> int | None:
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


def end_after_rotation(old: ApiKey, maker: ApiKey | None, now: float) -> int | None:
    """Return the expiry of the key that replaces `old` and is made by `maker`. Raises `PermissionDenied`."""
    record = old.record
    life = None if record.expires_at is None else record.expires_at - record.created_at
    wanted = None if life is None else int(now) + life
    latest = None if maker is None else maker.ends_at
    if maker is None or latest is None or (wanted is not None and wanted <= latest):
        return wanted
    if old.ends_at is None or latest < old.ends_at:
        raise PermissionDenied(
            f"API key {maker.record.id!r} ends at {latest}, and so would the successor of {record.id!r}, "
            "which would have lived longer. Rotate it with a key that does not end before it.",
            param="key_id",
        )
    return latest


def key_not_found(key_id: str, whose: str = ANY_NAMESPACE) -> ApiKeyNotFound:
    """Return the error for a key that does not exist or is in another namespace than `whose`. The message
    shows no more characters than an id has, because the text may be a whole key.
    """
    shown = f"{key_id[:KEY_ID_LETTERS]!a}" + ("…" if len(key_id) > KEY_ID_LETTERS else "")
    where = "" if whose == ANY_NAMESPACE else f" in namespace '{whose}'"
    return ApiKeyNotFound(f"No API key {shown}{where}.", param="key_id")
