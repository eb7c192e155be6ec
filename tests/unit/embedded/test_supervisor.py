"""Tests of when a registry on one machine counts as up."""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from services.embedded import supervisor
from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry, StartFailed, why_not_writable
from tests.http_server import http_server

PROFILE = "qwen3-tts-0.6b"


class StubApi:
    """Answers as an API whose worker is there at once, and whose view is trusted from the third look on."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        """The answers of `/readyz`, in order."""

    def __call__(self, request: BaseHTTPRequestHandler, _: bytes) -> tuple[int, bytes]:
        if request.path.startswith("/v1/profiles"):
            return 200, json.dumps({"object": "list", "data": [shown()], "has_more": False}).encode()
        self.looks.append(200 if len(self.looks) >= 2 else 503)
        return self.looks[-1], b"{}"


def shown() -> dict[str, object]:
    """The profile as `/v1/profiles` shows it with a worker."""
    return {
        "id": PROFILE,
        "model_type": "qwen3_tts",
        "description": "",
        "required": True,
        "tensors": {},
        "sample_rate": 24_000,
        "model": "",
        "licence": "",
        "workers": 1,
    }


def test_it_is_not_up_before_it_is_ready(tmp_path: Path):
    """A user who reads "is up" pastes the first line, which must not be answered 503 while the view is
    rebuilt.
    """
    registry = EmbeddedRegistry(EmbeddedSettings(data=tmp_path, profiles=PROFILE))
    api = StubApi()
    with http_server(api) as registry.url:
        registry._wait_until_up()
    assert api.looks == [503, 503, 200]


class FakeTime:
    """A clock that sleeps without waiting."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_start_asks_few_questions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A start of a quarter of a minute asked whether it is up hundreds of times, each time about all
    profiles. Few questions are enough, and the answer is not noticed much later.
    """
    clock, asked = FakeTime(), []
    monkeypatch.setattr(supervisor, "time", clock)

    def api(request: BaseHTTPRequestHandler, _: bytes) -> tuple[int, bytes]:
        if request.path.startswith("/v1/profiles"):
            asked.append(clock.now)
            data = [shown()] if clock.now >= 113 else []
            return 200, json.dumps({"object": "list", "data": data, "has_more": False}).encode()
        return 200, b"{}"

    registry = EmbeddedRegistry(EmbeddedSettings(data=tmp_path, profiles=PROFILE))
    with http_server(api) as registry.url:
        registry._wait_until_up()
    assert len(asked) <= 20
    assert clock.now < 114.5


def test_where_data_cannot_be_written_redis_has_a_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The data of Redis can be rebuilt, so voices are served as before."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    data.mkdir(), elsewhere.mkdir()
    registry = EmbeddedRegistry(EmbeddedSettings(data=data, profiles=PROFILE))
    monkeypatch.setattr(supervisor, "_TEMPORARY_PARENTS", (elsewhere,))
    assert registry._redis_folder(data) == data / "redis"
    full = {data}
    monkeypatch.setattr(supervisor, "why_not_writable", lambda folder: "no space" if folder in full else None)
    found = registry._redis_folder(data)
    assert found.parent == elsewhere
    registry.stop()
    assert not found.exists()
    full.add(elsewhere)
    with pytest.raises(StartFailed, match=r"not writable \(no space\), and neither is a temporary folder"):
        registry._redis_folder(data)


def test_a_folder_is_asked_by_writing_to_it(tmp_path: Path):
    """Permissions say nothing of a full disk."""
    assert why_not_writable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert why_not_writable(Path("/proc"))
