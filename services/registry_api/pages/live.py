"""Caches the live regions that open pages request every few seconds.

However many pages are open, a region is rendered at most every two seconds for all callers with the same
scopes and namespace. A region that is kept is sent before the request is routed, because routing would take
most of the time.
"""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

from cachetools import TTLCache
from fastapi import Request
from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from services.registry_api.access.rules import access_of, authenticate, count_request
from services.registry_api.pages.rendering import LIVE, own_address
from services.registry_api.pages.sessions import session_of
from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.routing import is_page
from speaker_registry.errors import SpeakerRegistryError

_KEPT_SECONDS = 2.0
_MAX_BYTES = 8 * 1024**2
TOKEN = secrets.token_hex(32)
"""A placeholder in a cached region for the token of each session."""
_SCOPE_KEY = "page_region"
_Key = tuple[str, str, frozenset[str]]


def is_region(request: Request) -> bool:
    """Return whether the answer to a request is a cached region, and not a page."""
    return _SCOPE_KEY in request.scope


@dataclass(frozen=True, slots=True)
class KeptRegion:
    """A rendered region, and the route that rendered it."""

    text: str
    route: Any

    def __len__(self) -> int:
        return len(self.text)


class LiveRegions:
    """A cache of recently rendered regions. Safe to use from several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._kept: TTLCache[_Key, KeptRegion] = TTLCache(_MAX_BYTES, _KEPT_SECONDS, monotonic, getsizeof=len)

    def find(self, request: Request) -> KeptRegion | None:
        with self._lock:
            return self._kept.get(_key_of(request))

    def keep(self, request: Request, text: str) -> None:
        kept = KeptRegion(text, request.scope["route"])
        with self._lock, suppress(ValueError):  # it is larger than the cache
            self._kept[_key_of(request)] = kept


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
            kept = _regions_of(request).find(request)
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
        _regions_of(request).keep(request, text)
        return _answer(request, text)

    return answer


def _wants_region(request: Request) -> bool:
    return request.headers.get("hx-target") == LIVE


def _regions_of(request: Request) -> LiveRegions:
    regions: LiveRegions = request.app.state.live_regions
    return regions


def _key_of(request: Request) -> _Key:
    return own_address(request), request.scope["namespace"], request.scope["caller"].scopes


def _answer(request: Request, text: str) -> Response:
    text = text.replace(TOKEN, session_of(request).token)
    return HTMLResponse(text, headers={"Cache-Control": "no-store"})
