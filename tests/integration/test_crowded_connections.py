"""Tests of what one client can take from the others through its connections, on a real API process.

The client has an address of its own, 127.0.0.2, which Linux has without being told.
"""

import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import httpx
import pytest

from services.registry_api.keys.api_keys import new_token
from tests.integration.api.raw import head, read_answer
from tests.process_load import noise_clip
from tests.processes import PROFILE, QUICK, RegistryProcesses

STRANGER = "127.0.0.2"
MAX_CONNECTIONS = 2000
BOOTSTRAP = new_token()
ATTACKERS, ATTACK_SECONDS = 6, 3.0
LEAST_ANSWERS = 20
FILE = f"/v1/voices/alice/versions/default/artifacts/{PROFILE}/file"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    """An API process that requires keys, with a voice."""
    environment = {
        **QUICK,
        "SPEAKER_AUTH_BOOTSTRAP_KEY": str(BOOTSTRAP),
        "SPEAKER_API_MAX_CONNECTIONS": str(MAX_CONNECTIONS),
    }
    with RegistryProcesses(tmp_path_factory.mktemp("crowded"), environment=environment) as running:
        with client_of(running) as client:
            files = {"audio_sample": ("a.wav", noise_clip(1)[0], "audio/wav")}
            data = {"name": "alice", "consent": "c"}
            client.post("/v1/audio/voices", data=data, files=files).raise_for_status()
            client.post("/v1/audio/voices/alice/cache").raise_for_status()
        yield running


def client_of(registry: RegistryProcesses) -> httpx.Client:
    return httpx.Client(
        base_url=registry.urls[0], headers={"Authorization": f"Bearer {BOOTSTRAP}"}, timeout=60
    )


@pytest.fixture
def port(registry: RegistryProcesses) -> int:
    return urlsplit(registry.urls[0]).port or 0


@contextmanager
def many_files(count: int) -> Iterator[None]:
    """Allow this process to hold that many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this process may open {hard} files, and the test needs {count}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def by_stranger(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60, source_address=(STRANGER, 0))


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: a"])
def test_a_stranger_with_as_many_connections_as_there_may_be_keeps_nobody_out(
    registry: RegistryProcesses, port: int, begun: bytes
):
    """Idle connections of the address that has the most give way, even with a head that has begun."""
    with many_files(MAX_CONNECTIONS + 500), ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS + 100):
            stack.enter_context(by_stranger(port)).sendall(begun)
        assert httpx.get(f"{registry.urls[0]}/healthz", timeout=60).status_code == 200
        others = [stack.enter_context(client_of(registry)) for _ in range(20)]
        assert [one.get(FILE).status_code for one in others] == [200] * 20
        assert [one.get("/v1/voices").status_code for one in others] == [200] * 20


SENDS_TINY_CHUNKS = """
import socket, sys, threading
port, key, connections = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
head = (
    "POST /v1/audio/voices HTTP/1.1\\r\\nHost: localhost\\r\\nAuthorization: Bearer " + key + "\\r\\n"
    "Transfer-Encoding: chunked\\r\\nContent-Type: multipart/form-data; boundary=a\\r\\n\\r\\n"
).encode()
chunks = b"1\\r\\na\\r\\n" * 10_000

def send():
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0)) as connection:
                connection.sendall(head)
                while True:
                    connection.sendall(chunks)
        except OSError:
            pass

for _ in range(connections):
    threading.Thread(target=send).start()
"""


@contextmanager
def attackers(port: int) -> Iterator[None]:
    """Send bodies in chunks of one byte from another process, as fast as the server reads them."""
    arguments = [f"{port}", str(BOOTSTRAP), f"{ATTACKERS}"]
    with subprocess.Popen([sys.executable, "-c", SENDS_TINY_CHUNKS, *arguments]) as process:
        try:
            yield
        finally:
            process.kill()


def seconds_of_answers(client: httpx.Client, seconds: float) -> list[float]:
    """Ask for lists one after the other for so long, and at least a few times. Returns how long each took."""
    taken: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(taken) < LEAST_ANSWERS:
        began = time.monotonic()
        assert client.get("/v1/voices").status_code == 200
        taken.append(time.monotonic() - began)
    return taken


def test_bodies_in_tiny_chunks_hold_up_nobody_for_long(registry: RegistryProcesses, port: int):
    """Six such bodies once raised the median of all others from 3 ms to 5.2 s. They now cost about as much as
    others that load the process: the median may grow, but not by two orders of magnitude.
    """
    with client_of(registry) as client:
        before = statistics.median(seconds_of_answers(client, 1.0))
        with attackers(port):
            during = statistics.median(seconds_of_answers(client, ATTACK_SECONDS))
    assert during < 100 * before


@pytest.mark.parametrize("key", [None, str(new_token())], ids=["no key", "an unknown key"])
def test_a_key_is_checked_before_any_body_is_read(port: int, key: str | None):
    """An answer comes although the body never does."""
    lines = [f"Authorization: Bearer {key}"] if key else []
    with by_stranger(port) as connection:
        connection.sendall(head("POST", "/v1/audio/voices", *lines, "Content-Length: 1000000"))
        answer = read_answer(connection)
    assert (answer.status, answer.headers["connection"]) == (401, "close")


@pytest.mark.parametrize(
    "lines",
    [
        ("Content-Length: 5", "Content-Length: 5"),
        ("Content-Length: 5", "Content-Length: 6"),
        ("Content-Length: 5", "Transfer-Encoding: chunked"),
        ("Transfer-Encoding: chunked", "Content-Length: 5"),
        ("Content-Length: +5",),
        ("Content-Length: 5, 5",),
        ("Transfer-Encoding: chunked, identity",),
    ],
)
def test_a_body_whose_length_is_not_certain_ends_the_connection(port: int, lines: tuple[str, ...]):
    """What follows might be the body, or the next request: a proxy in front may have decided otherwise."""
    smuggled = head("GET", "/healthz")
    with by_stranger(port) as connection:
        connection.sendall(head("POST", "/v1/keys", *lines) + b"hello" + smuggled)
        answer = read_answer(connection)
        assert answer.status in {400, 401}
        assert answer.headers["connection"] == "close"
        assert connection.recv(1) == b""
