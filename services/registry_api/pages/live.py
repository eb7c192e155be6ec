"""Caches the live regions that open pages request every few seconds.

However many pages are open, a region is rendered at most once a second for all callers with the same scopes
and namespace.
"""

import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps

from cachetools import TTLCache
from fastapi import Request
from starlette.responses import HTMLResponse, Response

from services.registry_api.pages.rendering import LIVE, own_address
from services.registry_api.pages.sessions import session_of

_KEPT_SECONDS = 1.0
_MAX_BYTES = 8 * 1024**2
TOKEN = secrets.token_hex(32)
"""A placeholder in a cached region for the token of each session."""
_SCOPE_KEY = "page_region"
_Key = tuple[str, str, frozenset[str]]


def is_region(request: Request) -> bool:
    """Return whether the answer to a request is a cached region, and not a page."""
    return _SCOPE_KEY in request.scope


class LiveRegions:
    """A cache of recently rendered regions. Safe to use from several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lock = threading.Lock()
        self._kept: TTLCache[_Key, str] = TTLCache(_MAX_BYTES, _KEPT_SECONDS, monotonic, getsizeof=len)

    def find(self, key: _Key) -> str | None:
        with self._lock:
            return self._kept.get(key)

    def keep(self, key: _Key, text: str) -> None:
        with self._lock, suppress(ValueError):  # it is larger than the cache
            self._kept[key] = text


def live(route: Callable[..., Response]) -> Callable[..., Response]:
    """Decorate the route of a page whose live region depends on its address, the namespace and the caller's
    scopes alone. Forms in the region may carry the session's token.
    """

    @wraps(route)
    def answer(request: Request, **given: object) -> Response:
        if request.headers.get("hx-target") != LIVE:
            return route(request=request, **given)
        regions: LiveRegions = request.app.state.live_regions
        key = own_address(request), request.scope["namespace"], request.scope["caller"].scopes
        text = regions.find(key)
        if text is None:
            request.scope[_SCOPE_KEY] = True
            text = bytes(route(request=request, **given).body).decode()
            regions.keep(key, text)
        text = text.replace(TOKEN, session_of(request).token)
        return HTMLResponse(text, headers={"Cache-Control": "no-store"})

    return answer
