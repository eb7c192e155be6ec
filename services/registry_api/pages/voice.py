"""The page of one voice: its clip, its versions and artifacts, and the actions on them."""

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
from services.registry_api.dependencies import (
    AT_STORE,
    After,
    CallerDep,
    NamespaceDep,
    ProfileName,
    Services,
    ServicesDep,
)
from services.registry_api.operations.artifacts import find_artifact
from services.registry_api.operations.delete import delete, delete_version
from services.registry_api.operations.pictures import ask_for_pictures, find_pictures
from services.registry_api.operations.retry import retry
from services.registry_api.pages.aliases import FormerDep, shown_aliases
from services.registry_api.pages.comparing import compare
from services.registry_api.pages.deleted import path_of, show_deleted
from services.registry_api.pages.forms import (
    MAX_FIELD,
    VoiceOfPage,
    address,
    checked_form,
    page_router,
    redirect_to,
    show,
)
from services.registry_api.pages.history import past_of
from services.registry_api.pages.sessions import is_partial
from services.registry_api.protocol.routing import PAGES
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer_with_bytes, answer_without_bytes, file_headers
from services.registry_api.wire.paging import newest_versions
from services.registry_api.wire.pictures import answer_with_picture
from services.shared.bucket.stored_bytes import clip_of
from services.shared.model.document import SpeakerDocument
from services.shared.model.pictures import Picture
from services.shared.model.records import Version
from services.shared.registry.lookup import find_version, locate, not_found
from services.shared.registry.repair import artifact_or_replacement
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import Conflict, NotFound, PicturesFailed, Unavailable
from speaker_registry.names import DEFAULT, LATEST, MAX_VERSION

router = page_router("/voices/{name}")
_VERSIONS = 20
_SAFETENSORS = "application/octet-stream"


Number = Annotated[int, Path(ge=1, le=MAX_VERSION)]


@router.get("", dependencies=[VOICES_READ])
def page_voice(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceOfPage,
    former: FormerDep,
    caller: CallerDep,
    version: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
    before: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
    beside: Annotated[str, Query(max_length=MAX_FIELD)] = "",
    known: Annotated[str, Query(max_length=8)] = "",
    gone: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
    past: After = "",
) -> Response:
    """Show a voice and one of its versions: the default one, or the one with this number.

    The clip of the version `beside`, which may be one of another voice, is shown next to that version's.
    `gone` is the version that the form before this page deleted. A link to a deleted version, such as that of
    a job, leads to the default version, and the page says so. The page of a deleted voice shows until when
    the voice can be restored.
    """
    profiles = services.profiles
    speaker = locate(services.speakers, namespace, name, also_deleted=True)
    document = speaker.document
    if not document.live:
        if is_partial(request):
            raise not_found(name)
        return show_deleted(request, services, document, name, past=past)
    if _was_deleted(document, version) and not is_partial(request):
        version, gone = 0, version
    page, more = newest_versions(document, before=before or None, limit=_VERSIONS)
    one = _version(services, speaker, version or DEFAULT)
    made = profiles.all_statuses(speaker, one)
    comparison = compare(services, caller, speaker, one, beside)
    voice = rendering.voice(profiles, speaker)
    path = f"/voices/{voice.id}"
    return show(
        request,
        "voice.html",
        voice=voice,
        status=comparison.status,
        selected=comparison.sides[0].version,
        comparison=comparison,
        artifacts=[rendering.descriptor(profiles, speaker, one, status) for status in made],
        versions=[rendering.version(profiles, speaker, each) for each in page],
        earlier=address(path, version=version, before=page[-1].number) if more and page else None,
        busy=any(status.state in {"pending", "processing"} for status in made),
        known=bool(known),
        aliases=shown_aliases(document),
        latest=_version(services, speaker, LATEST).number,
        numbers=[one.number for one in reversed(document.versions)],
        meaning=_meaning(document),
        gone=gone if _was_deleted(document, gone) else 0,
        former=former if former and former.can_come_back(document) else None,
        **past_of(request, services, document, path, past=past, version=version),
    )


def _meaning(document: SpeakerDocument) -> dict[int, list[str]]:
    """Return the aliases of each version that has any, by the number of the version."""
    found: dict[int, list[str]] = {}
    for one in shown_aliases(document):
        found.setdefault(one.version, []).append(one.alias)
    return found


def _was_deleted(document: SpeakerDocument, number: int) -> bool:
    is_live = any(one.number == number for one in document.versions)
    return 0 < number <= document.marks.number and not is_live


def _version(services: Services, speaker: FoundSpeaker, reference: int | str) -> Version:
    return speaker.document.resolve(reference, lambda one: services.profiles.is_complete(speaker, one))


