"""OpenAPI responses of API keys and quotas."""

from services.registry_api.wire.examples.responses import (
    COMMON,
    INVALID,
    READ,
    Responses,
    error,
    json_answer,
    linked_answer,
    page_of,
)
from speaker_registry import schemas

_OF_THE_KEY = {"key_id": "$response.body#/id"}

_ABOUT_THE_KEY = {
    "get_key": _OF_THE_KEY,
    "rotate_key": _OF_THE_KEY,
    "revoke_key": _OF_THE_KEY,
}

_KEY = {
    "object": "api_key",
    "id": "4dtqrws3",
    "name": "TTS fleet",
    "namespace": "default",
    "scopes": ["engine"],
    "created_at": 1775133885,
    "created_by": "k3v9x0ab",
    "expires_at": None,
    "state": "active",
    "last_used_at": 1775137440,
}

_NO_SUCH_KEY = error(
    "The API key does not exist in this namespace.", "No API key 'k'.", "api_key_not_found", "not_found_error"
)

_KEYS_OFF = error(
    "This registry runs without API keys. `x-should-retry: false`.",
    "This registry requires no API keys, so they cannot be created, listed, rotated or revoked. Start it "
    "with SPEAKER_AUTH_REQUIRED=true and a bootstrap key first.",
    "api_keys_off",
    "conflict_error",
)

NEW_KEY: Responses = {
    201: linked_answer(
        _ABOUT_THE_KEY,
        "The new key. `key` holds the secret, which is never shown again.",
        {**_KEY, "last_used_at": None, "key": "sreg_4dtqrws3_…_…"},
        schemas.NewApiKey,
    ),
    **COMMON,
    400: error(
        "A field is invalid. `param` names it, and the message says what is accepted.",
        "'expires_at' is 5, which has passed; accepted: Unix seconds after 1775133885.",
        "invalid_request",
    ),
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
    413: error(
        "The request body is too large.",
        "The body has 70000 bytes; accepted here: 65536.",
        "payload_too_large",
    ),
}

ROTATED_KEY: Responses = {
    **NEW_KEY,
    409: error(
        "The key is revoked or has expired, or this registry runs without API keys. `x-should-retry: false`.",
        "API key '4dtqrws3' is revoked; only one that is active can be rotated. Make a new one.",
        "api_key_ended",
        "conflict_error",
    ),
}

KEY_BODY = {
    "requestBody": {
        "content": {"application/json": {"example": {"name": "TTS fleet", "scopes": ["engine"]}}},
    }
}

KEYS: Responses = {
    200: json_answer(
        "A page of API keys, without their secrets.", page_of(_KEY, "4dtqrws3"), schemas.Page[schemas.ApiKey]
    ),
    **READ,
    400: INVALID,
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
}

KEY: Responses = {
    200: json_answer("The API key, without its secret.", _KEY, schemas.ApiKey),
    **READ,
    400: INVALID,
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
}

REVOKE_KEY: Responses = {
    204: {"description": "The key is revoked."},
    **COMMON,
    400: INVALID,
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
}

_RATE = {"limit": 60000, "remaining": 59400, "reset_seconds": 21}

_NO_RATE = {"limit": None, "remaining": None, "reset_seconds": 21}

QUOTA: Responses = {
    200: json_answer(
        "The limits, and what is used of them.",
        {
            "object": "quota",
            "namespace": "default",
            "key_id": "4dtqrws3",
            "scopes": ["engine", "voices:write"],
            "voices": {"used": 12, "limit": 1000},
            "bytes": {"used": 1_593_576, "limit": None},
            "text_bytes": {"used": 1_416, "limit": 67_108_864},
            "max_versions": 200,
            "max_builds": 20,
            "max_clip_bytes": 10485760,
            "requests_per_minute": _RATE,
            "uploads_per_minute": {"limit": 600, "remaining": 600, "reset_seconds": 21},
            "namespace_requests_per_minute": _NO_RATE,
            "namespace_uploads_per_minute": _NO_RATE,
        },
        schemas.Quota,
    ),
    **READ,
    400: INVALID,
}
