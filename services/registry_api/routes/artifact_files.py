"""Answers with the files of artifacts: the bytes, a part of them, 304, or a redirect to the bucket."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.dependencies import parts_of
from services.registry_api.operations.artifacts import StoredArtifact
from services.registry_api.protocol.conditions import binds_to_registry
from services.registry_api.serving.slots import Slots
from services.registry_api.wire.answers import SAFETENSORS, answer_with_bytes, answer_without_bytes
from services.shared.registry.repair import artifact_or_replacement
from services.shared.telemetry.metrics import ARTIFACT_REQUESTS
from speaker_registry.errors import ArtifactFailed, ArtifactStale, NotFound

Redirect = Annotated[
    bool,
    Query(
        description="Redirect to the bucket for the bytes (307, with an address that is valid for a short "
        "time), if the registry is set up to do so. Otherwise this has no effect. A request with "
        "`If-Match`, `If-Range`, `If-Modified-Since` or `If-Unmodified-Since` is not redirected, because the "
        "bucket would judge these by an ETag and a time of its own."
    ),
]
UNKNOWN_PROFILE = "unknown"
"""The label of requests for profiles that are not in the catalogue."""
_RESULTS = {200: "hit", 206: "hit", 202: "pending", 304: "not_modified", 307: "redirected"}


async def answer_with_file(
    request: Request, slots: Slots, artifact: StoredArtifact, headers: dict[str, str], *, redirect: bool
) -> Response | None:
    """Return the answer to a request for an artifact's file. Returns None if the file is lost and is made
    again.

    Args:
        slots: the slots of the bucket.
        headers: the headers of the whole file, from `file_headers`.
        redirect: whether the client may be sent to the bucket.
    """
    headers["X-Artifact-Fingerprint"] = artifact.record.fingerprint
    if artifact.record.untrained:
        headers["X-Artifact-Untrained"] = "true"
    short = answer_without_bytes(request, headers, artifact.record.size, SAFETENSORS)
    if short is not None:
        return short
    redirect = redirect and not binds_to_registry(request.headers)
    address = await _bucket_address(request, slots, artifact) if redirect else None
    if address is not None:
        return Response(status_code=307, headers={"Location": address, "Cache-Control": "no-store"})
    data = await _read_once(request, slots, artifact)
    return None if data is None else answer_with_bytes(request, data, headers, SAFETENSORS)


async def _bucket_address(request: Request, slots: Slots, artifact: StoredArtifact) -> str | None:
    """Return an address at which anyone can read the file from the bucket for a while. Returns None if the
    store has no such addresses, or did not confirm that the file exists.
    """
    parts = parts_of(request)
    blobs, seconds = parts.services.blobs, parts.redirect_seconds
    if not seconds:
        return None
    async with slots.hold():
        return await run_in_threadpool(
            blobs.artifact_address, artifact.speaker.id, artifact.version, artifact.record, seconds
        )


async def _read_once(request: Request, slots: Slots, artifact: StoredArtifact) -> bytes | None:
    """Read a file from the bucket, once for all requests that want it at this moment."""
    parts = parts_of(request)
    services = parts.services

    def read() -> bytes | None:
        return artifact_or_replacement(
            services.speakers,
            services.blobs,
            services.jobs,
            services.profiles,
            artifact.speaker,
            version=artifact.version,
            profile=artifact.profile,
            record=artifact.record,
        )

    async def from_bucket() -> bytes | None:
        async with slots.hold():
            return await run_in_threadpool(read)

    return await parts.shared_reads.read((artifact.version.vuid, artifact.record.digest), from_bucket)


@dataclass(slots=True)
class Counted:
    """A request for a file, which is counted with its outcome when it ends."""

    profile: str = UNKNOWN_PROFILE
    status: int = 500


@contextmanager
def counted(profile: str = UNKNOWN_PROFILE) -> Iterator[Counted]:
    """Count a request for a file by its outcome: hit, pending, not_modified, redirected, failed, miss or
    error.

    Args:
        profile: the name of a profile that is in the catalogue, if it is known already.
    """
    request, result = Counted(profile), "error"
    try:
        yield request
        result = _RESULTS[request.status]
    except ArtifactFailed:
        result = "failed"
        raise
    except (NotFound, ArtifactStale):
        result = "miss"
        raise
    finally:
        ARTIFACT_REQUESTS.labels(request.profile, result).inc()
