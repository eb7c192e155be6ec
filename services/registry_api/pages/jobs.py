"""Pages of jobs and of profiles."""

from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ANY_KEY, JOBS_CANCEL, JOBS_READ, JOBS_WRITE, count_upload
from services.registry_api.dependencies import AT_STORE, After, CallerDep, NamespaceDep, Services, ServicesDep
from services.registry_api.operations.cancel import cancel
from services.registry_api.operations.retry import retry
from services.registry_api.pages.deleted import path_of
from services.registry_api.pages.forms import MAX_FIELD, address, checked_form, page_router, redirect_to, show
from services.registry_api.pages.live import live
from services.registry_api.pages.situation import profiles_of, reason_of
from services.registry_api.wire import profile_rendering, rendering
from services.registry_api.wire.fields import Fields
from services.registry_api.wire.paging import newest_decisions
from services.shared.registry.lookup import find_version
from speaker_registry.errors import Conflict
from speaker_registry.names import VoiceId, key_of_name, parse_speaker_name, parse_voice_id, slug_of
from speaker_registry.schemas import Job, JobState

router = page_router()
_PAGE_SIZE = 50
_DECISIONS = 20
"""Largest number of decisions that are shown for each profile."""
STATES: tuple[JobState, ...] = ("queued", "processing", "succeeded", "failed", "canceled", "superseded")
RETRIED: frozenset[JobState] = frozenset({"failed", "canceled"})
"""A job that ended in one of these states can be tried again."""
_QUICK_SECONDS, _CALM_SECONDS = 3, 4
"""The pauses after which an open page requests its list again: while a job on it is unfinished, and
otherwise. With fifty pages open on one list, most requests are answered with a kept region, and one takes
2 to 3 ms of processor time on average. Sent every two seconds, they would take more than 5 % of a core.
"""
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
    goes_on = any(not record.finished for record in found.found)
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
        every_seconds=_QUICK_SECONDS if goes_on else _CALM_SECONDS,
        retried=RETRIED,
        path_of_voice=_path_of_voice,
        profiles=sorted(profiles.names),
    )


def _path_of_voice(job: Job) -> str:
    """Return the path of the page of a job's voice, by its name if possible, because the name still leads to
    the voice after the version was deleted. A name in the form of an id would lead to the voice with that id.
    """
    key = key_of_name(job.voice)
    known_as = job.voice if parse_voice_id(key) is None else str(VoiceId(job.version_id, slug_of(key)))
    return path_of(known_as)


@router.post("/jobs/{job_id}/cancel", dependencies=[JOBS_CANCEL, AT_STORE])
async def page_cancel(
    request: Request, services: ServicesDep, namespace: NamespaceDep, job_id: str, caller: CallerDep
) -> Response:
    """Cancel a job that has not finished."""
    async with checked_form(request) as fields:
        state, profile = _filters(fields, services)
    await run_in_threadpool(
        cancel,
        services.speakers,
        services.jobs,
        services.profiles,
        namespace,
        job_id,
        by=caller.id,
        is_operator=caller.for_any_namespace,
    )
    return redirect_to("/jobs", state=state, profile=profile)


@router.post("/jobs/{job_id}/retry", dependencies=[JOBS_WRITE])
async def page_retry(
    request: Request, services: ServicesDep, namespace: NamespaceDep, job_id: str
) -> Response:
    """Start the extraction of a failed or canceled job again, and redirect to the list of its profile, where
    the new job is first. A list of one state would not show it.
    """
    async with checked_form(request) as fields:
        _, profile = _filters(fields, services)
    await count_upload(request)
    await run_in_threadpool(_retry, services, namespace, job_id)
    return redirect_to("/jobs", profile=profile)


def _filters(fields: Fields, services: Services) -> tuple[str | None, str | None]:
    """Return the state and the profile of the jobs that the page of a form shows, or None for any."""
    state, profile = (fields.text(name, max_length=MAX_FIELD) for name in ("state", "profile"))
    return state if state in STATES else None, profile if profile in services.profiles.names else None


def _retry(services: Services, namespace: str, job_id: str) -> None:
    """Open a job for the same artifact, or join the one that is open.

    Raises:
        JobNotFound, VoiceNotFound, VersionNotFound, QuotaExceeded, Unavailable.
        Conflict: the artifact has been made since, or the job did not fail.
    """
    record, profiles = services.jobs.record(namespace, job_id), services.profiles
    if record.state not in RETRIED:
        raise Conflict(f"The job is {record.state}. Accepted: a job that failed or was canceled.")
    # A name never reuses a number, so the number identifies the version that the job was for.
    name = parse_speaker_name(record.name)
    speaker, version = find_version(services.speakers, profiles, namespace, name, record.number)
    retry(
        services.jobs,
        profiles,
        speaker,
        version,
        record.profile,
        forced=record.forced,
        max_builds=services.settings.max_builds,
    )


@router.get("/profiles", dependencies=[ANY_KEY])
@live
def page_profiles(request: Request, services: ServicesDep) -> Response:
    """List the profiles with their requirements, their encoders and workers, and the decisions about them.

    The names of keys are not shown, because callers of different namespaces share the live region.
    """
    profiles = profiles_of(services)
    documents = services.profiles.documents({one.id for one in profiles})
    decisions = {
        name: newest_decisions(document, before=None, limit=_DECISIONS)[0]
        for name, document in documents.items()
    }
    shown = {name: [profile_rendering.decision(one) for one in made] for name, made in decisions.items()}
    return show(request, "profiles.html", profiles=profiles, decisions=shown, reason_of=reason_of)
