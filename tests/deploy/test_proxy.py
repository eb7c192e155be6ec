"""The proxy of the compose file, the real one, in front of real replicas."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from speaker_registry import RegistryClient
from tests.deploy.composed import ComposedRegistry
from tests.process_load import noise_clip
from tests.processes import PROFILE
from tests.queue_workers import START_SECONDS, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposedRegistry]:
    with ComposedRegistry(tmp_path_factory.mktemp("composed")) as running:
        yield running


@pytest.fixture
def client(composed: ComposedRegistry) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=composed.url, headers=composed.authorization, timeout=30) as client:
        yield client


def test_without_a_key_nobody_gets_through(composed: ComposedRegistry):
    """The compose file asks for keys: its API listens beyond loopback."""
    assert httpx.get(f"{composed.url}/v1/voices").status_code == 401
    assert httpx.get(f"{composed.url}/v1/voices", headers=composed.authorization).status_code == 200


def test_callers_of_the_sdk_notice_nothing_while_replicas_are_killed(composed: ComposedRegistry):
    """Uploads and fetches go on while one replica after the other is killed in the midst of them."""
    stop = threading.Event()

    def work(number: int) -> list[str]:
        names = []
        with RegistryClient(composed.url, api_key=composed.key) as client:
            while not stop.is_set():
                names.append(f"killed-{number}-{len(names)}")
                voice = client.register(names[-1], noise_clip(len(names))[0], consent="cons_1")
                client.wait_ready(voice.reference, timeout=30)
                assert client.fetch(voice.reference, profile=PROFILE).tensors
        return names

    with ThreadPoolExecutor() as pool:
        working = [pool.submit(work, number) for number in range(3)]
        try:
            for _ in range(3):
                wait_until(composed.kill_a_replica, 60)
                time.sleep(0.5)
        finally:
            stop.set()
        registered = {name for names in working for name in names.result()}
    with RegistryClient(composed.url, api_key=composed.key) as client:
        known = {voice.name for voice in client.list()}
    assert registered <= known
    assert len(registered) >= 3


def test_plain_reads_are_answered_by_the_other_replica(composed: ComposedRegistry):
    """A replica that is killed may reset a connection instead of closing it. Then HAProxy answers 502, or
    hangs up on who kept a connection, and RFC 9110 (9.2.2) has callers repeat a GET. Once is enough.
    """
    stop = threading.Event()

    def read() -> set[int]:
        with httpx.Client(base_url=composed.url, headers=composed.authorization) as client:
            seen = set()
            while not stop.is_set():
                seen.add(_repeated_once(client))
        return seen

    with ThreadPoolExecutor() as pool:
        reading = [pool.submit(read) for _ in range(4)]
        try:
            for _ in range(3):
                wait_until(composed.kill_a_replica, 60)
                time.sleep(0.5)
        finally:
            stop.set()
        assert [seen.result() for seen in reading] == [{200}] * 4


def _repeated_once(client: httpx.Client) -> int:
    try:
        status = client.get("/v1/voices").status_code
    except httpx.RemoteProtocolError:
        status = 502
    return client.get("/v1/voices").status_code if status == 502 else status


def test_a_body_that_is_too_large_is_refused_before_any_replica_sees_it(client: httpx.Client):
    """The refusal has the API's form, so that a caller need not know which server refused the body."""
    refused = client.post("/v1/audio/voices", content=bytes(12 * 1024**2))
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "payload_too_large")
    assert "X-Request-Id" not in refused.headers, "the API answered"


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_callers_are_told_apart_by_where_they_come_from_not_by_where_they_say(
    header: str, composed: ComposedRegistry
):
    """An address that guesses keys is told to wait, whatever addresses it claims to be; another is not."""
    guesser, other = ("127.0.7.1", "127.0.7.2") if header == "Forwarded" else ("127.0.8.1", "127.0.8.2")

    def guesses(address: str, count: int) -> Iterator[int]:
        with httpx.Client(transport=httpx.HTTPTransport(local_address=address)) as client:
            for number in range(count):
                claim = f"203.0.113.{number}" if header == "X-Forwarded-For" else f"for=203.0.113.{number}"
                headers = {"Authorization": "Bearer wrong", header: claim}
                yield client.get(f"{composed.url}/v1/voices", headers=headers).status_code

    # Each of the two replicas refuses the 61st of a minute. Should a minute end in between, then at least 121
    # of these guesses fall on one side of that, and 61 of them on one replica.
    assert 429 in guesses(guesser, 242)
    assert list(guesses(other, 1)) == [401]


def test_the_proxys_log_says_what_was_asked_of_whom_and_names_no_voice(
    composed: ComposedRegistry, client: httpx.Client
):
    """A reader of the log must not learn which person's voice was asked for."""

    def logged() -> list[dict[str, Any]]:
        lines = [line for line in composed.log().splitlines() if '"proxy.request"' in line]
        assert not [line for line in lines if "secretive" in line]
        return [json.loads(line) for line in lines]

    before = len(logged())
    client.get("/v1/voices/secretive-wren/versions", params={"name": "secretive"})
    httpx.get(f"{composed.url}/healthz")
    client.get("/v1/voices")
    wait_until(lambda: len(logged()) == before + 2)
    refused, found = logged()[before:]  # the first for its parameter, which there is not
    assert (refused["method"], refused["status"], found["status"]) == ("GET", 400, 200)
    assert found["server"].startswith("api/api-")
    assert found["client"] == "127.0.0.1"
    assert 0 <= found["answered_ms"] <= found["total_ms"]
    assert found["bytes"] > 0


def test_a_head_that_does_not_arrive_is_given_up(composed: ComposedRegistry):
    """Thousands of such connections would otherwise take every place that there is."""
    with socket.create_connection(("127.0.0.1", composed.proxy_port), timeout=20) as slow:
        slow.sendall(b"GET /v1/voices HTTP/1.1\r\nHost: registry\r\n")
        answer = slow.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408 ")


def test_without_replicas_the_proxy_says_so_and_goes_on_when_they_are_back(
    composed: ComposedRegistry, client: httpx.Client
):
    """503 and Retry-After are what the SDK waits and asks again for."""
    for api in composed.apis:
        api.kill()
    try:
        refused = client.get("/v1/voices")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
        assert int(refused.headers["Retry-After"]) >= 1
    finally:
        for api in composed.apis:
            api.start()
        wait_until(composed.whole, START_SECONDS)
    assert client.get("/v1/voices").status_code == 200
