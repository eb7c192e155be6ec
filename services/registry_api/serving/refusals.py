"""Answers that a connection sends in place of the application, to surplus connections and invalid HTTP."""

from http import HTTPStatus

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from services.registry_api.protocol.error_answers import envelope, render
from services.registry_api.protocol.routing import MONITORING_PATHS
from services.registry_api.protocol.signals import BUSY, NO_ROUTE, OTHER_METHOD, RequestSignals
from services.registry_api.serving.limits import MAX_HEAD_BYTES, RequestIds
from services.shared.telemetry import metrics
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import InvalidRequest, Unavailable

log = structlog.get_logger()

NOT_HTTP = (
    f"The request is not valid HTTP/1.1. Accepted: a known method, a head of up to {MAX_HEAD_BYTES} bytes, "
    "one Content-Length (a number below 2^64 in up to 20 digits) or Transfer-Encoding: chunked with up to "
    f"{MAX_HEAD_BYTES} bytes of chunk extensions and trailers, and no control characters."
)
NOT_HTTPS = "This port speaks HTTP, not HTTPS."
TLS_BEGINS = b"\x16\x03"
"""A handshake record of any version: RFC 8446, 5.1."""
_TLS_WARNING_SECONDS = 60.0
_tls_warnings = LogThrottle(_TLS_WARNING_SECONDS)
"""Limits the log lines about clients that speak HTTPS, by address."""


class OnlyMonitoring:
    """The application of a surplus connection: answers health checks, and refuses everything else."""

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit
        self._refusing = RequestIds(RequestSignals(self._refuse))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in MONITORING_PATHS:
            return await self._app(scope, receive, send)
        return await self._refusing(scope, receive, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = Unavailable(
            f"{self._limit} connections are open, which is the limit. Try again in a moment.",
            retry_after_seconds=1,
        )
        scope[BUSY] = True
        response = render(Request(scope), error)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


def note_tls(address: str | None) -> None:
    """Log that a client speaks HTTPS. It cannot read the answer, so the log tells the operator."""
    if _tls_warnings.due(address):
        log.warning(
            "connection.speaks_https",
            address=address,
            reason="this port speaks HTTP: the client must use http://, or a proxy must end TLS in front",
        )


def refusal(status: HTTPStatus, message: str) -> bytes:
    """Return the answer to a request that the application never saw, and count it."""
    metrics.HTTP_REQUESTS.labels(NO_ROUTE, OTHER_METHOD, str(int(status))).inc()
    body = envelope(InvalidRequest(message), status)
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body
