"""OpenAPI responses of manifests."""

from services.registry_api.wire.examples.responses import (
    DIGEST,
    INVALID,
    NO_PROFILE,
    READ,
    VUID,
    Responses,
    json_answer,
    page_of,
)
from speaker_registry.manifests import ManifestPage

_ENTRY = {
    "voice": "Alice",
    "voice_id": f"voice_{VUID}_alice",
    "version": 2,
    "version_id": VUID,
    "created_at": 1775133885,
    "source": "audio",
    "state": "ready",
    "digest": DIGEST,
    "size": 9480,
    "ref_text": "The quick brown fox jumps over the lazy dog.",
}

MANIFEST: Responses = {
    200: json_answer(
        "A page of the voices that an engine of this profile should hold.",
        page_of(_ENTRY, "alice")
        | {"namespace": "default", "profile": "qwen3-tts-0.6b", "model_type": "qwen3_tts"},
        ManifestPage,
    ),
    **READ,
    400: INVALID,
    404: NO_PROFILE,
}
