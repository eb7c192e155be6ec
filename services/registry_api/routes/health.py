"""Is the process alive, and can it serve? `/readyz` says which part fails, `/metrics` how it has been."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, Response

from services.registry_api.access.rules import METRICS, PUBLIC
from services.registry_api.dependencies import Services
from services.registry_api.protocol.routing import Router
from services.registry_api.wire.examples import health as examples
from services.shared.telemetry.metrics import exposition
from speaker_registry.errors import SpeakerRegistryError

REMEMBERED_SECONDS = 0.5
_ICON = Path(__file__).with_name("favicon.ico").read_bytes()
router = Router(tags=["health"], any_query=True)


@router.get("/healthz", responses=examples.HEALTH, dependencies=[PUBLIC])
async def get_health() -> dict[str, str]:
    """The event loop runs. Says nothing about what it depends on: restarting us would not mend that."""
    return {"status": "ok"}


@router.get("/readyz", responses=examples.READY, dependencies=[PUBLIC])
async def get_readiness(request: Request) -> Response:
    """Store and index answer, and the index is trusted. Without the index reads go on; writes wait."""
    readiness = request.app.state.readiness
    assert isinstance(readiness, Readiness)
    parts = await readiness.parts()
    good = all(found == "ok" for found in parts.values())
    body = {"status": "ok" if good else "unavailable", "parts": parts}
    return JSONResponse(body, status_code=200 if good else 503, headers={} if good else {"Retry-After": "1"})


@router.get("/metrics", responses=examples.METRICS, response_class=Response, dependencies=[METRICS])
def get_metrics(request: Request) -> Response:
    """For Prometheus: what this process has counted, and what Redis says of queues and index."""
    content, media_type = exposition(request.headers.get("accept", ""))
    return Response(content, headers={"Cache-Control": "no-store", "Content-Type": media_type})


@router.get("/favicon.ico", include_in_schema=False, response_class=Response, dependencies=[PUBLIC])
async def get_favicon() -> Response:
    """The icon that browsers show beside the page of documentation."""
    headers = {"Cache-Control": "public, max-age=604800"}
    return Response(_ICON, headers=headers, media_type="image/x-icon")


class Readiness:
    """Looks at bucket and index for everybody who asks, and remembers for a moment what it found: anybody may
    ask, as often as he likes, and each look takes a thread and asks the bucket. One per process.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._look: asyncio.Task[dict[str, str]] | None = None
        self._looked_at = float("-inf")

    async def parts(self) -> dict[str, str]:
        """Each part, and `ok` or what is wrong with it."""
        old = time.monotonic() - self._looked_at > REMEMBERED_SECONDS
        if self._look is None or (self._look.done() and old):
            self._look = asyncio.create_task(self._look_now())
        return await asyncio.shield(self._look)  # whoever hangs up leaves it to the others

    async def _look_now(self) -> dict[str, str]:
        checks = _checks(self._services)
        found = {name: await run_in_threadpool(_state, check) for name, check in checks.items()}
        self._looked_at = time.monotonic()
        return found


def _checks(services: Services) -> dict[str, Callable[[], object]]:
    return {
        "store": services.registrar.store.check,
        "index": services.registrar.index.open,
    }


def _state(check: Callable[[], object]) -> str:
    try:
        check()
    except SpeakerRegistryError as error:
        return error.message
    return "ok"
