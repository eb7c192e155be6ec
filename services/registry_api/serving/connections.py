"""One connection of an HTTP/1.1 client: uvicorn's protocol on httptools, with bounds and deadlines.

httptools takes heads of any size and parses all requests of a read at once, and uvicorn's own time-outs begin
after the first answer. So this protocol counts a head while it arrives, leaves what follows an unanswered
request unparsed, and sets a deadline whenever the server waits for the client. A body in tiny pieces is read
a few pieces at a time, so that it takes no more of the event loop than others. Knows no routes.

The methods overridden here are uvicorn's internals, so the dependency is pinned to a minor version, and
`tests/unit/test_uvicorn_internals.py` says what is expected of it.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from http import HTTPStatus
from typing import Any, Protocol, cast
from urllib.parse import unquote

import httptools
import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn._types import HTTPScope
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.registry_api.protocol.callers import address_of
from services.registry_api.protocol.error_answers import envelope, render
from services.registry_api.protocol.routing import MONITORING_PATHS
from services.registry_api.protocol.signals import NO_ROUTE, OTHER_METHOD, RequestSignals
from services.registry_api.serving.connection_table import ConnectionTable
from services.registry_api.serving.limits import MAX_HEAD_BYTES, RequestIds
from services.registry_api.serving.lingering import LingeringTransport
from services.shared.telemetry import metrics
from services.shared.telemetry.logs import LogThrottle
from speaker_registry.errors import InvalidRequest, Unavailable

log = structlog.get_logger()

HEAD_SECONDS = 10.0
"""A client may take this long to send a request's head, and this long to send the rest of its body once the
request is answered. After the server has stopped reading, what the client still sends is dropped for this
long before the connection is cut. A client that reads none of its answer for this long is cut off as well.
"""
_SLICE_BYTES, _CHUNKS_SLICE_BYTES = 1024, 4096
"""This much is parsed at once, and of a body in chunks this much. At most the requests in one slice are held,
however many a client sends ahead.
"""
_PACE_SECONDS = 0.01
_MAX_PIECES = 250
"""The pieces of bodies that are read from one connection in `_PACE_SECONDS`."""
_SMALL_READ_BYTES, _SMALL_READ_PIECES = 4096, 50
"""A read of fewer bytes counts as so many pieces, since it wakes the application as a large one does."""
_MAX_HELD_BYTES = 65_536
"""The lane waits for bodies of up to this size, and only if they come in one read with their heads."""
_LENGTH_DIGITS = 20
"""A longer Content-Length is refused. The parser accepts any number of zeros before the number."""
_MAX_AT_ONCE = 64
"""Other connections have their turn after this many answers of the lane to one client."""
OFFER = "express"
"""Key in a request's scope that holds the lane's offer, or None."""
_ANSWERED = object()
_TLS_BEGINS = b"\x16\x03"
"""A handshake record of any version: RFC 8446, 5.1."""
_TLS_WARNING_SECONDS = 60.0
_tls_warnings = LogThrottle(_TLS_WARNING_SECONDS)
"""Limits the log lines about clients that speak HTTPS, by address."""


Headers = Sequence[tuple[bytes, bytes]]


class Offer(Protocol):
    """Wants to see the answer that the application gives to a request."""

    def observe_message(self, message: Message) -> None: ...


class Lane(Protocol):
    """Answers some requests without the application."""

    def wants_body(self, method: bytes, target: bytes) -> bool: ...

    def question(self, method: bytes, target: bytes, headers: Headers, body: bytes | None = None) -> Any: ...

    def remember(self, head: bytes, question: Any) -> None: ...

    def recall(self, head: bytes) -> Any: ...

    def answer(self, question: Any, default_headers: Headers) -> tuple[bytes, bytes] | Offer | None: ...


class _Reading(Enum):
    """Says what the client is sending."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"
    REFUSED = "refused"
    """Something that is not HTTP, or not accepted. Nothing more is parsed."""


class _Awaited(Enum):
    """Says what the server waits for."""

    HEAD = "head"
    REST = "rest of an answered request"
    REQUEST = "next request"


class _Flow(FlowControl):
    """Flow control that can also hold reading, whatever the application wants to read."""

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


class _OnlyMonitoring:
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
        response = render(Request(scope), error)
        response.headers["Connection"] = "close"
        await response(scope, receive, send)


class _Cycle(RequestResponseCycle):
    """A request and its answer. The connection ends after an answer that leaves part of the body unread."""

    offer: Offer | None = None

    async def send(self, message: Any) -> None:
        if self.more_body and message["type"] == "http.response.start":
            self.keep_alive = False
        if self.offer is not None:
            self.offer.observe_message(message)
        await super().send(message)


