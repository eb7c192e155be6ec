"""Jobs and profiles: what is being made, what can be made."""

from typing import Annotated

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api import examples, rendering
from services.registry_api.answers import answer
from services.registry_api.routing import Router
from services.registry_api.rules import ANY_KEY, JOBS_READ
from services.registry_api.wiring import After, Limit, NamespaceDep, ServicesDep, WaitSeconds
from services.shared.facts import SpeakerId
from services.shared.jobs import JobRecord
from speaker_registry.schemas import Job, JobState, Page, Profile

router = Router(prefix="/v1", tags=["jobs and profiles"])


@router.get("/jobs", responses=examples.JOBS, dependencies=[JOBS_READ])
def list_jobs(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    limit: Limit = 20,
    after: After = "",
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    voice: Annotated[
        str | None,
        Query(
            description="Only jobs of this voice, by its name or its id.",
            json_schema_extra={"format": "voice-name"},
        ),
    ] = None,
    profile: Annotated[str | None, Query(description="Only jobs for this profile.")] = None,
) -> Response:
    """Jobs, newest first. Kept for 30 days."""
    slug = services.registrar.identify(namespace, voice).slug if voice is not None else None
    if profile is not None:
        services.registrar.catalogue.get(profile)
    page = services.jobs.page(
        namespace, state=state, slug=slug, profile=profile, after=after or None, limit=limit
    )
    shown = [rendering.job(services.registrar, record) for record in page.found]
    first = shown[0].id if shown else None
    return answer(request, Page[Job](data=shown, first_id=first, last_id=page.last, has_more=page.more))


@router.get("/jobs/{job_id}", responses=examples.JOB, dependencies=[JOBS_READ])
async def get_job(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    job_id: Annotated[str, Path(description="From an upload, a list or a descriptor.")],
    wait: WaitSeconds = 0,
) -> Response:
    """One job. With `wait`, answers as soon as anything about it changes, or it has finished."""
    before = await run_in_threadpool(services.jobs.get, namespace, job_id)
    if not wait or before.finished:
        return answer(request, await run_in_threadpool(rendering.job, services.registrar, before))

    def changed(now: JobRecord) -> bool:
        return (now.state, now.attempt, now.done) != (before.state, before.attempt, before.done)

    speaker = str(SpeakerId(before.namespace, before.slug))
    seen = await services.changes.wait_until(
        speaker, wait, lambda: services.jobs.get(namespace, job_id), changed, request.is_disconnected
    )
    return answer(request, await run_in_threadpool(rendering.job, services.registrar, seen))


@router.get("/profiles", responses=examples.PROFILES, dependencies=[ANY_KEY])
def list_profiles(request: Request, services: ServicesDep) -> Response:
    """What artifacts there can be, what they hold, and who can make them now."""
    registrar = services.registrar
    names = registrar.catalogue.names
    workers = registrar.announcements.workers_of(names)
    failed_proofs = registrar.announcements.failed_proofs_of(names)
    shown = [
        rendering.profile(
            facts,
            required=facts.name in registrar.catalogue.required,
            announced=registrar.announcements.current(facts.name),
            workers=workers[facts.name],
            failed_proofs=failed_proofs[facts.name],
        )
        for facts in registrar.catalogue
    ]
    return answer(request, Page[Profile](data=shown, first_id=shown[0].id, last_id=shown[-1].id))
