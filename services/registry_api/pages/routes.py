"""Adds the pages to the application."""

from collections.abc import Sequence
from functools import cache

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute

from services.registry_api.dependencies import Services
from services.registry_api.keys.seal import Seal
from services.registry_api.pages import (
    aliases,
    deleted,
    editing,
    jobs,
    keys,
    overview,
    provider,
    signing_in,
    voice,
    voices,
)
from services.registry_api.pages.activity import Activity
from services.registry_api.pages.failures import Failures
from services.registry_api.pages.live import LiveRegions
from services.registry_api.pages.situation import Situation


def add_pages(app: FastAPI, services: Services) -> None:
    """Add the routes of all pages, and the objects that they share."""
    app.state.situation = Situation(services)
    app.state.seal = Seal(services.generation)
    app.state.live_regions = LiveRegions()
    records = services.jobs.records
    app.state.failures = Failures(records, services.profiles.names, records.now)
    app.state.activity = Activity(records, app.state.server_errors, records.now)
    app.router.routes.extend(_pages())


@cache
def _pages() -> Sequence[BaseRoute]:
    """Return the routes of the pages, the same for each application of a process, as those of the API are."""
    pages = APIRouter()
    for module in (overview, signing_in, provider, voices, voice, aliases, editing, deleted, jobs, keys):
        pages.include_router(module.router)
    return pages.routes
