"""The routes of clips: the reference audio of a version, as it was uploaded and as it was decoded."""

from fastapi import Request
from starlette.responses import Response

from services.registry_api.access.rules import AUDIO_READ
from services.registry_api.dependencies import AT_STORE, NamespaceDep, Reference, ServicesDep, VoiceName
from services.registry_api.protocol.routing import Router
from services.registry_api.wire.answers import answer_with_bytes, answer_without_bytes, file_headers
from services.registry_api.wire.examples import voices as examples
from services.registry_api.wire.examples.artifacts import MEDIA_TYPE
from services.shared.bucket.blobs import clip_of, read_clip
from services.shared.bucket.keys import SpeakerId
from services.shared.registry.repair import sound_rendition_bytes
from speaker_registry.names import parse_reference

router = Router(prefix="/v1/voices/{name}/versions/{ref}/audio", tags=["voices"])


@router.get("", responses=examples.CLIP, response_class=Response, dependencies=[AUDIO_READ, AT_STORE])
def get_clip(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Download the reference clip of a version, byte for byte as it was uploaded.

    Only the scope `audio:read` allows this, because anyone with the clip can clone the voice elsewhere.
    """
    _, version = services.operations.speakers.find_version(namespace, name, parse_reference(ref))
    clip = clip_of(version)
    headers = file_headers(f"sha256:{clip.sha256}", version) | {"Content-Disposition": "attachment"}
    if (short := answer_without_bytes(request, headers, clip.size, clip.mime_type)) is not None:
        return short
    data = read_clip(services.parts.store, SpeakerId.of_record(namespace, version.record), version)
    return answer_with_bytes(request, data, headers, clip.mime_type)


@router.get(
    "/samples", responses=examples.SAMPLES, response_class=Response, dependencies=[AUDIO_READ, AT_STORE]
)
def get_samples(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Download the reference clip of a version as decoded samples, in a safetensors file.

    The tensor `audio` is float32 [N], mono, at the clip's own rate. The header's `manifest` is JSON with the
    `sample_rate` in Hz. Whoever reads it needs no decoder. Only the scope `audio:read` allows this.
    """
    _, version = services.operations.speakers.find_version(namespace, name, parse_reference(ref))
    headers = file_headers(f"sha256:{clip_of(version).rendition_sha256}", version)
    speaker_id = SpeakerId.of_record(namespace, version.record)
    data = sound_rendition_bytes(services.parts.store, speaker_id, version, services.decoder.decode)
    short = answer_without_bytes(request, headers, len(data), MEDIA_TYPE)
    return short or answer_with_bytes(request, data, headers, MEDIA_TYPE)
