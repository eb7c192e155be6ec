"""Routes of artifacts: the descriptor and the file of a version's artifact for a profile."""

import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ARTIFACTS_READ, COUNTED_UPLOAD, VOICES_WRITE, waiting
from services.registry_api.dependencies import (
    CallerDep,
    NamespaceDep,
    OnlyCurrent,
    OnlyFingerprint,
    ProfileName,
    Reference,
    Services,
    ServicesDep,
    StoreSlotsDep,
    UploadSlotsDep,
    VoiceName,
    WaitSeconds,
)
from services.registry_api.express.lane import offer_of
from services.registry_api.operations.artifacts import FoundArtifact, Wanted, artifact_of, find_artifact
from services.registry_api.operations.bring import Brought, ReadyArtifact, Room, bring
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.signals import route_of
from services.registry_api.routes.artifact_files import (
    UNKNOWN_PROFILE,
    Redirect,
    answer_with_file,
    counted,
)
from services.registry_api.serving.slots import Slots
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, file_headers, page_of
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.uploads import NO_LIMIT
from services.shared.model.speaker import SpeakerId
from services.shared.registry.lookup import find_version
from speaker_registry.artifact import read_tensors
from speaker_registry.names import DIGEST_PATTERN, SpeakerName
from speaker_registry.schemas import ArtifactDescriptor

router = DocumentedRouter(prefix="/v1/voices/{name}/versions/{ref}/artifacts", tags=["artifacts"])


@dataclass(frozen=True, slots=True)
class _Target:
    """The artifact that a request names, parsed."""

    services: Services
    namespace: str
    name: SpeakerName
    reference: int | str
    profile: str
    wanted: Wanted
    caller: Caller

    def find(self) -> FoundArtifact:
        """Look up the artifact.

        Raises:
            VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown.
        """
        return find_artifact(
            self.services.speakers,
            self.services.profiles,
            self.namespace,
            self.name,
            self.reference,
            self.profile,
            self.wanted,
        )


async def _target(
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    ref: Reference,
    profile: ProfileName,
    caller: CallerDep,
    current: OnlyCurrent = False,
    fingerprint: OnlyFingerprint = None,
) -> _Target:
    wanted = Wanted(current, fingerprint)
    return _Target(services, namespace, name, ref, profile, wanted, caller)


TargetDep = Annotated[_Target, Depends(_target)]
GivenFingerprint = Annotated[
    str | None,
    Header(
        alias="X-Artifact-Fingerprint",
        pattern=DIGEST_PATTERN,
        description="The fingerprint of the encoder that made the artifact, if the file has no manifest that "
        "states it.",
    ),
]


