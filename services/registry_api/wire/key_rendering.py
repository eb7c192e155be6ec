"""Renders API keys: turns records into the answers of `schemas`. Hashes of secrets are never shown."""

from collections.abc import Mapping
from typing import Any

from services.registry_api.keys.api_keys import ApiKey, Token
from services.registry_api.keys.held_keys import HeldKeys
from speaker_registry import schemas


def key(keys: HeldKeys, one: ApiKey, used: Mapping[str, int]) -> schemas.ApiKey:
    """Render an API key.

    Args:
        used: key id -> when the key was last used.
    """
    return schemas.ApiKey(**_key_fields(keys, one, used))


def new_key(keys: HeldKeys, one: ApiKey, token: Token) -> schemas.NewApiKey:
    return schemas.NewApiKey(**_key_fields(keys, one, {}), key=str(token))


def _key_fields(keys: HeldKeys, one: ApiKey, used: Mapping[str, int]) -> dict[str, Any]:
    record = one.record
    return {
        "id": record.id,
        "name": record.name,
        "namespace": record.namespace,
        "scopes": list(record.scopes),
        "created_at": record.created_at,
        "created_by": record.created_by,
        "expires_at": one.ends_at,
        "state": keys.state(one),
        "last_used_at": used.get(record.id),
        "requests_per_minute": record.requests_per_minute,
        "uploads_per_minute": record.uploads_per_minute,
    }
