"""A Hugging Face hub on loopback with one repository at one commit, which can fail like the real hub.

It answers the requests by which the library fetches a file of a commit. Knows no model.
"""

import hashlib
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "example/voice-model"


class FakeHub:
    """The state of the hub. Attributes may be changed while it runs.

    commit: the commit that answers name. cut: the names of files whose first delivery breaks off halfway.
    refusal: the HTTP status and the hub's own code that every request for a file gets, if any. asked: the
    method, name and range of every request for a file.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.commit = COMMIT
        self.cut: set[str] = set()
        self.refusal: tuple[int, str] | None = None
        self.asked: list[tuple[str, str, str | None]] = []
        self.other_requests: list[str] = []
        """The paths of requests for anything but a file."""
        self.url = ""

    @property
    def fetched(self) -> list[str]:
        return [name for method, name, _ in self.asked if method == "GET"]


@contextmanager
def running(hub: FakeHub) -> Iterator[FakeHub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: FakeHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            repo, _, path = self.path.removeprefix("/").partition("/resolve/")
            place, _, name = path.partition("/")
            if not path:  # something about the hub itself
                hub.other_requests.append(self.path)
                return self._refuse(404, "NotFound")
            assert repo == REPO
            hub.asked.append((self.command, name, self.headers["Range"]))
            if hub.refusal:
                return self._refuse(*hub.refusal)
            if place != COMMIT:
                return self._refuse(404, "RevisionNotFound")
            if name not in hub.files:
                return self._refuse(404, "EntryNotFound")
            return self._deliver(name, hub.files[name], body)

        def _deliver(self, name: str, content: bytes, body: bool) -> None:
            start = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").partition("-")[0])
            self.send_response(206 if start else 200)
            self.send_header("X-Repo-Commit", hub.commit)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content) - start))
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.end_headers()
            if not body:
                return
            if name in hub.cut:
                hub.cut.discard(name)
                self.wfile.write(content[start : (start + len(content)) // 2])
                self.close_connection = True
            else:
                self.wfile.write(content[start:])

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler
