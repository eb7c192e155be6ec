"""The route of blobs: the file of an artifact by its digest, which never changes."""

from typing import Annotated

from fastapi import Path, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ARTIFACTS_READ, NAMESPACE_HEADER
from services.registry_api.dependencies import CallerDep, NamespaceDep, ServicesDep, StoreSlotsDep
from services.registry_api.express.lane import offer_of
from services.registry_api.operations.artifacts import StoredArtifact, find_by_digest, not_with_digest
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.signals import route_of
from services.registry_api.routes.artifact_files import Redirect, answer_with_file, counted
from services.registry_api.wire.answers import file_headers
from services.registry_api.wire.documented import DocumentedRouter, example_value
from speaker_registry.names import DIGEST_PATTERN

router = DocumentedRouter(prefix="/v1/blobs", tags=["artifacts"])

Digest = Annotated[
    str,
    Path(
        pattern=DIGEST_PATTERN,
        description="The `digest` of a descriptor.",
        examples=[example_value("digest")],
    ),
]
_IMMUTABLE = {
    "Cache-Control": "private, max-age=31536000, immutable",
    "Vary": f"Authorization, {NAMESPACE_HEADER}",
}
"""Headers of an answer that never changes. It is not `public`, because each caller's right to read it is
checked. Other answers need no such `Vary`, because caches revalidate them on each use.
"""


@router.get("/{digest}", response_class=Response, dependencies=[ARTIFACTS_READ])
async def get_blob(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    digest: Digest,
    caller: CallerDep,
    slots: StoreSlotsDep,
    redirect: Redirect = False,
) -> Response:
    """Download the safetensors file of an artifact by its digest.

    The answer never changes, so clients and proxies may keep it for a year for the credentials and the
    namespace that asked. It is found while its voice exists. While the view is being rebuilt or Redis is
    unavailable, the answer may be 503: the file's path by voice and version works then, too.
    """
    with counted() as this:
        artifact = await run_in_threadpool(find_by_digest, services.speakers, namespace, digest)
        this.profile = artifact.profile
        _offer(request, caller, namespace, artifact)
        headers = file_headers(digest, artifact.version) | _IMMUTABLE
        response = await answer_with_file(request, slots, artifact, headers, redirect=redirect)
        if response is None:
            raise not_with_digest(digest)
        this.status = response.status_code
        return response


def _offer(request: Request, caller: Caller, namespace: str, artifact: StoredArtifact) -> None:
    """Let the express lane keep the answer for equal requests, if it comes from the view."""
    offer = offer_of(request.scope)
    if offer is not None and artifact.speaker.of_view:
        offer.accept(
            caller,
            namespace,
            speakers=(str(artifact.speaker.id),),
            profiles=(artifact.profile,),
            route=route_of(request.scope),
            is_file=True,
        )
