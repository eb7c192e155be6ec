"""Is the process alive, and can it serve? `/readyz` says which part fails, `/metrics` how it has been."""

from collections.abc import Callable

import structlog
from fastapi import Request
from starlette.responses import JSONResponse, Response

from services.registry_api import examples
from services.registry_api.routing import Router
from services.registry_api.rules import METRICS, PUBLIC
from services.registry_api.wiring import Services, ServicesDep
from services.shared.metrics import exposition
from speaker_registry.errors import SpeakerRegistryError, Unavailable

log = structlog.get_logger()

router = Router(tags=["health"])


@router.get("/healthz", responses=examples.HEALTH, dependencies=[PUBLIC])
async def healthz() -> dict[str, str]:
    """The event loop runs. Says nothing about what it depends on: restarting us would not mend that."""
    return {"status": "ok"}


@router.get("/readyz", responses=examples.READY, dependencies=[PUBLIC])
def readyz(services: ServicesDep) -> Response:
    """Store and index answer, and the index is trusted. Without the index reads go on; writes wait."""
    faults = {name: fault for name, check in _checks(services).items() if (fault := _fault(check))}
    parts = {name: faults.get(name, "ok") for name in _checks(services)}
    body = {"status": "unavailable" if faults else "ok", "parts": parts}
    headers = {"Retry-After": "1"} if faults else {}
    return JSONResponse(body, status_code=503 if faults else 200, headers=headers)


@router.get("/metrics", responses=examples.METRICS, response_class=Response, dependencies=[METRICS])
def metrics(request: Request) -> Response:
    """For Prometheus: what this process has counted, and what Redis says of queues and index."""
    content, media_type = exposition(request.headers.get("accept", ""))
    return Response(content, headers={"Cache-Control": "no-store", "Content-Type": media_type})


def _checks(services: Services) -> dict[str, Callable[[], None]]:
    return {
        "store": services.registrar.store.check,
        "index": lambda: _check_gate(services),
    }


def _check_gate(services: Services) -> None:
    if not services.registrar.index.gate_open():
        raise Unavailable("being rebuilt")


def _fault(check: Callable[[], None]) -> str | None:
    try:
        check()
    except SpeakerRegistryError as error:
        return error.message
    return None