@router.get("", dependencies=[ARTIFACTS_READ])
def list_artifacts(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """List the artifacts of a version: one descriptor for each profile, with its state."""
    profiles = services.profiles
    speaker, version = find_version(services.speakers, profiles, namespace, name, ref)
    found = profiles.all_statuses(speaker, version)
    shown = [rendering.descriptor(profiles, speaker, version, one) for one in found]
    return answer(request, page_of(shown, lambda one: one.profile))


@router.get("/{profile}", dependencies=[ARTIFACTS_READ])
async def get_artifact(
    request: Request,
    target: TargetDep,
    wait: WaitSeconds = 0,
) -> Response:
    """Get the descriptor of an artifact: its digest, its tensors, and the URL of its file.

    Returns 202 while the artifact is being made. With `wait`, the answer is held back until it is ready. If
    the profile has another encoder now, the last good artifact is returned until the new one is ready, with
    `current` false.
    """
    found = await _settled(request, target, wait)
    if found.artifact is None:
        return _not_yet(request, target, found)
    _offer(request, target, found, is_file=False)
    return answer(request, _descriptor(target, found))


@router.get("/{profile}/file", response_class=Response, dependencies=[ARTIFACTS_READ])
async def get_artifact_file(
    request: Request,
    target: TargetDep,
    slots: StoreSlotsDep,
    wait: WaitSeconds = 0,
    redirect: Redirect = False,
) -> Response:
    """Download the safetensors file of an artifact.

    Returns 304 if `If-None-Match` names its ETag, and 202 with the descriptor while the artifact is being
    made. `Range` asks for a part, and `If-Match` or `If-Range` for no part of another file.
    """
    known = target.profile in target.services.profiles.names
    with counted(target.profile if known else UNKNOWN_PROFILE) as this:
        response = await _file_or_descriptor(request, target, slots, wait, redirect)
        this.status = response.status_code
    return response


async def _file_or_descriptor(
    request: Request, target: _Target, slots: Slots, wait: float, redirect: bool
) -> Response:
    deadline = time.monotonic() + wait
    while True:
        found = await _settled(request, target, max(0.0, deadline - time.monotonic()))
        if found.artifact is None:
            return _not_yet(request, target, found)
        _offer(request, target, found, is_file=True)
        headers = file_headers(found.artifact.record.digest, found.version)
        headers["X-Artifact-Current"] = "true" if found.status.current else "false"
        response = await answer_with_file(request, slots, found.artifact, headers, redirect=redirect)
        if response is not None:
            return response


def _offer(request: Request, target: _Target, found: FoundArtifact, *, is_file: bool) -> None:
    """Let the express lane keep the answer for equal requests, if it comes from the view."""
    offer = offer_of(request.scope)
    if offer is None or not found.speaker.of_view:
        return
    # A voice whose name equals the id of another voice would take its place.
    named = SpeakerId.of(target.namespace, target.name)
    offer.accept(
        target.caller,
        target.namespace,
        speakers=tuple({str(found.speaker_id), str(named)}),
        profiles=(target.profile,),
        route=route_of(request.scope),
        is_file=is_file,
    )


@router.put("/{profile}", status_code=201, dependencies=[VOICES_WRITE, COUNTED_UPLOAD])
async def put_artifact(
    request: Request, target: TargetDep, slots: UploadSlotsDep, fingerprint: GivenFingerprint = None
) -> Response:
    """Upload an artifact that was made elsewhere: a safetensors file with the profile's tensors.

    The file is checked like the registry's own artifacts, and gets a manifest of this version. It must have
    been made from this version's clip and with the profile's current fingerprint. Profiles that the registry
    cannot extract accept any fingerprint. An embedding that the version was made from cannot be replaced.
    """
    body = await request.body()  # read before a slot is taken, so that a slow sender holds none
    async with slots.hold():
        stored, new = await run_in_threadpool(_give, target, body, fingerprint)
    return answer(request, _descriptor(target, stored), status=201 if new else 200)


def _give(target: _Target, body: bytes, fingerprint: str | None) -> tuple[FoundArtifact, bool]:
    services, settings = target.services, target.services.settings
    found = target.find()
    tensors, manifest = read_tensors(body, services.profiles.get(target.profile).tensors)
    brought = bring(
        services.speakers,
        services.blobs,
        services.profiles,
        room=Room(builds=settings.max_builds, bytes=settings.max_stored_bytes or NO_LIMIT),
        speaker=found.speaker,
        version=found.version,
        profile=target.profile,
        given=ReadyArtifact(tensors=tensors, manifest=manifest, fingerprint=fingerprint),
        by=target.caller.id,
    )
    return _stored(target, brought), brought.new


def _stored(target: _Target, brought: Brought) -> FoundArtifact:
    """Return the artifact that was just stored, although another encoder may have been promoted since."""

    def found(wanted: Wanted) -> FoundArtifact:
        services = target.services
        return artifact_of(services.profiles, brought.speaker, brought.version, target.profile, wanted)

    served = found(target.wanted)
    if served.artifact is not None and served.artifact.record.fingerprint == brought.fingerprint:
        return served
    return found(Wanted(fingerprint=brought.fingerprint))


async def _settled(request: Request, target: _Target, wait: float) -> FoundArtifact:
    found = await run_in_threadpool(target.find)
    if wait and not found.settled:
        question = ("artifact", target.name.name, target.reference, target.profile, target.wanted)
        async with waiting(request):
            found = await target.services.long_polls.wait_until(
                str(found.speaker_id),
                question,
                wait,
                target.find,
                lambda found: found.settled,
                request.receive,
            )
    if found.fault is not None:
        raise found.fault
    return found


def _descriptor(target: _Target, found: FoundArtifact) -> ArtifactDescriptor:
    profiles = target.services.profiles
    return rendering.descriptor(profiles, found.speaker, found.version, found.status, found.wanted)


def _not_yet(request: Request, target: _Target, found: FoundArtifact) -> Response:
    return answer(request, _descriptor(target, found), status=202, headers={"Retry-After": "1"})
