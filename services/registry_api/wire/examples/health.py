"""OpenAPI responses of the health checks and of the metrics."""

from pydantic import BaseModel

from services.registry_api.wire.examples.responses import COMMON, DENIED, Responses, json_answer


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: str
    version: str
    parts: dict[str, str]
    """Name of each part -> `ok`, or what is wrong with it."""
    details: dict[str, str] = {}
    """Name of each required profile that no worker serves -> what that means. Absent if there is none."""


HEALTH: Responses = {200: json_answer("The process is running.", {"status": "ok"}, Health)}

METRICS: Responses = {
    **DENIED,
    **COMMON,
    200: {
        "description": "The metrics in Prometheus' text format, or in OpenMetrics if `Accept` asks for it.",
        "content": {
            media_type: {
                "schema": {"type": "string"},
                "example": 'registry_build_info{version="0.1.0"} 1.0\n',
            }
            for media_type in ("text/plain", "application/openmetrics-text")
        },
    },
}

READY: Responses = {
    200: json_answer(
        "This process can serve requests.",
        {"status": "ok", "version": "0.1.0", "parts": {"store": "ok", "index": "ok"}},
        Readiness,
    ),
    503: json_answer(
        "This process cannot serve all requests: `parts` says why.",
        {"status": "unavailable", "version": "0.1.0", "parts": {"store": "ok", "index": "being rebuilt"}},
        Readiness,
    ),
}
