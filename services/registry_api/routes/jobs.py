"""Routes of jobs and profiles: start, list, get and cancel extractions, and list what can be extracted."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ANY_KEY, JOBS_CANCEL, JOBS_READ, JOBS_WRITE, count_upload
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
)
from services.registry_api.operations.cancellation import cancel
from services.registry_api.protocol.routing import Router
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer
from services.registry_api.wire.examples import jobs as examples
from services.shared.bucket.keys import SpeakerId
from services.shared.index.jobs import JobRecord
from speaker_registry.names import parse_reference
from speaker_registry.schemas import ArtifactDescriptor, ExtractionRequest, Job, JobState, Page, Profile

router = Router(prefix="/v1", tags=["jobs and profiles"])


async def _count_if_forced(request: Request, wanted: ExtractionRequest) -> None:
    """Count a forced extraction as an upload. Raises `RateLimited`."""
    if wanted.force:
        await count_upload(request)


JobId = Annotated[str, Path(description="The id of a job, as uploads, lists and descriptors give it.")]


@router.post(
    "/voices/{name}/versions/{ref}/extractions",
    status_code=202,
    responses=examples.EXTRACTIONS,
    openapi_extra=examples.EXTRACTION_BODY,
    dependencies=[JOBS_WRITE, Depends(_count_if_forced)],
)
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
    `force` extracts again and counts as an upload. The existing artifact is served until the new one is
    ready.
    """
    speakers, statuses = services.operations.speakers, services.operations.statuses
    _, version = speakers.find_version(namespace, name, parse_reference(ref))
    profiles = list(dict.fromkeys(wanted.profiles or statuses.wanted(version)))
    speaker_id = SpeakerId.of_record(namespace, version.record)
    claims = services.operations.extractions.ensure(speaker_id, version, profiles, force=wanted.force)
    indexed, version = speakers.find_version(namespace, name, version.number)
    shown = [
        rendering.descriptor(
            statuses, indexed, version, statuses.explained(statuses.of_profile(indexed, version, profile))
        )
        for profile in profiles
    ]
    first, last = (shown[0].profile, shown[-1].profile) if shown else (None, None)
    body = Page[ArtifactDescriptor](data=shown, first_id=first, last_id=last)
    job_id = next((claim.job_id for claim in claims.values() if claim.job_id), None)
    if job_id is None:
        return answer(request, body)
    return answer(request, body, status=202, headers={"Location": f"/v1/jobs/{job_id}", "Retry-After": "1"})


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
    slug = services.operations.speakers.identify(namespace, voice).slug if voice is not None else None
    if profile is not None:
        services.parts.catalogue.get(profile)
    page = services.operations.jobs.page(
        namespace,
        state=state,
        slug=slug,
        profile=profile,
        created_after=created_after,
        after=after or None,
        limit=limit,
    )
    shown = [rendering.job(services.operations.statuses, record) for record in page.found]
    first = shown[0].id if shown else None
    return answer(request, Page[Job](data=shown, first_id=first, last_id=page.last, has_more=page.more))


@router.get("/jobs/summary", responses=examples.SUMMARY, dependencies=[JOBS_READ])
def summarize_jobs(request: Request, services: ServicesDep, namespace: NamespaceDep) -> Response:
    """Count the jobs by state and profile: how many there are, since when the oldest waits, and how many
    ended within the last minute, hour and day. No job is looked at, so the answer is as fast with millions.
    """
    parts = services.parts
    return answer(
        request, services.operations.jobs.summary(namespace, parts.catalogue.names, parts.clock.now())
    )


@router.get("/jobs/{job_id}", responses=examples.JOB, dependencies=[JOBS_READ])
async def get_job(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    job_id: JobId,
    caller: CallerDep,
    wait: WaitSeconds = 0,
) -> Response:
    """Get a job. With `wait`, the answer is held back until the job's state, attempt or progress changes, or
    until that many seconds have passed.
    """
    before = await run_in_threadpool(services.operations.jobs.get, namespace, job_id)
    if not wait or before.finished:
        return answer(request, await run_in_threadpool(rendering.job, services.operations.statuses, before))

    def changed(now: JobRecord) -> bool:
        return (now.state, now.attempt, now.done) != (before.state, before.attempt, before.done)

    speaker = str(SpeakerId(before.namespace, before.slug))
    with services.access.waiting_requests.hold(caller, namespace):
        seen = await services.long_polls.wait_until(
            speaker,
            ("job", job_id),
            wait,
            lambda: services.operations.jobs.get(namespace, job_id),
            changed,
            request.is_disconnected,
            wake_on_progress=True,
        )
    return answer(request, await run_in_threadpool(rendering.job, services.operations.statuses, seen))


@router.post("/jobs/{job_id}/cancel", responses=examples.CANCEL, dependencies=[JOBS_CANCEL, AT_STORE])
def cancel_job(request: Request, services: ServicesDep, namespace: NamespaceDep, job_id: JobId) -> Response:
    """Cancel a job that has not finished.

    A worker that is processing the job publishes nothing. An artifact that was served before is still served.
    Canceling again returns the same answer. The extraction is not started again, even if the profile is
    required, until a request forces it (`force`) or the profile's encoder changes.
    """
    record = cancel(services.parts, namespace, job_id)
    return answer(request, rendering.job(services.operations.statuses, record))


@router.get("/profiles", responses=examples.PROFILES, dependencies=[ANY_KEY])
def list_profiles(request: Request, services: ServicesDep, limit: Limit = 100, after: After = "") -> Response:
    """List profiles by name: the tensors of their artifacts, how many workers extract them now, and the
    encoders that could be promoted.
    """
    catalogue = services.parts.catalogue
    if after:
        catalogue.get(after)
    following = [facts for facts in catalogue if facts.name > after]
    page = following[:limit]
    shown = rendering.profiles(services.parts, services.campaigns, page)
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    has_more = len(following) > limit
    return answer(request, Page[Profile](data=shown, first_id=first, last_id=last, has_more=has_more))
