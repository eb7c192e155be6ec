"""When a registry on one machine counts as up."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.embedded import supervisor
from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry, StartFailed, why_not_writable

PROFILE = "qwen3-tts-0.6b"


class StubApi:
    """Answers as an API whose worker is there at once, and whose index is trusted from the third look on."""

    def __init__(self) -> None:
        self.looks: list[int] = []
        """What each look at `/readyz` was answered."""
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, path: str) -> tuple[int, object]:
        if path.startswith("/v1/profiles"):
            return 200, {"object": "list", "data": [shown()], "has_more": False}
        self.looks.append(200 if len(self.looks) >= 2 else 503)
        return self.looks[-1], {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = api.answer(self.path)
                data = json.dumps(body).encode()
                self.send_response_only(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


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


@pytest.fixture
def api() -> Iterator[StubApi]:
    api = StubApi()
    thread = threading.Thread(target=api.http.serve_forever, args=(0.05,))
    thread.start()
    yield api
    api.http.shutdown()
    api.http.server_close()
    thread.join()


def test_it_is_not_up_before_it_is_ready(api: StubApi, tmp_path: Path):
    """Whoever reads "is up" pastes the first line: it must not be answered 503 while the index is rebuilt."""
    registry = EmbeddedRegistry(EmbeddedSettings(data=tmp_path, profiles=PROFILE))
    registry.url = api.url
    registry._wait_until_up()
    assert api.looks == [503, 503, 200]


def test_where_data_cannot_be_written_redis_has_a_folder_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """What it holds can be rebuilt; voices are served as before."""
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
