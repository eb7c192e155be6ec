"""Routers whose every GET answers HEAD too, as RFC 9110 wants it. Knows no routes but those that are treated
unlike others before they are reached.
"""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter

UPLOAD = ("POST", "/v1/audio/voices")
"""Method and path of the route that takes clips."""
WATCHING = frozenset({"/healthz", "/readyz", "/metrics"})
"""Asked every few seconds, by machines that watch us."""


class Router(APIRouter):
    """HEAD is answered by the same function, of whose answer the server leaves the body out. It is not in the
    OpenAPI document.
    """

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().add_api_route(path, endpoint, **options)
        if options.get("methods") == ["GET"]:
            super().add_api_route(
                path, endpoint, **{**options, "methods": ["HEAD"], "include_in_schema": False}
            )
