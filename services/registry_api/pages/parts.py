"""Declares what requests for pages share, besides what the routes of the API share."""

from dataclasses import dataclass, field

from fastapi import Request

from services.registry_api.dependencies import Parts
from services.registry_api.pages.activity import Activity
from services.registry_api.pages.failures import Failures
from services.registry_api.pages.kept import LiveRegions
from services.registry_api.pages.situation import Situation


@dataclass(frozen=True, slots=True, kw_only=True)
class PageParts(Parts):
    """These parts also include what only the pages need."""

    situation: Situation
    activity: Activity
    failures: Failures
    live_regions: LiveRegions = field(default_factory=LiveRegions)


def page_parts_of(request: Request) -> PageParts:
    parts = request.app.state.parts
    assert isinstance(parts, PageParts)
    return parts
