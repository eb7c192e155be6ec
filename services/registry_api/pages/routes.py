"""Collects the routes of all pages."""

from collections.abc import Sequence
from functools import cache

from fastapi import APIRouter
from starlette.routing import BaseRoute

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


@cache
def page_routes() -> Sequence[BaseRoute]:
    """Return the routes of the pages, the same for each application of a process, as those of the API are."""
    pages = APIRouter()
    for module in (overview, signing_in, provider, voices, voice, aliases, editing, deleted, jobs, keys):
        pages.include_router(module.router)
    return pages.routes
