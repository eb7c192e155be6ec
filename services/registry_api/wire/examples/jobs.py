"""OpenAPI responses of jobs, extractions and profiles."""

from services.registry_api.wire.examples.artifacts import PENDING_DESCRIPTOR, READY_DESCRIPTOR
from services.registry_api.wire.examples.responses import (
    COMMON,
    DIGEST,
    INVALID,
    JOB_ID,
    NO_PROFILE,
    NO_VOICE,
    READ,
    VUID,
    Responses,
    error,
    json_answer,
    page_of,
)
from speaker_registry import schemas

_JOB = {
    "object": "job",
    "id": JOB_ID,
    "kind": "extract",
    "state": "processing",
    "voice": "Alice",
    "version": 2,
    "version_id": VUID,
    "profile": "qwen3-tts-0.6b",
    "fingerprint": DIGEST,
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

_COUNTS = {
    "queued": 12,
    "processing": 2,
    "succeeded": 4810,
    "failed": 3,
    "canceled": 0,
    "superseded": 1,
}
_RATES = [
    {"seconds": 60, "succeeded": 30, "failed": 0, "per_second": 0.5},
    {"seconds": 3600, "succeeded": 1800, "failed": 0, "per_second": 0.5},
    {"seconds": 86400, "succeeded": 4320, "failed": 3, "per_second": 0.05},
]

PROFILE = {
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

_NO_JOB = error(
    "The job does not exist in this namespace, or it was removed: jobs are kept for 30 days.",
    "No job 'job_x'. Jobs are kept for 30 days.",
    "job_not_found",
    "not_found_error",
)

JOBS: Responses = {
    200: json_answer("A page of jobs.", page_of(_JOB, JOB_ID), schemas.Page[schemas.Job]),
    **READ,
    400: INVALID,
    404: _NO_JOB,
}

_SUMMARY = {
    "object": "job_summary",
    "counts": _COUNTS,
    "oldest_queued_at": 1775133885.2,
    "oldest_processing_at": 1775133880.4,
    "rates": _RATES,
    "profiles": [
        {
            "profile": "qwen3-tts-0.6b",
            "counts": _COUNTS,
            "oldest_queued_at": 1775133885.2,
            "oldest_processing_at": 1775133880.4,
            "rates": _RATES,
        }
    ],
}

SUMMARY: Responses = {200: json_answer("The counts.", _SUMMARY, schemas.JobSummary), **READ}

JOB: Responses = {200: json_answer("The job.", _JOB, schemas.Job), **READ, 400: INVALID, 404: _NO_JOB}

CANCEL: Responses = {
    200: json_answer(
        "The job is canceled.", {**_JOB, "state": "canceled", "finished_at": 1775133893.5}, schemas.Job
    ),
    **COMMON,
    400: INVALID,
    404: _NO_JOB,
    409: error(
        "The job has finished, or its artifact is already being stored. `x-should-retry: false`.",
        f"Job '{JOB_ID}' is in state 'succeeded'; only a queued or processing job can be canceled.",
        "job_finished",
        "conflict_error",
    ),
}

EXTRACTIONS: Responses = {
    200: json_answer(
        "Nothing had to be started: each artifact is ready, or its extraction has failed before.",
        page_of(READY_DESCRIPTOR, "qwen3-tts-0.6b"),
        schemas.Page[schemas.ArtifactDescriptor],
    ),
    202: json_answer(
        "At least one extraction is queued or running. `Location` is the path of the first job.",
        page_of(PENDING_DESCRIPTOR, "qwen3-tts-0.6b"),
        schemas.Page[schemas.ArtifactDescriptor],
    ),
    **COMMON,
    400: error(
        "The version has no clip to extract from, or a parameter or field is invalid.",
        "Version 2 was registered with a precomputed speaker embedding of 1024 numbers; profile "
        "'qwen3-tts-0.6b' needs reference audio.",
        "cache_unsupported",
    ),
    404: NO_VOICE,
    413: error(
        "The request body is too large.",
        "The body has 70000 bytes; accepted here: 65536.",
        "payload_too_large",
    ),
}

EXTRACTION_BODY = {
    "requestBody": {
        "content": {"application/json": {"example": {"profiles": ["qwen3-tts-0.6b"], "force": False}}},
    }
}

PROFILES: Responses = {
    200: json_answer(
        "A page of profiles.", page_of(PROFILE, "qwen3-tts-0.6b"), schemas.Page[schemas.Profile]
    ),
    404: NO_PROFILE,
    **READ,
}