class HttpConnection(HttpToolsProtocol):
    """The protocol of one connection. `server_config` sets the class attributes."""

    head_seconds = HEAD_SECONDS
    table: ConnectionTable
    lane: Lane | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading = _Reading.NOTHING
        self._began = False
        """True if a request began in the slice that is being parsed."""
        self._head_bytes = 0
        self._body_left = 0
        """The bytes of a body of known length that have not come yet."""
        self._held: bytearray | None = None
        """The part that has come of a body. The lane waits for it until the end of the present read."""
        self._unparsed = b""
        """The bytes behind a request that is still waiting for the answer of the one before it."""
        self._current: RequestResponseCycle | None = None
        """The request that is being answered, or was answered last."""
        self._refusal: tuple[HTTPStatus, str] | None = None
        """The refusal of what follows the current request, to be sent once that is answered."""
        self._awaited: _Awaited | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._at_once = 0
        """The requests that the lane has answered since other connections had their turn."""
        self._by_lane = False
        """True if the lane has answered the request whose end is being parsed."""
        self._question: Any = None
        """The question that the lane was asked last."""
        self._offer: Offer | None = None
        """The lane's offer for the request that is about to be parsed. The lane is not asked twice."""
        self._requests = 0
        """The requests that began in the present read."""
        self._answers = False
        """True once a request was answered, or is being answered."""
        self._pieces = 0
        self._pieces_since = 0.0
        self._paced = False

    # -- the life of the connection --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = LingeringTransport(transport, self._still_sending, self.head_seconds)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self.flow = self._flow = _Flow(self.transport)
        if not self.table.admit(self, address_of(self.client[0] if self.client else "")):
            self.app = _OnlyMonitoring(self.app, self.table.limit)
            self.lane = None
        self._expect(_Awaited.HEAD, self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self._awaited = None
        if self._timer is not None:
            self._timer.cancel()
        self._lingering.close_at_once()
        if self._current is not None and self._current is not self.cycle:
            self._give_up(self._current)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self._lingering.lingers:
            self._lingering.close_at_once()

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered: closing the connection loses nothing."""
        return self._is_answered()

    def give_way(self) -> None:
        """Close the idle connection, because another one needs its place."""
        self._lingering.close_at_once()

    def _is_answered(self) -> bool:
        return (self._current is None or self._current.response_complete) and not self.pipeline

    def _still_sending(self) -> bool:
        """Return whether the client is, or may be, sending something that has not been read to its end."""
        return self._reading in {_Reading.BODY, _Reading.REFUSED} or bool(self._unparsed)

    # -- what arrives --

    def data_received(self, data: bytes) -> None:
        if self._lingering.lingers or self._reading is _Reading.REFUSED:
            return
        if self._reading is _Reading.NOTHING and data.startswith(_TLS_BEGINS):
            self._refuse_tls()
            return
        self._at_once = self._requests = 0
        begins = self._reading is _Reading.NOTHING and not self._unparsed
        if begins and self._answer_again(data):
            return
        if len(data) < _SMALL_READ_BYTES and self._reading is not _Reading.NOTHING:
            self._pieces += _SMALL_READ_PIECES
        self._parse(self._unparsed + data)
        if begins and self._at_once == self._requests == 1 and self._is_between_requests():
            self._remember(data)
        self._update_deadline()

    def _answer_again(self, data: bytes) -> bool:
        """Have the lane answer a request that came before, byte for byte, without parsing it again."""
        question = self.lane.recall(data) if self.lane is not None else None
        if question is None or not self._lane_is_open():
            return False
        answer = self._answer_by_lane(question)
        if answer is not _ANSWERED:
            self._offer = answer
            return False
        self._awaited = None
        self._update_deadline()
        return True

    def _is_between_requests(self) -> bool:
        return self._reading is _Reading.NOTHING and not self._unparsed and self._is_answered()

    def _remember(self, data: bytes) -> None:
        """Remember what was read as one request without a body, which the lane has answered."""
        if self.lane is not None and len(data) <= _SLICE_BYTES and self._body_left == 0:
            self.lane.remember(data, self._question)

    def _parse(self, data: bytes) -> None:
        """Parse slice by slice, until a request waits for another one, or too many pieces came at once."""
        self._parse_slices(data)
        if self._held is not None:
            self._begin_request(None)
        if self.cycle is not None and self.cycle.body:
            self.cycle.message_event.set()

    def _parse_slices(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not (self.pipeline or self._reading is _Reading.REFUSED or self._paces()):
            size = _SLICE_BYTES
            if self._reading is _Reading.BODY:
                size = self._body_left or _CHUNKS_SLICE_BYTES
            self._parse_slice(data[start : start + size])
            start += size
        self._unparsed = b"" if self._reading is _Reading.REFUSED else data[start:]
        if self._unparsed or self._paces():
            self._flow.hold()
        else:
            self._flow.let_go()

    def _parse_slice(self, data: bytes) -> None:
        self._began = False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserCallbackError) and not _is_of_parser(error.__context__):
                raise  # a mistake of ours, which asyncio logs
            self._refuse(HTTPStatus.BAD_REQUEST, _NOT_HTTP)
        if self._reading is _Reading.HEAD:
            self._head_bytes = len(data) + (0 if self._began else self._head_bytes)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(HTTPStatus.BAD_REQUEST, _NOT_HTTP)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request once more without its wish for another protocol, since a parser ends there.

        A server may ignore the wish: RFC 9110, 7.8. A request to CONNECT is nothing else, and is refused.
        """
        method = self.parser.get_method()
        if method == b"CONNECT":
            self._refuse(HTTPStatus.BAD_REQUEST, _NOT_HTTP)
            return
        lines = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse_slice(b"\r\n".join([method + b" " + self.url + b" HTTP/1.1", *lines, b"", rest]))

    def _paces(self) -> bool:
        """Return whether the client sent as much as is read at once. If so, reading pauses."""
        if self._paced:
            return True
        if self._at_once >= _MAX_AT_ONCE:
            self._paced = True
            self.loop.call_soon(self._read_on)
            return True
        if self._pieces <= _MAX_PIECES:
            return False
        now = self.loop.time()
        if now - self._pieces_since > _PACE_SECONDS:
            self._pieces, self._pieces_since = 0, now
            return False
        self._paced = True
        self.loop.call_later(_PACE_SECONDS, self._read_on)
        return True

    def _read_on(self) -> None:
        self._paced, self._at_once = False, 0
        self._pieces, self._pieces_since = 0, self.loop.time()
        if not self.transport.is_closing():
            self._parse(self._unparsed)
            self._update_deadline()

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._reading, self._began, self._awaited = _Reading.HEAD, True, None
        self._requests += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is not _Reading.HEAD:
            return  # a trailer: the application has its headers already
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `_ignore_upgrade` follows
        length = next((value for name, value in self.headers if name == b"content-length"), b"0")
        if len(length) > _LENGTH_DIGITS:
            raise httptools.HttpParserError("Content-Length is too long")
        self._reading, self._body_left = _Reading.BODY, int(length)
        if self._lane_waits_for_body():
            self._held = bytearray()
            return
        offer = self._ask_lane(None)
        if offer is not _ANSWERED:
            self._begin_request(offer)

    def _lane_waits_for_body(self) -> bool:
        if self.lane is None or not self.lane.wants_body(self.parser.get_method(), self.url):
            return False
        return 0 < self._body_left <= _MAX_HELD_BYTES and not self.expect_100_continue

    def _begin_request(self, offer: Offer | None) -> None:
        """Have the application answer the request, or queue it behind the one that is being answered."""
        self.scope = self._new_scope()
        cycle = self._new_cycle()
        cycle.offer = offer
        if self._held is not None:
            cycle.body, self._held = self._held, None
        cast(dict[str, Any], self.scope)[OFFER] = offer
        if self._is_answered():
            self._start(cycle)
        else:
            self.pipeline.appendleft((cycle, self.app))

    def _ask_lane(self, body: bytes | None) -> Any:
        """Have the lane answer the request. Returns `_ANSWERED`, or an offer for the answer, or None."""
        if self._offer is not None:
            offer, self._offer = self._offer, None
            return offer
        if self.lane is None or not self._is_kept_alive() or not self._lane_is_open():
            return None
        self._question = self.lane.question(self.parser.get_method(), self.url, self.headers, body)
        if self._question is None:
            return None
        answer = self._answer_by_lane(self._question)
        self._by_lane = answer is _ANSWERED
        return answer

    def _lane_is_open(self) -> bool:
        """Return whether an answer of the lane would be the next one, and would not wait behind others."""
        return self._is_answered() and self.transport.get_write_buffer_size() <= HIGH_WATER_LIMIT

    def _answer_by_lane(self, question: Any) -> Any:
        """Return `_ANSWERED` if the lane answers, else what it returns instead."""
        assert self.lane is not None
        answer = self.lane.answer(question, self.server_state.default_headers)
        if not isinstance(answer, tuple):
            return answer
        self._lingering.write_both(*answer)
        self._answers = True
        self._at_once += 1
        self.server_state.total_requests += 1
        return _ANSWERED

    def _new_scope(self) -> HTTPScope:
        url = httptools.parse_url(self.url)
        path = url.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "http_version": self.parser.get_http_version(),
            "server": self.server,
            "client": self.client,
            "scheme": "https" if self.scheme == "https" else "http",
            "root_path": self.root_path,
            "headers": self.headers,
            "state": self.app_state.copy(),
            "method": self.parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
        }

    def _new_cycle(self) -> _Cycle:
        self.cycle = cycle = _Cycle(
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=False,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=self.expect_100_continue,
            keep_alive=self._is_kept_alive(),
            on_response=self.on_response_complete,
        )
        return cycle

    def _is_kept_alive(self) -> bool:
        """Return whether the connection stays open after the answer, unless a body is left unread.

        A client of an older version than 1.1 would have to be told that it does.
        """
        return self.parser.should_keep_alive() and self.parser.get_http_version() not in {"1.0", "0.9"}

    def _start(self, cycle: RequestResponseCycle) -> None:
        self._current, self._answers = cycle, True
        self._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        self._pieces += 1
        self._body_left = max(0, self._body_left - len(body))
        if self._held is not None:
            self._held += body
            return
        if self.cycle.response_complete:
            return
        self.cycle.body += body  # `_parse` wakes the application, once for all pieces
        if len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._reading = _Reading.NOTHING
        if self._held is not None:
            offer = self._ask_lane(bytes(self._held))
            if offer is _ANSWERED:
                self._held = None
            else:
                self._begin_request(offer)
        if self._by_lane:
            self._by_lane = False
        else:
            super().on_message_complete()

    # -- what is answered --

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start(self.pipeline.pop()[0])
        elif self._refusal is not None:
            self._answer_instead(*self._refusal)
            return
        self.flow.resume_reading()
        self._parse(self._unparsed)
        self._update_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._lingering.expect_reading()

    # -- deadlines --

    def _update_deadline(self) -> None:
        """Set a deadline while the server waits for the client, and none while the application answers."""
        if not self._is_answered() or self.transport.is_closing():
            self._awaited = None
        elif self._reading is _Reading.NOTHING and self._answers:
            self._expect(_Awaited.REQUEST, self.timeout_keep_alive)
        elif self._reading is _Reading.BODY:
            self._expect(_Awaited.REST, self.head_seconds)
        else:
            self._expect(_Awaited.HEAD, self.head_seconds)

    def _expect(self, awaited: _Awaited, seconds: float) -> None:
        if awaited is self._awaited:
            return
        self._awaited, self._due = awaited, self.loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self.loop.call_at(self._due, self._check_deadline)

    def _check_deadline(self) -> None:
        """Act if the deadline has passed. The timer may be older than the deadline: most never pass."""
        self._timer = None
        if self._awaited is None:
            return
        if self.loop.time() < self._due:
            self._timer = self.loop.call_at(self._due, self._check_deadline)
        elif self._awaited is _Awaited.HEAD and self._reading is _Reading.HEAD:
            message = f"The request's head did not arrive within {self.head_seconds:g} s."
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message)
        else:
            self._lingering.close_at_once()

    # -- what is refused --

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
        """Refuse what is being read. Earlier requests are answered first."""
        broken = self.cycle if self._reading is _Reading.BODY and self._held is None else None
        self._held = None
        self._reading = _Reading.REFUSED
        if broken is not None and self.pipeline:
            self.pipeline.popleft()
        elif broken is not None and not broken.response_complete:
            self._give_up(broken)
            if broken.response_started:
                self.transport.close()
            else:
                self._answer_instead(status, message)
            return
        if self._is_answered():
            self._answer_instead(status, message)
        else:
            self._refusal = status, message

    def _give_up(self, cycle: RequestResponseCycle) -> None:
        """Tell the application that its answer can no longer be sent."""
        cycle.disconnected = True
        cycle.message_event.set()

    def _answer_instead(self, status: HTTPStatus, message: str) -> None:
        """Answer in place of the application, which never saw the request, and hang up."""
        metrics.HTTP_REQUESTS.labels(NO_ROUTE, OTHER_METHOD, str(int(status))).inc()
        body = envelope(InvalidRequest(message), status)
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()


_NOT_HTTP = (
    f"The request is not valid HTTP/1.1. Accepted: a known method, a head of up to {MAX_HEAD_BYTES} bytes, "
    "one Content-Length of up to 20 digits or one Transfer-Encoding: chunked, and no control characters."
)


def _is_of_parser(error: BaseException | None) -> bool:
    """Return whether an error in one of our callbacks is one of the parser's own, for example of a URL."""
    return isinstance(error, httptools.HttpParserError)
