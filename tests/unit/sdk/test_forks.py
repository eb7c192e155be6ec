"""Tests of clients that go on in a forked process, as those of a server that forks its workers do."""

import asyncio
import http.server
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from speaker_registry import ArtifactCache, AsyncRegistryClient, RegistryClient
from speaker_registry.disk_cache import DiskCache
from speaker_registry.forks import renew_after_fork
from tests.unit.sdk.fake_registry import ECAPA, URL, FakeRegistry

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]


def fork(work: Callable[[], object]) -> tuple[int, int]:
    """Start a process that does the work and then writes its result. Return its id and the pipe's end."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, str(work()).encode())
        except BaseException as error:  # noqa: BLE001 - the child must not go on with the tests
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    return child, reading


def in_child(work: Callable[[], object], seconds: float = 10.0) -> str:
    """Do the work in a forked process, and return its result as a text."""
    child, reading = fork(work)
    try:
        readable, _, _ = select.select([reading], [], [], seconds)
        return os.read(reading, 1000).decode() if readable else "no result in time"
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.fixture
def ports(registry: FakeRegistry) -> Iterator[list[int]]:
    """The fake registry behind sockets: `ports[0]` is its own, and the others are those of its requests."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            found.append(self.client_address[1])
            answer = registry(httpx.Request("GET", URL + self.path))
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        found = [server.server_port]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("uses_own_transport", [False, True])
def test_a_forked_process_uses_its_own_connections(
    registry: FakeRegistry, ports: list[int], *, uses_own_transport: bool
):
    """Two processes on one connection would get the answers to each other's requests."""
    for name in ("alice", "bob"):
        registry.add_version(name)
    transport = httpx.HTTPTransport() if uses_own_transport else None
    with RegistryClient(f"http://127.0.0.1:{ports[0]}", transport=transport) as client:
        client.get("alice")
        for _ in range(2):
            assert in_child(lambda: client.get("bob").name) == "bob"
            assert client.get("alice").name == "alice"
    _, first, second, third, fourth, fifth = ports
    assert first == third == fifth, "the parent goes on with its connection"
    assert len({first, second, fourth}) == 3


def test_a_client_for_asyncio_is_used_in_the_loop_of_a_forked_process(
    registry: FakeRegistry, ports: list[int]
):
    """Servers load their application, fork their workers, and then start a loop in each of them."""
    registry.add_version("alice")
    client = AsyncRegistryClient(f"http://127.0.0.1:{ports[0]}")

    async def name() -> str:
        return (await client.get("alice")).name

    with asyncio.Runner() as runner:
        assert runner.run(name()) == "alice"
        assert in_child(lambda: asyncio.run(name())) == "alice"
        assert runner.run(name()) == "alice"
        runner.run(client.close())
    _, first, second, third = ports
    assert first == third != second


def test_one_failing_renewal_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]):
    """The other owners would keep the locks and connections of the parent."""

    class Owner:
        is_renewed = False

        def fail(self) -> None:
            raise ValueError("broken")

        def renew(self) -> None:
            self.is_renewed = True

    broken, owner = Owner(), Owner()
    renew_after_fork(broken, Owner.fail)
    renew_after_fork(owner, Owner.renew)
    assert in_child(lambda: owner.is_renewed) == "True"
    assert not owner.is_renewed
    assert "ValueError: broken" in capfd.readouterr().err


def test_a_forked_process_does_not_wait_for_a_request_of_its_parent(registry: FakeRegistry):
    """The thread that would give the result to the others exists only in the parent."""
    registry.add_version("alice")
    parent, arrived, go = os.getpid(), threading.Event(), threading.Event()

    def slow(request: httpx.Request) -> httpx.Response:
        if os.getpid() == parent:
            arrived.set()
            assert go.wait(30)
        return registry(request)

    client = RegistryClient(URL, transport=httpx.MockTransport(slow), timeout=5)
    thread = threading.Thread(target=client.fetch, args=("alice", ECAPA))
    thread.start()
    assert arrived.wait(30)
    try:
        assert in_child(lambda: client.fetch("alice", ECAPA).manifest.voice) == "alice"
    finally:
        go.set()
        thread.join(30)


def fetch(client: RegistryClient) -> str:
    voice = client.fetch("alice", ECAPA).manifest.voice
    assert client.cache is not None
    return f"{voice} {client.cache.stats().entries}"


def test_a_forked_process_does_not_wait_for_locks_of_its_parent(registry: FakeRegistry, ports: list[int]):
    """Another thread may hold any of them at the moment of the fork."""
    registry.add_version("alice")
    cache = ArtifactCache()
    with RegistryClient(f"http://127.0.0.1:{ports[0]}", cache=cache) as client:
        fetch(client)
        pool = client._http._transport._pool
        with cache._lock, client._fetching._flights._lock, pool._optional_thread_lock:
            assert in_child(lambda: fetch(client)) == "alice 1"


def test_a_forked_process_does_not_keep_the_lock_of_the_directory(tmp_path: Path):
    """It inherits the open file of a thread that changes the directory, and with it the lock."""
    disk = DiskCache(tmp_path, 10**6)
    with disk._lock():
        child, reading = fork(lambda: threading.Event().wait(60))
    try:
        with disk._lock() as lock:
            assert lock > 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
