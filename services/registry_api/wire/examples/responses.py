"""What the examples of all routes share: constructors of OpenAPI responses, and common errors."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from speaker_registry import schemas

Responses = dict[int | str, dict[str, Any]]

VUID = "019a2b3c4d5e7f8091a2b3c4d5e6f708"

DIGEST = "sha256:ab54d0b1c3e2f9870d5a4c3b2e1f09876d5c4b3a29180f7e6d5c4b3a2f1e0d9c"

JOB_ID = f"job_{VUID}"

_LIST = {"object": "list", "has_more": False}


def page_of(example: dict[str, Any], item_id: str) -> dict[str, Any]:
    return {**_LIST, "data": [example], "first_id": item_id, "last_id": item_id}


def json_answer(description: str, example: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"example": example}},
        "model": model,
    }


def linked_answer(
    links: Mapping[str, Mapping[str, str]], description: str, example: dict[str, Any], model: type[BaseModel]
) -> dict[str, Any]:
    """links: operation -> its parameters, as expressions on the answer."""
    said = {name: {"operationId": name, "parameters": dict(values)} for name, values in links.items()}
    return {**json_answer(description, example, model), "links": said}


def error(description: str, message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": code, "request_id": "req_5f1e"}
    return json_answer(description, {"error": body}, schemas.ErrorEnvelope)


def compatible_error(description: str, status: int, message: str, kind: str, reason: str) -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": status, "reason": reason}
    return json_answer(description, {"error": {**body, "request_id": "req_5f1e"}}, schemas.ErrorEnvelope)


INVALID = error(
    "A parameter is not what is accepted; the message names it.",
    "'limit' is '0'; accepted: a whole number from 1 to 100.",
    "invalid_request",
)

BAD_NAME = error(
    "The name cannot be one, or a parameter is not what is accepted.",
    "Invalid voice name 'a@b': must be non-empty, no path separators or NUL; it contains '@'. "
    "Accepted: 1 to 128 characters, without '/', '\\\\', '@' and control characters.",
    "invalid_voice_name",
)

NO_VOICE = error(
    "No such voice, version or alias.", "Voice 'bob' not found", "voice_not_found", "not_found_error"
)

NO_PROFILE = error(
    "No such profile.",
    "Unknown profile 'x'. Known: qwen3-tts-0.6b, qwen3-tts-1.7b.",
    "profile_unknown",
    "not_found_error",
)

_AWAY = error(
    "Redis or the object store is away. Ask again after `Retry-After`.",
    "The index cannot be reached now.",
    "unavailable",
    "server_error",
)

ANYTHING = error(
    "Anything else, in the same form.",
    "Something went wrong here; the request id finds it in our logs.",
    "internal_error",
    "server_error",
)

COMMON: Responses = {503: _AWAY, "default": ANYTHING}

READ: Responses = {**COMMON, 304: {"description": "Not changed since the ETag in `If-None-Match`."}}

_NO_KEY_MESSAGE = "No API key was sent. Accepted: 'Authorization: Bearer sreg_…'."

_NOT_FOR_THIS_MESSAGE = "This API key is for artifacts:read; needed: voices:write."

_TOO_OFTEN_MESSAGE = "Over 60000 requests a minute with this API key."

DENIED: Responses = {
    401: error(
        "No API key, or one that is not known, expired or revoked.",
        _NO_KEY_MESSAGE,
        "invalid_api_key",
        "authentication_error",
    ),
    403: error(
        "The API key is for something else.", _NOT_FOR_THIS_MESSAGE, "permission_denied", "permission_error"
    ),
    429: error(
        "Too often; ask again after `Retry-After`.", _TOO_OFTEN_MESSAGE, "rate_limited", "rate_limit_error"
    ),
}

"""By any route that needs a key."""

REFUSED: Responses = {**DENIED, 400: INVALID}

"""By any route of ours: each refuses query parameters that it does not take."""

REFUSED_COMPATIBLE: Responses = {
    401: compatible_error(
        "No API key, or one that is not known, expired or revoked.",
        401,
        _NO_KEY_MESSAGE,
        "AuthenticationError",
        "invalid_api_key",
    ),
    403: compatible_error(
        "The API key is for something else.",
        403,
        _NOT_FOR_THIS_MESSAGE,
        "PermissionDeniedError",
        "permission_denied",
    ),
    429: compatible_error(
        "Too often; ask again after `Retry-After`.",
        429,
        _TOO_OFTEN_MESSAGE,
        "RateLimitError",
        "rate_limited",
    ),
}

BINARY = {"schema": {"type": "string", "format": "binary"}}

OF_BYTES = {
    "ETag": "The file's digest, in quotes.",
    "Content-Digest": "The same, as RFC 9530 writes it.",
    "X-Voice-Version": "Number of the version.",
    "X-Voice-Created-At": "Of the version; rises with every upload of the name.",
}


def response_headers(said: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"description": description, "schema": {"type": "string"}} for name, description in said.items()
    }
