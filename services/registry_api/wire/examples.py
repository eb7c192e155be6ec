"""What the OpenAPI document says of each route's answers, with examples. No route's behaviour depends on it.

Tests hold every example, and every answer that they see, against the schemas named here.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from speaker_registry import schemas

MEDIA_TYPE = "application/vnd.safetensors"

Responses = dict[int | str, dict[str, Any]]

_VUID = "019a2b3c4d5e7f8091a2b3c4d5e6f708"
_DIGEST = "sha256:ab54d0b1c3e2f9870d5a4c3b2e1f09876d5c4b3a29180f7e6d5c4b3a2f1e0d9c"
_JOB_ID = f"job_{_VUID}"
_STATUS = {"profile": "qwen3-tts-0.6b", "state": "ready", "stale": False, "digest": _DIGEST}
_VOICE = {
    "object": "voice",
    "id": f"voice_{_VUID}_alice",
    "name": "Alice",
    "key": "alice",
    "created_at": 1775133885,
    "version": 2,
    "latest": 3,
    "versions": 3,
    "aliases": {"default": 2},
    "state": "ready",
    "artifacts": [_STATUS],
}
_VERSION = {
    "object": "voice.version",
    "id": _VUID,
    "voice": "Alice",
    "version": 2,
    "created_at": 1775133885,
    "source": "audio",
    "audio": {
        "digest": _DIGEST,
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
_DESCRIPTOR = {
    "object": "voice.artifact",
    "voice": "Alice",
    "voice_id": f"voice_{_VUID}_alice",
    "version": 2,
    "version_id": _VUID,
    "created_at": 1775133885,
    "profile": "qwen3-tts-0.6b",
    "model_type": "qwen3_tts",
    "mode": "icl",
    "state": "ready",
    "digest": _DIGEST,
    "size": 9480,
    "tensors": {
        "speaker_embedding": {"dtype": "F32", "shape": [1024]},
        "ref_code": {"dtype": "I32", "shape": [78, 16]},
    },
    "ref_text": "The quick brown fox jumps over the lazy dog.",
    "fingerprint": _DIGEST,
    "url": "/v1/voices/Alice/versions/2/artifacts/qwen3-tts-0.6b/file",
}
_DESCRIPTOR_PENDING = {
    key: value
    for key, value in _DESCRIPTOR.items()
    if key not in {"digest", "size", "tensors", "url", "mode"}
} | {"state": "processing", "job_id": _JOB_ID}
_JOB = {
    "object": "job",
    "id": _JOB_ID,
    "kind": "extract",
    "state": "processing",
    "voice": "Alice",
    "version": 2,
    "version_id": _VUID,
    "profile": "qwen3-tts-0.6b",
    "fingerprint": _DIGEST,
    "untrained": False,
    "custom_weights": False,
    "attempt": 1,
    "max_attempts": 3,
    "progress": {"stage": "encoding", "done": 1, "total": 4},
    "queue": "extract.qwen3-tts-0.6b",
    "created_at": 1775133885.2,
    "started_at": 1775133885.3,
    "worker": "worker-1",
    "retry_after": 1.0,
}
_PROFILE = {
    "object": "profile",
    "id": "qwen3-tts-0.6b",
    "model_type": "qwen3_tts",
    "description": "Qwen3-TTS 12Hz 0.6B Base",
    "required": True,
    "tensors": {"speaker_embedding": {"dtype": "F32", "shape": [1024], "required": True}},
    "sample_rate": 24000,
    "frame_rate": 12.5,
    "model": "Qwen/Qwen3-TTS-12Hz-0.6B-Base",
    "licence": "Apache-2.0",
    "workers": 1,
}
_UPLOADED = {
    "name": "Alice",
    "consent": "cons_1",
    "created_at": 1775133885,
    "file_size": 132798,
    "mime_type": "audio/flac",
    "embedding_source": "audio",
    "embedding_dim": None,
    "id": f"voice_{_VUID}_alice",
    "version": 2,
    "cache_status": "ready",
    "stale": False,
}
_OPENAI = {"object": "audio.voice", "id": f"voice_{_VUID}_alice", "name": "Alice", "created_at": 1775133885}
_LIST = {"object": "list", "has_more": False}


def _page(example: dict[str, Any], item_id: str) -> dict[str, Any]:
    return {**_LIST, "data": [example], "first_id": item_id, "last_id": item_id}


def _json(description: str, example: dict[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"example": example}},
        "model": model,
    }


def _linked(
    links: Mapping[str, Mapping[str, str]], description: str, example: dict[str, Any], model: type[BaseModel]
) -> dict[str, Any]:
    """links: operation -> its parameters, as expressions on the answer."""
    said = {name: {"operationId": name, "parameters": dict(values)} for name, values in links.items()}
    return {**_json(description, example, model), "links": said}


def _error(description: str, message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": code, "request_id": "req_5f1e"}
    return _json(description, {"error": body}, schemas.ErrorEnvelope)


def _compatible(description: str, status: int, message: str, kind: str, reason: str) -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": status, "reason": reason}
    return _json(description, {"error": {**body, "request_id": "req_5f1e"}}, schemas.ErrorEnvelope)


_INVALID = _error(
    "A parameter is not what is accepted; the message names it.",
    "'limit' is '0'; accepted: a whole number from 1 to 100.",
    "invalid_request",
)
_BAD_NAME = _error(
    "The name cannot be one, or a parameter is not what is accepted.",
    "Invalid voice name 'a@b': must be non-empty, no path separators or NUL; it contains '@'. "
    "Accepted: 1 to 128 characters, without '/', '\\\\', '@' and control characters.",
    "invalid_voice_name",
)
_NO_VOICE = _error(
    "No such voice, version or alias.", "Voice 'bob' not found", "voice_not_found", "not_found_error"
)
_NO_ARTIFACT = _error(
    "No such voice, version, alias or profile; or nothing was extracted for it.",
    "Nothing was extracted from version 2 of voice 'Alice' for profile 'qwen3-tts-1.7b'. Ask for it by "
    "POST /v1/audio/voices/Alice/cache?profile=qwen3-tts-1.7b.",
    "artifact_not_found",
    "not_found_error",
)
_NO_PROFILE = _error(
    "No such profile.",
    "Unknown profile 'x'. Known: qwen3-tts-0.6b, qwen3-tts-1.7b.",
    "profile_unknown",
    "not_found_error",
)
_NO_JOB = _error(
    "No such job, or it is long ago.",
    "No job 'job_x'. Jobs are kept for 30 days.",
    "job_not_found",
    "not_found_error",
)
_CHANGED = _error(
    "The voice is not in the state that `If-Match` names.",
    'If-Match is \'"x"\'; the current ETag is "y".',
    "precondition_failed",
    "conflict_error",
)
_FAILED = _error(
    "It failed for good, or was made by an older encoder. `x-should-retry: false`.",
    "Extracting version 2 of voice 'Alice' for profile 'qwen3-tts-0.6b' failed. "
    "extractor_error: The codes are out of range.",
    "artifact_failed",
    "conflict_error",
)
_AWAY = _error(
    "Redis or the object store is away. Ask again after `Retry-After`.",
    "The index cannot be reached now.",
    "unavailable",
    "server_error",
)
_ANYTHING = _error(
    "Anything else, in the same form.",
    "Something went wrong here; the request id finds it in our logs.",
    "internal_error",
    "server_error",
)
_COMMON: Responses = {503: _AWAY, "default": _ANYTHING}
_READ: Responses = {**_COMMON, 304: {"description": "Not changed since the ETag in `If-None-Match`."}}

_BAD_UPLOAD = _compatible(
    "Something about the form, the name, the clip or the embedding; the message names it.",
    400,
    "Reference audio too short (0.4s). At least 1s of clear speech is required.",
    "BadRequestError",
    "audio_too_short",
)
_TOO_LARGE = _compatible(
    "The clip is too large, or the form.",
    413,
    "File size exceeds maximum limit of 10MB. Got 10485761 bytes. Accepted: clips of up to 10485760 bytes "
    "(10 MiB); the form's other fields do not count.",
    "BadRequestError",
    "payload_too_large",
)
_DELETED_MEANWHILE = _compatible(
    "Somebody deleted the voice in the meantime.",
    409,
    "Voice 'Alice' was deleted while this version was being registered.",
    "ConflictError",
    "voice_deleted",
)
_MISSING = _compatible("No such voice.", 404, "Voice 'x' not found", "NotFoundError", "voice_not_found")
_UNKNOWN_PROFILE = _compatible(
    "No such profile.",
    404,
    "Unknown profile 'x'. Known: qwen3-tts-0.6b, qwen3-tts-1.7b.",
    "NotFoundError",
    "profile_unknown",
)
_UNSUPPORTED = _compatible(
    "There is nothing to extract from, or a parameter is not what is accepted.",
    400,
    "Version 1 was registered with a ready speaker embedding of 1024 numbers: there is nothing to extract. "
    "Re-upload with an audio file.",
    "BadRequestError",
    "cache_unsupported",
)
_BAD_COMPATIBLE_NAME = _compatible(
    "The name cannot be one.",
    400,
    "Invalid voice name '..': must be non-empty, no path separators or NUL; it is a path. "
    "Accepted: 1 to 128 characters, without '/', '\\\\', '@' and control characters.",
    "BadRequestError",
    "invalid_voice_name",
)
_BAD_PARAMETER = _compatible(
    "A parameter is not what is accepted; the message names it.",
    400,
    "'limit' is '0'; accepted: a whole number from 1 to 100.",
    "BadRequestError",
    "invalid_request",
)
_NOT_MADE = _compatible(
    "It could not be extracted. `x-should-retry: false`.",
    409,
    "Voice 'x' could not be extracted. qwen3-tts-0.6b: extractor_error: The codes are out of range.",
    "ConflictError",
    "artifact_failed",
)
_COMPATIBLE_AWAY = _compatible(
    "Redis or the object store is away. Ask again after `Retry-After`.",
    503,
    "The index cannot be reached now.",
    "InternalServerError",
    "unavailable",
)
_COMPATIBLE: Responses = {503: _COMPATIBLE_AWAY, "default": _ANYTHING}
_COMPATIBLE_READ: Responses = {**_COMPATIBLE, 304: _READ[304]}

_NO_KEY_MESSAGE = "No API key was sent. Accepted: 'Authorization: Bearer sreg_…'."
_NOT_FOR_THIS_MESSAGE = "This API key is for artifacts:read; needed: voices:write."
_TOO_OFTEN_MESSAGE = "Over 60000 requests a minute with this API key."
_DENIED: Responses = {
    401: _error(
        "No API key, or one that is not known, expired or revoked.",
        _NO_KEY_MESSAGE,
        "invalid_api_key",
        "authentication_error",
    ),
    403: _error(
        "The API key is for something else.", _NOT_FOR_THIS_MESSAGE, "permission_denied", "permission_error"
    ),
    429: _error(
        "Too often; ask again after `Retry-After`.", _TOO_OFTEN_MESSAGE, "rate_limited", "rate_limit_error"
    ),
}
"""By any route that needs a key."""
REFUSED: Responses = {**_DENIED, 400: _INVALID}
"""By any route of ours: each refuses query parameters that it does not take."""
REFUSED_COMPATIBLE: Responses = {
    401: _compatible(
        "No API key, or one that is not known, expired or revoked.",
        401,
        _NO_KEY_MESSAGE,
        "AuthenticationError",
        "invalid_api_key",
    ),
    403: _compatible(
        "The API key is for something else.",
        403,
        _NOT_FOR_THIS_MESSAGE,
        "PermissionDeniedError",
        "permission_denied",
    ),
    429: _compatible(
        "Too often; ask again after `Retry-After`.",
        429,
        _TOO_OFTEN_MESSAGE,
        "RateLimitError",
        "rate_limited",
    ),
}

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
_OF_THE_KEY = {"key_id": "$response.body#/id"}
_ABOUT_THE_KEY = {
    "get_key": _OF_THE_KEY,
    "rotate_key": _OF_THE_KEY,
    "revoke_key": _OF_THE_KEY,
}

VOICES: Responses = {
    200: _json("A page of voices.", _page(_VOICE, "alice"), schemas.Page[schemas.Voice]),
    **_READ,
    400: _INVALID,
    404: _NO_PROFILE,
}
VOICE: Responses = {200: _json("The voice.", _VOICE, schemas.Voice), **_READ, 400: _BAD_NAME, 404: _NO_VOICE}
DELETE: Responses = {
    204: {"description": "Gone."},
    **_COMMON,
    400: _BAD_NAME,
    404: _NO_VOICE,
    412: _CHANGED,
}
VERSIONS: Responses = {
    200: _json("A page of versions.", _page(_VERSION, "2"), schemas.Page[schemas.VoiceVersion]),
    **_READ,
    400: _BAD_NAME,
    404: _NO_VOICE,
}
VERSION: Responses = {
    200: _json("The version.", _VERSION, schemas.VoiceVersion),
    **_READ,
    400: _BAD_NAME,
    404: _NO_VOICE,
}
DESCRIPTORS: Responses = {
    200: _json(
        "One per profile.", _page(_DESCRIPTOR, "qwen3-tts-0.6b"), schemas.Page[schemas.ArtifactDescriptor]
    ),
    **_READ,
    400: _BAD_NAME,
    404: _NO_VOICE,
}
_NOT_YET: Responses = {
    **_READ,
    202: _json("Being made; ask again.", _DESCRIPTOR_PENDING, schemas.ArtifactDescriptor),
    400: _BAD_NAME,
    404: _NO_ARTIFACT,
    409: _FAILED,
}
DESCRIPTOR: Responses = {200: _json("The artifact.", _DESCRIPTOR, schemas.ArtifactDescriptor), **_NOT_YET}
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_OF_BYTES = {
    "ETag": "The file's digest, in quotes.",
    "Content-Digest": "The same, as RFC 9530 writes it.",
    "X-Voice-Version": "Number of the version.",
    "X-Voice-Created-At": "Of the version; rises with every upload of the name.",
}


def _headers(said: Mapping[str, str]) -> dict[str, Any]:
    return {
        name: {"description": description, "schema": {"type": "string"}} for name, description in said.items()
    }


FILE: Responses = {
    200: {
        "description": "The file: tensors and a manifest.",
        "content": {MEDIA_TYPE: _BINARY},
        "headers": _headers(
            _OF_BYTES | {"X-Artifact-Fingerprint": "Of everything that made it, besides the clip."}
        ),
    },
    **_NOT_YET,
}
CLIP: Responses = {
    200: {
        "description": "The clip, in the form it was uploaded in.",
        "content": {"audio/*": _BINARY},
        "headers": _headers(_OF_BYTES),
    },
    **_READ,
    400: _BAD_NAME,
    404: _error(
        "No such voice, version or alias; or the version was made from a ready embedding.",
        "Version 1 of voice 'Alice' was registered with a ready speaker embedding: there is no clip.",
        "audio_not_found",
        "not_found_error",
    ),
}
FILE_BODY = {
    "requestBody": {
        "required": True,
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}
PUT_ARTIFACT: Responses = {
    201: _json("Stored, and in force.", _DESCRIPTOR, schemas.ArtifactDescriptor),
    200: _json("The same is in force already.", _DESCRIPTOR, schemas.ArtifactDescriptor),
    **_COMMON,
    400: _error(
        "The name cannot be one, or the profile needs a transcript that the voice has not.",
        "Profile 'fish-speech-s2-pro' needs a transcript; version 1 has no ref_text.",
        "cache_unsupported",
    ),
    404: _NO_VOICE,
    409: _error(
        "It was made with something else than the profile's artifacts are now; or the voice was deleted, or "
        "another artifact stored, at the same moment.",
        f"The artifact was made with sha256:{'0' * 64}; artifacts for profile 'qwen3-tts-0.6b' are made with "
        f"sha256:{'1' * 64} now.",
        "fingerprint_mismatch",
        "conflict_error",
    ),
    413: _error("The file is too large.", "…", "payload_too_large"),
    422: _error(
        "The file is not what the profile says, of another clip, or does not say what made it.",
        "tensor 'speaker_embedding' has shape [512], the profile says [1024]",
        "artifact_schema",
    ),
}
JOBS: Responses = {
    200: _json("A page of jobs.", _page(_JOB, _JOB_ID), schemas.Page[schemas.Job]),
    **_READ,
    400: _INVALID,
    404: _NO_JOB,
}
JOB: Responses = {200: _json("The job.", _JOB, schemas.Job), **_READ, 400: _INVALID, 404: _NO_JOB}
CANCEL: Responses = {
    200: _json("Canceled.", {**_JOB, "state": "canceled", "finished_at": 1775133893.5}, schemas.Job),
    **_COMMON,
    400: _INVALID,
    404: _NO_JOB,
    409: _error(
        "It has ended, or its artifact is being stored. `x-should-retry: false`.",
        f"Job '{_JOB_ID}' is succeeded; only one that is queued or processing can be canceled.",
        "job_finished",
        "conflict_error",
    ),
}
EXTRACTIONS: Responses = {
    200: _json(
        "All of it is there, or has failed before.",
        _page(_DESCRIPTOR, "qwen3-tts-0.6b"),
        schemas.Page[schemas.ArtifactDescriptor],
    ),
    202: _json(
        "Being made; `Location` is the first job.",
        _page(_DESCRIPTOR_PENDING, "qwen3-tts-0.6b"),
        schemas.Page[schemas.ArtifactDescriptor],
    ),
    **_COMMON,
    400: _error(
        "There is nothing to extract from, or something is not what is accepted.",
        "Version 2 was registered with a ready speaker embedding of 1024 numbers; profile 'qwen3-tts-0.6b' "
        "needs reference audio.",
        "cache_unsupported",
    ),
    404: _NO_VOICE,
    413: _error(
        "The body is too large.", "The body has 70000 bytes; accepted here: 65536.", "payload_too_large"
    ),
}
EXTRACTION_BODY = {
    "requestBody": {
        "content": {"application/json": {"example": {"profiles": ["qwen3-tts-0.6b"], "force": False}}},
    }
}
PROFILES: Responses = {
    200: _json("All profiles.", _page(_PROFILE, "qwen3-tts-0.6b"), schemas.Page[schemas.Profile]),
    404: _NO_PROFILE,
    **_READ,
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
_NO_SUCH_KEY = _error("No such API key.", "No API key 'k'.", "api_key_not_found", "not_found_error")
_KEYS_OFF = _error(
    "This registry asks for no API keys. `x-should-retry: false`.",
    "This registry asks for no API keys, so it makes, shows and ends none. Start it with "
    "SPEAKER_AUTH_REQUIRED=true and a bootstrap key first.",
    "api_keys_off",
    "conflict_error",
)
NEW_KEY: Responses = {
    201: _linked(
        _ABOUT_THE_KEY,
        "Made. `key` is shown this once.",
        {**_KEY, "last_used_at": None, "key": "sreg_4dtqrws3_…_…"},
        schemas.NewApiKey,
    ),
    **_COMMON,
    400: _error(
        "A field is not what is accepted; the message names it.",
        "'expires_at' is 5, which has passed; accepted: Unix seconds after 1775133885.",
        "invalid_request",
    ),
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
    413: _error(
        "The body is too large.", "The body has 70000 bytes; accepted here: 65536.", "payload_too_large"
    ),
}
ROTATED_KEY: Responses = {
    **NEW_KEY,
    409: _error(
        "The key is revoked or has expired, or this registry asks for no keys. `x-should-retry: false`.",
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
    200: _json("A page of keys.", _page(_KEY, "4dtqrws3"), schemas.Page[schemas.ApiKey]),
    **_READ,
    400: _INVALID,
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
}
KEY: Responses = {
    200: _json("The key.", _KEY, schemas.ApiKey),
    **_READ,
    400: _INVALID,
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
}
REVOKE_KEY: Responses = {
    204: {"description": "Not accepted any more."},
    **_COMMON,
    400: _INVALID,
    404: _NO_SUCH_KEY,
    409: _KEYS_OFF,
}
_RATE = {"limit": 60000, "remaining": 59400, "reset_seconds": 21}
_NO_RATE = {"limit": None, "remaining": None, "reset_seconds": 21}
QUOTA: Responses = {
    200: _json(
        "What is left.",
        {
            "object": "quota",
            "namespace": "default",
            "voices": {"used": 12, "limit": 1000},
            "bytes": {"used": 1_593_576, "limit": None},
            "text_bytes": {"used": 1_416, "limit": 67_108_864},
            "max_versions": 1000,
            "max_builds": 20,
            "max_clip_bytes": 10485760,
            "requests_per_minute": _RATE,
            "uploads_per_minute": {"limit": 600, "remaining": 600, "reset_seconds": 21},
            "namespace_requests_per_minute": _NO_RATE,
            "namespace_uploads_per_minute": _NO_RATE,
        },
        schemas.Quota,
    ),
    **_READ,
    400: _INVALID,
}
LIST_COMPATIBLE: Responses = {
    200: _json(
        "vLLM-Omni's list, and OpenAI's.",
        {
            "voices": ["alice", "default"],
            "uploaded_voices": [_UPLOADED],
            **_page(_OPENAI, "alice"),
        },
        schemas.VoiceList,
    ),
    **_COMPATIBLE_READ,
    400: _BAD_PARAMETER,
    404: _UNKNOWN_PROFILE,
}
UPLOAD: Responses = {
    200: _linked(
        _ABOUT_THE_VOICE,
        "Registered; extraction runs.",
        {
            "success": True,
            "voice": {
                "name": "Alice",
                "consent": "cons_1",
                "created_at": 1775133885,
                "mime_type": "audio/flac",
                "file_size": 132798,
                "ref_text": "The quick brown fox jumps over the lazy dog.",
                "id": f"voice_{_VUID}_alice",
                "version": 2,
                "cache_status": "pending",
                "job_id": _JOB_ID,
                "jobs": {"qwen3-tts-0.6b": _JOB_ID},
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
    200: _json(
        "Gone.",
        {
            "success": True,
            "message": "Voice 'alice' deleted successfully",
            "id": f"voice_{_VUID}_alice",
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
    200: _json("Where it stands.", {"voice": "alice", "cache_status": "ready"}, schemas.CacheStatus),
    **_COMPATIBLE_READ,
    400: _UNSUPPORTED,
    404: _MISSING,
}
CACHE: Responses = {
    200: _json("Ready.", {"voice": "alice", "cache_status": "ready"}, schemas.CacheStatus),
    **_COMPATIBLE,
    202: _json(
        "Not ready yet; `Location` is the job.",
        {"voice": "alice", "cache_status": "processing", "job_id": _JOB_ID},
        schemas.CacheStatus,
    ),
    400: _UNSUPPORTED,
    404: _MISSING,
    409: _NOT_MADE,
}


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: str
    parts: dict[str, str]
    """`ok`, or what is wrong with it."""


HEALTH: Responses = {200: _json("Alive.", {"status": "ok"}, Health)}
METRICS: Responses = {
    **_DENIED,
    **_COMMON,
    200: {
        "description": "In the text format of Prometheus, or as OpenMetrics for who asks for that.",
        "content": {
            media_type: {
                "schema": {"type": "string"},
                "example": 'registry_build_info{version="0.1.0"} 1.0\n',
            }
            for media_type in ("text/plain", "application/openmetrics-text")
        },
    },
}
READY: Responses = {
    200: _json("Can serve.", {"status": "ok", "parts": {"store": "ok", "index": "ok"}}, Readiness),
    503: _json(
        "Cannot.", {"status": "unavailable", "parts": {"store": "ok", "index": "being rebuilt"}}, Readiness
    ),
}
