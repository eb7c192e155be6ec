"""Tests of what one connection does with bytes as they come, and of which connection gives way to another."""

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest
from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from services.registry_api.protocol.error_answers import add_handlers
from services.registry_api.serving import client_limits, connections
from services.registry_api.serving.connection_table import MAX_SURPLUS, ConnectionTable
from services.registry_api.serving.connections import HttpConnection
from services.registry_api.serving.server import server_config
from services.registry_api.serving.unfinished import UnfinishedRequests
from services.shared.configuration.api import ApiSettings
from tests.threads import no_more_threads

ONE_BYTE = b"1\r\nx\r\n"
"""A chunk."""


class Wire(asyncio.Transport):
    """A client that reads everything, and whose bytes arrive while nobody has paused reading."""

    def __init__(self, connection: socket.socket | None) -> None:
        extra = {"peername": ("192.0.2.1", 50_000), "sockname": ("192.0.2.2", 80), "socket": connection}
        super().__init__(extra)
        self.sent = b""
        self.reading = True
        self.pauses = 0
        self.closing = False
        self.readable = asyncio.Event()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False
        self.pauses += 1
        self.readable.clear()

    def resume_reading(self) -> None:
        self.reading = True
        self.readable.set()


class Client:
    """One connection to an application, in this process and without a socket."""

    def __init__(self, app: ASGIApp, connection: socket.socket | None = None) -> None:
        config = server_config(FastAPI(), ApiSettings(), head_seconds=0.2)
        config.load()
        config.loaded_app = app  # type: ignore[assignment]
        self.wire = Wire(connection)
        kind: type[HttpConnection] = config.http_protocol_class  # type: ignore[assignment]
        self.connection = kind(config, ServerState(), {})
        self.connection.connection_made(self.wire)

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            if not self.wire.reading:
                await self.wire.readable.wait()
            self.connection.data_received(piece)

    async def answers(self, count: int) -> bytes:
        """Everything that was sent, once it has so many answers."""
        while self.wire.sent.count(b"HTTP/1.1 ") < count or not self.idle:
            await asyncio.sleep(0.001)
        return self.wire.sent

    @property
    def idle(self) -> bool:
        return self.connection.is_idle or self.wire.closing


def in_loop(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 20))  # type: ignore[arg-type]


def test_the_system_takes_little_more_of_an_answer_than_it_sends():
    """It once took megabytes at once. A client that read them slowly then seemed to read nothing, and was cut
    off.
    """

    async def test() -> None:
        with socket.socket() as connection:
            client = Client(Echo(), connection)
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT) == 128 * 1024
            client.wire.close()

    in_loop(test)


class Echo:
    """An application that reads each body to its end, and answers with how many pieces and bytes it had."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.pieces = self.bytes = 0
        self.disconnects = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnects += 1
                return
            self.pieces += 1
            self.bytes += len(message["body"])
            more = message["more_body"]
        await answer(send, scope["raw_path"])


async def answer(send: Send, body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [length]})
    await send({"type": "http.response.body", "body": body})


async def answer_unread(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, b"no")


def post(*lines: str) -> bytes:
    return "\r\n".join(["POST /here HTTP/1.1", "Host: h", *lines, "", ""]).encode()


CHUNKED = "Transfer-Encoding: chunked"


@pytest.mark.parametrize("chunk", [ONE_BYTE, b"00000001\r\nx\r\n"])
def test_a_body_in_tiny_chunks_is_read_a_few_at_a_time(chunk: bytes):
    """However many come in one read: the others on this event loop are served between them."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(post(CHUNKED), chunk * 2_000 + b"0\r\n\r\n")
        assert not client.wire.reading, "no more is read until these are"
        assert len(client.connection.cycle.body) <= client_limits.MAX_PIECES + connections._CHUNKS_SLICE_BYTES
        await client.answers(1)
        assert app.bytes == 2_000
        assert app.pieces <= 10
        while not client.wire.reading:
            await asyncio.sleep(0.001)

    in_loop(test)


def test_a_body_in_tiny_packets_is_read_a_few_at_a_time():
    """Each read would wake the application; so the system gathers them meanwhile."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(post("Content-Length: 60"))
        await client.send(*[b"x"] * 60)
        await client.answers(1)
        assert app.bytes == 60
        at_once = client_limits.MAX_PIECES // client_limits.SMALL_READ_PIECES + 1
        assert client.wire.pauses >= 60 // at_once

    in_loop(test)


def test_large_pieces_are_not_held_up():
    """An upload of megabytes takes as long as the network does."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(post(f"Content-Length: {100 * 65_536}"))
        for _ in range(100):
            await client.send(bytes(65_536))
            assert not client.connection._pace._pauses
            await asyncio.sleep(0)
        await client.answers(1)
        assert app.bytes == 100 * 65_536

    in_loop(test)


