"""The routes of clips: the reference audio of a version as uploaded and as decoded."""

from fastapi import Request
from starlette.responses import Response

from services.registry_api.access.rules import AUDIO_READ
from services.registry_api.dependencies import AT_STORE, NamespaceDep, Reference, ServicesDep, VoiceName
from services.registry_api.wire.answers import (
    SAFETENSORS,
    answer_with_bytes,
    answer_without_bytes,
    file_headers,
)
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.bucket.stored_bytes import clip_of
from services.shared.registry.lookup import find_version
from services.shared.registry.repair import sound_clip, sound_rendition_bytes

router = DocumentedRouter(prefix="/v1/voices/{name}/versions/{ref}/audio", tags=["voices"])


@router.get("", response_class=Response, dependencies=[AUDIO_READ, AT_STORE])
def get_clip(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Download the reference clip of a version, byte for byte as it was uploaded.

    Only the scope `audio:read` allows this, because anyone with the clip can clone the voice elsewhere.
    """
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, ref)
    clip = clip_of(version)
    headers = file_headers(f"sha256:{clip.sha256}", version) | {"Content-Disposition": "attachment"}
    if (short := answer_without_bytes(request, headers, clip.size, clip.mime_type)) is not None:
        return short
    data = sound_clip(services.blobs, speaker.id, version)
    return answer_with_bytes(request, data, headers, clip.mime_type)


@router.get("/samples", response_class=Response, dependencies=[AUDIO_READ, AT_STORE])
def get_samples(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Download the reference clip of a version as decoded samples, in a safetensors file.

    The tensor `audio` is float32 [N], mono, at the clip's own rate. The header's `manifest` is JSON with the
    `sample_rate` in Hz. Readers need no decoder. Only the scope `audio:read` allows this.
    """
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, ref)
    headers = file_headers(f"sha256:{clip_of(version).rendition_sha256}", version)
    data = sound_rendition_bytes(services.blobs, speaker.id, version, services.decoder.decode)
    short = answer_without_bytes(request, headers, len(data), SAFETENSORS)
    return short or answer_with_bytes(request, data, headers, SAFETENSORS)
