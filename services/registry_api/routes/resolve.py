"""The route that resolves many voices to versions and artifacts in one request."""

import asyncio

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ARTIFACTS_READ
from services.registry_api.dependencies import CallerDep, NamespaceDep, Services, ServicesDep, parts_of
from services.registry_api.express.lane import offer_of
from services.registry_api.operations.artifacts import FoundArtifact, find_each
from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.routing import RESOLVE
from services.registry_api.protocol.signals import route_of
from services.registry_api.serving.recheck import check_after_wait
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer_to_question
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.model.speaker import SpeakerId
from speaker_registry.errors import InvalidRequest, SpeakerRegistryError, VoiceNotFound
from speaker_registry.names import parse_speaker_name, split_reference
from speaker_registry.schemas import MAX_RESOLVED, Resolution, ResolveRequest

_FEW_PAIRS = 50
"""Requests with more pairs are resolved one at a time, because they take longer than most: 70 ms for 500."""
_TURN_WAIT_SECONDS = 1.0
"""A request with many pairs waits this long for its turn, and is answered without it then. While the view
cannot be used, the request before it may take many seconds to read the bucket.
"""

router = DocumentedRouter(tags=["artifacts"])


@router.post(RESOLVE, dependencies=[ARTIFACTS_READ])
async def resolve_voices(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    body: ResolveRequest,
    caller: CallerDep,
) -> Response:
    """Tell what voices stand for now: for each voice and profile the version and the digest of its artifact.

    Up to 500 pairs of a voice and a profile are accepted. A voice that does not exist is an entry with an
    `error`, and so is an artifact that nothing makes. The answer has an ETag, and a request with
    `If-None-Match` gets 304 while nothing has changed.
    """
    pairs = len(body.voices) * len(body.profiles)
    if pairs > MAX_RESOLVED:
        raise InvalidRequest(
            f"{len(body.voices)} voices for {len(body.profiles)} profiles are {pairs} pairs; "
            f"accepted: {MAX_RESOLVED}.",
            param="voices",
        )
    services.access.unknown_names.check(caller)
    offer = offer_of(request.scope)
    if offer is not None and (kept := offer.kept(caller, namespace)) is not None:
        return kept
    if pairs <= _FEW_PAIRS:
        return await run_in_threadpool(_resolution, request, services, namespace, body, caller)
    began = asyncio.get_running_loop().time()
    async with parts_of(request).large_resolves.slot(namespace, _TURN_WAIT_SECONDS):
        await check_after_wait(began)
        return await run_in_threadpool(_resolution, request, services, namespace, body, caller)


def _resolution(
    request: Request, services: Services, namespace: str, body: ResolveRequest, caller: Caller
) -> Response:
    found = find_each(services.speakers, services.profiles, namespace, body.voices, body.profiles)
    for voice, one in zip(body.voices, found, strict=True):
        if isinstance(one, VoiceNotFound):
            services.access.unknown_names.note(caller, voice)
    _offer(request, caller, namespace, body, found)
    data = [
        rendering.resolved(voice, profile, one if isinstance(one, SpeakerRegistryError) else one[position])
        for voice, one in zip(body.voices, found, strict=True)
        for position, profile in enumerate(body.profiles)
    ]
    return answer_to_question(request, Resolution(data=data))


def _offer(
    request: Request,
    caller: Caller,
    namespace: str,
    body: ResolveRequest,
    found: list[list[FoundArtifact] | SpeakerRegistryError],
) -> None:
    """Let the express lane keep the answer for equal requests, if it comes from the view and all artifacts
    are ready.

    A change that makes an artifact ready does not wait until all processes know of it, so other answers must
    not be kept.
    """
    offer = offer_of(request.scope)
    versions = [one for several in found if isinstance(several, list) for one in several]
    if offer is None or len(versions) < len(body.voices) * len(body.profiles):
        return
    if any(one.status.artifact is None or not one.speaker.of_view for one in versions):
        return
    # A voice whose name equals the id of another voice would take its place.
    names = (parse_speaker_name(split_reference(voice)[0]) for voice in body.voices)
    speakers = {str(SpeakerId.of(namespace, name)) for name in names}
    speakers |= {str(one.speaker_id) for one in versions}
    offer.accept(
        caller,
        namespace,
        speakers=tuple(speakers),
        profiles=tuple(body.profiles),
        route=route_of(request.scope),
        is_file=False,
    )
