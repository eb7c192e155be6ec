"""Health checks and metrics: `/healthz`, `/readyz` and `/metrics`."""

from pathlib import Path

from fastapi import HTTPException, Request
from starlette.responses import JSONResponse, Response

from services.registry_api.access.rules import METRICS, PUBLIC
from services.registry_api.dependencies import parts_of
from services.registry_api.protocol.routing import PAGES
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.telemetry.metrics import exposition
from speaker_registry import __version__

_NOT_KEPT = {"Cache-Control": "no-store"}
_ICON = Path(__file__).with_name("favicon.ico").read_bytes()
router = DocumentedRouter(tags=["health"], any_query=True)


@router.get("/healthz", dependencies=[PUBLIC])
async def get_health(response: Response) -> dict[str, str]:
    """Check that the process is alive.

    Dependencies are not checked, because restarting this process would not repair them.
    """
    response.headers.update(_NOT_KEPT)
    return {"status": "ok"}


@router.get("/readyz", dependencies=[PUBLIC])
async def get_readiness(request: Request) -> Response:
    """Check that the object store and Redis answer, and that the view in Redis can be used.

    While the view cannot be used, reads are still served and writes are refused with 503. `details` names the
    required profiles that no worker serves. They do not make the answer 503, because ready artifacts are
    served nevertheless.
    """
    readiness = parts_of(request).readiness
    parts = await readiness.parts()
    good = all(found == "ok" for found in parts.values())
    status = "ok" if good else "unavailable"
    body: dict[str, object] = {"status": status, "version": __version__, "parts": parts}
    if readiness.unserved:
        body["details"] = readiness.unserved
    headers = _NOT_KEPT if good else {**_NOT_KEPT, "Retry-After": "1"}
    return JSONResponse(body, status_code=200 if good else 503, headers=headers)


@router.get("/metrics", response_class=Response, dependencies=[METRICS])
def get_metrics(request: Request) -> Response:
    """Get the metrics for Prometheus: those of this process, and those of queues and view in Redis."""
    content, media_type = exposition(request.headers.get("accept", ""))
    return Response(content, headers={**_NOT_KEPT, "Content-Type": media_type})


@router.get("/", include_in_schema=False, response_class=Response, dependencies=[PUBLIC])
async def get_root(request: Request) -> Response:
    """Lead browsers to the pages for operators. Other clients get the 404 of a route that does not exist."""
    if "text/html" not in request.headers.get("accept", ""):
        raise HTTPException(404)
    # The path is relative, because a proxy may serve the registry below a path of its own.
    return Response(status_code=307, headers={"Location": PAGES.removeprefix("/"), "Vary": "Accept"})


@router.get("/favicon.ico", include_in_schema=False, response_class=Response, dependencies=[PUBLIC])
async def get_favicon() -> Response:
    """Get the icon that browsers show for the documentation page."""
    headers = {"Cache-Control": "public, max-age=604800"}
    return Response(_ICON, headers=headers, media_type="image/x-icon")
