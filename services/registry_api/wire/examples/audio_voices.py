"""OpenAPI responses of vLLM-Omni's routes, `/v1/audio/voices`."""

from services.registry_api.wire.examples.responses import (
    ANYTHING,
    JOB_ID,
    READ,
    VUID,
    Responses,
    compatible_error,
    json_answer,
    linked_answer,
    page_of,
)
from speaker_registry import schemas

_UPLOADED = {
    "name": "Alice",
    "consent": "cons_1",
    "created_at": 1775133885,
    "file_size": 132798,
    "mime_type": "audio/flac",
    "embedding_source": "audio",
    "embedding_dim": None,
    "id": f"voice_{VUID}_alice",
    "version": 2,
    "cache_status": "ready",
    "current": True,
}

_OPENAI = {"object": "audio.voice", "id": f"voice_{VUID}_alice", "name": "Alice", "created_at": 1775133885}

_BAD_UPLOAD = compatible_error(
    "The form, the name, the clip or the embedding is invalid. The message says what is wrong.",
    400,
    "Reference audio too short (0.4s). At least 1s of clear speech is required.",
    "BadRequestError",
    "audio_too_short",
)

_TOO_LARGE = compatible_error(
    "The clip or the form is too large.",
    413,
    "File size exceeds maximum limit of 10MB. Got 10485761 bytes. Accepted: clips of up to 10485760 bytes "
    "(10 MiB); the form's other fields do not count.",
    "BadRequestError",
    "payload_too_large",
)

_DELETED_MEANWHILE = compatible_error(
    "The voice was deleted while this version was being registered.",
    409,
    "Voice 'Alice' was deleted while this version was being registered.",
    "ConflictError",
    "voice_deleted",
)

_MISSING = compatible_error(
    "The voice does not exist in this namespace.",
    404,
    "Voice 'x' not found",
    "NotFoundError",
    "voice_not_found",
)

_UNKNOWN_PROFILE = compatible_error(
    "The profile does not exist. The message lists those that do.",
    404,
    "Unknown profile 'x'. Known: qwen3-tts-0.6b, qwen3-tts-1.7b.",
    "NotFoundError",
    "profile_unknown",
)

_UNSUPPORTED = compatible_error(
    "The voice has no clip to extract from, or a parameter is invalid.",
    400,
    "Version 1 was registered with a precomputed speaker embedding of 1024 numbers: there is nothing to "
    "extract. Re-upload with an audio file.",
    "BadRequestError",
    "cache_unsupported",
)

_BAD_COMPATIBLE_NAME = compatible_error(
    "The voice name is invalid. The message says what is accepted.",
    400,
    "Invalid voice name '..': must be non-empty, no path separators or NUL; it is a path. "
    "Accepted: 1 to 128 characters, without '/', '\\\\', '@' and control characters.",
    "BadRequestError",
    "invalid_voice_name",
)

_BAD_PARAMETER = compatible_error(
    "A parameter is invalid. `param` names it, and the message says what is accepted.",
    400,
    "'limit' is '0'; accepted: a whole number from 1 to 100.",
    "BadRequestError",
    "invalid_request",
)

_NOT_MADE = compatible_error(
    "The extraction failed. `x-should-retry: false`.",
    409,
    "Voice 'x' could not be extracted. qwen3-tts-0.6b: extractor_error: The codes are out of range.",
    "ConflictError",
    "artifact_failed",
)

_COMPATIBLE_AWAY = compatible_error(
    "Redis or the object store is unavailable. Retry after the time in `Retry-After`.",
    503,
    "The index cannot be reached now.",
    "InternalServerError",
    "unavailable",
)

_COMPATIBLE: Responses = {503: _COMPATIBLE_AWAY, "default": ANYTHING}

_COMPATIBLE_READ: Responses = {**_COMPATIBLE, 304: READ[304]}

_OF_THE_VOICE = {"name": "$response.body#/name"}

_OF_THE_VERSION = {**_OF_THE_VOICE, "ref": "$response.body#/voice/version"}

_ABOUT_THE_VOICE = {
    "get_voice": _OF_THE_VOICE,
    "list_versions": _OF_THE_VOICE,
    "get_version": _OF_THE_VERSION,
    "list_artifacts": _OF_THE_VERSION,
    "get_cache_status": _OF_THE_VOICE,
    "delete_audio_voice": _OF_THE_VOICE,
    "get_job": {"job_id": "$response.body#/voice/job_id"},
}

LIST_COMPATIBLE: Responses = {
    200: json_answer(
        "The voices: `voices` and `uploaded_voices` as vLLM-Omni lists them, `data` as OpenAI does.",
        {
            "voices": ["alice", "default"],
            "uploaded_voices": [_UPLOADED],
            **page_of(_OPENAI, "alice"),
        },
        schemas.VoiceList,
    ),
    **_COMPATIBLE_READ,
    400: _BAD_PARAMETER,
    404: _UNKNOWN_PROFILE,
}

UPLOAD: Responses = {
    200: linked_answer(
        _ABOUT_THE_VOICE,
        "The voice is registered. Extraction continues in the background.",
        {
            "success": True,
            "voice": {
                "name": "Alice",
                "consent": "cons_1",
                "created_at": 1775133885,
                "mime_type": "audio/flac",
                "file_size": 132798,
                "ref_text": "The quick brown fox jumps over the lazy dog.",
                "id": f"voice_{VUID}_alice",
                "version": 2,
                "cache_status": "pending",
                "job_id": JOB_ID,
                "jobs": {"qwen3-tts-0.6b": JOB_ID},
            },
            **_OPENAI,
            "created": True,
        },
        schemas.Uploaded,
    ),
    **_COMPATIBLE,
    400: _BAD_UPLOAD,
    409: _DELETED_MEANWHILE,
    413: _TOO_LARGE,
}

DELETE_COMPATIBLE: Responses = {
    200: json_answer(
        "The voice is deleted.",
        {
            "success": True,
            "message": "Voice 'alice' deleted successfully",
            "id": f"voice_{VUID}_alice",
            "object": "audio.voice",
            "deleted": True,
        },
        schemas.Deleted,
    ),
    **_COMPATIBLE,
    400: _BAD_COMPATIBLE_NAME,
    404: _MISSING,
}

CACHE_STATUS: Responses = {
    200: json_answer(
        "The state of the voice's artifacts.",
        {"voice": "alice", "cache_status": "ready"},
        schemas.CacheStatus,
    ),
    **_COMPATIBLE_READ,
    400: _UNSUPPORTED,
    404: _MISSING,
}

CACHE: Responses = {
    200: json_answer(
        "The artifacts are ready.", {"voice": "alice", "cache_status": "ready"}, schemas.CacheStatus
    ),
    **_COMPATIBLE,
    202: json_answer(
        "The artifacts are not ready yet. `Location` is the path of the job.",
        {"voice": "alice", "cache_status": "processing", "job_id": JOB_ID},
        schemas.CacheStatus,
    ),
    400: _UNSUPPORTED,
    404: _MISSING,
    409: _NOT_MADE,
}
