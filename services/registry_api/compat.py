"""vLLM-Omni's voice routes, `/v1/audio/voices`: its answers key by key, with ours added. Existing clients
run unchanged.
"""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api import examples, rendering
from services.registry_api.answers import answer
from services.registry_api.forms import OPENAPI, UploadForm, read_upload_form
from services.registry_api.wiring import After, NamespaceDep, Services, ServicesDep
from services.shared.audio import DecodedClip
from services.shared.domain import Speaker, SpeakerVersion
from services.shared.facts import SpeakerId
from services.shared.index_reading import IndexedSpeaker
from services.shared.registrar import Registered, Registrar
from services.shared.status import Standing, worst
from speaker_registry.errors import ArtifactFailed, InvalidAudio
from speaker_registry.names import parse_speaker_name
from speaker_registry.schemas import CacheStatus, Deleted

router = APIRouter(prefix="/v1/audio/voices", tags=["vLLM-Omni compatible"])

_PAGE = 500
CacheWait = Annotated[float, Query(ge=0, le=300, alias="wait", description="Seconds until 202 instead.")]


@router.get("", responses=examples.LIST_COMPATIBLE)
def list_voices(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    limit: Annotated[int | None, Query(ge=1, le=100)] = None,
    after: After = "",
    profile: str | None = None,
    ready: bool = False,
) -> Response:
    """All voices, or a page of them with `limit`; `profile` and `ready` keep those usable for it."""
    registrar = services.registrar
    if profile is not None:
        registrar.catalogue.get(profile)
    if limit is None:
        found, more = _all(registrar, namespace, after), False
    else:
        found, more = registrar.page(namespace, after=after, limit=limit)
    kept = [indexed for indexed in found if _usable(registrar, indexed, profile, ready=ready)]
    return answer(request, _listing(registrar, kept, more=more))


def _all(registrar: Registrar, namespace: str, after: str) -> list[IndexedSpeaker]:
    voices: list[IndexedSpeaker] = []
    more = True
    while more:
        page, more = registrar.page(namespace, after=after, limit=_PAGE)
        voices += page
        after = _key(page[-1]) if page else after
    return voices


def _usable(registrar: Registrar, indexed: IndexedSpeaker, profile: str | None, *, ready: bool) -> bool:
    version = indexed.speaker.default
    names = [profile] if profile else registrar.wanted(version)
    standings = [registrar.standing(indexed, version, name) for name in names]
    if ready:
        return worst(standings) == "ready"
    return not any(standing.unsupported for standing in standings)


def _listing(registrar: Registrar, voices: list[IndexedSpeaker], *, more: bool) -> dict[str, Any]:
    keys = [_key(indexed) for indexed in voices]
    uploaded = [rendering.uploaded_voice(registrar, indexed) for indexed in voices]
    return {
        "voices": sorted({*keys, "default"}),
        "uploaded_voices": uploaded,
        "object": "list",
        "data": [
            {"object": "audio.voice", "id": one["id"], "name": one["name"], "created_at": one["created_at"]}
            for one in uploaded
        ],
        "first_id": keys[0] if keys else None,
        "last_id": keys[-1] if keys else None,
        "has_more": more,
    }


def _key(indexed: IndexedSpeaker) -> str:
    return indexed.speaker.newest.record.name.lower()


@router.post("", openapi_extra=OPENAPI, responses=examples.UPLOAD)
async def create_voice(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    dedupe: Annotated[
        bool, Query(description="False: a new version even of the same clip and words.")
    ] = True,
) -> Response:
    """Register a voice from a clip or a ready speaker embedding; extraction starts at once.

    The same name again is a new version; the old one serves until the new one is ready. The same request
    again (same
    source, transcript, consent) is the same version, unless `dedupe=false`.
    """
    form = await read_upload_form(request, services.limits.max_bytes, dedupe=dedupe)
    return await run_in_threadpool(_register, request, services, namespace, form)


def _register(request: Request, services: Services, namespace: str, form: UploadForm) -> Response:
    registrar = services.registrar
    if form.embedding is not None:
        registered = registrar.register_embedding(namespace, form.upload, form.embedding)
    else:
        assert form.clip is not None
        registered = registrar.register_clip(namespace, form.upload, form.clip, _decode(services, form.clip))
    headers = {} if registered.created else {"Idempotent-Replayed": "true"}
    return answer(request, _registered(registrar, registered), headers=headers)


def _decode(services: Services, clip: bytes) -> DecodedClip:
    try:
        return services.decoder.decode(clip)
    except InvalidAudio as error:
        error.param = "audio_sample"
        raise


def _registered(registrar: Registrar, registered: Registered) -> dict[str, Any]:
    version = registered.version
    indexed = _with_version(registered)
    entry = rendering.uploaded(registrar, indexed, version)
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
    }


