"""Routes that decide which encoder makes the artifacts of a profile."""

from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from services.registry_api.access.rules import PROFILES_PROMOTE, VOICES_READ
from services.registry_api.dependencies import AT_STORE, AfterNumber, CallerDep, Limit, ServicesDep
from services.registry_api.operations.promote import promote
from services.registry_api.wire import profile_rendering
from services.registry_api.wire.answers import answer, page_of
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.paging import newest_decisions
from speaker_registry.schemas import EncoderPromotion

router = DocumentedRouter(prefix="/v1/profiles/{profile}", tags=["jobs and profiles"])
Profile = Annotated[str, Path(max_length=128, description="The name of a profile.")]


@router.post("/promote", dependencies=[PROFILES_PROMOTE, AT_STORE])
def promote_encoder(
    request: Request, services: ServicesDep, profile: Profile, wanted: EncoderPromotion, caller: CallerDep
) -> Response:
    """Make another encoder the current one of a profile, for all namespaces.

    `when` is `now`, or `complete`: then the encoder is promoted automatically once its campaign has covered
    every voice, and the profile is returned as it is now. If voices failed, it is promoted only with `force`;
    `reason` and `failures` of the campaign say which.

    Each voice keeps its last artifact until the new one is ready. To go back, promote the last former
    fingerprint: its artifacts are still there, and nothing is extracted again. Those of older encoders are
    dropped by the next sweep, and are extracted again if such an encoder is promoted.
    """
    if wanted.when == "complete":
        services.campaigns.promote_when_complete(
            profile, wanted.fingerprint, by=caller.id, force=wanted.force
        )
    else:
        promote(
            services.profile_records,
            services.workers,
            services.catalogue,
            profile,
            wanted.fingerprint,
            by=caller.id,
            force=wanted.force,
        )
    [shown] = profile_rendering.profiles(services, [services.profiles.get(profile)])
    return answer(request, shown)


@router.get("/history", dependencies=[VOICES_READ])
def list_profile_changes(
    request: Request,
    services: ServicesDep,
    profile: Profile,
    limit: Limit = 20,
    after: AfterNumber = 0,
) -> Response:
    """List the decisions that made an encoder the current one of a profile, newest first: the last 100
    decisions.

    Each says who decided, when, and which encoder replaced which. The history of a voice has those that
    changed what the voice serves.
    """
    services.profiles.get(profile)
    document = services.profile_records.read(profile)
    decisions, more = newest_decisions(document, before=after or None, limit=limit)
    shown = [profile_rendering.decision(one) for one in decisions]
    return answer(request, page_of(shown, lambda one: one.revision, more=more))
