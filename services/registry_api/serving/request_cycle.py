"""Carries one request from a connection to the application, with uvicorn's classes and our additions to them.

These classes are internals of uvicorn, and `tests/unit/test_uvicorn_internals.py` checks what is expected of
them.
"""

import asyncio
from typing import Any, Self
from urllib.parse import unquote

import httptools
from starlette.requests import Request
from starlette.types import Receive, Scope, Send
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.registry_api.protocol.error_answers import render_crash
from services.registry_api.serving.lane_access import Offer


class Flow(FlowControl):
    """Flow control that can also pause reading, whatever the application wants to read."""

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__(transport)
        self._held = False

    def resume_reading(self) -> None:
        if not self._held:
            super().resume_reading()

    def hold(self) -> None:
        self._held = True
        self.pause_reading()

    def let_go(self) -> None:
        if self._held:
            self._held = False
            self.resume_reading()


_BEFORE_1_1 = frozenset({"1.0", "0.9"})


class Cycle(RequestResponseCycle):
    """A request and its answer. The connection ends after an answer that leaves part of the body unread, and
    after each answer to a client of an HTTP version before 1.1.
    """

    offer: Offer | None = None
    _ends_with_connection = False
    """True if the end of the connection is the end of the answer's body (RFC 9112, 6.3)."""

    async def run_asgi(self, app: Any) -> None:
        """Run the application. If it is canceled in the middle of its answer, the connection is closed, so
        that the client notices that the rest is missing. uvicorn would also log an error with a traceback.
        """

        async def cut_off_when_canceled(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                await app(scope, receive, send)
            except asyncio.CancelledError:
                if not self.response_started:
                    raise
                give_up(self)
                self.transport.close()

        await super().run_asgi(cut_off_when_canceled)  # type: ignore[arg-type]  # uvicorn has types of its own

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            if self.more_body:
                self.keep_alive = False
            if self.scope["http_version"] in _BEFORE_1_1 and not _has_length(message):
                self._ends_with_connection, self.chunked_encoding = True, False
        elif self._ends_with_connection:
            self.expected_content_length = len(message.get("body", b""))
        if self.offer is not None:
            self.offer.observe_message(message)
        await super().send(message)

    async def send_500_response(self) -> None:
        """Answer a failure outside of the application's own error handling as the application would."""
        await render_crash(Request(self.scope))(self.scope, self.receive, self.send)  # type: ignore[arg-type]

    @classmethod
    def of(cls, connection: HttpToolsProtocol, *, keep_alive: bool, offer: Offer | None) -> Self:
        """Return the cycle for the request whose head the connection has just parsed."""
        cycle = cls(
            scope=connection.scope,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=connection.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=connection.expect_100_continue,
            keep_alive=keep_alive,
            on_response=connection.on_response_complete,
        )
        cycle.offer = offer
        return cycle


def _has_length(message: Any) -> bool:
    return any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))


def give_up(cycle: RequestResponseCycle) -> None:
    """Tell the application that its answer can no longer be sent."""
    cycle.disconnected = True
    cycle.message_event.set()


def scope_of(connection: HttpToolsProtocol) -> HTTPScope:
    """Return the scope of the request whose head the connection has just parsed."""
    url = httptools.parse_url(connection.url)
    raw_path = url.path or b"/"  # an address without a path, such as `http://host`: RFC 9112, 3.2.2
    path = raw_path.decode("ascii")
    return {
        "type": "http",
        "asgi": {"version": connection.asgi_version, "spec_version": "2.3"},
        "http_version": connection.parser.get_http_version(),
        "server": connection.server,
        "client": connection.client,
        "scheme": "https" if connection.scheme == "https" else "http",
        "root_path": connection.root_path,
        "headers": connection.headers,
        "state": connection.app_state.copy(),
        "method": connection.parser.get_method().decode("ascii"),
        "path": unquote(path) if "%" in path else path,
        "raw_path": raw_path,
        "query_string": url.query or b"",
    }


def stays_open(parser: httptools.HttpRequestParser) -> bool:
    """Return whether the connection stays open after the answer, unless a body is left unread.

    False for clients of an HTTP version before 1.1, which would need a header that says so.
    """
    return parser.should_keep_alive() and parser.get_http_version() not in _BEFORE_1_1
