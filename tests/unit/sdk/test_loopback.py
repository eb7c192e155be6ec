"""Tests of what only a real connection shows: dead ends, slow answers and answers that stop in the middle."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from speaker_registry import AsyncRegistryClient, RegistryClient, errors
from tests.unit.sdk.conftest import Blocking
from tests.unit.sdk.fake_registry import ECAPA, artifact_file, file_headers

Serve = Callable[[socket.socket], None]
FILE = artifact_file()


@pytest.fixture(params=["blocking", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    with asyncio.Runner() as runner:
        clients = []

        def make(url: str, **options: Any) -> Any:
            if request.param == "blocking":
                clients.append(RegistryClient(url, **options))
            else:
                clients.append(Blocking(AsyncRegistryClient(url, **options), runner))
            return clients[-1]

        yield make
        for client in clients:
            client.close()


@pytest.fixture
def listen() -> Iterator[Callable[..., str]]:
    """A server on this machine: one function per connection, in order."""
    listeners, threads = [], []

    def start(*serves: Serve) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(5)
        listeners.append(listener)

        def run() -> None:
            for serve in serves:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(5)
                    connection.recv(65536)
                    serve(connection)

        threads.append(threading.Thread(target=run))
        threads[-1].start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    for listener in listeners:
        listener.close()
    for thread in threads:
        thread.join(5)


def answering(body: bytes, promised: int | None = None, status: str = "200 OK", **headers: str) -> Serve:
    lines = [
        f"HTTP/1.1 {status}",
        f"content-length: {len(body) if promised is None else promised}",
        "connection: close",
    ]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return lambda connection: connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)


def hanging_up(connection: socket.socket) -> None:
    """Hang up without an answer."""


def test_a_file_travels_whole(connect, listen):
    """The headers and bytes of a real connection."""
    url = listen(answering(FILE, **file_headers(FILE)))
    assert connect(url).fetch("alice", ECAPA).manifest.voice == "alice"


def test_a_connection_that_dies_is_made_again(connect, listen):
    """The connection may die before the answer or in the middle of it."""
    url = listen(
        hanging_up,
        answering(FILE[:99], len(FILE), **file_headers(FILE)),
        answering(FILE, **file_headers(FILE)),
    )
    assert connect(url, retries=2).fetch("alice", ECAPA).manifest.voice == "alice"


def test_nobody_there_is_unavailable(connect):
    """The error names the address, so that the mistake is seen."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(errors.Unavailable, match=f"127.0.0.1:{port}"):
        connect(f"http://127.0.0.1:{port}", retries=0).get("alice")


def test_a_server_that_never_answers_is_given_up_in_time(connect, listen):
    """The call ends at the deadline, not at httpx's own time-out."""

    def silent(connection: socket.socket) -> None:
        connection.settimeout(None)
        connection.recv(1)  # until the client hangs up

    url = listen(silent)
    with pytest.raises(errors.Unavailable):
        connect(url, timeout=0.3).get("alice")


def test_a_body_that_trickles_is_given_up_in_time(connect, listen):
    """Each byte comes in time, the answer never does."""

    def trickling(connection: socket.socket) -> None:
        with suppress(OSError):  # the client has hung up
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.05)

    url = listen(trickling)
    with pytest.raises(errors.Unavailable):
        connect(url, timeout=0.3, retries=0).get("alice")


@pytest.mark.parametrize(
    ("begin", "pieces"),
    [
        (b"HTTP/1.1 200 OK\r\n", [bytes([byte]) for byte in b"x: y\r\n"]),
        (b"", [b"HTTP/1.1 103 Early Hints\r\n\r\n"]),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;", [b"a"]),
    ],
    ids=["headers", "interim answers", "names of chunks"],
)
def test_an_answer_that_trickles_before_its_body_is_given_up_in_time(
    connect, listen, begin: bytes, pieces: list[bytes]
):
    """httpx counts the time of each read anew, so a call could last for ever."""

    def trickling(connection: socket.socket) -> None:
        with suppress(OSError):  # the client has hung up
            connection.sendall(begin)
            for piece in itertools.islice(itertools.cycle(pieces), 400):
                connection.sendall(piece)
                time.sleep(0.02)

    url, began = listen(trickling), time.monotonic()
    with pytest.raises(errors.Unavailable):
        connect(url, timeout=0.3, retries=0).get("alice")
    assert time.monotonic() - began < 5  # the server goes on for 8 s


def test_a_head_without_an_end_is_given_up(connect, listen):
    """The memory of a client must not fill with what a server says before the answer begins."""
    sent = 0

    def endless(connection: socket.socket) -> None:
        nonlocal sent
        with suppress(OSError):  # the client has hung up
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while sent < 256 * 1024**2:
                sent += connection.send(b"x-more: " + b"x" * 65_536 + b"\r\n")

    url = listen(endless)
    with pytest.raises(errors.Unavailable):
        connect(url, retries=0).get("alice")
    assert sent < 64 * 1024**2  # including what the connection itself holds


def test_a_body_without_an_end_is_given_up(connect, listen):
    """A server need not announce how long its answer is."""

    def endless(connection: socket.socket) -> None:
        with suppress(OSError):  # the client has hung up
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                connection.sendall(b"100000\r\n" + b" " * 2**20 + b"\r\n")

    with pytest.raises(errors.PayloadTooLarge):
        connect(listen(endless), retries=0).get("alice")


def test_what_follows_the_announced_body_is_not_part_of_it(connect, listen):
    """Otherwise a server could append tensors to a file."""
    url = listen(answering(FILE + b"more", len(FILE), **file_headers(FILE)))
    assert connect(url, retries=0).fetch("alice", ECAPA).size == len(FILE)


