"""When a registry on one machine counts as up."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.embedded.settings import EmbeddedSettings
from services.embedded.supervisor import EmbeddedRegistry

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
