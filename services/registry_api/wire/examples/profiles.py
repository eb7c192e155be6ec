"""OpenAPI responses of the routes that decide which encoder makes the artifacts of a profile."""

from services.registry_api.wire.examples.jobs import PROFILE
from services.registry_api.wire.examples.responses import (
    COMMON,
    DIGEST,
    Responses,
    error,
    json_answer,
)
from speaker_registry import schemas

PROMOTE: Responses = {
    200: json_answer(
        "The encoder is the current one. `former` lists those before it.", PROFILE, schemas.Profile
    ),
    **COMMON,
    404: error(
        "The profile does not exist, or no worker ever came with this fingerprint for it.",
        f"No worker ever came with {DIGEST} for profile 'qwen3-tts-0.6b'. GET /v1/profiles lists the "
        "candidates and the former fingerprints of each profile.",
        "encoder_unknown",
        "not_found_error",
    ),
    409: error(
        "The encoder is the current one already (`encoder_current`), or no live worker has it "
        "(`encoder_unserved`), and `force` is not set.",
        f"No live worker has {DIGEST}, so nothing would make artifacts for profile 'qwen3-tts-0.6b'. Start a "
        "worker that has it, or send force=true.",
        "encoder_unserved",
        "conflict_error",
    ),
    413: error(
        "The request body is too large.",
        "The body has 70000 bytes; accepted here: 65536.",
        "payload_too_large",
    ),
}

PROMOTE_BODY = {
    "requestBody": {
        "content": {"application/json": {"example": {"fingerprint": DIGEST, "when": "now", "force": False}}},
    }
}
