"""Routes that decide which encoder makes the artifacts of a profile."""

from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from services.registry_api.access.rules import PROFILES_PROMOTE
from services.registry_api.dependencies import AT_STORE, CallerDep, ServicesDep
from services.registry_api.operations.promote import promote
from services.registry_api.protocol.routing import Router
from services.registry_api.wire import profile_rendering
from services.registry_api.wire.answers import answer
from services.registry_api.wire.documented import request_body, responses
from speaker_registry.schemas import EncoderPromotion

router = Router(prefix="/v1/profiles/{profile}", tags=["jobs and profiles"])
Profile = Annotated[str, Path(max_length=128, description="The name of a profile.")]


@router.post(
    "/promote",
    responses=responses("promote_encoder"),
    openapi_extra=request_body("promote_encoder"),
    dependencies=[PROFILES_PROMOTE, AT_STORE],
)
def promote_encoder(
    request: Request, services: ServicesDep, profile: Profile, wanted: EncoderPromotion, caller: CallerDep
) -> Response:
    """Make another encoder the current one of a profile, for all namespaces.

    `when` is `now`, or `complete`: then the encoder is promoted automatically once its campaign has covered
    every voice, and the profile is returned as it is now. If voices failed, it is promoted only with `force`;
    `reason` and `failures` of the campaign say which.

    Each voice keeps its last artifact until the new one is ready. To go back, promote the former fingerprint:
    its artifacts are still there, and nothing is extracted again.
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
    [shown] = profile_rendering.profiles(
        services.profiles,
        services.profile_records,
        services.workers,
        services.campaigns,
        [services.profiles.get(profile)],
    )
    return answer(request, shown)
