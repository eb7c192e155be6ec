"""Answers open pages, which request their live regions every few seconds, from a cache.

However many pages are open, a region is rendered at most every two seconds for all callers with the same
scopes and namespace. A region that is kept is sent before the request is routed, because routing would take
most of the time.
"""

import secrets
from collections.abc import Callable
from functools import wraps

from fastapi import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.registry_api.access.rules import access_of, authenticate, count_request
from services.registry_api.pages.parts import page_parts_of
from services.registry_api.pages.rendering import LIVE
from services.registry_api.pages.sessions import session_of
from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.routing import is_page
from speaker_registry.errors import SpeakerRegistryError

TOKEN = secrets.token_hex(32)
"""A placeholder in a cached region for the token of each session."""
_SCOPE_KEY = "page_region"


def is_region(request: Request) -> bool:
    """Return whether the answer to a request is a cached region, and not a page."""
    return _SCOPE_KEY in request.scope


class KeptRegionsFirst:
    """Middleware that answers a request for a region with the kept one, if there is one.

    The key of the request is checked and the request is counted, as its route would do. A route that keeps
    regions must accept each caller with the same scopes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or not is_page(scope["path"]):
            return await self._app(scope, receive, send)
        request = Request(scope)
        if not _wants_region(request):
            return await self._app(scope, receive, send)
        try:
            await authenticate(access_of(request), scope)
            kept = page_parts_of(request).live_regions.find(request)
            if kept is not None:
                await count_request(request)
        except SpeakerRegistryError as error:
            return await render(request, error)(scope, receive, send)
        if kept is None:
            return await self._app(scope, receive, send)
        scope["route"] = kept.route
        return await _answer(request, kept.text)(scope, receive, send)


def live(route: Callable[..., Response]) -> Callable[..., Response]:
    """Decorate the route of a page whose live region depends on its address, the namespace and the caller's
    scopes alone. Forms in the region may carry the session's token.
    """

    @wraps(route)
    def answer(request: Request, **given: object) -> Response:
        if not _wants_region(request):
            return route(request=request, **given)
        request.scope[_SCOPE_KEY] = True
        text = bytes(route(request=request, **given).body).decode()
        page_parts_of(request).live_regions.keep(request, text)
        return _answer(request, text)

    return answer


def _wants_region(request: Request) -> bool:
    return request.headers.get("hx-target") == LIVE


def _answer(request: Request, text: str) -> Response:
    text = text.replace(TOKEN, session_of(request).token)
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})
