"""The page of one voice: what it sounds like, its versions and artifacts, and what can be done with it."""

from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import (
    ARTIFACTS_READ,
    AUDIO_READ,
    JOBS_WRITE,
    VOICES_DELETE,
    VOICES_READ,
    count_upload,
)
from services.registry_api.dependencies import AT_STORE, NamespaceDep, ProfileName, ServicesDep
from services.registry_api.pages.forms import MAX_FIELD, address, checked_form, lead_to, page_router, show
from services.registry_api.protocol.routing import PAGES
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer_with_bytes, answer_without_bytes, file_headers
from services.registry_api.wire.pictures import answer_with_picture
from services.shared.bucket.blobs import clip_of, read_clip
from services.shared.bucket.keys import SpeakerId
from services.shared.model.pictures import Picture
from speaker_registry.errors import NotFound, PicturesFailed, Unavailable
from speaker_registry.names import slug_of

router = page_router("/voices/{voice_id}")
_VERSIONS = 20
_SAFETENSORS = "application/octet-stream"
VoiceId = Annotated[str, Path(max_length=512)]
Number = Annotated[int, Path(ge=1, le=10**9)]


@router.get("", dependencies=[VOICES_READ])
def page_voice(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    voice_id: VoiceId,
    version: Annotated[int, Query(ge=0, le=10**9)] = 0,
    before: Annotated[int, Query(ge=0, le=10**9)] = 0,
    beside: Annotated[int, Query(ge=0, le=10**9)] = 0,
    known: Annotated[str, Query(max_length=8)] = "",
) -> Response:
    """Show a voice and one of its versions: the default one, or the one with this number.

    The clip of the version `beside` is shown next to that version's.
    """
    operations = services.operations
    indexed, page, more = operations.pages.versions(
        namespace, voice_id, before=before or None, limit=_VERSIONS
    )
    shown, one = operations.speakers.find_version(namespace, voice_id, version or "default")
    statuses = operations.statuses
    made = statuses.of_version(shown, one)
    selected = rendering.version(statuses, shown, one)
    compared = [selected]
    if beside and beside != one.number:
        compared.append(
            rendering.version(statuses, *operations.speakers.find_version(namespace, voice_id, beside))
        )
    voice = rendering.voice(statuses, indexed)
    path = f"/voices/{voice.id}"
    return show(
        request,
        "voice.html",
        voice=voice,
        selected=selected,
        compared=compared,
        artifacts=[rendering.descriptor(services.operations.statuses, shown, one, status) for status in made],
        versions=[rendering.version(statuses, indexed, each) for each in page],
        earlier=address(path, version=version, before=page[-1].number) if more and page else None,
        busy=any(status.state in {"pending", "processing"} for status in made),
        known=bool(known),
    )


@router.get("/versions/{number}/audio", dependencies=[AUDIO_READ, AT_STORE])
def page_clip(
    request: Request, services: ServicesDep, namespace: NamespaceDep, voice_id: VoiceId, number: Number
) -> Response:
    """Get the clip of a version for the player of its page."""
    _, version = services.operations.speakers.find_version(namespace, voice_id, number)
    clip = clip_of(version)
    headers = file_headers(f"sha256:{clip.sha256}", version)
    if (short := answer_without_bytes(request, headers, clip.size, clip.mime_type)) is not None:
        return short
    data = read_clip(services.parts.store, SpeakerId.of_record(namespace, version.record), version)
    return answer_with_bytes(request, data, headers, clip.mime_type)


@router.get("/versions/{number}/pictures", dependencies=[AUDIO_READ, AT_STORE])
def page_pictures(
    request: Request, services: ServicesDep, namespace: NamespaceDep, voice_id: VoiceId, number: Number
) -> Response:
    """Show the pictures of a version's clip, as a part of the voice's page. Ask workers for missing ones."""
    _, version = services.operations.speakers.find_version(namespace, voice_id, number)
    speaker_id, pictures = SpeakerId.of_record(namespace, version.record), services.operations.pictures
    drawn = all(pictures.find(speaker_id, version, picture) for picture in Picture)
    problem = None
    if not drawn:
        try:
            pictures.ask(speaker_id, version)
        except PicturesFailed as error:
            problem = error.message
    path = f"{PAGES}/voices/{quote(voice_id, safe='')}/versions/{number}/pictures"
    return show(request, "pictures.html", drawn=drawn, problem=problem, path=path, number=number)


@router.get("/versions/{number}/pictures/{picture}", dependencies=[AUDIO_READ, AT_STORE])
def page_picture(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    voice_id: VoiceId,
    number: Number,
    picture: Picture,
) -> Response:
    """Get a picture of a version's clip."""
    _, version = services.operations.speakers.find_version(namespace, voice_id, number)
    found = answer_with_picture(request, services, version, namespace, picture)
    if found is None:
        raise NotFound("The picture is not drawn yet. Load the page again in a moment.")
    return found


@router.get("/versions/{number}/artifacts/{profile}", dependencies=[ARTIFACTS_READ, AT_STORE])
def page_artifact(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    voice_id: VoiceId,
    number: Number,
    profile: ProfileName,
) -> Response:
    """Download the artifact of a version for a profile."""
    operations = services.operations
    found = operations.artifacts.find(namespace, voice_id, number, profile)
    artifact = found.artifact
    if artifact is None:
        raise found.fault or NotFound("The artifact is not ready yet.")
    data = operations.extractions.artifact_or_replacement(
        artifact.speaker_id, artifact.version, artifact.record
    )
    if data is None:
        raise Unavailable("The artifact's file is lost, and is made again.", retry_after_seconds=5)
    headers = file_headers(artifact.record.digest, artifact.version)
    name = f"{slug_of(artifact.version.record.key)}-{number}-{profile}.safetensors"
    headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return answer_with_bytes(request, data, headers, _SAFETENSORS)


@router.post("/versions/{number}/extractions", dependencies=[JOBS_WRITE])
async def page_extract(
    request: Request, services: ServicesDep, namespace: NamespaceDep, voice_id: VoiceId, number: Number
) -> Response:
    """Extract an artifact of a version again."""
    async with checked_form(request) as fields:
        profile = fields.text("profile", max_length=MAX_FIELD) or ""
    await count_upload(request)

    def extract() -> None:
        _, version = services.operations.speakers.find_version(namespace, voice_id, number)
        speaker_id = SpeakerId.of_record(namespace, version.record)
        services.operations.extractions.ensure(speaker_id, version, [profile], force=True)

    await run_in_threadpool(extract)
    return lead_to(f"/voices/{voice_id}", version=number)


@router.post("/delete", dependencies=[VOICES_DELETE, AT_STORE])
async def page_delete(
    request: Request, services: ServicesDep, namespace: NamespaceDep, voice_id: VoiceId
) -> Response:
    """Delete a voice with all its versions."""
    async with checked_form(request):
        pass
    await run_in_threadpool(services.operations.deletions.delete, namespace, voice_id)
    return lead_to("/voices")
