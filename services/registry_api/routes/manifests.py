"""The route that lists, page by page, the voices that the engines of a profile should hold."""

from dataclasses import dataclass
from functools import partial
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
    parts_of,
)
from services.registry_api.express.lane import offer_of
from services.registry_api.express.prepared import lists_of
from services.registry_api.operations.artifacts import of_defaults
from services.registry_api.protocol.signals import route_of
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, json_bytes
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.registry.pinned_pages import page_pinned_first
from speaker_registry.manifests import MAX_PAGE, ManifestPage

router = DocumentedRouter(tags=["artifacts"])
ManifestLimit = Annotated[
    int, Query(ge=1, le=MAX_PAGE, description="How many voices a page looks at, at most.")
]


@router.get("/v1/profiles/{profile}/manifest", dependencies=[ARTIFACTS_READ])
async def get_manifest(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    profile: ProfileName,
    caller: CallerDep,
    limit: ManifestLimit = MAX_PAGE,
    after: After = "",
) -> Response:
    """List what an engine of this profile should hold: every voice that the profile can use, pinned ones
    first.

    Each entry has the version that the bare name means now, and the digest of its artifact if that is ready.
    For the next page, pass `last_id` as `after`. A page may have fewer voices than `limit`, or none, while
    `has_more` is true. Every page has an ETag, and a request with `If-None-Match` gets 304 while nothing on
    the page has changed, so an engine may ask every few seconds.

    If all voices fit on one page, the pinned voices are the first on it. Otherwise the first pages have the
    pinned voices, and the following ones have all voices in the order of their names. A pinned voice is then
    listed twice, with the same `voice_id`; where the two entries differ, the later one is newer. While the
    registry cannot read its view in Redis, only a manifest of a single page has the pinned voices first.
    """
    make = partial(_page, services, namespace, profile, limit, after)
    offer = offer_of(request.scope)
    if offer is None:
        return answer(request, (await run_in_threadpool(make)).content)
    if (kept := offer.kept(caller, namespace)) is not None:
        return kept
    # When fifty engines start together, each page is made once. A request that comes after a change must see
    # it, so it does not wait for a page that was begun before.
    key = route_of(request.scope), namespace, profile, limit, after, offer.began
    made = await parts_of(request).shared_reads.read(key, lambda: run_in_threadpool(make), computes=True)
    if made.speakers is not None:
        offer.accept(
            caller,
            namespace,
            speakers=(lists_of(namespace), *made.speakers),
            profiles=(profile,),
            route=route_of(request.scope),
            is_file=False,
        )
    return answer(request, made.content)


@dataclass(frozen=True, slots=True)
class _Made:
    """A page of the manifest in the form in which it is sent."""

    content: bytes
    speakers: tuple[str, ...] | None
    """Ids of the speakers on the page. None if a part of the page does not come from the view, so that it is
    not kept.
    """


def _page(services: Services, namespace: str, profile: str, limit: int, after: str) -> _Made:
    model_type = services.profiles.get(profile).model_type
    listed = page_pinned_first(services.speakers, services.store, namespace, after=after, limit=limit)
    found = of_defaults(services.profiles, listed.speakers, profile)
    of_view = not listed.of_bucket and all(one.of_view for one in listed.speakers)
    shown = ManifestPage(
        registry=services.generation.bucket,
        namespace=namespace,
        profile=profile,
        model_type=model_type,
        data=[rendering.manifest_entry(one) for one in found if not one.status.unsupported],
        first_id=listed.entries[0][0] if listed.entries else None,
        last_id=listed.last or None,
        has_more=listed.more,
    )
    speakers = tuple(str(one.id) for one in listed.speakers) if of_view else None
    return _Made(json_bytes(shown), speakers)
