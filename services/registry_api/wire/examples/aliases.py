"""OpenAPI responses of the routes of aliases."""

from services.registry_api.wire.examples.responses import (
    BAD_NAME,
    COMMON,
    NO_VOICE,
    READ,
    Responses,
    error,
    json_answer,
    page_of,
    response_headers,
)
from speaker_registry import schemas

_ALIAS = {
    "object": "voice.alias",
    "voice": "Alice",
    "alias": "default",
    "version": 3,
    "by_hand": True,
    "moved": 9,
}

CHANGED = error(
    "`If-Match` does not name the current ETag.",
    'If-Match is \'"x"\'; the current ETag is "y".',
    "precondition_failed",
    "conflict_error",
)

ALIASES: Responses = {
    200: json_answer("A page of aliases.", page_of(_ALIAS, "default"), schemas.Page[schemas.VoiceAlias]),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

ALIAS: Responses = {
    200: json_answer("The alias.", _ALIAS, schemas.VoiceAlias),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

MOVE: Responses = {
    200: {
        **json_answer(
            "The alias, with the version to which it pointed before.",
            {**_ALIAS, "previous_version": 4},
            schemas.MovedAlias,
        ),
        "headers": response_headers({"ETag": "The ETag of the alias, for `If-Match`."}),
    },
    **COMMON,
    400: error(
        "The voice name, the alias or the version is invalid. The message says what is accepted.",
        "Invalid alias 'latest'. 'latest' is reserved for the newest complete version. Accepted: 'default', "
        "or 1 to 64 of the characters a-z 0-9 . _ - that start with a letter.",
        "invalid_reference",
    ),
    404: error(
        "The voice or the version does not exist in this namespace. The message lists the versions.",
        "Voice 'Alice' has no version 7. The newest is 4. It has: 1, 3, 4.",
        "version_not_found",
        "not_found_error",
    ),
    409: error(
        "An extraction of the version failed for a required profile. Extract it again first.",
        "Alias 'default' was not moved: the extraction of version 3 of voice 'Alice' for qwen3-tts-0.6b "
        "failed or was canceled. Accepted: a version that has not failed for any required profile. Extract "
        "it again with force first.",
        "artifact_failed",
        "conflict_error",
    ),
    412: CHANGED,
    413: error(
        "The request body is too large.",
        "The body has 70000 bytes; accepted here: 65536.",
        "payload_too_large",
    ),
}

MOVE_BODY = {"requestBody": {"content": {"application/json": {"example": {"version": 3}}}}}

REMOVE: Responses = {
    204: {"description": "Removed. `default` moves by itself again."},
    **COMMON,
    400: BAD_NAME,
    404: NO_VOICE,
    412: CHANGED,
}
