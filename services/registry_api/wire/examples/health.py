"""OpenAPI responses of the health checks and of the metrics."""

from pydantic import BaseModel

from services.registry_api.wire.examples.responses import COMMON, DENIED, Responses, json_answer


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: str
    parts: dict[str, str]
    """`ok`, or what is wrong with it."""


HEALTH: Responses = {200: json_answer("Alive.", {"status": "ok"}, Health)}

METRICS: Responses = {
    **DENIED,
    **COMMON,
    200: {
        "description": "In the text format of Prometheus, or as OpenMetrics for who asks for that.",
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
    200: json_answer("Can serve.", {"status": "ok", "parts": {"store": "ok", "index": "ok"}}, Readiness),
    503: json_answer(
        "Cannot.", {"status": "unavailable", "parts": {"store": "ok", "index": "being rebuilt"}}, Readiness
    ),
}
