"""Tests of when a registry on one machine counts as up."""

import json
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from services.embedded import commands, supervisor
from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry, StartFailed, why_not_writable
from services.embedded.valkey import ValkeyServer
from services.shared.configuration.explanation import variable_of
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


def test_the_log_of_redis_is_rewritten_at_the_start_and_each_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What was erased leaves the log, also of a registry that never runs for an hour."""
    clock = FakeTime()
    rewritten = list[float]()

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if clock.now > 100 + 2.5 * 3600:
            raise KeyboardInterrupt

    monkeypatch.setattr(clock, "sleep", sleep)
    monkeypatch.setattr(supervisor, "time", clock)
    registry = EmbeddedRegistry(EmbeddedSettings(data=tmp_path, profiles=PROFILE))
    server = SimpleNamespace(running=True, rewrite_append_only_file=lambda: rewritten.append(clock.now))
    registry.valkey = cast("ValkeyServer", server)
    with pytest.raises(KeyboardInterrupt):
        registry.watch()
    assert [round((at - 100) / 3600, 2) for at in rewritten] == [0, 1, 2]


@pytest.mark.parametrize("redis_url", [None, "redis://127.0.0.1:6379/0"])
def test_a_folder_is_known_by_one_name_with_either_redis(
    redis_url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A folder that was used without REDIS_URL is used with it, and the other way around. A new folder beside
    a shared Redis records its path, so that its copy is refused there. The operator's own name goes first.
    """
    monkeypatch.delenv("SPEAKER_STORE_KNOWN_AS", raising=False)
    registry = EmbeddedRegistry(EmbeddedSettings(data=tmp_path, profiles=PROFILE, redis_url=redis_url))

    def known_as() -> str:
        return registry._environment(tmp_path, "redis://h")["SPEAKER_STORE_KNOWN_AS"]

    assert known_as() == ("" if redis_url else "an embedded registry")
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket/_registry.json").write_text("{}")
    assert known_as() == "an embedded registry"
    monkeypatch.setenv("SPEAKER_STORE_KNOWN_AS", "file:///moved")
    assert known_as() == "file:///moved"


def test_a_folder_is_asked_by_writing_to_it(tmp_path: Path):
    """Permissions say nothing of a full disk."""
    assert why_not_writable(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    assert why_not_writable(Path("/proc"))


def test_a_host_that_cannot_be_resolved_is_named():
    """The port is not at fault then."""
    with pytest.raises(StartFailed, match=r"^HOST is '.*, which cannot be resolved: ") as caught:
        supervisor._claim_port("no-such-host.invalid", 0)
    assert "running there already" not in str(caught.value)


def test_a_host_of_another_machine_is_named():
    with pytest.raises(StartFailed, match=r"Set HOST to an address of this machine\.$"):
        supervisor._claim_port("203.0.113.9", 0)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_names_all_variables(option: str, capsys: pytest.CaptureFixture[str]):
    """A person who runs the module without make finds out how to configure it."""
    assert commands.main([option]) == 0
    said = capsys.readouterr().out
    assert all(variable_of(EmbeddedSettings, field) in said for field in EmbeddedSettings.model_fields)
