"""Restricts a registry without API keys to processes on this machine. Pure ASGI.

Without keys every request may do everything. So requests from web pages of other origins and requests
forwarded by a proxy are refused. A page can send forms to us from anywhere, although it cannot read the
answers. If its own name resolves to this machine (DNS rebinding), the browser treats it as our page. Both
cases are visible in headers that pages cannot set: Origin and Host. A proxy is visible only in the headers
that it adds.
"""

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.registry_api.protocol.error_answers import render
from services.shared.configuration.values import is_loopback
from speaker_registry.errors import PermissionDenied

_UNGUARDED_PATHS = frozenset({"/healthz", "/readyz"})
"""Health checks may come from anywhere. Their answers only show which part of the registry fails, and why."""
_FORWARDING_HEADERS = frozenset({"forwarded", "via", "x-real-ip", "cf-connecting-ip", "true-client-ip"})
_FORWARDING_PREFIX = "x-forwarded-"


class LocalOnly:
    """Middleware that refuses requests of other machines and other web pages.

    Args:
        origins: origins of web pages that may send requests nevertheless.
    """

    def __init__(self, app: ASGIApp, *, origins: Collection[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in _UNGUARDED_PATHS:
            headers = Headers(scope=scope)
            if refusal := _refusal_of(headers, self._origins):
                return await render(Request(scope), refusal)(scope, receive, send)
        return await self._app(scope, receive, send)


def _refusal_of(headers: Headers, origins: Collection[str]) -> PermissionDenied | None:
    host, origin = headers.get("host", ""), headers.get("origin")
    if not _is_local(f"//{host}"):
        return _refusal("Host", host, "localhost or a loopback address")
    if origin is not None and origin not in origins and not _is_local(origin):
        return _refusal("Origin", origin, "origins on this machine and those in SPEAKER_API_CORS_ORIGINS")
    for name, value in headers.items():
        if name in _FORWARDING_HEADERS or name.startswith(_FORWARDING_PREFIX):
            return _refusal(name, value, "requests that no proxy has forwarded")
    return None


def _is_local(url: str) -> bool:
    try:
        return is_loopback(urlsplit(url).hostname or "")
    except ValueError:  # not a URL
        return False


def _refusal(header: str, value: str, accepted: str) -> PermissionDenied:
    return PermissionDenied(
        f"{header} is {ascii(value)[:80]}; accepted without API keys: {accepted}. Set "
        "SPEAKER_AUTH_REQUIRED to require API keys instead.",
        param=header,
    )