def _with_version(registered: Registered) -> IndexedSpeaker:
    """A delete may have overtaken the look that followed the registration: the answer is still about what
    was made.
    """
    if registered.indexed.speaker.live:
        return registered.indexed
    return IndexedSpeaker(Speaker(versions=(registered.version,)))


@router.delete("/{name}", responses=examples.DELETE_COMPATIBLE)
def delete_voice(services: ServicesDep, namespace: NamespaceDep, name: str, request: Request) -> Response:
    """Delete a voice with all its versions: unresolvable at once."""
    before = services.registrar.delete(namespace, name)
    key = parse_speaker_name(name).key
    body = Deleted(message=f"Voice '{key}' deleted successfully", id=rendering.voice_id(before))
    return answer(request, body)


@router.get("/{name}/cache", responses=examples.CACHE)
def cache_status(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: str, profile: str | None = None
) -> Response:
    """Where the precomputed artifacts of a voice stand. Starts nothing."""
    seen = _Precompute(services.registrar, namespace, name, profile).look()
    return answer(request, seen.body())


@router.post("/{name}/cache", responses=examples.CACHE)
async def cache(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: str,
    profile: str | None = None,
    force: bool = False,
    wait: CacheWait = 60,
) -> Response:
    """See to it that a voice's artifacts are there, and wait for them. Calls at the same time join one
    extraction.

    `force` extracts again; what there is serves until the new artifact is ready. Not ready within `wait`
    seconds: 202.
    """
    precompute = _Precompute(services.registrar, namespace, name, profile)
    seen = await run_in_threadpool(precompute.start, force=force)
    if not seen.finished:
        speaker = str(precompute.speaker_id)
        seen = await services.changes.wait_until(speaker, wait, precompute.look, lambda one: one.finished)
    seen.raise_if_failed()
    if seen.finished:
        return answer(request, seen.body())
    headers = {"Retry-After": "1", **({"Location": f"/v1/jobs/{seen.job_id}"} if seen.job_id else {})}
    return answer(request, seen.body(), status=202, headers=headers)


class _Look:
    """What one look at a voice under precomputation showed."""

    def __init__(
        self,
        key: str,
        version: SpeakerVersion,
        standings: list[Standing],
        job_id: str | None,
        message: str | None,
    ) -> None:
        self.job_id = job_id
        self.finished = job_id is None and worst(standings) in {"ready", "failed"}
        self._key = key
        self._version = version
        self._standings = standings
        self._message = message

    def body(self) -> CacheStatus:
        state = worst(self._standings)
        if self.job_id is not None and state == "ready":
            state = "processing"  # by force: the old artifact serves meanwhile
        return CacheStatus(
            voice=self._key,
            cache_status=state,
            message=self._message,
            job_id=self.job_id,
            version=self._version.number,
        )

    def raise_if_failed(self) -> None:
        failed = [standing for standing in self._standings if standing.state == "failed"]
        if failed and self.finished:
            reasons = "; ".join(f"{standing.profile.name}: {standing.error}" for standing in failed)
            raise ArtifactFailed(f"Voice '{self._key}' could not be extracted. {reasons}", param="name")


class _Precompute:
    """One `cache` call: the version that `default` means now, and the profiles asked for."""

    def __init__(self, registrar: Registrar, namespace: str, name: str, profile: str | None) -> None:
        self._registrar = registrar
        self._namespace = namespace
        self._name = parse_speaker_name(name)
        self._profile = profile
        self._jobs: dict[str, str] = {}
        self._message: str | None = None
        self.speaker_id = SpeakerId.of(namespace, self._name)

    def start(self, *, force: bool) -> _Look:
        """Claim what is missing; remember the jobs to wait for."""
        indexed = self._registrar.find(self._namespace, self._name.name)
        version = indexed.speaker.default
        profiles = self._profiles()
        claims = self._registrar.ensure(self.speaker_id, version, profiles, force=force)
        self._jobs = {name: claim.job_id for name, claim in claims.items() if claim.job_id}
        if all(claim.outcome == "ready" for claim in claims.values()):
            self._message = "Cache already exists and is valid"
        return self.look()

    def look(self) -> _Look:
        """Where it stands now. The voice may be gone: then it is not found."""
        indexed = self._registrar.find(self._namespace, self._name.name)
        version = indexed.speaker.default
        names = self._profiles()
        standings = [self._registrar.standing(indexed, version, name) for name in names]
        job_id = next((job for job in self._in_flight(indexed) if job), None)
        return _Look(self._name.key, version, standings, job_id, self._message)

    def _in_flight(self, indexed: IndexedSpeaker) -> Iterator[str]:
        flying = {flight.job_id for flight in indexed.flights}
        return (job for job in self._jobs.values() if job in flying)

    def _profiles(self) -> list[str]:
        return [self._profile] if self._profile else list(self._registrar.catalogue.required)
