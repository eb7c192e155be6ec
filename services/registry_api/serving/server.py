"""The HTTP server under the application: uvicorn with additional deadlines. Knows no routes.

uvicorn's own time-outs begin after the first answer on a connection. Before that, and while the rest of a
body keeps coming that the application does not read, a client could hold a connection for ever.

This server also closes connections gently: it does not hang up on a client that is still sending, because the
TCP reset that follows can overtake the answer. It does not wait for ever for a client that reads nothing.
"""

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, cast

import h11
import structlog
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from services.registry_api.protocol.problems import envelope, render
from services.registry_api.protocol.signals import NO_ROUTE, OTHER_METHOD, RequestSignals
from services.registry_api.serving.limits import MAX_HEAD_BYTES, RequestIds
from services.shared.configuration.settings import ApiSettings
from services.shared.telemetry import metrics
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import InvalidRequest, Unavailable

log = structlog.get_logger()

HEAD_SECONDS = 10.0
"""A client may take this long to send a request's head, and this long to send the rest of its body once the
request is answered. After the server has stopped reading, what the client still sends is dropped for this
long before the connection is cut. A client that reads none of its answer for this long is cut off as well.
"""
_TLS_BEGINS = b"\x16\x03"
"""A handshake record of any version: RFC 8446, 5.1."""
_TLS_WARNING_SECONDS = 60.0
_tls_warnings = LogThrottle(_TLS_WARNING_SECONDS)
"""Limits the log lines about clients that speak HTTPS, by address."""


def server_config(
    app: FastAPI, settings: ApiSettings, *, head_seconds: float = HEAD_SECONDS
) -> uvicorn.Config:
    """Return uvicorn's configuration, in production and in tests."""

    class Http(DeadlineH11Protocol):
        pass

    Http.head_seconds = head_seconds
    Http.max_connections = settings.max_connections
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=Http,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
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


class LingeringTransport:
    """A transport whose `close` gives a client that is still sending the time to read the answer first.

    See RFC 9112, 9.6. The protocol must drop data that arrives meanwhile.
    """

    def __init__(
        self, transport: asyncio.Transport, still_sending: Callable[[], bool], max_seconds: float
    ) -> None:
        self._transport = transport
        self._still_sending = still_sending
        self._max_seconds = max_seconds
        self._end: asyncio.TimerHandle | None = None
        self._read_check: asyncio.TimerHandle | None = None
        self._written = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    @property
    def lingers(self) -> bool:
        return self._end is not None

    def is_closing(self) -> bool:
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close when the client hangs up, at the latest after `max_seconds`; at once if it sends nothing."""
        if self.is_closing():
            return
        self.expect_reading()
        if not self._still_sending():
            self._transport.close()
            return
        self._transport.write_eof()
        self._transport.resume_reading()
        self._end = asyncio.get_running_loop().call_later(self._max_seconds, self._transport.abort)

    def write(self, data: bytes) -> None:
        self._written += len(data)
        self._transport.write(data)

    def expect_reading(self) -> None:
        """Abort the connection if the client reads nothing for `max_seconds` while data waits to be read."""
        if self._read_check is None:
            self._check_reading_later()

    def _check_reading_later(self) -> None:
        left = self._transport.get_write_buffer_size()
        loop, sent = asyncio.get_running_loop(), self._written - left
        self._read_check = loop.call_later(self._max_seconds, self._check_reading, sent) if left else None

    def _check_reading(self, sent: int) -> None:
        if self._written - self._transport.get_write_buffer_size() > sent:
            self._check_reading_later()
        else:
            self._transport.abort()

    def close_at_once(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._transport.close()


class DeadlineH11Protocol(H11Protocol):
    """One connection, with deadlines.

    Based on h11, because uvicorn's faster parser accepts headers of any size.
    """

    head_seconds = HEAD_SECONDS
    max_connections = 1000
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering_transport = LingeringTransport(transport, self._still_sending, self.head_seconds)
        super().connection_made(cast(asyncio.Transport, self._lingering_transport))
        if len(self.connections) > self.max_connections:
            self.app = RequestIds(RequestSignals(self._refuse_connection))
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        if self._lingering_transport.lingers:
            return
        begins = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if begins and data.startswith(_TLS_BEGINS):
            self._refuse_tls()
            return
        super().data_received(data)
        self._update_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is not h11.IDLE or self.conn.trailing_data[0]:
            self._update_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._lingering_transport.expect_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._lingering_transport.close_at_once()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self._lingering_transport.lingers:
            self._lingering_transport.close_at_once()

    def _still_sending(self) -> bool:
        """Return whether the client is, or may be, sending something that has not been read to its end."""
        return self.conn.their_state in {h11.SEND_BODY, h11.ERROR} or bool(self.conn.trailing_data[0])

    async def _refuse_connection(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = Unavailable(
            f"{self.max_connections} connections are open, which is the limit. Try again in a moment.",
            retry_after_seconds=1,
        )
        response = render(Request(scope), error)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)

    def _update_deadline(self) -> None:
        """Set a deadline while the server waits for the client, and none while the application answers."""
        answered = self.cycle is None or self.cycle.response_complete
        if not answered or self.transport.is_closing():
            self._cancel_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._deadline_passed)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _deadline_passed(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            self._refuse(
                HTTPStatus.REQUEST_TIMEOUT,
                f"The request's head did not arrive within {self.head_seconds:g} s.",
            )
        else:
            self._lingering_transport.close_at_once()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn has one sentence for everything
        self._refuse(
            HTTPStatus.BAD_REQUEST,
            f"The request is not valid HTTP/1.1. Accepted: a head of up to {MAX_HEAD_BYTES} bytes, one "
            "Content-Length of digits or one Transfer-Encoding: chunked, and no control characters.",
        )

    def _refuse_tls(self) -> None:
        """Answer a client that speaks HTTPS. It cannot read the answer, so the log tells the operator."""
        address = self.client[0] if self.client else None
        if _tls_warnings.due(address):
            log.warning(
                "connection.speaks_https",
                address=address,
                reason="this port speaks HTTP: the client must use http://, or a proxy must end TLS in front",
            )
        self._refuse(HTTPStatus.BAD_REQUEST, "This port speaks HTTP, not HTTPS.")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer in place of the application, which never saw the request, and hang up."""
        if self.conn.our_state in {h11.IDLE, h11.SEND_RESPONSE}:
            metrics.HTTP_REQUESTS.labels(NO_ROUTE, OTHER_METHOD, str(int(status))).inc()
            body = envelope(InvalidRequest(message), status)
            headers = [("content-type", "application/json"), ("connection", "close")]
            headers.append(("content-length", str(len(body))))
            response = h11.Response(status_code=status, headers=headers, reason=status.phrase)
            for event in (response, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # the application's answer can no longer be sent
            self.cycle.message_event.set()
        self.transport.close()
