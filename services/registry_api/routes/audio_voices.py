"""vLLM-Omni's voice routes, `/v1/audio/voices`, so that its existing clients run unchanged.

Answers have all fields of vLLM-Omni's answers, and further ones of ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import (
    COUNTED_UPLOAD,
    JOBS_WRITE,
    VOICES_DELETE,
    VOICES_READ,
    VOICES_WRITE,
    count_upload_in_thread,
    waiting,
)
from services.registry_api.dependencies import (
    AT_STORE,
    SEARCHING,
    After,
    CallerDep,
    NamespaceDep,
    Services,
    ServicesDep,
    StoreSlotsDep,
    UploadSlotsDep,
    Usable,
    VoiceName,
    parts_of,
)
from services.registry_api.operations.delete import delete
from services.registry_api.operations.precompute import Precomputation
from services.registry_api.operations.register import Registered
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.fields import Fields, read_fields
from services.registry_api.wire.forms import COMPATIBLE, ignored
from services.registry_api.wire.paging import PAGE_SIZE, VoicePage, find_voices, key_of
from services.registry_api.wire.uploads import Dedupe, IdempotencyKey, register, replayed
from services.registry_api.wire.whole_list import DEFAULT_VOICE, WholeList
from services.shared.model.status import worst
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import SpeakerRegistryError, Unavailable
from speaker_registry.names import DEFAULT, SpeakerName, parse_reference
from speaker_registry.schemas import CacheStatus, Deleted

router = DocumentedRouter(prefix="/v1/audio/voices", tags=["vLLM-Omni compatible"], any_query=True)
"""These routes ignore unknown fields and parameters, because clients of OpenAI and vLLM-Omni send some."""

CacheProfile = Annotated[str | None, Query(description="Only this profile. Default: all required profiles.")]
CacheVersion = Annotated[
    str,
    Query(
        alias="version",
        description="The number of a version, `default`, `latest` or another alias. After an upload, pass "
        "the version that it returned: the name stands for the old version until the new one is ready.",
        json_schema_extra={"format": "voice-reference"},
    ),
]
CacheForce = Annotated[
    bool, Query(description="Extract again, even if the artifact exists, has failed or was canceled.")
]
CacheWait = Annotated[
    float,
    Query(
        ge=0,
        le=300,
        alias="wait",
        description="How many seconds to wait for the artifacts before the answer is 202.",
    ),
]


@router.get("", dependencies=[VOICES_READ, SEARCHING])
def list_audio_voices(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    limit: Annotated[
        int | None, Query(ge=1, le=100, description="The page size. Default: all voices.")
    ] = None,
    after: After = "",
    profile: Usable = None,
    ready: Annotated[bool, Query(description="Only voices whose artifacts are ready.")] = False,
) -> Response:
    """List all voices, or a page of them with `limit`. `profile` and `ready` filter the list.

    A page may have fewer voices than `limit`, or none, while `has_more` is true: pass its `last_id` as
    `after` to continue the search. Without `limit`, a list of more than 100 voices is streamed and has no
    ETag.
    """
    profiles = services.profiles
    if profile is not None:
        profiles.get(profile)

    def usable(speaker: FoundSpeaker) -> bool:
        return _usable(profiles, speaker, profile, ready=ready)

    def find(after: str) -> VoicePage:
        return find_voices(
            services.speakers,
            services.store,
            namespace,
            after=after,
            limit=limit or PAGE_SIZE,
            matches=usable,
        )

    page = find(after)
    if limit is not None or not page.more:
        return answer(request, _listing(profiles, page))
    if page.of_bucket:
        raise Unavailable(
            "The view in Redis is unavailable, and without it voices are listed only page by page. Try again "
            "later, or pass 'limit' from 1 to 100.",
            retry_after_seconds=5,
        )
    if request.method == "HEAD":
        return Response(media_type="application/json")
    lists = parts_of(request).whole_lists
    return WholeList(page, find, lambda page: _entries(profiles, page), lists, namespace)


def _usable(profiles: Profiles, speaker: FoundSpeaker, profile: str | None, *, ready: bool) -> bool:
    version = speaker.document.default
    if profile:
        concerned = [profiles.status(speaker, version, profiles.get(profile))]
    else:
        concerned = profiles.wanted_statuses(speaker, version)
    if ready:
        return worst(concerned) == "ready"
    return not any(status.unsupported for status in concerned)


def _entries(profiles: Profiles, page: VoicePage) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield for each voice of a page: its key, its entry in `uploaded_voices`, and its entry in `data`."""
    for speaker in page.found:
        one = rendering.uploaded_voice(profiles, speaker)
        short = {name: one[name] for name in ("id", "name", "created_at")}
        yield key_of(speaker), one, {"object": "audio.voice", **short}


def _listing(profiles: Profiles, page: VoicePage) -> dict[str, Any]:
    entries = list(_entries(profiles, page))
    return {
        "voices": sorted({*(key for key, _, _ in entries), DEFAULT_VOICE}),
        "uploaded_voices": [uploaded for _, uploaded, _ in entries],
        "object": "list",
        "data": [short for _, _, short in entries],
        "first_id": page.first,
        "last_id": page.last or None,
        "has_more": page.more,
    }


