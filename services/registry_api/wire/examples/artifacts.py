"""OpenAPI responses of artifacts."""

from services.registry_api.wire.examples.responses import (
    BAD_NAME,
    BINARY,
    COMMON,
    DIGEST,
    JOB_ID,
    NO_VOICE,
    OF_BYTES,
    READ,
    VUID,
    Responses,
    error,
    json_answer,
    page_of,
    response_headers,
)
from speaker_registry import schemas

MEDIA_TYPE = "application/vnd.safetensors"

READY_DESCRIPTOR = {
    "object": "voice.artifact",
    "voice": "Alice",
    "voice_id": f"voice_{VUID}_alice",
    "version": 2,
    "version_id": VUID,
    "created_at": 1775133885,
    "profile": "qwen3-tts-0.6b",
    "model_type": "qwen3_tts",
    "mode": "icl",
    "state": "ready",
    "digest": DIGEST,
    "size": 9480,
    "tensors": {
        "speaker_embedding": {"dtype": "F32", "shape": [1024]},
        "ref_code": {"dtype": "I32", "shape": [78, 16]},
    },
    "ref_text": "The quick brown fox jumps over the lazy dog.",
    "fingerprint": DIGEST,
    "url": "/v1/voices/Alice/versions/2/artifacts/qwen3-tts-0.6b/file",
}

PENDING_DESCRIPTOR = {
    key: value
    for key, value in READY_DESCRIPTOR.items()
    if key not in {"digest", "size", "tensors", "url", "mode"}
} | {"state": "processing", "job_id": JOB_ID}

_NO_ARTIFACT = error(
    "No such voice, version, alias or profile; or nothing was extracted for it.",
    "Nothing was extracted from version 2 of voice 'Alice' for profile 'qwen3-tts-1.7b'. Ask for it by "
    "POST /v1/audio/voices/Alice/cache?profile=qwen3-tts-1.7b.",
    "artifact_not_found",
    "not_found_error",
)

_FAILED = error(
    "It failed for good, or was made by an older encoder. `x-should-retry: false`.",
    "Extracting version 2 of voice 'Alice' for profile 'qwen3-tts-0.6b' failed. "
    "extractor_error: The codes are out of range.",
    "artifact_failed",
    "conflict_error",
)

DESCRIPTORS: Responses = {
    200: json_answer(
        "One per profile.",
        page_of(READY_DESCRIPTOR, "qwen3-tts-0.6b"),
        schemas.Page[schemas.ArtifactDescriptor],
    ),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

_NOT_YET: Responses = {
    **READ,
    202: json_answer("Being made; ask again.", PENDING_DESCRIPTOR, schemas.ArtifactDescriptor),
    400: BAD_NAME,
    404: _NO_ARTIFACT,
    409: _FAILED,
}

DESCRIPTOR: Responses = {
    200: json_answer("The artifact.", READY_DESCRIPTOR, schemas.ArtifactDescriptor),
    **_NOT_YET,
}

FILE: Responses = {
    200: {
        "description": "The file: tensors and a manifest.",
        "content": {MEDIA_TYPE: BINARY},
        "headers": response_headers(
            OF_BYTES | {"X-Artifact-Fingerprint": "Of everything that made it, besides the clip."}
        ),
    },
    **_NOT_YET,
}

FILE_BODY = {
    "requestBody": {
        "required": True,
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}

PUT_ARTIFACT: Responses = {
    201: json_answer("Stored, and in force.", READY_DESCRIPTOR, schemas.ArtifactDescriptor),
    200: json_answer("The same is in force already.", READY_DESCRIPTOR, schemas.ArtifactDescriptor),
    **COMMON,
    400: error(
        "The name cannot be one, or the profile needs a transcript that the voice has not.",
        "Profile 'fish-speech-s2-pro' needs a transcript; version 1 has no ref_text.",
        "cache_unsupported",
    ),
    404: NO_VOICE,
    409: error(
        "It was made with something else than the profile's artifacts are now; or the voice was deleted, or "
        "another artifact stored, at the same moment.",
        f"The artifact was made with sha256:{'0' * 64}; artifacts for profile 'qwen3-tts-0.6b' are made with "
        f"sha256:{'1' * 64} now.",
        "fingerprint_mismatch",
        "conflict_error",
    ),
    413: error("The file is too large.", "…", "payload_too_large"),
    422: error(
        "The file is not what the profile says, of another clip, or does not say what made it.",
        "tensor 'speaker_embedding' has shape [512], the profile says [1024]",
        "artifact_schema",
    ),
}
