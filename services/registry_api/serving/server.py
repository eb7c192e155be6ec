"""The HTTP server under the application: uvicorn with connections of our own. This module knows no routes."""

from collections.abc import Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from services.registry_api.serving.connection_table import ConnectionTable
from services.registry_api.serving.connections import HEAD_SECONDS, HttpConnection
from services.registry_api.serving.lane_access import Lane
from services.shared.configuration.api import ApiSettings

_SCHEME = b"x-forwarded-proto"


def server_config(
    app: FastAPI, settings: ApiSettings, *, lane: Lane | None = None, head_seconds: float = HEAD_SECONDS
) -> uvicorn.Config:
    """Return uvicorn's configuration, in production and in tests.

    Args:
        lane: answers some requests instead of the application.
        head_seconds: see `HEAD_SECONDS`.
    """

    class Http(HttpConnection):
        pass

    Http.head_seconds = head_seconds
    Http.lane = lane
    Http.table = ConnectionTable(settings.max_connections)
    return uvicorn.Config(
        behind_proxies(app, settings.trusted_proxies) if settings.trusted_proxies else app,
        host=settings.host,
        port=settings.port,
        http=Http,
        ws="none",
        lifespan="on",
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        server_header=False,
        proxy_headers=False,  # see `behind_proxies`
        log_config=None,
        access_log=False,
    )


def behind_proxies(app: Any, trusted: Sequence[str]) -> Any:
    """Return the ASGI application with the addresses and schemes of callers that these proxies name.

    uvicorn accepts only one scheme in lower case. Proxies also write `HTTPS`, and each of several may add its
    own: the first in `https, http` is that of the caller.
    """
    believing = ProxyHeadersMiddleware(app, list(trusted))

    async def with_one_scheme(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["headers"] = _with_one_scheme(scope["headers"])
        await believing(scope, receive, send)  # type: ignore[arg-type]  # uvicorn has types of its own

    return with_one_scheme


def _with_one_scheme(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    sent = b",".join(value for name, value in headers if name == _SCHEME)
    if not sent:
        return headers
    kept = [(name, value) for name, value in headers if name != _SCHEME]
    return [*kept, (_SCHEME, sent.partition(b",")[0].strip().lower())]
