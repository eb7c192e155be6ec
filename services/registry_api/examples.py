"""What the OpenAPI document says of each route's answers, with examples. No route's behaviour depends on
it.
"""

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
    "id": f"voice_{_VUID}",
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
    },
    "ref_text": "The quick brown fox jumps over the lazy dog.",
    "consent": "cons_1",
    "artifacts": [_STATUS],
    "state": "ready",
}
_DESCRIPTOR = {
    "object": "voice.artifact",
    "voice": "Alice",
    "voice_id": f"voice_{_VUID}",
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
_JOB = {
    "object": "job",
    "id": _JOB_ID,
    "kind": "extract",
    "state": "processing",
    "voice": "Alice",
    "version": 2,
    "version_id": _VUID,
    "profile": "qwen3-tts-0.6b",
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
    "id": f"voice_{_VUID}",
    "version": 2,
    "cache_status": "ready",
    "stale": False,
}
_OPENAI = {"object": "audio.voice", "id": f"voice_{_VUID}", "name": "Alice", "created_at": 1775133885}


def _page(example: dict[str, Any], item_id: str) -> dict[str, Any]:
    return {"object": "list", "data": [example], "first_id": item_id, "last_id": item_id, "has_more": False}


def _json(description: str, example: dict[str, Any], model: Any = None) -> dict[str, Any]:
    content = {"description": description, "content": {"application/json": {"example": example}}}
    return {**content, "model": model} if model is not None else content


def _error(message: str, code: str, kind: str) -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": code, "request_id": "req_5f1e"}
    return _json(message, {"error": body}, schemas.ErrorEnvelope)


def _compatible(status: int, message: str, kind: str, reason: str) -> dict[str, Any]:
    body = {"message": message, "type": kind, "param": None, "code": status, "reason": reason}
    return _json(message, {"error": body}, schemas.ErrorEnvelope)


_INVALID = _error(
    "'limit' is '0': input should be greater than or equal to 1.", "invalid_request", "invalid_request_error"
)
_NO_VOICE = _error("Voice 'bob' not found", "voice_not_found", "not_found_error")
_CONFLICT = _error('If-Match is \'"x"\'; the current ETag is "y".', "precondition_failed", "conflict_error")
_FAILED = _error("Extracting version 2 of voice 'Alice' failed.", "artifact_failed", "conflict_error")
_AWAY = _error("The index cannot be reached now.", "unavailable", "server_error")
_UNCHANGED = {"description": "Not changed since the ETag in If-None-Match."}
_COMMON: Responses = {400: _INVALID, 422: _INVALID, 503: _AWAY}
_READ: Responses = {**_COMMON, 304: _UNCHANGED}
_BAD_UPLOAD = _compatible(
    400,
    "Reference audio too short (0.4s). At least 1s of clear speech is required.",
    "BadRequestError",
    "audio_too_short",
)
_TOO_LARGE = _compatible(
    413,
    "File size exceeds maximum limit of 10MB. Got 10485761 bytes.",
    "BadRequestError",
    "payload_too_large",
)
_MISSING = _compatible(404, "Voice 'x' not found", "NotFoundError", "voice_not_found")
_NOT_MADE = _compatible(409, "Voice 'x' could not be extracted.", "ConflictError", "artifact_failed")


def _of(
    description: str, example: dict[str, Any], model: type[BaseModel], *, voice: bool = True
) -> Responses:
    missing: Responses = {404: _NO_VOICE} if voice else {}
    return {200: _json(description, example, model), **_READ, **missing}


VOICES = _of("A page of voices.", _page(_VOICE, "alice"), schemas.Page[schemas.Voice])
VOICE = _of("The voice.", _VOICE, schemas.Voice)
DELETE: Responses = {**_COMMON, 204: {"description": "Gone."}, 404: _NO_VOICE, 409: _CONFLICT, 412: _CONFLICT}
VERSIONS = _of("A page of versions.", _page(_VERSION, "2"), schemas.Page[schemas.VoiceVersion])
VERSION = _of("The version.", _VERSION, schemas.VoiceVersion)
_WAITING: Responses = {
    202: _json("Being made; ask again.", {**_DESCRIPTOR, "state": "processing"}, schemas.ArtifactDescriptor),
    409: _FAILED,
}
DESCRIPTORS = _of(
    "One per profile.", _page(_DESCRIPTOR, "qwen3-tts-0.6b"), schemas.Page[schemas.ArtifactDescriptor]
)
DESCRIPTOR = {**_of("The artifact.", _DESCRIPTOR, schemas.ArtifactDescriptor), **_WAITING}
FILE: Responses = {
    **_READ,
    **_WAITING,
    200: {
        "description": "The file.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    },
    404: _NO_VOICE,
}
JOBS = _of("A page of jobs.", _page(_JOB, _JOB_ID), schemas.Page[schemas.Job])
JOB = _of("The job.", _JOB, schemas.Job)
PROFILES = _of("All profiles.", _page(_PROFILE, "qwen3-tts-0.6b"), schemas.Page[schemas.Profile], voice=False)
LIST_COMPATIBLE: Responses = {
    **_READ,
    200: _json(
        "vLLM-Omni's list, and OpenAI's.",
        {
            "voices": ["alice", "default"],
            "uploaded_voices": [_UPLOADED],
            **_page(_OPENAI, "alice"),
        },
    ),
    404: _error("Unknown profile 'x'.", "profile_unknown", "not_found_error"),
}
UPLOAD: Responses = {
    **_COMMON,
    200: _json(
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
                "id": f"voice_{_VUID}",
                "version": 2,
                "cache_status": "pending",
                "job_id": _JOB_ID,
                "jobs": {"qwen3-tts-0.6b": _JOB_ID},
            },
            **_OPENAI,
            "object": "audio.voice",
            "created": True,
        },
    ),
    400: _BAD_UPLOAD,
    409: _NOT_MADE,
    413: _TOO_LARGE,
}
DELETE_COMPATIBLE: Responses = {
    **_COMMON,
    200: _json(
        "Gone.",
        {
            "success": True,
            "message": "Voice 'alice' deleted successfully",
            "id": f"voice_{_VUID}",
            "object": "audio.voice",
            "deleted": True,
        },
        schemas.Deleted,
    ),
    404: _MISSING,
    409: _NOT_MADE,
}
CACHE: Responses = {
    **_READ,
    200: _json("Ready.", {"voice": "alice", "cache_status": "ready"}, schemas.CacheStatus),
    202: _json(
        "Not ready yet.",
        {"voice": "alice", "cache_status": "processing", "job_id": _JOB_ID},
        schemas.CacheStatus,
    ),
    404: _MISSING,
    409: _NOT_MADE,
}
HEALTH: Responses = {200: _json("Alive.", {"status": "ok"})}
READY: Responses = {
    200: _json("Can serve.", {"status": "ok", "parts": {"store": "ok", "index": "ok"}}),
    503: _json("Cannot.", {"status": "unavailable", "parts": {"store": "ok", "index": "being rebuilt"}}),
}
