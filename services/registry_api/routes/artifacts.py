"""Routes of artifacts: the descriptor and the file of a version's artifact for a profile."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from fastapi import Depends, Header, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ARTIFACTS_READ, COUNTED_UPLOAD, VOICES_WRITE
from services.registry_api.dependencies import (
    AllowStale,
    CallerDep,
    NamespaceDep,
    ProfileName,
    Reference,
    Services,
    ServicesDep,
    StoreSlotsDep,
    UploadSlotsDep,
    VoiceName,
    WaitSeconds,
)
from services.registry_api.operations.artifact_upload import ReadyArtifact, give_artifact
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.routing import Router
from services.registry_api.serving.slots import Slots
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, answer_without_bytes, file_headers
from services.registry_api.wire.examples import artifacts as examples
from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.model.domain import ArtifactRecord, SpeakerVersion
from services.shared.registry.repair import artifact_or_replacement
from services.shared.registry.status import ProfileStatus
from services.shared.telemetry.metrics import ARTIFACT_REQUESTS
from speaker_registry.artifact import read_tensors
from speaker_registry.errors import (
    ArtifactFailed,
    ArtifactNotFound,
    ArtifactStale,
    NotFound,
    SpeakerRegistryError,
)
from speaker_registry.names import parse_reference
from speaker_registry.schemas import ArtifactDescriptor, Page

router = Router(prefix="/v1/voices/{name}/versions/{ref}/artifacts", tags=["artifacts"])


@dataclass(frozen=True, slots=True)
class _Target:
    """The artifact that a request names, parsed."""

    services: Services
    namespace: str
    name: str
    reference: int | str
    profile: str
    allow_stale: bool
    caller: Caller

    def find(self) -> "_Found":
        """Look up the artifact in the index.

        Raises:
            VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown.
        """
        registrar = self.services.registrar
        self.services.parts.catalogue.get(self.profile)
        indexed, version = registrar.find_version(self.namespace, self.name, self.reference)
        status = registrar.explained(registrar.profile_status(indexed, version, self.profile))
        required = self.profile in self.services.parts.catalogue.required
        speaker_id = SpeakerId.of_record(self.namespace, version.record)
        return _Found(speaker_id, indexed, version, status, self.allow_stale, required)


@dataclass(frozen=True, slots=True)
class _Found:
    speaker_id: SpeakerId
    indexed: IndexedSpeaker
    version: SpeakerVersion
    status: ProfileStatus
    allow_stale: bool
    required: bool

    @property
    def record(self) -> ArtifactRecord | None:
        """The artifact to serve, or None if there is none."""
        return self.status.artifact or (self.status.stale if self.allow_stale else None)

    @property
    def settled(self) -> bool:
        """True if waiting is pointless: the artifact is ready, or will not be made without a request."""
        return self.record is not None or self.fault is not None

    def descriptor(self) -> ArtifactDescriptor:
        return rendering.descriptor(self.indexed, self.version, self.status, allow_stale=self.allow_stale)

    @property
    def fault(self) -> SpeakerRegistryError | None:
        """The error to raise if there is no artifact to serve and none is being made, else None."""
        status, profile = self.status, self.status.profile.name
        name = self.version.record.name
        what = f"version {self.version.number} of voice '{name}'"
        again = f"POST /v1/audio/voices/{quote(name, safe='')}/cache?profile={profile}"
        if self.record is not None or status.job_id is not None:
            return None
        if status.unsupported:
            return ArtifactNotFound(f"There is no artifact of {what}: {status.error}.", param="profile")
        if status.state == "failed":
            return ArtifactFailed(
                f"Extracting {what} for profile '{profile}' failed. {status.error}", param="profile"
            )
        if status.stale is not None:
            return ArtifactStale(
                f"The artifact of {what} was made by an older encoder of '{profile}'. Pass allow_stale=true "
                f"to get it, or extract it again by {again}.",
                param="profile",
            )
        if self.required:  # housekeeping is about to start the extraction
            return None
        return ArtifactNotFound(
            f"Nothing was extracted from {what} for profile '{profile}'. Request it by {again}.",
            param="profile",
        )


async def _target(
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    ref: Reference,
    profile: ProfileName,
    caller: CallerDep,
    allow_stale: AllowStale = False,
) -> _Target:
    return _Target(services, namespace, name, parse_reference(ref), profile, allow_stale, caller)


TargetDep = Annotated[_Target, Depends(_target)]
GivenFingerprint = Annotated[
    str | None,
    Header(
        alias="X-Artifact-Fingerprint",
        pattern="^sha256:[0-9a-f]{64}$",
        description="The fingerprint of what made the artifact, if the file has no manifest that states it.",
    ),
]


@router.get("", responses=examples.DESCRIPTORS, dependencies=[ARTIFACTS_READ])
def list_artifacts(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """List the artifacts of a version: one descriptor for each profile, with its state."""
    registrar = services.registrar
    indexed, version = registrar.find_version(namespace, name, parse_reference(ref))
    shown = [
        rendering.descriptor(indexed, version, one) for one in registrar.profile_statuses(indexed, version)
    ]
    first, last = (shown[0].profile, shown[-1].profile) if shown else (None, None)
    return answer(request, Page[ArtifactDescriptor](data=shown, first_id=first, last_id=last))


@router.get("/{profile}", responses=examples.DESCRIPTOR, dependencies=[ARTIFACTS_READ])
async def get_artifact(
    request: Request,
    target: TargetDep,
    wait: WaitSeconds = 0,
) -> Response:
    """Get the descriptor of an artifact: its digest, its tensors, and the URL of its file.

    Returns 202 while the artifact is being made. With `wait`, the answer is held back until it is ready.
    """
    found = await _settled(request, target, wait)
    if found.record is None:
        return _not_yet(request, found)
    return answer(request, found.descriptor())


@router.get(
    "/{profile}/file",
    responses=examples.FILE,
    response_class=Response,
    dependencies=[ARTIFACTS_READ],
)
async def get_artifact_file(
    request: Request,
    target: TargetDep,
    slots: StoreSlotsDep,
    wait: WaitSeconds = 0,
) -> Response:
    """Download the safetensors file of an artifact.

    Returns 304 if `If-None-Match` names its ETag, and 202 with the descriptor while the artifact is being
    made.
    """
    with _counted(target) as counted:
        response = await _file_or_descriptor(request, target, slots, wait)
        counted.status = response.status_code
    return response


async def _file_or_descriptor(request: Request, target: _Target, slots: Slots, wait: float) -> Response:
    parts, registrar = target.services.parts, target.services.registrar
    deadline = time.monotonic() + wait
    while True:
        found = await _settled(request, target, max(0.0, deadline - time.monotonic()))
        if found.record is None:
            return _not_yet(request, found)
        headers = file_headers(found.record.digest, found.version)
        headers["X-Artifact-Fingerprint"] = found.record.fingerprint
        if (
            short := answer_without_bytes(request, headers, found.record.size, examples.MEDIA_TYPE)
        ) is not None:
            return short
        async with slots.hold():
            data = await run_in_threadpool(
                artifact_or_replacement, parts, registrar, found.speaker_id, found.version, found.record
            )
        if data is not None:
            return Response(data, headers=headers, media_type=examples.MEDIA_TYPE)


@router.put(
    "/{profile}",
    status_code=201,
    responses=examples.PUT_ARTIFACT,
    openapi_extra=examples.FILE_BODY,
    dependencies=[VOICES_WRITE, COUNTED_UPLOAD],
)
async def put_artifact(
    request: Request, target: TargetDep, slots: UploadSlotsDep, fingerprint: GivenFingerprint = None
) -> Response:
    """Upload an artifact that was made elsewhere: a safetensors file with the profile's tensors.

    The file is checked like the registry's own artifacts, and gets a manifest of this version. It must have
    been made from this version's clip and with the profile's current fingerprint. Profiles that the registry
    cannot extract accept any fingerprint.
    """
    body = await request.body()  # before taking a slot: a slow sender must not hold one
    async with slots.hold():
        created = await run_in_threadpool(_give, target, body, fingerprint)
    found = await run_in_threadpool(target.find)
    return answer(request, found.descriptor(), status=201 if created else 200)


def _give(target: _Target, body: bytes, fingerprint: str | None) -> bool:
    parts, registrar = target.services.parts, target.services.registrar
    found = target.find()
    tensors, manifest = read_tensors(body)
    given = ReadyArtifact(tensors=tensors, manifest=manifest, fingerprint=fingerprint)
    return give_artifact(parts, registrar, found.speaker_id, found.version, target.profile, given)


async def _settled(request: Request, target: _Target, wait: float) -> _Found:
    found = await run_in_threadpool(target.find)
    if wait and not found.settled:
        question = ("artifact", target.name, target.reference, target.profile, target.allow_stale)
        with target.services.access.waiting_requests.hold(target.caller, target.namespace):
            found = await target.services.long_polls.wait_until(
                str(found.speaker_id),
                question,
                wait,
                target.find,
                lambda found: found.settled,
                request.is_disconnected,
            )
    if found.fault is not None:
        raise found.fault
    return found


_RESULTS = {200: "hit", 202: "pending", 304: "not_modified"}


@dataclass(slots=True)
class _Counted:
    status: int = 500


@contextmanager
def _counted(target: _Target) -> Iterator[_Counted]:
    """Count one request for a file by its result: hit, pending, not_modified, failed, miss or error."""
    counted, result = _Counted(), "error"
    try:
        yield counted
        result = _RESULTS[counted.status]
    except ArtifactFailed:
        result = "failed"
        raise
    except (NotFound, ArtifactStale):
        result = "miss"
        raise
    finally:
        known = target.profile in target.services.parts.catalogue.names
        ARTIFACT_REQUESTS.labels(target.profile if known else "unknown", result).inc()


def _not_yet(request: Request, found: _Found) -> Response:
    return answer(request, found.descriptor(), status=202, headers={"Retry-After": "1"})
