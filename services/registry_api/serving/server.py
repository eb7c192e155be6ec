"""The HTTP server under the application: uvicorn with connections of our own. This module knows no routes."""

import uvicorn
from fastapi import FastAPI

from services.registry_api.serving.connection_table import ConnectionTable
from services.registry_api.serving.connections import HEAD_SECONDS, HttpConnection
from services.registry_api.serving.lane_access import Lane
from services.shared.configuration.api import ApiSettings


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
        app,
        host=settings.host,
        port=settings.port,
        http=Http,
        ws="none",
        lifespan="on",
        timeout_keep_alive=settings.keep_alive_seconds,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        log_config=None,
        access_log=False,
    )
