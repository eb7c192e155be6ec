"""Tests in which Redis is suspended: its connections stay open, and it answers nothing. Reads are answered
from the bucket, and one short probe decides that for all requests. Measured with ten lists and thirty
descriptors at the same time and 20 voices in a folder. When every request under way waited for 5 s, 2 lists
and all descriptors were answered 503, and one list took 5 s. With the breaker, and probes of 0.3 s as in
these tests, all are answered 200, a list takes 0.6 s, and a descriptor 0.01 s.
"""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.embedded.valkey import ValkeyServer
from services.registry_api.serving import admission
from services.shared.view import redis_access
from tests.integration.api.conftest import Start
from tests.integration.api.registry import Registry
from tests.queue_workers import wait_until
from tests.redis_commands import count_sent

VERSION = "/v1/voices/voice-0/versions/1"
AT_WORK = 4


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path / "redis") as server:
        yield server


@pytest.fixture
def registry(start: Start, server: ValkeyServer, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setattr(redis_access, "ANSWER_SECONDS", 60.0)  # only the breaker ends a wait
    monkeypatch.setattr(redis_access, "PROBE_SECONDS", 0.3)
    registry = start(server.url, max_active=AT_WORK)
    for number in range(5):
        registry.ready(f"voice-{number}")
    return registry


@pytest.fixture
def stopped(registry: Registry, server: ValkeyServer) -> Iterator[None]:
    assert server._process is not None
    assert registry.client.get("/v1/voices").status_code == 200  # opens the connections
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server._process.pid, signal.SIGCONT)


@pytest.mark.usefixtures("stopped")
def test_nobody_waits_for_those_who_ask_a_stopped_server(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """Only the first requests send a command to a suspended server and wait. The others are answered without
    it, though more arrive than may be active at a time.
    """
    monkeypatch.setattr(admission, "WAIT_LIMIT_SECONDS", 60)  # however slow this machine is, none is refused
    sent = count_sent(monkeypatch)
    paths = ["/v1/voices"] * 2 * AT_WORK + [VERSION] * 4 * AT_WORK
    with ThreadPoolExecutor(len(paths)) as pool:
        answers = list(pool.map(registry.client.get, paths))
    assert {answer.status_code for answer in answers} == {200}
    assert 1 <= len(sent) <= AT_WORK, sent
    assert len(registry.client.get("/v1/voices").json()["data"]) == 5


@pytest.mark.usefixtures("stopped")
def test_writes_are_told_to_come_back(registry: Registry):
    """Writes are answered 503 with Retry-After while Redis is suspended, and none of them
    seems to succeed.
    """
    for response in (
        registry.post_voice("new"),
        registry.client.delete("/v1/voices/voice-0"),
        registry.client.post("/v1/audio/voices/voice-1/cache", params={"force": "true"}),
    ):
        assert response.status_code == 503, response.text
        assert int(response.headers["Retry-After"]) >= 1
    assert registry.client.get("/v1/voices/new").status_code == 404


@pytest.mark.usefixtures("stopped")
def test_a_visitor_without_a_session_is_told_to_come_back(registry: Registry):
    """A session cannot begin while Redis is suspended. Pages that need one say so, and nothing crashes."""
    for path in ("", "/voices", "/login"):
        response = registry.client.get(f"/dashboard{path}")
        assert response.status_code == 503, response.text
        assert int(response.headers["Retry-After"]) >= 1
        assert response.headers["Content-Type"].startswith("text/html")
        assert "cannot be reached now" in response.text
        assert response.text.count("<html") == 1
    missing = registry.client.get("/dashboard/nothing")
    assert (missing.status_code, "Not found" in missing.text) == (404, True)


@pytest.mark.slow
def test_all_goes_on_when_it_answers_again(registry: Registry, server: ValkeyServer):
    """Writes succeed within a second after Redis answers again, without a restart of the registry."""
    assert server._process is not None
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        assert registry.post_voice("new").status_code == 503
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
    wait_until(lambda: registry.post_voice("new").status_code == 200)
