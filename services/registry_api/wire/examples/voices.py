"""OpenAPI responses of `/v1/voices`: voices, versions and clips."""

from services.registry_api.wire.examples.aliases import CHANGED
from services.registry_api.wire.examples.artifacts import MEDIA_TYPE
from services.registry_api.wire.examples.responses import (
    BAD_NAME,
    BINARY,
    COMMON,
    DIGEST,
    INVALID,
    NO_PROFILE,
    NO_VOICE,
    OF_BYTES,
    READ,
    VUID,
    Responses,
    error,
    json_answer,
    page_of,
    part_of_bytes,
    response_headers,
)
from speaker_registry import schemas

_STATUS = {"profile": "qwen3-tts-0.6b", "state": "ready", "current": True, "digest": DIGEST}

_VOICE = {
    "object": "voice",
    "id": f"voice_{VUID}_alice",
    "name": "Alice",
    "key": "alice",
    "created_at": 1775133885,
    "version": 2,
    "latest": 3,
    "versions": 3,
    "aliases": {"default": 2},
    "state": "ready",
    "artifacts": [_STATUS],
    "description": "Calm and low.",
    "labels": {"team": "blue"},
    "pinned": True,
}

VERSION_EXAMPLE = {
    "object": "voice.version",
    "id": VUID,
    "voice_id": f"voice_{VUID}_alice",
    "voice": "Alice",
    "version": 2,
    "created_at": 1775133885,
    "source": "audio",
    "audio": {
        "digest": DIGEST,
        "size": 132798,
        "mime_type": "audio/flac",
        "seconds": 6.2,
        "sample_rate": 24000,
        "channels": 1,
        "url": "/v1/voices/Alice/versions/2/audio",
    },
    "ref_text": "The quick brown fox jumps over the lazy dog.",
    "consent": "cons_1",
    "artifacts": [_STATUS],
    "state": "ready",
}

VOICES: Responses = {
    200: json_answer("A page of voices.", page_of(_VOICE, "alice"), schemas.Page[schemas.Voice]),
    **READ,
    400: INVALID,
    404: NO_PROFILE,
}

VOICE: Responses = {
    200: json_answer("The voice.", _VOICE, schemas.Voice),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

EDIT: Responses = {
    200: {
        **json_answer("The voice.", _VOICE, schemas.Voice),
        "headers": response_headers({"ETag": "The ETag of the voice, for `If-Match`."}),
    },
    **COMMON,
    400: error(
        "The voice name, a label or another member is invalid. The message says what is accepted.",
        "The value 'b c' of label 'team' is invalid. Accepted: up to 63 of the characters A-Z a-z 0-9 - _ . "
        "that begin and end with a letter or digit, or an empty text.",
        "invalid_request",
    ),
    404: NO_VOICE,
    412: CHANGED,
    413: error(
        "The request body is too large.",
        "The body has 70000 bytes; accepted here: 65536.",
        "payload_too_large",
    ),
}

EDIT_BODY = {
    "requestBody": {
        "content": {
            "application/json": {
                "example": {"description": "Calm and low.", "labels": {"team": "blue", "old": None}}
            }
        },
    }
}

DELETE: Responses = {
    204: {"description": "Deleted."},
    **COMMON,
    400: BAD_NAME,
    404: NO_VOICE,
    412: CHANGED,
}

UNDELETE: Responses = {
    200: json_answer("The voice, as it was before it was deleted.", _VOICE, schemas.Voice),
    **COMMON,
    400: BAD_NAME,
    404: error(
        "No deleted voice of this name is left to bring back.",
        "No deleted voice of this name is left to bring back.",
        "voice_not_found",
        "not_found_error",
    ),
    409: error(
        "A voice of this name exists.",
        "Voice 'Alice' was registered again since it was deleted.",
        "voice_exists",
        "conflict_error",
    ),
}

DELETE_VERSION: Responses = {
    204: {"description": "Deleted."},
    **COMMON,
    400: BAD_NAME,
    404: NO_VOICE,
    409: error(
        "An alias points to the version, and it is not the last.",
        "Version 2 is in use: default points to it. Accepted: a version that no alias points to. Move the "
        "alias first.",
        "conflict",
        "conflict_error",
    ),
    412: CHANGED,
}

_CHANGE = {
    "object": "voice.change",
    "revision": 9,
    "at": 1775133885,
    "by": "ab12cd34",
    "did": "alias",
    "version": 3,
    "alias": "default",
}

HISTORY: Responses = {
    200: json_answer("A page of changes.", page_of(_CHANGE, "9"), schemas.Page[schemas.VoiceChange]),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

VERSIONS: Responses = {
    200: json_answer(
        "A page of versions.", page_of(VERSION_EXAMPLE, "2"), schemas.Page[schemas.VoiceVersion]
    ),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

VERSION: Responses = {
    200: json_answer("The version.", VERSION_EXAMPLE, schemas.VoiceVersion),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

_NO_CLIP = error(
    "The voice, the version or the alias does not exist in this namespace, or the version was registered "
    "with a speaker embedding and has no clip.",
    "Version 1 of voice 'Alice' was registered with a precomputed speaker embedding: there is no clip.",
    "audio_not_found",
    "not_found_error",
)

CLIP: Responses = {
    200: {
        "description": "The clip, byte for byte as it was uploaded.",
        "content": {"audio/*": BINARY},
        "headers": response_headers(OF_BYTES),
    },
    206: part_of_bytes("audio/*"),
    **READ,
    400: BAD_NAME,
    404: _NO_CLIP,
}

SAMPLES: Responses = {
    200: {
        "description": "The safetensors file with the decoded samples of the clip.",
        "content": {MEDIA_TYPE: BINARY},
        "headers": response_headers(OF_BYTES),
    },
    206: part_of_bytes(MEDIA_TYPE),
    **READ,
    400: BAD_NAME,
    404: _NO_CLIP,
}

_NOT_DRAWN = error(
    "A worker could not draw the pictures of the clip. `x-should-retry: false`.",
    "The pictures of version 2 of voice 'Alice' could not be drawn. The worker's log says why. Workers try "
    "again when they are asked a day later.",
    "pictures_failed",
    "conflict_error",
)


def _picture(description: str, name: str, media_type: str) -> Responses:
    pending = {
        "object": "voice.picture",
        "voice": "Alice",
        "version": 2,
        "picture": name,
        "state": "pending",
        "reason": "A worker was asked to draw it. Ask again in a moment. Nothing is drawn while no worker "
        "runs.",
    }
    return {
        200: {
            "description": description,
            "content": {media_type: BINARY},
            "headers": response_headers(OF_BYTES),
        },
        202: json_answer(
            "The picture is not drawn yet. Retry after the time in `Retry-After`.",
            pending,
            schemas.PendingPicture,
        ),
        206: part_of_bytes(media_type),
        **READ,
        400: BAD_NAME,
        404: _NO_CLIP,
        409: _NOT_DRAWN,
    }


WAVEFORM = _picture("The picture of the waveform.", "waveform.svg", "image/svg+xml")
MEL = _picture("The picture of the mel spectrogram.", "mel.png", "image/png")
