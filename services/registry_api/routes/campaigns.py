"""Routes of campaigns, in which the workers of a candidate extract every voice ahead of its promotion."""

from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from services.registry_api.access.rules import CAMPAIGNS
from services.registry_api.campaigns.control import ShownCampaign
from services.registry_api.dependencies import AT_STORE, After, CallerDep, Limit, ServicesDep
from services.registry_api.routes.profiles import Profile
from services.registry_api.wire import profile_rendering
from services.registry_api.wire.answers import answer, page_of
from services.registry_api.wire.documented import DocumentedRouter
from speaker_registry.schemas import CampaignRequest

router = DocumentedRouter(prefix="/v1/profiles/{profile}/campaigns", tags=["jobs and profiles"])
CampaignId = Annotated[str, Path(max_length=128, description="The id of a campaign of the profile.")]
_RULES = [CAMPAIGNS, AT_STORE]


@router.post("", status_code=201, dependencies=_RULES)
def start_campaign(
    request: Request, services: ServicesDep, caller: CallerDep, profile: Profile, wanted: CampaignRequest
) -> Response:
    """Have the workers of another encoder extract every voice of all namespaces, behind their other jobs.

    Of each voice the version of `default` and the newest one are extracted. Voices that failed in an earlier
    campaign are tried once more, except those whose clip the encoder refused. Nothing that is served changes
    until the encoder is promoted. A live worker must have the encoder.
    """
    started = services.campaigns.start(
        profile, wanted.fingerprint, by=caller.id, sample=wanted.sample, rate=wanted.rate
    )
    return _answer(request, started, status=201)


@router.get("", dependencies=_RULES)
def list_campaigns(
    request: Request, services: ServicesDep, profile: Profile, limit: Limit = 20, after: After = ""
) -> Response:
    """List the campaigns of a profile, newest first."""
    found = services.campaigns.of_profile(profile)
    if after:
        ids = [one.campaign.id for one in found]
        found = found[ids.index(services.campaigns.get(profile, after).campaign.id) + 1 :]
    shown = [profile_rendering.campaign(one) for one in found[:limit]]
    return answer(request, page_of(shown, lambda one: one.id, more=len(found) > limit))


@router.get("/{campaign_id}", dependencies=_RULES)
def get_campaign(
    request: Request, services: ServicesDep, profile: Profile, campaign_id: CampaignId
) -> Response:
    """Get a campaign with its progress, its rate, and the distances of its sample."""
    return _answer(request, services.campaigns.get(profile, campaign_id))


@router.post("/{campaign_id}/pause", dependencies=_RULES)
def pause_campaign(
    request: Request, services: ServicesDep, caller: CallerDep, profile: Profile, campaign_id: CampaignId
) -> Response:
    """Pause a campaign: it begins no further voices. The voices that are under way, at most 64, are
    finished.
    """
    return _answer(request, services.campaigns.pause(profile, campaign_id, by=caller.id))


@router.post("/{campaign_id}/resume", dependencies=_RULES)
def resume_campaign(
    request: Request, services: ServicesDep, caller: CallerDep, profile: Profile, campaign_id: CampaignId
) -> Response:
    """Resume a paused campaign where it stopped."""
    return _answer(request, services.campaigns.resume(profile, campaign_id, by=caller.id))


@router.post("/{campaign_id}/cancel", dependencies=_RULES)
def cancel_campaign(
    request: Request, services: ServicesDep, caller: CallerDep, profile: Profile, campaign_id: CampaignId
) -> Response:
    """Cancel a campaign. Its artifacts stay, so another campaign for the same encoder extracts only the
    rest.
    """
    return _answer(request, services.campaigns.cancel(profile, campaign_id, by=caller.id))


def _answer(request: Request, found: ShownCampaign, *, status: int = 200) -> Response:
    return answer(request, profile_rendering.campaign(found), status=status)