def test_requests_sent_ahead_wait_unparsed_and_are_answered_in_order():
    """One read can hold thousands of them; each that is parsed takes a hundred times its bytes."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(b"".join(b"GET /%d HTTP/1.1\r\n\r\n" % number for number in range(1_000)))
        assert len(client.connection.pipeline) <= connections._SLICE_BYTES // 18
        await client.answers(1_000)
        assert [scope["raw_path"] for scope in app.scopes] == [b"/%d" % number for number in range(1_000)]
        assert client.wire.reading

    in_loop(test)


def test_reading_stays_held_while_the_application_waits_for_a_client_to_hang_up():
    """The bytes that it sends ahead would otherwise be kept without end."""

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async def test() -> None:
        client = Client(waits)
        await client.send(b"GET / HTTP/1.1\r\n\r\n" * 1_000)
        await asyncio.sleep(0.01)
        assert not client.wire.reading

    in_loop(test)


def test_trailers_change_no_header():
    """The application has checked its headers by then."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(post(CHUNKED), ONE_BYTE + b"0\r\nAuthorization: Bearer other\r\n\r\n")
        await client.answers(1)
        assert [name for name, _ in app.scopes[0]["headers"]] == [b"host", b"transfer-encoding"]

    in_loop(test)


def test_trailers_are_read_a_few_at_a_time():
    """Each takes as long as a chunk, and others on this event loop are served between them."""

    async def test() -> None:
        client = Client(Echo())
        await client.send(post(CHUNKED), ONE_BYTE + b"0\r\n" + b"X: y\r\n" * 2_000 + b"\r\n")
        assert not client.wire.reading, "no more is read until these are"
        assert (await client.answers(1)).startswith(b"HTTP/1.1 200")

    in_loop(test)


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (post(CHUNKED) + ONE_BYTE + b"0\r\n", b"X:\r\n"),
        (post(CHUNKED) + b"1;", b"x"),
        (post(CHUNKED), b"1;" + b"x" * 200 + b"\r\nx\r\n"),
        (post(CHUNKED), b"0"),
        (b"", b"\r\n"),
    ],
    ids=["trailers", "extension", "extensions", "zeros", "empty lines"],
)
def test_what_a_client_sends_besides_bodies_is_bounded_as_a_head_is(begin: bytes, piece: bytes):
    """None of it is data that the application would count, and the parser takes any amount."""

    async def test() -> None:
        client = Client(Echo())
        await client.send(begin, piece * (14_000 // len(piece)))
        assert client.wire.sent == b""
        await client.send(piece * (14_000 // len(piece)))
        sent = await client.answers(1)
        assert sent.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in sent

    in_loop(test)


def test_what_is_no_request_is_refused_after_the_answer_to_the_one_before():
    """The refusal would otherwise be taken for that answer."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(b"GET /first HTTP/1.1\r\n\r\nnonsense")
        sent = await client.answers(2)
        assert sent.startswith(b"HTTP/1.1 200")
        assert sent.index(b"/first") < sent.index(b"HTTP/1.1 400")
        assert client.wire.closing or client.connection._lingering.lingers
        assert len(app.scopes) == 1

    in_loop(test)


def test_a_damaged_body_is_refused_and_the_application_told():
    """It waits for the rest, which nobody can read."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(post(CHUNKED), ONE_BYTE)
        await asyncio.sleep(0)
        await client.send(b"no size\r\n")
        sent = await client.answers(1)
        assert sent.startswith(b"HTTP/1.1 400")
        await asyncio.sleep(0.01)
        assert app.disconnects == 1

    in_loop(test)


def test_a_damaged_body_of_a_waiting_request_is_refused_in_its_turn():
    """The request before it is answered; the damaged one never reaches the application."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(b"GET /first HTTP/1.1\r\n\r\n" + post(CHUNKED) + b"no size\r\n")
        sent = await client.answers(2)
        assert (sent.count(b"HTTP/1.1 200"), sent.count(b"HTTP/1.1 400")) == (1, 1)
        assert [scope["path"] for scope in app.scopes] == ["/first"]

    in_loop(test)


@pytest.mark.parametrize(
    "line", ["Content-Length: 10", CHUNKED, "Content-Length: 10\r\nExpect: 100-continue"]
)
def test_the_connection_ends_where_a_body_is_left_unread(line: str):
    """The following bytes could be the rest of the body as well as another request."""

    async def test() -> None:
        client = Client(answer_unread)
        await client.send(post(line))
        assert b"connection: close" in await client.answers(1)

    in_loop(test)


@pytest.mark.parametrize("body", [b"", b"12345"])
def test_a_body_that_has_arrived_keeps_the_connection(body: bytes):
    """The connection is kept whether the body was read or not."""

    async def test() -> None:
        client = Client(answer_unread)
        await client.send(post(f"Content-Length: {len(body)}") + body)
        assert b"connection: close" not in await client.answers(1)

    in_loop(test)


@pytest.mark.parametrize("upgrade", ["", "Connection: Upgrade\r\nUpgrade: h2c\r\n"])
@pytest.mark.parametrize(
    ("version", "body"), [("1.0", b"onetwo"), ("1.1", b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")]
)
def test_an_answer_of_unknown_length_has_no_chunks_before_http_1_1(version: str, body: bytes, upgrade: str):
    """Clients of an earlier version do not know chunks. They read until the connection ends."""

    async def stream(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"one", b"two"):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async def test() -> None:
        client = Client(stream)
        await client.send(f"GET / HTTP/{version}\r\nHost: h\r\n{upgrade}\r\n".encode())
        head, _, sent = (await client.answers(1)).partition(b"\r\n\r\n")
        assert sent == body
        assert (b"transfer-encoding" in head, client.wire.closing) == (version == "1.1", version == "1.0")

    in_loop(test)


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_is_canceled_is_answered_as_one_to_send_again(
    begun: bool, caplog: pytest.LogCaptureFixture
):
    """uvicorn cancels the requests that have not ended when its time to stop is over. A thread may carry
    such a request out nevertheless, and a repeat of it may make another key or version. An answer that has
    begun is cut off, which is no error of ours with a traceback.
    """

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        await receive()

    async def test() -> None:
        client = Client(UnfinishedRequests(waits))
        await client.send(post("Content-Length: 10"))
        await asyncio.sleep(0)
        [task] = client.connection.tasks
        task.cancel()
        await asyncio.wait([task])
        assert client.connection.transport.is_closing()
        assert not caplog.records
        status = b"HTTP/1.1 200" if begun else b"HTTP/1.1 503"
        assert client.wire.sent.startswith(status)
        assert (b"\r\nretry-after: 1\r\n" in client.wire.sent.lower()) is not begun
        assert (b"look first if a repeat would add something" in client.wire.sent) is not begun

    in_loop(test)


@pytest.mark.parametrize("begun", [False, True])
def test_a_request_that_gets_no_thread_is_answered_as_one_to_send_again(begun: bool):
    """The system may refuse a thread at a limit on processes, which soon passes. Clients would take 500 for
    final. An answer that has begun cannot be replaced.
    """

    async def needs_thread(scope: Scope, receive: Receive, send: Send) -> None:
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await run_in_threadpool(print)

    async def test() -> None:
        client = Client(UnfinishedRequests(needs_thread))
        with no_more_threads():
            await client.send(post("Content-Length: 0"))
            sent = (await client.answers(1)).lower()
        assert sent.startswith(b"http/1.1 200" if begun else b"http/1.1 503")
        assert (b"\r\nretry-after: 1\r\n" in sent) is not begun
        assert (b'"code":"unavailable"' in sent) is not begun
        assert client.wire.closing is begun

    in_loop(test)


def test_a_crash_is_answered_without_a_thread_and_also_outside_the_application():
    """An error as plain text, which uvicorn would send, has neither a code nor a request id."""

    async def crashes(*_: object) -> None:
        raise ZeroDivisionError

    async def test() -> None:
        app = FastAPI()
        app.add_route("/here", crashes, methods=["POST"])
        add_handlers(app, lambda *_: None)
        for crashing in (app, crashes):
            client = Client(crashing)
            with no_more_threads(), capture_logs() as logs:
                await client.send(post("Content-Length: 0"))
                sent = await client.answers(1)
            assert [one["event"] for one in logs] == ["request.crashed"] * (crashing is app)
            assert sent.startswith(b"HTTP/1.1 500")
            assert b'"code":"internal_error"' in sent
            assert client.wire.closing

    in_loop(test)


@pytest.mark.parametrize("body", [b"", b"12345"])
def test_an_upgrade_is_ignored(body: bytes):
    """curl asks for an upgrade with `--http2`, also with a body, which must not get lost."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        length = f"Content-Length: {len(body)}"
        await client.send(post("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", length) + body)
        await client.send(b"GET /next HTTP/1.1\r\n\r\n")
        assert (await client.answers(2)).count(b"HTTP/1.1 200") == 2
        assert app.bytes == len(body)
        assert [scope["path"] for scope in app.scopes] == ["/here", "/next"]

    in_loop(test)


@pytest.mark.parametrize("digits", [21, 5000])
def test_a_length_of_endless_digits_is_refused(digits: int):
    """The parser accepts zeros before a number without end, which Python reads only up to 4300 digits."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(post("Content-Length: " + "3".zfill(digits)) + b"abc")
        sent = await client.answers(1)
        assert sent.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in sent
        assert app.scopes == []

    in_loop(test)


def test_a_tunnel_is_refused():
    """This is no proxy."""

    async def test() -> None:
        client = Client(Echo())
        await client.send(b"CONNECT h:443 HTTP/1.1\r\nHost: h\r\n\r\n\x16\x03")
        assert (await client.answers(1)).startswith(b"HTTP/1.1 400")

    in_loop(test)


def test_a_caller_that_vanishes_is_seen_by_the_request_that_is_being_answered():
    """Also where it has sent another one ahead."""

    async def test() -> None:
        ended = asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            ended.set()

        client = Client(waits)
        await client.send(b"GET /1 HTTP/1.1\r\n\r\n", b"GET /2 HTTP/1.1\r\n\r\n")
        await asyncio.sleep(0)
        client.connection.connection_lost(None)
        await ended.wait()

    in_loop(test)


@pytest.mark.parametrize(
    "request_target", [b"*", b"http://", b"//[", b"/a b", b"\xff", b"ftp://h/x"], ids=repr
)
def test_a_strange_target_crashes_nothing(request_target: bytes):
    """It is refused, or is a path that leads nowhere."""

    async def test() -> None:
        client = Client(Echo())
        await client.send(b"GET " + request_target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answers(1))[9:12] in {b"200", b"400"}

    in_loop(test)


@pytest.mark.parametrize("request_target", [b"http://h", b"http://h?q=1"], ids=repr)
def test_a_target_without_a_path_is_the_root(request_target: bytes):
    """The path of an address may be left out (RFC 9112, 3.2.2)."""

    async def test() -> None:
        app = Echo()
        client = Client(app)
        await client.send(b"GET " + request_target + b" HTTP/1.1\r\nHost: h\r\n\r\n")
        assert (await client.answers(1)).startswith(b"HTTP/1.1 200")
        query = request_target.partition(b"?")[2]
        assert [(one["path"], one["raw_path"], one["query_string"]) for one in app.scopes] == [
            ("/", b"/", query)
        ]

    in_loop(test)


# -- which connection gives way


class Held:
    def __init__(self, name: str, *, idle: bool = True) -> None:
        self.name = name
        self.is_idle = idle
        self.gave_way = False

    def close_to_make_room(self) -> None:
        self.gave_way = True


def test_the_oldest_idle_connection_of_the_address_with_the_most_gives_way():
    """A client that opens connections without end takes its own places."""
    table = ConnectionTable(5)
    stranger = [Held(f"stranger {number}", idle=number != 0) for number in range(4)]
    friend = Held("friend")
    assert table.admit(friend, "198.51.100.1")
    assert all(table.admit(one, "192.0.2.1") for one in stranger)
    for _ in range(20):
        assert table.admit(Held("another"), "192.0.2.1")
    assert [one.gave_way for one in stranger] == [False, True, True, True]
    assert not friend.gave_way


def test_where_nobody_is_idle_a_connection_is_a_surplus_and_these_are_few():
    """Nothing that is being answered is cut off."""
    table = ConnectionTable(2)
    busy = [Held(f"{number}", idle=False) for number in range(2)]
    assert all(table.admit(one, "192.0.2.1") for one in busy)
    surplus = [Held(f"surplus {number}") for number in range(MAX_SURPLUS + 3)]
    assert not any(table.admit(one, "192.0.2.2") for one in surplus)
    assert [one.gave_way for one in surplus] == [True] * 3 + [False] * MAX_SURPLUS
    assert not any(one.gave_way for one in busy)
    table.remove(busy[0])
    assert table.admit(Held("new"), "192.0.2.1")
