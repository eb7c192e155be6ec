"""The first page, which shows what needs attention, and the state of voices, queue and workers."""

from fastapi import Request
from starlette.responses import Response

from services.registry_api.access.rules import ANY_KEY
from services.registry_api.dependencies import CallerDep, NamespaceDep, ServicesDep
from services.registry_api.pages.failures import Reasons
from services.registry_api.pages.forms import page_router, show
from services.registry_api.pages.live import live
from services.registry_api.pages.parts import page_parts_of
from services.registry_api.pages.rendering import rights_of
from services.registry_api.pages.situation import (
    MAX_COUNTED,
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
    parts = page_parts_of(request)
    situation = parts.situation
    may = rights_of(caller, keys_required=services.access.required)
    counts = situation.voices(namespace) if may["see_voices"] else VoiceCounts()
    jobs = situation.jobs(namespace) if may["see_jobs"] else None
    profiles = profiles_of(services)
    failed = jobs.rates[-1].failed if jobs else 0
    return show(
        request,
        "overview.html",
        concerns=list(concerns(profiles, counts, failed)),
        total=situation.total(namespace) if may["see_voices"] else None,
        counts=counts,
        max_counted=MAX_COUNTED,
        jobs=jobs,
        charts=parts.activity.charts(namespace) if may["see_jobs"] else [],
        errors=parts.activity.errors(namespace) if may["see_jobs"] else None,
        reasons=parts.failures.last_hour(namespace) if failed else Reasons(),
        workers=workers_of(profiles),
        profiles=[one for one in profiles if one.required or one.workers or one.failed_proofs],
    )
