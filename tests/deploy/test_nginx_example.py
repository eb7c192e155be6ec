"""Tests of the example for nginx in docs/operations.md. With the example as it is shown, except for addresses
and TLS, nginx passes large clips on, and says who called.
"""

import re
import shutil
import subprocess
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import pytest

from tests.http_server import http_server
from tests.integration.documented import blocks
from tests.ports import free_port
from tests.queue_workers import wait_until

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/sbin:/bin")
MIB = 1024**2

pytestmark = pytest.mark.integration


class Upstream:
    """A server in the place of the registry, which keeps what it was sent."""

    def __init__(self) -> None:
        self.headers: dict[str, str] = {}
        self.size = 0

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        self.headers, self.size = {name.lower(): text for name, text in request.headers.items()}, len(body)
        return 200, b"{}"


def configuration(folder: Path, port: int, upstream: str) -> str:
    """Return nginx's configuration with the example. It needs no certificate, because it uses no TLS."""
    [example] = blocks("nginx", "docs/operations.md")
    example = example.replace("443 ssl", f"127.0.0.1:{port}").replace("http://127.0.0.1:8300", upstream)
    example = re.sub(r"^ *ssl_.*\n", "", example, flags=re.MULTILINE)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = "".join(f"{kind}_temp_path {folder}/{kind};\n" for kind in kinds)
    return (
        f"daemon off;\nmaster_process off;\npid {folder}/pid;\nerror_log stderr;\nevents {{}}\n"
        f"http {{\naccess_log off;\n{folders}{example}}}\n"
    )


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def client(upstream: Upstream, tmp_path: Path) -> Iterator[httpx.Client]:
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port, file = free_port(), tmp_path / "nginx.conf"
    with http_server(upstream.answer) as address:
        file.write_text(configuration(tmp_path, port, address))
        with subprocess.Popen([NGINX, "-e", "stderr", "-p", tmp_path, "-c", file]) as nginx:
            try:
                with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
                    wait_until(lambda: nginx.poll() is not None or answers(client))
                    assert nginx.poll() is None, "nginx has ended"
                    yield client
            finally:
                nginx.terminate()


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").is_success
    except httpx.TransportError:
        return False


def test_a_clip_of_ten_mebibytes_passes(client: httpx.Client, upstream: Upstream):
    """nginx itself refuses a body of more than 1 MB, with a page of its own."""
    size = 10 * MIB + 256 * 1024
    assert client.post("/v1/voices", content=bytes(size)).status_code == 200
    assert upstream.size == size
    assert client.post("/v1/voices", content=bytes(12 * MIB)).status_code == 413


def test_the_registry_learns_who_called_and_by_which_name(client: httpx.Client, upstream: Upstream):
    """The API believes the proxy about addresses. Forms of the dashboard need the host's name and port."""
    claimed = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "https"}
    client.get("/v1/voices", headers={"Host": "voices.example.com:8443", **claimed})
    assert upstream.headers["host"] == "voices.example.com:8443"
    assert upstream.headers["x-forwarded-for"] == "127.0.0.1"
    assert upstream.headers["x-forwarded-proto"] == "http"


def test_a_request_may_wait_as_long_as_the_registry_lets_it():
    """The longest `wait` of a route is 300 s. The proxy would answer 504 before that."""
    [seconds] = re.findall(r"proxy_read_timeout (\d+)s;", blocks("nginx", "docs/operations.md")[0])
    assert int(seconds) > 300
