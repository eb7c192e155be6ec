"""Health checks and metrics: `/healthz`, `/readyz` and `/metrics`."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from fastapi import HTTPException, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from services.registry_api.access.rules import METRICS, PUBLIC
from services.registry_api.dependencies import Services
from services.registry_api.protocol.routing import PAGES
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.telemetry.metrics import exposition
from speaker_registry import __version__
from speaker_registry.errors import SpeakerRegistryError

CACHE_SECONDS = 0.5
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
    readiness = request.app.state.readiness
    assert isinstance(readiness, Readiness)
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


class Readiness:
    """Checks bucket and view, and caches the result for `CACHE_SECONDS`. One per process.

    The cache bounds the work: `/readyz` needs no API key, and each check takes a thread and a request to the
    bucket.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._check: asyncio.Task[dict[str, str]] | None = None
        self._checked_at = float("-inf")
        self.unserved: dict[str, str] = {}
        """Maps the name of each required profile that no worker serves to an explanation."""

    async def parts(self) -> dict[str, str]:
        """Return the state of each part by its name: `ok`, or what is wrong with it."""
        old = time.monotonic() - self._checked_at > CACHE_SECONDS
        if self._check is None or (self._check.done() and old):
            self._check = asyncio.create_task(self._check_now())
        return await asyncio.shield(self._check)  # a caller that disconnects must not cancel it for the rest

    async def _check_now(self) -> dict[str, str]:
        checks = _checks(self._services)
        found = {name: await run_in_threadpool(_state, check) for name, check in checks.items()}
        self.unserved = await run_in_threadpool(_unserved, self._services)
        self._checked_at = time.monotonic()
        return found


def _unserved(services: Services) -> dict[str, str]:
    """Return why no worker is known to serve some required profiles. Returns none if this cannot be found
    out.
    """
    profiles = services.profiles
    wanted = [one.name for one in profiles.required if not one.not_extractable]
    return {name: reason for name in wanted if (reason := profiles.waiting_reason(name)) is not None}


def _checks(services: Services) -> dict[str, Callable[[], object]]:
    return {
        "store": services.store.check,
        "view": services.generation.check,
    }


def _state(check: Callable[[], object]) -> str:
    try:
        check()
    except SpeakerRegistryError as error:
        return error.message
    return "ok"
