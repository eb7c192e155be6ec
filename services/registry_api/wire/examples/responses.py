"""Constructors of OpenAPI responses, and the errors that many routes have in common."""

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
    """Describe an answer with OpenAPI links.

    Args:
        links: operation id -> its parameters, as runtime expressions on the answer.
    """
    described = {name: {"operationId": name, "parameters": dict(values)} for name, values in links.items()}
    return {**json_answer(description, example, model), "links": described}


def error(description: str, message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": code, "request_id": "req_5f1e"}
    return json_answer(description, {"error": body}, schemas.ErrorEnvelope)


def compatible_error(description: str, status: int, message: str, kind: str, reason: str) -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": status, "reason": reason}
    return json_answer(description, {"error": {**body, "request_id": "req_5f1e"}}, schemas.ErrorEnvelope)


INVALID = error(
    "A parameter is invalid. `param` names it, and the message says what is accepted.",
    "'limit' is '0'; accepted: a whole number from 1 to 100.",
    "invalid_request",
)

BAD_NAME = error(
    "The voice name or another parameter is invalid. The message says what is accepted.",
    "Invalid voice name 'a@b': must be non-empty, no path separators or NUL; it contains '@'. "
    "Accepted: 1 to 128 characters, without '/', '\\\\', '@' and control characters.",
    "invalid_voice_name",
)

NO_VOICE = error(
    "The voice, the version or the alias does not exist in this namespace.",
    "Voice 'bob' not found",
    "voice_not_found",
    "not_found_error",
)

NO_PROFILE = error(
    "The profile does not exist. The message lists those that do.",
    "Unknown profile 'x'. Known: qwen3-tts-0.6b, qwen3-tts-1.7b.",
    "profile_unknown",
    "not_found_error",
)

_AWAY = error(
    "Redis or the object store is unavailable. Retry after the time in `Retry-After`.",
    "The index cannot be reached now.",
    "unavailable",
    "server_error",
)

ANYTHING = error(
    "Any other error, in the same envelope.",
    "An internal error occurred. Operators find it in the logs by the request id.",
    "internal_error",
    "server_error",
)

COMMON: Responses = {503: _AWAY, "default": ANYTHING}

READ: Responses = {**COMMON, 304: {"description": "Not modified: `If-None-Match` names the current ETag."}}

_NO_KEY_MESSAGE = "No API key was sent. Accepted: 'Authorization: Bearer sreg_…'."

_NOT_FOR_THIS_MESSAGE = "This API key has the scopes: artifacts:read; needed: voices:write."

_TOO_OFTEN_MESSAGE = (
    "The limit of 60000 requests a minute for this API key is reached. Wait for the next minute."
)

DENIED: Responses = {
    401: error(
        "The API key is missing, unknown, expired or revoked.",
        _NO_KEY_MESSAGE,
        "invalid_api_key",
        "authentication_error",
    ),
    403: error(
        "The API key lacks a scope that this route requires, or is for another namespace.",
        _NOT_FOR_THIS_MESSAGE,
        "permission_denied",
        "permission_error",
    ),
    429: error(
        "The rate limit is exceeded. Retry after the time in `Retry-After`.",
        _TOO_OFTEN_MESSAGE,
        "rate_limited",
        "rate_limit_error",
    ),
}

"""Errors of every route that requires an API key."""

REFUSED: Responses = {**DENIED, 400: INVALID}

"""Errors of every route except vLLM-Omni's: each refuses query parameters that it does not know (400)."""

REFUSED_COMPATIBLE: Responses = {
    401: compatible_error(
        "The API key is missing, unknown, expired or revoked.",
        401,
        _NO_KEY_MESSAGE,
        "AuthenticationError",
        "invalid_api_key",
    ),
    403: compatible_error(
        "The API key lacks a scope that this route requires, or is for another namespace.",
        403,
        _NOT_FOR_THIS_MESSAGE,
        "PermissionDeniedError",
        "permission_denied",
    ),
    429: compatible_error(
        "The rate limit is exceeded. Retry after the time in `Retry-After`.",
        429,
        _TOO_OFTEN_MESSAGE,
        "RateLimitError",
        "rate_limited",
    ),
}

BINARY = {"schema": {"type": "string", "format": "binary"}}

OF_BYTES = {
    "ETag": "The digest of the file (`sha256:…`), in quotes.",
    "Content-Digest": "The same digest in the format of RFC 9530.",
    "Accept-Ranges": "`bytes`: a single `Range` is honoured.",
    "X-Voice-Version": "The number of the version.",
    "X-Voice-Created-At": "When the version was created (Unix seconds). Rises with every upload of the name.",
}


def part_of_bytes(media_type: str) -> dict[str, Any]:
    """Describe the answer to a request with a `Range`."""
    described = {name: says for name, says in OF_BYTES.items() if name != "Content-Digest"}
    described["Repr-Digest"] = "The digest of the whole file in the format of RFC 9530."
    described["Content-Range"] = "Which bytes these are, and how many there are."
    return {
        "description": "The bytes that `Range` asks for.",
        "content": {media_type: BINARY},
        "headers": response_headers(described),
    }


def response_headers(descriptions: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"description": description, "schema": {"type": "string"}}
        for name, description in descriptions.items()
    }
