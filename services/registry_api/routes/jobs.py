"""Routes of jobs and profiles: start, list, get and cancel extractions, and list what can be extracted."""

from functools import partial
from typing import Annotated

from fastapi import Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import (
    ANY_KEY,
    JOBS_CANCEL,
    JOBS_READ,
    JOBS_WRITE,
    count_upload_in_thread,
    waiting,
)
from services.registry_api.dependencies import (
    AT_STORE,
    After,
    CallerDep,
    Limit,
    NamespaceDep,
    Reference,
    ServicesDep,
    VoiceName,
    WaitSeconds,
    speaker_named,
)
from services.registry_api.operations.cancel import cancel
from services.registry_api.operations.followed_jobs import follow
from services.registry_api.wire import profile_rendering, rendering
from services.registry_api.wire.answers import answer, page_of
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.model.speaker import SpeakerId
from services.shared.registry.extract import extract
from services.shared.registry.lookup import find_version
from services.shared.view.job_records import JobRecord
from speaker_registry.schemas import ExtractionRequest, Job, JobState, Page

router = DocumentedRouter(prefix="/v1", tags=["jobs and profiles"])


JobId = Annotated[str, Path(description="The id of a job, as uploads, lists and descriptors give it.")]


@router.post("/voices/{name}/versions/{ref}/extractions", status_code=202, dependencies=[JOBS_WRITE])
def create_extractions(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    ref: Reference,
    wanted: ExtractionRequest,
) -> Response:
    """Extract artifacts of a version, and return the state of each. Running extractions are joined.

    Returns 202 with the path of the first job in `Location` if anything is queued or running, else 200.
    `force` extracts again. The existing artifact is served until the new one is ready. Each forced job, and
    each new job of a profile that is not required, counts as an upload.
    """
    speakers, profiles = services.speakers, services.profiles
    speaker, version = find_version(speakers, profiles, namespace, name, ref)
    names = list(dict.fromkeys(wanted.profiles or profiles.wanted(version)))
    opened = extract(
        services.jobs,
        profiles,
        speaker,
        version,
        names,
        force=wanted.force,
        max_builds=services.settings.max_builds,
        count=count_upload_in_thread(request),
    )
    speaker, version = find_version(speakers, profiles, namespace, name, version.number)
    shown = [
        rendering.descriptor(
            profiles,
            speaker,
            version,
            profiles.explained(profiles.status(speaker, version, profiles.get(one))),
        )
        for one in names
    ]
    body = page_of(shown, lambda one: one.profile)
    job_id = next(iter(opened.values()), None)
    if job_id is None:
        return answer(request, body)
    return answer(request, body, status=202, headers={"Location": f"/v1/jobs/{job_id}", "Retry-After": "1"})


@router.get("/jobs", dependencies=[JOBS_READ])
def list_jobs(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    caller: CallerDep,
    limit: Limit = 20,
    after: After = "",
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    voice: Annotated[
        str | None,
        Query(
            description="Only jobs of this voice, given by name or id.",
            json_schema_extra={"format": "voice-name"},
        ),
    ] = None,
    profile: Annotated[str | None, Query(description="Only jobs for this profile.")] = None,
    created_after: Annotated[
        float,
        Query(ge=0, le=1e12, description="Only jobs that were created after this time, in Unix seconds."),
    ] = 0,
) -> Response:
    """List jobs, newest first. Jobs are kept for 30 days."""
    slug = None
    if voice is not None:
        slug = speaker_named(services, caller, namespace, voice).slug
    if profile is not None:
        services.profiles.get(profile)
    page = services.jobs.records.page(
        namespace,
        state=state,
        slug=slug,
        profile=profile,
        created_after=created_after,
        after=after or None,
        limit=limit,
    )
    shown = [rendering.job(services.profiles, record) for record in page.found]
    first = shown[0].id if shown else None
    return answer(request, Page[Job](data=shown, first_id=first, last_id=page.last, has_more=page.more))


@router.get("/jobs/summary", dependencies=[JOBS_READ])
def summarize_jobs(request: Request, services: ServicesDep, namespace: NamespaceDep) -> Response:
    """Count the jobs by state and profile: how many there are, since when the oldest waits, and how many
    ended within the last minute, hour and day. No job is looked at, so the answer is as fast with millions.
    """
    summary = services.jobs.records.summary(namespace, services.profiles.names)
    return answer(request, summary)


@router.get("/jobs/{job_id}", dependencies=[JOBS_READ])
async def get_job(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    job_id: JobId,
    wait: WaitSeconds = 0,
) -> Response:
    """Get a job. With `wait`, the answer is held back until the job's state, attempt or progress changes, or
    until that many seconds have passed.
    """
    read = partial(follow, services.speakers, services.jobs, services.profiles, namespace, job_id)
    before = await run_in_threadpool(read)
    if not wait or before.finished:
        return answer(request, await run_in_threadpool(rendering.job, services.profiles, before))

    def changed(now: JobRecord) -> bool:
        return (now.state, now.attempt, now.stage) != (before.state, before.attempt, before.stage)

    speaker = str(SpeakerId(before.namespace, before.slug))
    async with waiting(request):
        seen = await services.long_polls.wait_until(
            speaker,
            ("job", job_id),
            wait,
            read,
            changed,
            request.receive,
            wake_on_progress=True,
        )
    return answer(request, await run_in_threadpool(rendering.job, services.profiles, seen))


@router.post("/jobs/{job_id}/cancel", dependencies=[JOBS_CANCEL, AT_STORE])
def cancel_job(
    request: Request, services: ServicesDep, namespace: NamespaceDep, job_id: JobId, caller: CallerDep
) -> Response:
    """Cancel a job that has not finished.

    A worker that is processing the job publishes nothing. An artifact that was served before is still served.
    Canceling again returns the same answer. The extraction is not started again, even if the profile is
    required, until a request forces it (`force`) or the profile's encoder changes. The job of a campaign is
    canceled only with a key for any namespace.
    """
    record = cancel(
        services.speakers,
        services.jobs,
        services.profiles,
        namespace,
        job_id,
        by=caller.id,
        is_operator=caller.for_any_namespace,
    )
    return answer(request, rendering.job(services.profiles, record))


@router.get("/profiles", dependencies=[ANY_KEY])
def list_profiles(request: Request, services: ServicesDep, limit: Limit = 100, after: After = "") -> Response:
    """List profiles by name: the tensors of their artifacts, how many workers extract them now, and the
    encoders that could be promoted.
    """
    if after:
        services.profiles.get(after)
    following = [one for one in services.catalogue if one.name > after]
    page = following[:limit]
    shown = profile_rendering.profiles(services, page)
    return answer(request, page_of(shown, lambda one: one.id, more=len(following) > limit))
