"""OpenAPI bodies of all routes that take clips, and the responses of `/v1/voices` to them."""

from typing import Any

from services.registry_api.wire.examples.responses import (
    COMMON,
    JOB_ID,
    Responses,
    error,
    linked_answer,
    response_headers,
)
from services.registry_api.wire.examples.voices import VERSION_EXAMPLE
from services.registry_api.wire.forms import (
    COMPATIBLE,
    MAX_CONSENT,
    MAX_TEXT,
    NATIVE,
    NATIVE_VERSION,
    FieldNames,
)
from speaker_registry import schemas

_NAME = {
    "type": "string",
    "format": "voice-name",
    "minLength": 1,
    "maxLength": 128,
    "description": "The voice's name, without '/', '\\', '@' and control characters. Case does not matter.",
}
_CONSENT = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_CONSENT,
    "pattern": "\\S",
    "description": "Who consented to what, or the id of your record of that consent. It is stored with the "
    "version.",
}
_CLIP = {
    "type": "string",
    "format": "binary",
    "description": "The reference clip: WAV, FLAC, MP3, OGG, AAC, M4A or WebM, 1 to 30 seconds long and up "
    "to 10 MiB (10485760 bytes); the other fields do not count.",
}
_EMBEDDING = {
    "type": "string",
    "format": "speaker-embedding",
    "description": "A speaker embedding instead of a clip: a JSON array of 1 to 4096 finite numbers.",
}
_REF_TEXT = {
    "type": "string",
    "maxLength": MAX_TEXT,
    "description": "The transcript of the clip. Some profiles require it.",
}
_DESCRIPTION = {
    "type": "string",
    "maxLength": MAX_TEXT,
    "description": "A free-text description of the voice.",
}


def _body(names: FieldNames, *, others: bool) -> dict[str, Any]:
    """Describe an upload form.

    Args:
        others: whether fields that are not described are accepted.
    """
    named = {"name": _NAME} if names.name else {}
    properties = {
        **named,
        "consent": _CONSENT,
        names.clip: _CLIP,
        names.embedding: _EMBEDDING,
        "ref_text": _REF_TEXT,
        names.description: _DESCRIPTION,
    }
    schema = {
        "type": "object",
        "required": [*named, "consent"],
        "oneOf": [{"required": [names.clip]}, {"required": [names.embedding]}],
        "properties": properties,
        **({} if others else {"additionalProperties": False}),
    }
    example = {
        **({"name": "Alice"} if named else {}),
        "consent": "cons_1",
        names.clip: "@alice.flac",
        "ref_text": "The quick brown fox jumps over the lazy dog.",
    }
    form = {"schema": schema, "example": example}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": form}}}


COMPATIBLE_BODY = _body(COMPATIBLE, others=True)
VOICE_BODY = _body(NATIVE, others=False)
VERSION_BODY = _body(NATIVE_VERSION, others=False)

_PENDING = {"profile": "qwen3-tts-0.6b", "state": "pending", "job_id": JOB_ID}
_REGISTERED = {
    **VERSION_EXAMPLE,
    "artifacts": [_PENDING],
    "state": "pending",
    "created": True,
    "jobs": {"qwen3-tts-0.6b": JOB_ID},
}

_OF_THE_VOICE = {"name": "$response.body#/voice"}
_OF_THE_VERSION = {**_OF_THE_VOICE, "ref": "$response.body#/version"}
_LINKS = {
    "get_voice": _OF_THE_VOICE,
    "list_versions": _OF_THE_VOICE,
    "create_version": _OF_THE_VOICE,
    "delete_voice": _OF_THE_VOICE,
    "get_version": _OF_THE_VERSION,
    "list_artifacts": _OF_THE_VERSION,
}

_BAD_FORM = error(
    "The form, the name, the clip or the embedding is invalid, or a field or parameter is unknown. The "
    "message says what is wrong.",
    "Reference audio too short (0.4s). At least 1s of clear speech is required.",
    "audio_too_short",
)

_TOO_LARGE = error(
    "The clip or the form is too large.",
    "File size exceeds maximum limit of 10MB. Got 10485761 bytes. Accepted: clips of up to 10485760 bytes "
    "(10 MiB); the form's other fields do not count.",
    "payload_too_large",
)

_NO_AUDIO = error(
    "The clip is in a format that is not accepted.",
    "The clip is a ZIP archive. Accepted: WAV, FLAC, MP3, OGG, AAC, M4A and WebM.",
    "unsupported_audio",
)

_OTHER_REQUEST = error(
    "The embedding fits no profile, or the `Idempotency-Key` was used for another request.",
    "This Idempotency-Key was used for another request. Accepted: that same request again, or a new key.",
    "idempotency_key_reused",
)

_TAKEN = error(
    "The voice exists, or another request is registering it. `x-should-retry` says whether to try again.",
    "Voice 'Alice' already exists. Add a version with POST /v1/voices/alice/versions, or take another name.",
    "voice_exists",
    "conflict_error",
)

_DELETED_MEANWHILE = error(
    "The voice was deleted while this version was being registered, or takes no further version.",
    "Voice 'Alice' was deleted while this version was being registered.",
    "voice_deleted",
    "conflict_error",
)

_NOT_REGISTERED = error(
    "The voice does not exist in this namespace.",
    "Voice 'bob' not found. Register it with POST /v1/voices.",
    "voice_not_found",
    "not_found_error",
)

_FULL = error(
    "The rate limit or a quota is exceeded. Retry after the time in `Retry-After` if the answer has one.",
    "Uploaded voice limit reached (1000). Delete an existing voice before registering a new one, or raise "
    "the cap via SPEAKER_MAX_UPLOADED.",
    "quota_exceeded",
    "rate_limit_error",
)


def _answers(created: str, refused: Responses) -> Responses:
    new = linked_answer(_LINKS, created, _REGISTERED, schemas.RegisteredVersion)
    new["headers"] = response_headers({"Location": "The path of the version."})
    known = linked_answer(
        _LINKS,
        "The upload was repeated or equals the newest version, so no version was added. The answer describes "
        "the existing version.",
        {**VERSION_EXAMPLE, "created": False, "jobs": {}},
        schemas.RegisteredVersion,
    )
    known["headers"] = response_headers(
        {"Location": "The path of the version.", "Idempotent-Replayed": "`true`: no version was added."}
    )
    return {
        201: new,
        200: known,
        **COMMON,
        400: _BAD_FORM,
        413: _TOO_LARGE,
        415: _NO_AUDIO,
        422: _OTHER_REQUEST,
        429: _FULL,
        **refused,
    }


CREATE_VOICE = _answers("The voice is registered. Extraction continues in the background.", {409: _TAKEN})

CREATE_VERSION = _answers(
    "The version is registered. Extraction continues in the background.",
    {404: _NOT_REGISTERED, 409: _DELETED_MEANWHILE},
)
