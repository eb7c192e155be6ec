"""S3 servers for tests, each a context manager that yields an `S3Server`, and a proxy to make one misbehave.

All listen on free ports of the loopback interface and are gone afterwards. Knows S3 and Docker, not our code.
"""

import http.client
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from redis import Redis, RedisError

from tests.ports import free_ports

KEY_ID = "GK1f3a5c7e9b2d4f6a8c0e1f3b"
SECRET = "b3a1d5c7e9f02468ace13579bdf02468ace13579bdf02468ace13579bdf02468"
BUCKET = "voices"


@dataclass(frozen=True)
class S3Server:
    endpoint: str
    region: str = "us-east-1"
    bucket: str = BUCKET


@contextmanager
def rclone(folder: Path) -> Iterator[S3Server]:
    """`rclone serve s3`: a poor S3 server. Checks signatures, has no conditional writes, never syncs."""
    (folder / BUCKET).mkdir()
    command = [
        shutil.which("rclone", path=Path(sys.executable).parent) or "rclone",
        "serve",
        "s3",
        str(folder),
    ]
    command += ["--addr", "127.0.0.1:0", "--auth-key", f"{KEY_ID},{SECRET}", "--config", os.devnull]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    try:
        found = re.search(r"http://[0-9.]+:\d+", process.stderr.readline())
        assert found, "rclone did not say where it listens"
        threading.Thread(target=process.stderr.read, daemon=True).start()  # a full pipe would stop it
        yield S3Server(found.group())
    finally:
        process.kill()
        process.wait()


MOTO_PAGE = 100
"""The number of objects in one answer of moto's. It takes milliseconds for each object it stores or lists."""


@contextmanager
def moto() -> Iterator[S3Server]:
    """moto's server: close to AWS in its answers, versioning included. Checks no signatures."""
    os.environ["MOTO_S3_DEFAULT_MAX_KEYS"] = str(MOTO_PAGE)
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - slow, and few tests need it

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}")
    finally:
        server.stop()


@contextmanager
def seaweedfs(folder: Path) -> Iterator[S3Server]:
    """SeaweedFS: a real S3 server with compare-and-swap. It takes some seconds to start."""
    identity = {
        "name": "registry",
        "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
        "actions": ["Admin"],
    }
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": [identity]}))
    names = [f"{server}.port{kind}" for server in _WEED_SERVERS for kind in ("", ".grpc")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    command = [shutil.which("weed", path=Path(sys.executable).parent) or "weed", "server", f"-dir={folder}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3", f"-s3.config={config}"]
    command += ["-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-master.telemetry=false"]
    command += ["-master.volumeSizeLimitMB=64", "-volume.max=20", "-volume.minFreeSpace=0"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
    try:
        endpoint = f"http://127.0.0.1:{ports['s3.port']}"
        wait_until(lambda: answers(endpoint), seconds=120)
        yield S3Server(endpoint)
    finally:
        process.kill()  # it would take long to end in peace
        process.wait()


_WEED_SERVERS = ("master", "volume", "filer", "s3")


def no_docker() -> str | None:
    """Return why containers can't be started here, or None if they can."""
    import docker  # type: ignore[import-untyped] # noqa: PLC0415 - slow, and few tests need it

    try:
        docker.from_env(timeout=5).ping()
    except Exception as error:  # noqa: BLE001 - whatever it is, there is no engine
        return f"no Docker engine answers: {str(error)[:50]}"
    return None


@contextmanager
def redis_container(image: str) -> Iterator[str]:
    """A Redis or Valkey of that image; yields its URL."""
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - slow, and rarely used

    with DockerContainer(image).with_exposed_ports(6379) as container:
        url = f"redis://{container.get_container_host_ip()}:{container.get_exposed_port(6379)}/0"
        with Redis.from_url(url) as client:
            wait_until(client.ping)
        yield url


def wait_until(attempt: Callable[[], object], seconds: float = 30) -> None:
    """Return when it does not fail any more."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            attempt()
            return
        except (OSError, RedisError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def answers(url: str) -> None:
    """Any answer will do, a refusal too."""
    with suppress(urllib.error.HTTPError):
        urllib.request.urlopen(url, timeout=2).close()


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Response:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    sent: int | None = None
    """The number of bytes of the body to send before cutting the connection. None sends all of them."""


class CutOff(Exception):
    """Raised by an answer: close the connection without a word."""


class S3Proxy:
    """Stands in front of an S3 server and passes everything on, until a test overrides `answer`.

    The `Host` header is passed on as it came, so signatures stay valid.
    """

    def __init__(self, server: S3Server, *, certificate: tuple[Path, Path] | None = None) -> None:
        self.server = server
        self.seen: list[Request] = []
        self.over = threading.Event()
        """Set when the proxy closes. Answers that hang wait for it."""
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._http.daemon_threads = True
        if certificate:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        scheme = "https" if certificate else "http"
        self.endpoint = f"{scheme}://127.0.0.1:{self._http.server_port}"

    def answer(self, request: Request) -> Response:
        return self.forward(request)

    def forward(self, request: Request) -> Response:
        upstream = http.client.HTTPConnection(self.server.endpoint.removeprefix("http://"), timeout=10)
        try:
            upstream.request(request.method, request.path, request.body, request.headers)
            answer = upstream.getresponse()
            return Response(answer.status, dict(answer.getheaders()), answer.read())
        finally:
            upstream.close()

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # head and body in one packet; else each answer waits 40 ms for an acknowledgement

            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                request = Request(self.command, self.path, dict(self.headers), body)
                proxy.seen.append(request)
                try:
                    _send(self, proxy.answer(request))
                except (CutOff, ConnectionError):
                    self.close_connection = True

            do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - http.server looks for these

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _send(handler: BaseHTTPRequestHandler, response: Response) -> None:
    handler.send_response_only(response.status)
    headers = {name.title(): value for name, value in response.headers.items()}
    headers.pop("Transfer-Encoding", None)
    if handler.command != "HEAD":
        headers["Content-Length"] = str(len(response.body))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    if handler.command == "HEAD":
        return
    handler.wfile.write(response.body[: response.sent])
    if response.sent is not None:
        handler.close_connection = True