@router.post("", dependencies=[VOICES_WRITE, COUNTED_UPLOAD])
async def create_audio_voice(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    slots: UploadSlotsDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
    dedupe: Dedupe = True,
) -> Response:
    """Register a voice from a reference clip or a speaker embedding. Extraction starts at once.

    Uploading an existing name adds a version. The old version is served until the new one is ready. An upload
    whose source, transcript, consent and description equal those of the newest version returns that version,
    unless `dedupe=false`. Unknown form fields are ignored, and the answer lists them in `warnings`.
    """
    async with read_fields(request) as fields, slots.hold():
        return await run_in_threadpool(
            _register,
            request,
            services,
            namespace,
            fields,
            by=caller.id,
            idempotency_key=idempotency_key,
            dedupe=dedupe,
        )


def _register(
    request: Request, services: Services, namespace: str, fields: Fields, **options: Any
) -> Response:
    registered = register(services, namespace, fields, COMPATIBLE, **options)
    body = _registered(services.profiles, registered, ignored(fields, COMPATIBLE))
    return answer(request, body, headers=replayed(registered))


def _registered(profiles: Profiles, registered: Registered, warnings: Sequence[str]) -> dict[str, Any]:
    entry = rendering.uploaded(profiles, registered.speaker, registered.version)
    entry["job_id"] = next(iter(registered.jobs.values()), None)
    entry["jobs"] = dict(registered.jobs)
    return {
        "success": True,
        "voice": entry,
        "object": "audio.voice",
        "id": entry["id"],
        "name": entry["name"],
        "created_at": entry["created_at"],
        "created": registered.created,
        **({"warnings": list(warnings)} if warnings else {}),
    }


@router.delete("/{name}", dependencies=[VOICES_DELETE, AT_STORE])
def delete_audio_voice(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, caller: CallerDep
) -> Response:
    """Delete a voice with all its versions. From now on its name is not found."""
    before = delete(services.speakers, services.jobs, namespace, name, by=caller.id)
    if before.document.live:
        key, voice_id = key_of(before), rendering.voice_id(before.document)
    else:  # the voice's document could not be read
        key, voice_id = name.key, None
    body = Deleted(message=f"Voice '{key}' deleted successfully", id=voice_id)
    return answer(request, body)


@router.get("/{name}/cache", dependencies=[VOICES_READ])
def get_cache_status(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    profile: CacheProfile = None,
    version: CacheVersion = DEFAULT,
) -> Response:
    """Get the state of a voice's artifacts, without starting an extraction."""
    with _reference_named_version():
        precomputation = _precomputation(services, namespace, name, version, profile)
        return answer(request, _without_nulls(precomputation.body(precomputation.current_state())))


@router.post("/{name}/cache", dependencies=[JOBS_WRITE])
async def fill_cache(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    slots: StoreSlotsDep,
    profile: CacheProfile = None,
    version: CacheVersion = DEFAULT,
    force: CacheForce = False,
    wait: CacheWait = 60,
) -> Response:
    """Ensure that a voice's artifacts exist, and wait for them. Concurrent calls join the same extraction.

    The call is about the version that `version` stands for when it begins, also if an alias moves. Returns
    202 if the artifacts are not ready within `wait` seconds. `force` extracts again. The
    existing artifact is served until the new one is ready. Each forced job, and each new job of a profile
    that is not required, counts as an upload.
    """
    with _reference_named_version():
        precomputation = _precomputation(services, namespace, name, version, profile)
        async with slots.hold():
            seen = await run_in_threadpool(
                precomputation.start, force=force, count=count_upload_in_thread(request)
            )
    if not seen.over:
        speaker = str(precomputation.speaker_id)
        async with waiting(request):
            seen = await services.long_polls.wait_until(
                speaker,
                precomputation.question,
                wait,
                precomputation.current_state,
                lambda one: one.over,
                request.receive,
            )
    precomputation.raise_if_failed(seen)
    body = precomputation.body(seen)
    if seen.finished:
        return answer(request, _without_nulls(body))
    headers = {"Retry-After": "1", **({"Location": f"/v1/jobs/{body.job_id}"} if body.job_id else {})}
    return answer(request, _without_nulls(body), status=202, headers=headers)


@contextmanager
def _reference_named_version() -> Iterator[None]:
    """Name the parameter `version` in errors about it. Other routes have it in their path, as `ref`."""
    try:
        yield
    except SpeakerRegistryError as error:
        if error.param == "ref":
            error.param = "version"
        raise


def _without_nulls(body: CacheStatus) -> dict[str, Any]:
    """Omit absent fields, as vLLM-Omni does with `message`."""
    return body.model_dump(exclude_none=True)


def _precomputation(
    services: Services, namespace: str, name: SpeakerName, version: str, profile: str | None
) -> Precomputation:
    return Precomputation(
        services.speakers,
        services.blobs,
        services.jobs,
        services.profiles,
        max_builds=services.settings.max_builds,
        namespace=namespace,
        name=name,
        reference=parse_reference(version),
        profile=profile,
    )
