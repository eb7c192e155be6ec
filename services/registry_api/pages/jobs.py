"""Pages of jobs and of profiles."""

from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ANY_KEY, JOBS_CANCEL, JOBS_READ
from services.registry_api.dependencies import AT_STORE, After, CallerDep, NamespaceDep, ServicesDep
from services.registry_api.operations.cancel import cancel
from services.registry_api.pages.forms import address, checked_form, lead_to, page_router, show
from services.registry_api.pages.live import live
from services.registry_api.pages.situation import profiles_of
from services.registry_api.wire import rendering
from speaker_registry.schemas import JobState

router = page_router()
_PAGE_SIZE = 50
STATES: tuple[JobState, ...] = ("queued", "processing", "succeeded", "failed", "canceled", "superseded")
State = Annotated[str, Query(pattern=f"^(|{'|'.join(STATES)})$")]


@router.get("/jobs", dependencies=[JOBS_READ])
@live
def page_jobs(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    state: State = "",
    profile: Annotated[str, Query(max_length=128)] = "",
    after: After = "",
) -> Response:
    """List jobs, newest first."""
    profiles = services.profiles
    if profile:
        profiles.get(profile)
    found = services.jobs.records.page(
        namespace,
        state=next((one for one in STATES if one == state), None),
        profile=profile or None,
        after=after or None,
        limit=_PAGE_SIZE,
    )
    filters = {"state": state, "profile": profile}
    return show(
        request,
        "jobs.html",
        jobs=[rendering.job(profiles, record) for record in found.found],
        filters=filters,
        after=after,
        next_page=address("/jobs", after=found.last, **filters) if found.more else None,
        first_page=address("/jobs", **filters),
        states=STATES,
        profiles=sorted(profiles.names),
    )


@router.post("/jobs/{job_id}/cancel", dependencies=[JOBS_CANCEL, AT_STORE])
async def page_cancel(
    request: Request, services: ServicesDep, namespace: NamespaceDep, job_id: str, caller: CallerDep
) -> Response:
    """Cancel a job that has not finished."""
    async with checked_form(request) as fields:
        state = fields.text("state", max_length=16)
    await run_in_threadpool(
        cancel, services.speakers, services.jobs, services.profiles, namespace, job_id, by=caller.id
    )
    return lead_to("/jobs", state=state if state in STATES else None)


@router.get("/profiles", dependencies=[ANY_KEY])
@live
def page_profiles(request: Request, services: ServicesDep) -> Response:
    """List the profiles: what they need, what made their artifacts, and who makes them now."""
    return show(request, "profiles.html", profiles=profiles_of(services))