@pytest.mark.parametrize("length", ["-1", "1, 2", "9" * 5000, "0x10"])
def test_a_length_that_is_none_is_an_error_of_the_sdk(connect, listen, length: str):
    url = listen(
        lambda connection: connection.sendall(
            f"HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n".encode() + FILE
        )
    )
    with pytest.raises(errors.SpeakerRegistryError):
        connect(url, retries=0).fetch("alice", ECAPA)


def test_a_server_that_reads_slowly_is_given_up_in_time(connect, listen):
    """A clip has megabytes, and each piece that is read gives httpx its whole time again."""
    clip, read, is_over = bytes(60 * 1024**2), [0], threading.Event()

    def slow(connection: socket.socket) -> None:
        with suppress(OSError):  # the client has hung up
            while piece := connection.recv(65_536):
                read.append(read.pop() + len(piece))
                if is_over.wait(0.1):
                    return

    with pytest.raises(errors.Unavailable):
        connect(listen(slow), timeout=1.0, retries=0).register("alice", clip, consent="c")
    is_over.set()
    assert read[0] < len(clip) // 4, "reading all of it takes more than a minute and a half"


def test_what_is_not_http_is_unavailable(connect, listen):
    """An SSH server, say."""
    url = listen(lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.9\r\n"))
    with pytest.raises(errors.Unavailable):
        connect(url, retries=0).get("alice")


def test_a_redirect_is_not_followed(connect, listen):
    """The API key would go wherever it points."""
    url = listen(answering(b"", status="307 Temporary Redirect", location="http://127.0.0.1:1/"))
    with pytest.raises(errors.Unavailable, match="redirect"):
        connect(url, retries=0).get("alice")


@pytest.mark.parametrize("location", ["javascript:x", "http://xn--/", "http://[::1", "//"])
def test_a_redirect_to_nowhere_is_an_error_of_the_sdk(connect, listen, location: str):
    """httpx parses an address that it does not follow, and raises errors of several kinds."""
    url = listen(answering(b"", status="302 Found", location=location))
    with pytest.raises(errors.Unavailable):
        connect(url, retries=0).get("alice")


@pytest.mark.parametrize("make", [httpx.HTTPTransport, httpx.AsyncHTTPTransport])
def test_a_tunnel_in_which_tls_fails_is_closed(listen, make):
    """A proxy may be up while the registry behind it is not. A pool that kept such connections would refuse
    every later request.
    """
    tunnels = []

    def open_and_hang_up(connection: socket.socket) -> None:
        tunnels.append(connection)
        connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")

    proxy = listen(*[open_and_hang_up] * 3)
    through = make(proxy=proxy, limits=httpx.Limits(max_connections=1))
    with asyncio.Runner() as runner:
        options = {"transport": through, "retries": 0, "timeout": 2}
        if make is httpx.HTTPTransport:
            client = RegistryClient("https://registry.test", **options)
        else:
            client = Blocking(AsyncRegistryClient("https://registry.test", **options), runner)
        for _ in range(3):
            with pytest.raises(errors.Unavailable):
                client.get("alice")
        client.close()
    assert len(tunnels) == 3


def test_a_tunnel_whose_call_is_canceled_is_closed(listen):
    began = [threading.Event(), threading.Event()]
    left = []

    def open_and_wait(began: threading.Event) -> Serve:
        def serve(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            connection.recv(65536)  # where TLS begins
            began.set()
            with suppress(ConnectionError):
                left.append(connection.recv(65536))

        return serve

    async def run() -> None:
        limits = httpx.Limits(max_connections=1)
        through = httpx.AsyncHTTPTransport(proxy=listen(*map(open_and_wait, began)), limits=limits)
        async with AsyncRegistryClient("https://registry.test", transport=through, timeout=10) as client:
            for one in began:
                call = asyncio.create_task(client.get("alice"))
                assert await asyncio.to_thread(one.wait, 5)
                call.cancel()
                await asyncio.wait([call])

    asyncio.run(run())
    assert set(left) <= {b""}


def test_a_canceled_call_ends_on_every_transport():
    """A transport that is not httpx's own does not tell when a request has a connection."""
    ended = []

    class Slow(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(request.method)
            raise AssertionError

    async def run() -> None:
        async with AsyncRegistryClient("http://registry.test", transport=Slow()) as client:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(client.delete("alice"), 0.01)
            assert ended == ["DELETE"]

    asyncio.run(run())


def test_calls_that_time_out_together_take_no_connection_with_them():
    """Those that wait for a connection end at the moment at which those that have one free it."""

    async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with AsyncRegistryClient(url, retries=0, timeout=0.3) as client:
                for _ in range(2):
                    calls = (client.get(f"voice-{number}") for number in range(250))
                    results = await asyncio.gather(*calls, return_exceptions=True)
                    assert {type(one) for one in results} == {errors.Unavailable}
                pool = client._http._transport._pool
                async with asyncio.timeout(20):
                    while pool.connections:
                        await asyncio.sleep(0.01)

    asyncio.run(run())


def test_canceled_calls_take_no_connection_with_them():
    """Whenever a task is canceled, its client can still use all of its connections. The numbers of turns of
    the event loop until then cover every moment of a request.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\n")
                await writer.drain()
                writer.write(b"gone")
        writer.close()

    async def run() -> None:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            two = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=2))
            async with AsyncRegistryClient(url, transport=two, retries=0, timeout=10) as client:
                for turns in range(60):
                    call = asyncio.create_task(client.get("alice"))
                    for _ in range(turns):
                        await asyncio.sleep(0)
                    call.cancel()
                    await asyncio.wait([call])
                with pytest.raises(errors.Unavailable, match="404"):
                    await client.get("alice")

    asyncio.run(run())
