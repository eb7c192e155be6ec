"""The route that tells the engines of a profile which voices they should hold, page by page."""

from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ARTIFACTS_READ
from services.registry_api.dependencies import (
    After,
    CallerDep,
    NamespaceDep,
    ProfileName,
    Services,
    ServicesDep,
)
from services.registry_api.express.lane import offer_of
from services.registry_api.express.prepared import new_voices_of
from services.registry_api.operations.artifacts import of_defaults
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.routing import Router
from services.registry_api.protocol.signals import route_of
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, not_modified
from services.registry_api.wire.documented import responses
from services.shared.registry.pages import SpeakerPage, page
from speaker_registry.manifests import MAX_PAGE, ManifestPage

router = Router(tags=["artifacts"])
ManifestLimit = Annotated[
    int, Query(ge=1, le=MAX_PAGE, description="How many voices a page looks at, at most.")
]


@router.get(
    "/v1/profiles/{profile}/manifest", responses=responses("get_manifest"), dependencies=[ARTIFACTS_READ]
)
async def get_manifest(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    profile: ProfileName,
    caller: CallerDep,
    limit: ManifestLimit = MAX_PAGE,
    after: After = "",
) -> Response:
    """List what an engine of this profile should hold: every voice that the profile can use.

    Each entry has the version that the bare name means now, and the digest of its artifact if that is ready.
    For the next page, pass `last_id` as `after`. A page may have fewer voices than `limit`, or none, while
    `has_more` is true. Every page has an ETag, and a request with `If-None-Match` gets 304 while nothing on
    the page has changed, so an engine may ask every few seconds.
    """
    offer = offer_of(request.scope)
    if offer is not None and (tag := offer.unchanged(caller, namespace)) is not None:
        return not_modified(tag)
    return await run_in_threadpool(_manifest, request, services, namespace, profile, caller, limit, after)


def _manifest(
    request: Request,
    services: Services,
    namespace: str,
    profile: str,
    caller: Caller,
    limit: int,
    after: str,
) -> Response:
    model_type = services.profiles.get(profile).model_type
    listed = page(services.speakers, services.store, namespace, after=after, limit=limit).within_page_bytes()
    found = of_defaults(services.profiles, listed.speakers, profile)
    _offer(request, caller, namespace, profile, listed)
    data = [rendering.manifest_entry(one) for one in found if not one.status.unsupported]
    shown = ManifestPage(
        namespace=namespace,
        profile=profile,
        model_type=model_type,
        data=data,
        first_id=listed.entries[0][0] if listed.entries else None,
        last_id=listed.last or None,
        has_more=listed.more,
    )
    return answer(request, shown)


def _offer(request: Request, caller: Caller, namespace: str, profile: str, listed: SpeakerPage) -> None:
    """Have the page kept for the same request, if the view said what it is."""
    offer = offer_of(request.scope)
    if offer is None or listed.of_bucket or not all(one.of_view for one in listed.speakers):
        return
    ids = (one.id for one in listed.speakers)
    offer.accept(
        caller,
        namespace,
        speakers=(new_voices_of(namespace), *map(str, ids)),
        profiles=(profile,),
        route=route_of(request.scope),
        is_file=False,
    )
