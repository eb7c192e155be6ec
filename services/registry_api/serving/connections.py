"""One connection of an HTTP/1.1 client: uvicorn's protocol on httptools, with bounds and deadlines.

httptools takes heads of any size and parses all requests of a read at once, and uvicorn's own time-outs begin
after the first answer. So this protocol counts a head, and what surrounds the data of a body, while they
arrive, leaves what follows an unanswered request unparsed, and sets a deadline whenever the server waits for
the client. A body in tiny pieces is read a few pieces at a time, so that it takes no more of the event loop's
time than other bodies. This module knows no routes.

The methods overridden here, and the parts in `request_cycle`, are uvicorn's internals, so the dependency is
pinned to a minor version, and `tests/unit/test_uvicorn_internals.py` checks what is expected of it.
"""

import asyncio
from enum import Enum
from http import HTTPStatus
from typing import Any, cast

import httptools
import structlog
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from services.registry_api.protocol.callers import address_of
from services.registry_api.serving.client_limits import Awaited, Deadline, Pace
from services.registry_api.serving.connection_table import ConnectionTable
from services.registry_api.serving.lane_access import ANSWERED, Lane, LaneAccess, Offer
from services.registry_api.serving.limits import MAX_HEAD_BYTES
from services.registry_api.serving.lingering import LingeringTransport
from services.registry_api.serving.refusals import (
    NOT_HTTP,
    NOT_HTTPS,
    TLS_BEGINS,
    OnlyMonitoring,
    note_tls,
    refusal,
)
from services.registry_api.serving.request_cycle import Cycle, Flow, give_up, scope_of, stays_open

log = structlog.get_logger()

HEAD_SECONDS = 10.0
"""A client may take this long to send a request's head, and this long to send the rest of its body once the
request is answered. After the server has stopped reading, what the client still sends is dropped for this
long before the connection is cut. A client that reads none of its answer for this long is cut off as well.
"""
_SLICE_BYTES, _CHUNKS_SLICE_BYTES = 1024, 4096
"""Number of bytes that are parsed at once: normally, and for a body in chunks. At most the requests in one
slice are held, however many a client sends ahead.
"""
_CHUNKED_FACTOR = 16
"""A body in chunks may take this many bytes for each byte of its data. All further bytes (chunk extensions,
trailers, zeros before a chunk size) are limited by `MAX_HEAD_BYTES`.
"""
_LENGTH_DIGITS = 20
"""A longer Content-Length is refused. The parser accepts any number of zeros before the number."""
OFFER = "express"
"""Key in a request's scope that holds the lane's offer, or None."""


class _Reading(Enum):
    """The part of a request that the client is sending."""

    NOTHING = "nothing"
    HEAD = "head"
    BODY = "body"
    REFUSED = "refused"
    """Data that is not HTTP or is not accepted. Nothing more is parsed."""


class _Overhead:
    """Counts the bytes of a request that are not data of its body, in one slice after another.

    The parser limits neither a head nor what surrounds the data, and accepts any number of empty lines before
    a request, which are counted too.
    """

    def __init__(self) -> None:
        self._bytes = self._data_bytes = 0
        self._begins = False

    def start_slice(self) -> None:
        self._begins, self._data_bytes = False, 0

    def begin(self) -> None:
        """Note that a head or a body begins in the present slice."""
        self._begins = True

    def add_data(self, size: int) -> None:
        """Note `size` bytes of data in the present slice."""
        self._data_bytes += size

    def is_too_large_after(self, size: int) -> bool:
        """Count the present slice of `size` bytes, and return whether there are too many of them now."""
        before = 0 if self._begins else self._bytes
        self._bytes = max(0, before + size - _CHUNKED_FACTOR * self._data_bytes)
        return self._bytes > MAX_HEAD_BYTES