@router.get("/versions/{number}/audio", dependencies=[AUDIO_READ, AT_STORE])
def page_clip(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, number: Number
) -> Response:
    """Get the clip of a version for the player of its page."""
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, number)
    clip = clip_of(version)
    headers = file_headers(f"sha256:{clip.sha256}", version)
    if (short := answer_without_bytes(request, headers, clip.size, clip.mime_type)) is not None:
        return short
    data = services.blobs.clip(speaker.id, version)
    return answer_with_bytes(request, data, headers, clip.mime_type)


@router.get("/versions/{number}/pictures", dependencies=[AUDIO_READ, AT_STORE])
def page_pictures(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, number: Number
) -> Response:
    """Show the pictures of a version's clip, as a part of the voice's page. Ask workers for missing ones."""
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, number)
    drawn = all(find_pictures(services.store, speaker.id, version, picture) for picture in Picture)
    problem = None
    if not drawn:
        try:
            ask_for_pictures(services.dispatcher, speaker.id, version)
        except PicturesFailed as error:
            problem = error.message
    path = f"{PAGES}/voices/{quote(name.name, safe='')}/versions/{number}/pictures"
    return show(
        request, "pictures.html", drawn=drawn, problem=problem, path=path, id=version.vuid, number=number
    )


@router.get("/versions/{number}/pictures/{picture}", dependencies=[AUDIO_READ, AT_STORE])
def page_picture(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceOfPage,
    number: Number,
    picture: Picture,
) -> Response:
    """Get a picture of a version's clip."""
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, number)
    found = answer_with_picture(request, services, speaker, version, picture)
    if found is None:
        raise NotFound("The picture is not drawn yet. Load the page again in a moment.")
    return found


@router.get("/versions/{number}/artifacts/{profile}", dependencies=[ARTIFACTS_READ, AT_STORE])
def page_artifact(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceOfPage,
    number: Number,
    profile: ProfileName,
) -> Response:
    """Download the artifact of a version for a profile."""
    found = find_artifact(services.speakers, services.profiles, namespace, name, number, profile)
    artifact = found.artifact
    if artifact is None:
        raise found.fault or NotFound("The artifact is not ready yet.")
    data = artifact_or_replacement(
        services.speakers,
        services.blobs,
        services.jobs,
        services.profiles,
        artifact.speaker,
        version=artifact.version,
        profile=profile,
        record=artifact.record,
    )
    if data is None:
        raise Unavailable("The artifact's file is lost, and is made again.", retry_after_seconds=5)
    headers = file_headers(artifact.record.digest, artifact.version)
    filename = f"{artifact.speaker.id.slug}-{number}-{profile}.safetensors"
    headers["Content-Disposition"] = f'attachment; filename="{filename}"'
    return answer_with_bytes(request, data, headers, _SAFETENSORS)


@router.post("/versions/{number}/extractions", dependencies=[JOBS_WRITE])
async def page_extract(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, number: Number
) -> Response:
    """Try again to extract an artifact of a version."""
    async with checked_form(request) as fields:
        profile = fields.text("profile", max_length=MAX_FIELD) or ""
    await count_upload(request)

    def extract_again() -> None:
        speaker, version = find_version(services.speakers, services.profiles, namespace, name, number)
        retry(
            services.jobs,
            services.profiles,
            speaker,
            version,
            profile,
            max_builds=services.settings.max_builds,
        )

    await run_in_threadpool(extract_again)
    return redirect_to(path_of(name.name), version=number)


@router.post("/versions/{number}/delete", dependencies=[VOICES_DELETE, AT_STORE])
async def page_delete_version(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceOfPage,
    number: Number,
    caller: CallerDep,
) -> Response:
    """Delete one version, unless it is the last one: the person did not confirm that the voice is to be
    deleted.
    """
    async with checked_form(request):
        pass

    def check(document: SpeakerDocument) -> None:
        if len(document.versions) == 1:
            raise Conflict(
                f"Version {number} is the last version, and the voice would be deleted with it. Nothing "
                "was changed. Accepted: deleting the voice."
            )

    def delete_one() -> None:
        delete_version(services.speakers, services.jobs, namespace, name, number, by=caller.id, check=check)

    await run_in_threadpool(delete_one)
    return redirect_to(path_of(name.name), gone=number)


@router.post("/delete", dependencies=[VOICES_DELETE, AT_STORE])
async def page_delete(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, caller: CallerDep
) -> Response:
    """Delete a voice with all its versions, and redirect to its page, which shows until when it can be
    restored.
    """
    async with checked_form(request):
        pass

    def delete_voice() -> FoundSpeaker:
        return delete(services.speakers, services.jobs, namespace, name, by=caller.id)

    before = (await run_in_threadpool(delete_voice)).document
    can_come_back = before.live and services.deleted_grace_seconds
    return redirect_to(path_of(name.name) if can_come_back else "/voices")
