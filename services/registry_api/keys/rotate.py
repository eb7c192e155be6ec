"""Makes a new API key with the permissions of an old one, which ends."""

from functools import partial

import structlog

from services.registry_api.keys.api_keys import AT_ONCE, ApiKey, Token
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_document import check_replaceable, key_ended, replaced
from services.registry_api.keys.key_rules import end_after_rotation
from services.registry_api.keys.make import make, read_maker, withdraw
from speaker_registry.errors import ApiKeyEnded, ApiKeyNotFound, Unavailable

log = structlog.get_logger(__name__)


def rotate(
    keys: HeldKeys, old: ApiKey, *, grace_seconds: int, by: str, by_operator: bool = False
) -> tuple[Token, ApiKey]:
    """Make a new key with the permissions of an old one, which stays valid for `grace_seconds`.

    If the old key expires, the new one has a lifetime of the same length, but does not outlive the API key
    `by` that requests it, as with `make`. The two keys share their rate limits.

    Callers should not repeat this call if they get no answer, because each call makes one more key. If the
    end of the old key is not stored, the new key is ended as well, if possible.

    Raises:
        ApiKeyEnded: the old key is revoked or has expired, and must not become valid again.
        ApiKeyNotFound: the bucket has lost the document of the old key.
        PermissionDenied: the new key would end before the old one was to end.
        Unavailable: the bucket does not answer, or the document of the old key is damaged.
        InvalidApiKey, QuotaExceeded.
    """
    record, now = old.record, keys.now()
    if (state := old.state(now)) != "active":
        raise key_ended(old, state)
    check_replaceable(keys.stored(record.id), record.id, now)  # before a new key is made in vain
    token, made = make(
        keys,
        name=record.name,
        namespace=record.namespace,
        scopes=record.scopes,
        created_by=by,
        expires_at=end_after_rotation(old, read_maker(keys, by), now),
        requests_per_minute=record.requests_per_minute,
        uploads_per_minute=record.uploads_per_minute,
        by_operator=by_operator,
        first=record.first or record.id,
    )
    try:
        now = keys.now()  # again, because making the new key takes time
        # The store tells whole seconds, so almost one more second may have passed.
        at = now + 1 + grace_seconds if grace_seconds else AT_ONCE
        end = partial(replaced, key_id=record.id, at=at, now=now, by=by)
        changed = keys.change(record.id, end, by=by, did="rotate")
    except (ApiKeyEnded, ApiKeyNotFound, Unavailable):  # it has ended meanwhile, and must not be replaced
        withdraw(keys, token.id, by=by)
        raise
    log.info("key.ended", key_id=record.id, at=at, by=by)
    if not changed.shared:  # the old key ends, so its holder must get the new one
        log.warning("key.end_not_shared", key_id=record.id)
    elif at == AT_ONCE:
        _settle(keys, record.id)
    return token, made


def _settle(keys: HeldKeys, key_id: str) -> None:
    """Wait until no process accepts the old key. If that fails, the holder gets the new key anyway."""
    try:
        keys.settle()
    except Unavailable as error:
        log.warning("key.end_not_settled", key_id=key_id, reason=error.message)
