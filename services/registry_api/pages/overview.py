"""The first page, which shows what needs attention, and the state of voices, queue and workers."""

from fastapi import Request
from starlette.responses import Response

from services.registry_api.access.rules import ANY_KEY
from services.registry_api.dependencies import CallerDep, NamespaceDep, ServicesDep
from services.registry_api.pages.activity import Activity
from services.registry_api.pages.failures import Failures, Reasons
from services.registry_api.pages.forms import page_router, show
from services.registry_api.pages.live import live
from services.registry_api.pages.rendering import rights_of
from services.registry_api.pages.situation import (
    MAX_COUNTED,
    Situation,
    VoiceCounts,
    concerns,
    profiles_of,
    workers_of,
)

router = page_router()


@router.get("", dependencies=[ANY_KEY])
@live
def page_overview(
    request: Request, services: ServicesDep, namespace: NamespaceDep, caller: CallerDep
) -> Response:
    """Show the parts of the overview that the scopes of the key allow."""
    situation: Situation = request.app.state.situation
    may = rights_of(caller, keys_required=services.access.required)
    counts = situation.voices(namespace) if may["see_voices"] else VoiceCounts()
    jobs = situation.jobs(namespace) if may["see_jobs"] else None
    profiles = profiles_of(services)
    activity: Activity = request.app.state.activity
    failures: Failures = request.app.state.failures
    failed = jobs.rates[-1].failed if jobs else 0
    return show(
        request,
        "overview.html",
        concerns=list(concerns(profiles, counts, failed)),
        total=situation.total(namespace) if may["see_voices"] else None,
        counts=counts,
        max_counted=MAX_COUNTED,
        jobs=jobs,
        charts=activity.charts(namespace) if may["see_jobs"] else [],
        errors=activity.errors(namespace) if may["see_jobs"] else None,
        reasons=failures.last_hour(namespace) if failed else Reasons(),
        workers=workers_of(profiles),
        profiles=[one for one in profiles if one.required or one.workers or one.failed_proofs],
    )
