"""Rules of routing: every GET route answers HEAD as well, a trailing slash redirects to the path without it,
and query parameters that a route does not take are refused, and so are repeated fields of JSON bodies.

This module knows only those routes that middleware must distinguish from others.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from services.registry_api.protocol.parameters import JsonRoute, OnlyKnownParameters

PAGES = "/dashboard"
"""The path of the pages for people, and the prefix of all their paths."""
_UPLOADS = re.compile(
    rf"(?P<native>/v1/voices(?:/[^/]+/versions)?)|/v1/audio/voices|{PAGES}/voices", re.DOTALL
)
"""Matches the paths of the routes that take clips by POST."""
_RESTORED = re.compile(r"/v1/voices/[^/]+/versions/[^/]+", re.DOTALL)
"""Matches the path of the route that takes a clip by PUT."""
_FILES = re.compile(r"/v1/voices/[^/]+/versions/[^/]+/artifacts/[^/]+", re.DOTALL)
"""Matches the paths of the routes that take a file as the body, all of them by PUT."""
RESOLVE = "/v1/resolve"
"""The path of the one POST that is answered from memory, and whose JSON body may be large. Engines repeat it
for the same voices.
"""
SIGN_IN = ("POST", f"{PAGES}/login")
"""Method and path of the route that takes a key in its body, so that requests need none in their heads."""
MONITORING_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths that monitoring requests every few seconds."""


def is_page(path: str) -> bool:
    return path == PAGES or path.startswith(f"{PAGES}/")


def sent_path(scope: Scope) -> bytes:
    """Return the path of a request as the client has sent it, before escapes are decoded."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    return path


def clip_field_of(scope: Scope) -> str | None:
    """Return the name of the form field that holds the clip, or None if the route takes no clip."""
    if scope["method"] == "PUT" and _RESTORED.fullmatch(scope["path"]):
        return "audio"
    matched = _UPLOADS.fullmatch(scope["path"]) if scope["method"] == "POST" else None
    if matched is None:
        return None
    return "audio" if matched["native"] else "audio_sample"


def takes_file(scope: Scope) -> bool:
    """Return whether the body of a request is a file."""
    return scope["method"] == "PUT" and _FILES.fullmatch(scope["path"]) is not None


class Router(APIRouter):
    """A router whose GET routes answer HEAD as well, and which refuses unknown query parameters and repeated
    fields of JSON bodies.

    HEAD calls the same function, and the server leaves the body out. It is not in the OpenAPI document.

    Args:
        any_query: ignore query parameters that a route does not take, instead of refusing them.
    """

    def __init__(self, *, any_query: bool = False, **options: Any) -> None:
        super().__init__(route_class=JsonRoute, **options)
        self._any_query = any_query
        self._beginning = self.prefix.partition("{")[0]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Look for the route of a request, unless its path begins differently from all of this router's.

        FastAPI compares a path with each route of each router in turn. The routers of the pages come last, so
        comparing took almost half of the time of a request for a page.
        """
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return super().matches(scope) if path.startswith(self._beginning) else (Match.NONE, {})

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        self._add(path, endpoint, options)
        if options.get("methods") == ["GET"]:
            undocumented = {"methods": ["HEAD"], "include_in_schema": False, "responses": {}}
            self._add(path, endpoint, {**options, **undocumented})

    def _add(self, path: str, endpoint: Callable[..., Any], options: dict[str, Any]) -> None:
        if self._any_query:
            super().add_api_route(path, endpoint, **options)
            return
        check = OnlyKnownParameters()
        # This comes after the route's rule, so that callers without a key learn that first. It comes before
        # the rest, so that a refused request does not count as an upload, and waits for neither a decoder nor
        # the bucket.
        given = options.get("dependencies") or []
        dependencies = [*given[:1], Depends(check), *given[1:]]
        super().add_api_route(path, endpoint, **{**options, "dependencies": dependencies})
        made = self.routes[-1]
        assert isinstance(made, APIRoute)
        check.learn(made)


class TrailingSlashes:
    """Redirects `/path/` to `/path` (307: with the same method and body) where a route has that path.

    The address in the answer is relative. So it stays on the host, the scheme and the prefix that the client
    used, however many proxies are in between, and no Host header can lead elsewhere.
    """

    def __init__(self, app: ASGIApp, *, routes: Callable[[], Sequence[BaseRoute]]) -> None:
        self._app = app
        self._routes = routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: bytes = scope.get("raw_path") or b""
        if scope["type"] == "http" and path.endswith(b"/") and self._is_route_without_slash(scope):
            *_, last, _ = path.split(b"/")
            query = b"?" + scope["query_string"] if scope["query_string"] else b""
            location = (b"../" + last + query).decode("latin-1")
            return await Response(status_code=307, headers={"Location": location})(scope, receive, send)
        return await self._app(scope, receive, send)

    def _is_route_without_slash(self, scope: Scope) -> bool:
        shorter = {**scope, "path": scope["path"][:-1], "raw_path": scope["raw_path"][:-1]}
        if not shorter["path"] or shorter["path"].endswith("/"):
            return False
        return any(route.matches(shorter)[0] is not Match.NONE for route in self._routes())