class HttpConnection(HttpToolsProtocol):
    """The protocol of one connection. `server_config` sets the class attributes."""

    head_seconds = HEAD_SECONDS
    table: ConnectionTable
    lane: Lane | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reading = _Reading.NOTHING
        self._overhead = _Overhead()
        self._body_left = 0
        """Number of bytes of a body of known length that have not arrived yet."""
        self._held: bytearray | None = None
        """The part of a body that has arrived, until the lane has the rest or the present read ends."""
        self._unparsed = b""
        """The bytes after a request that still waits for the answer to the request before it."""
        self._current: RequestResponseCycle | None = None
        """The request that is being answered, or was answered last."""
        self._refusal: tuple[HTTPStatus, str] | None = None
        """The refusal to send after the answer to the current request, in place of further answers."""
        self._deadline = Deadline(self.loop, self._give_up_waiting)
        self._pace = Pace(self.loop, self._read_on)
        self._lane: LaneAccess | None = None
        self._by_lane = False
        """True if the lane has answered the request whose end is being parsed."""
        self._requests = 0
        """Number of requests that began in the present read."""
        self._answers = False
        """True once a request was answered, or is being answered."""

    # -- the life of the connection --

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._lingering = LingeringTransport(transport, self._still_sending, self.head_seconds)
        super().connection_made(cast(asyncio.Transport, self._lingering))
        self.flow = self._flow = Flow(self.transport)
        if not self.table.admit(self, address_of(self.client[0] if self.client else "")):
            self.app = OnlyMonitoring(self.app, self.table.limit)
        elif self.lane is not None:
            self._lane = LaneAccess(
                self.lane, self._lingering, self.server_state, self._pace, lambda: self.is_idle
            )
        self._deadline.expect(Awaited.HEAD, self.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        self.table.remove(self)
        self._deadline.cancel()
        self._lingering.close_at_once()
        if self._current is not None and self._current is not self.cycle:
            give_up(self._current)
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        if self._lingering.lingers:
            self._lingering.close_at_once()

    @property
    def is_idle(self) -> bool:
        """True if no request is being answered, so that the connection can be closed without loss."""
        return (self._current is None or self._current.response_complete) and not self.pipeline

    def close_to_make_room(self) -> None:
        """Close the connection at once to make room for another one."""
        self._lingering.close_at_once()

    def _still_sending(self) -> bool:
        """Return whether the client is, or may be, sending something that has not been read to its end."""
        return self._reading in {_Reading.BODY, _Reading.REFUSED} or bool(self._unparsed)

    # -- receiving --

    def data_received(self, data: bytes) -> None:
        if self._lingering.lingers or self._reading is _Reading.REFUSED:
            return
        if self._reading is _Reading.NOTHING and data.startswith(TLS_BEGINS):
            note_tls(self.client[0] if self.client else None)
            self._refuse(HTTPStatus.BAD_REQUEST, NOT_HTTPS)
            return
        self._pace.answers = self._requests = 0
        begins = self._reading is _Reading.NOTHING and not self._unparsed
        if begins and self._lane is not None and self._lane.answer_again(data):
            self._answers, self._deadline.awaited = True, None
            self._update_deadline()
            return
        if self._reading is not _Reading.NOTHING:
            self._pace.count_read(len(data))
        self._parse(self._unparsed + data)
        if begins and self._lane is not None and self._lane_answered_all():
            self._lane.remember(data)
        self._update_deadline()

    def _lane_answered_all(self) -> bool:
        """Return whether the present read was one request without a body, and the lane has answered it."""
        if not self._pace.answers == self._requests == 1 or self._body_left or self._unparsed:
            return False
        return self._reading is _Reading.NOTHING and self.is_idle

    def _parse(self, data: bytes) -> None:
        """Parse data slice by slice, until a request must wait for an earlier one, or too many pieces came at
        once.
        """
        self._parse_slices(data)
        if self._held is not None:
            self._begin_request(None)
        if self.cycle is not None and self.cycle.body:
            self.cycle.message_event.set()

    def _parse_slices(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not (
            self.pipeline or self._reading is _Reading.REFUSED or self._pace.pauses()
        ):
            body = self._reading is _Reading.BODY
            size = (self._body_left or _CHUNKS_SLICE_BYTES) if body else _SLICE_BYTES
            self._parse_slice(data[start : start + size])
            self._check_overhead(min(size, len(data) - start))
            start += size
        self._unparsed = b"" if self._reading is _Reading.REFUSED else data[start:]
        if self._unparsed or self._pace.pauses():
            self._flow.hold()
        else:
            self._flow.let_go()

    def _parse_slice(self, data: bytes) -> None:
        self._overhead.start_slice()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if isinstance(error, httptools.HttpParserCallbackError) and not _is_of_parser(error.__context__):
                raise  # a bug in our code, which asyncio logs
            self._refuse(HTTPStatus.BAD_REQUEST, NOT_HTTP)

    def _check_overhead(self, size: int) -> None:
        """Refuse the request if too much of it, up to a parsed slice of `size` bytes, is not data."""
        if self._overhead.is_too_large_after(size) and self._reading is not _Reading.REFUSED:
            self._refuse(HTTPStatus.BAD_REQUEST, NOT_HTTP)

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse the request once more without its `Upgrade` header, at which the parser stops.

        A server may ignore that header (RFC 9110, 7.8). A CONNECT request has no other purpose, and is
        refused.
        """
        if self.parser.get_method() == b"CONNECT":
            self._refuse(HTTPStatus.BAD_REQUEST, NOT_HTTP)
            return
        head = _head_without_upgrade(self.parser, self.url, self.headers)
        self.parser = httptools.HttpRequestParser(self)
        self._parse_slice(head + rest)

    def _read_on(self) -> None:
        if not self.transport.is_closing():
            self._parse(self._unparsed)
            self._update_deadline()

    def on_message_begin(self) -> None:
        self.url, self.headers, self.expect_100_continue = b"", [], False
        self._overhead.begin()
        self._reading, self._deadline.awaited = _Reading.HEAD, None
        self._requests += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._reading is not _Reading.HEAD:  # a trailer: the application has its headers already
            self._pace.pieces += 1
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return  # `_ignore_upgrade` follows
        self._body_left = _length_of_body(self.headers)
        self._reading = _Reading.BODY
        self._overhead.begin()
        if self._lane is not None and self._lane.waits_for_body(self, self._body_left):
            self._held = bytearray()
        elif (offer := self._ask_lane(None)) is not ANSWERED:
            self._begin_request(offer)

    def _begin_request(self, offer: Offer | None) -> None:
        """Pass the request to the application, or queue it behind the request that is being answered."""
        self.scope = scope_of(self)
        self.cycle = cycle = Cycle.of(self, keep_alive=stays_open(self.parser), offer=offer)
        if self._held is not None:
            cycle.body, self._held = self._held, None
        cast(dict[str, Any], self.scope)[OFFER] = offer
        if self.is_idle:
            self._start(cycle)
        else:
            self.pipeline.appendleft((cycle, self.app))

    def _ask_lane(self, body: bytes | None) -> Any:
        """Ask the lane to answer. Returns `ANSWERED`, an offer to keep the application's answer, or None."""
        if self._lane is None:
            return None
        answer = self._lane.ask(self, body, stays_open=stays_open(self.parser))
        if answer is ANSWERED:
            self._by_lane = self._answers = True
        return answer

    def _start(self, cycle: RequestResponseCycle) -> None:
        self._current, self._answers = cycle, True
        self._start_asgi_task(cycle, self.app)

    def on_body(self, body: bytes) -> None:
        self._pace.pieces += 1
        self._overhead.add_data(len(body))
        self._body_left = max(0, self._body_left - len(body))
        if self._held is not None:
            self._held += body
        elif not self.cycle.response_complete:
            self.cycle.body += body  # `_parse` wakes the application, once for all pieces
            if len(self.cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._reading = _Reading.NOTHING
        if self._held is not None:
            offer = self._ask_lane(bytes(self._held))
            if offer is ANSWERED:
                self._held = None
            else:
                self._begin_request(offer)
        if self._by_lane:
            self._by_lane = False
        else:
            super().on_message_complete()

    # -- answering --

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
        if not self.is_idle or self.transport.is_closing():
            self._deadline.awaited = None
        elif self._reading is _Reading.NOTHING and self._answers:
            self._deadline.expect(Awaited.REQUEST, self.timeout_keep_alive)
        elif self._reading is _Reading.BODY:
            self._deadline.expect(Awaited.REST, self.head_seconds)
        else:
            self._deadline.expect(Awaited.HEAD, self.head_seconds)

    def _give_up_waiting(self, awaited: Awaited) -> None:
        if awaited is Awaited.HEAD and self._reading is _Reading.HEAD:
            message = f"The request's head did not arrive within {self.head_seconds:g} s."
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, message)
        else:
            self._lingering.close_at_once()

    # -- refusing --

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        """Refuse the request that is being read. Earlier requests are answered first."""
        broken = self.cycle if self._reading is _Reading.BODY and self._held is None else None
        self._held, self._reading = None, _Reading.REFUSED
        if broken is not None and self.pipeline:
            self.pipeline.popleft()
        elif broken is not None and not broken.response_complete:
            give_up(broken)
            if broken.response_started:
                self.transport.close()
            else:
                self._answer_instead(status, message)
            return
        if self.is_idle:
            self._answer_instead(status, message)
        else:
            self._refusal = status, message

    def _answer_instead(self, status: HTTPStatus, message: str) -> None:
        """Answer in place of the application, which never saw the request, and close the connection."""
        self.transport.write(refusal(status, message))
        self.transport.close()


def _length_of_body(headers: list[tuple[bytes, bytes]]) -> int:
    """Return the length that a request names, or 0. Raises `HttpParserError` if it has too many digits."""
    length = next((value for name, value in headers if name == b"content-length"), b"0")
    if len(length) > _LENGTH_DIGITS:
        raise httptools.HttpParserError("Content-Length is too long")
    return int(length)


def _head_without_upgrade(
    parser: httptools.HttpRequestParser, url: bytes, headers: list[tuple[bytes, bytes]]
) -> bytes:
    request_line = b"%s %s HTTP/%s" % (parser.get_method(), url, parser.get_http_version().encode())
    lines = [name + b": " + value for name, value in headers if name != b"upgrade"]
    return b"\r\n".join([request_line, *lines, b"", b""])


def _is_of_parser(error: BaseException | None) -> bool:
    """Return whether an error in one of our callbacks came from the parser, for example for a URL."""
    return isinstance(error, httptools.HttpParserError)
