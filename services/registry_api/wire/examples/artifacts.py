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
    part_of_bytes,
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
    "immutable_url": f"/v1/blobs/{DIGEST}",
}

PENDING_DESCRIPTOR = {
    key: value
    for key, value in READY_DESCRIPTOR.items()
    if key not in {"digest", "size", "tensors", "url", "immutable_url", "mode"}
} | {"state": "processing", "job_id": JOB_ID}

_NO_ARTIFACT = error(
    "The voice, version, alias or profile does not exist, or nothing was extracted for this profile yet.",
    "Nothing was extracted from version 2 of voice 'Alice' for profile 'qwen3-tts-1.7b'. Request it with "
    'POST /v1/voices/Alice/versions/2/extractions {"profiles": ["qwen3-tts-1.7b"]}.',
    "artifact_not_found",
    "not_found_error",
)

_FAILED = error(
    "The extraction failed permanently, or an older encoder made the artifact. `x-should-retry: false`.",
    "Extracting version 2 of voice 'Alice' for profile 'qwen3-tts-0.6b' failed. "
    "extractor_error: The codes are out of range.",
    "artifact_failed",
    "conflict_error",
)

DESCRIPTORS: Responses = {
    200: json_answer(
        "One descriptor for each profile.",
        page_of(READY_DESCRIPTOR, "qwen3-tts-0.6b"),
        schemas.Page[schemas.ArtifactDescriptor],
    ),
    **READ,
    400: BAD_NAME,
    404: NO_VOICE,
}

_NOT_YET: Responses = {
    **READ,
    202: json_answer(
        "The artifact is not ready yet. Retry after the time in `Retry-After`.",
        PENDING_DESCRIPTOR,
        schemas.ArtifactDescriptor,
    ),
    400: BAD_NAME,
    404: _NO_ARTIFACT,
    409: _FAILED,
}

DESCRIPTOR: Responses = {
    200: json_answer(
        "The descriptor of the artifact, which is ready.", READY_DESCRIPTOR, schemas.ArtifactDescriptor
    ),
    **_NOT_YET,
}

RESOLVE_BODY = {
    "requestBody": {
        "content": {
            "application/json": {"example": {"voices": ["Alice", "Bob@3"], "profiles": ["qwen3-tts-0.6b"]}}
        },
    }
}

RESOLUTION: Responses = {
    200: json_answer(
        "One entry for each voice and profile, in the order of the request.",
        {
            "object": "list",
            "data": [
                {
                    "voice": "Alice",
                    "profile": "qwen3-tts-0.6b",
                    "version": 2,
                    "version_id": VUID,
                    "created_at": 1775133885,
                    "state": "ready",
                    "digest": DIGEST,
                    "size": 9480,
                },
                {
                    "voice": "Bob@3",
                    "profile": "qwen3-tts-0.6b",
                    "error": {"code": "voice_not_found", "message": "Voice 'Bob' not found"},
                },
            ],
        },
        schemas.Resolution,
    ),
    **READ,
    404: error(
        "A profile does not exist.",
        "There is no profile 'qwen'.",
        "profile_unknown",
        "not_found_error",
    ),
}

_WHOLE_FILE = {
    "description": "The safetensors file: the tensors, with a manifest in its metadata.",
    "content": {MEDIA_TYPE: BINARY},
    "headers": response_headers(
        OF_BYTES
        | {
            "X-Artifact-Fingerprint": "Identifies everything that determines the artifact, except the clip.",
            "X-Artifact-Current": "`true` if the profile's current encoder made the artifact, else `false`.",
            "X-Artifact-Untrained": "`true` if the artifact was made with random weights. Absent otherwise.",
        }
    ),
}

_REDIRECTED = {
    "description": "The bucket has the file at `Location`, for a short time.",
    "headers": response_headers({"Location": "The address of the file in the bucket."}),
}

FILE: Responses = {
    200: _WHOLE_FILE,
    206: part_of_bytes(MEDIA_TYPE),
    307: _REDIRECTED,
    **_NOT_YET,
}

BLOB: Responses = {
    200: _WHOLE_FILE,
    206: part_of_bytes(MEDIA_TYPE),
    307: _REDIRECTED,
    **READ,
    404: error(
        "No voice of the namespace has an artifact with this digest.",
        f"No voice has an artifact with the digest {DIGEST}. It may have been deleted or replaced.",
        "artifact_not_found",
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
    201: json_answer(
        "The artifact was stored and is served from now on.", READY_DESCRIPTOR, schemas.ArtifactDescriptor
    ),
    200: json_answer(
        "The same artifact is served already. Nothing was stored.",
        READY_DESCRIPTOR,
        schemas.ArtifactDescriptor,
    ),
    **COMMON,
    400: error(
        "The voice name is invalid, or the profile needs a transcript and the version has none.",
        "Profile 'fish-speech-s2-pro' needs a transcript; version 1 has no ref_text.",
        "cache_unsupported",
    ),
    404: NO_VOICE,
    409: error(
        "The file's fingerprint is not the profile's current one. Or, at the same moment, the voice was "
        "deleted or another artifact was stored.",
        f"The artifact was made with sha256:{'0' * 64}; artifacts for profile 'qwen3-tts-0.6b' are made with "
        f"sha256:{'1' * 64} now.",
        "fingerprint_mismatch",
        "conflict_error",
    ),
    413: error(
        "The file is too large.", "The body has 20000000 bytes; accepted here: 10747904.", "payload_too_large"
    ),
    422: error(
        "The file does not match the profile's tensors, is of another clip, or does not say what made it.",
        "tensor 'speaker_embedding' has shape [512], but the profile requires [1024]",
        "artifact_schema",
    ),
}
