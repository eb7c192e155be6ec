"""Tests of an API process as its supervisor sees it: by its exit status."""

import json
import os
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.processes import QUICK, RegistryProcesses
from tests.queue_workers import START_SECONDS, wait_until
from tests.relay import Relay
from tests.servers import KEY_ID, SECRET, S3Server

UPLOAD = (
    b"POST /v1/voices HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    b"Content-Length: 100\r\nExpect: 100-continue\r\n\r\n"
)
"""The head of an upload."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_api_that_is_told_to_stop_ends_with_status_0(tmp_path: Path, number: signal.Signals):
    """An API that is told to stop ends with status 0, because Kubernetes and service managers take any other
    status for a crash. A request whose body has not arrived when the time to stop is over can be sent again.
    """
    environment = {**QUICK, "SPEAKER_API_SHUTDOWN_SECONDS": "1"}
    with RegistryProcesses(tmp_path, workers=0, environment=environment) as registry, ExitStack() as stack:
        [api], url = registry.apis, httpx.URL(registry.urls[0])
        upload = stack.enter_context(socket.create_connection((url.host, url.port), timeout=10))
        upload.sendall(UPLOAD)
        assert upload.recv(1000).startswith(b"HTTP/1.1 100 "), "the request waits for its body"
        os.kill(api.pid, number)
        answer = upload.makefile("rb").read()
        wait_until(lambda: api.exit_status is not None)
        assert api.exit_status == 0
        head, body = answer.split(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"\r\nretry-after: 1\r\n" in head.lower()
        assert json.loads(body)["error"]["code"] == "unavailable"
        log = (tmp_path / "log").read_text()
        assert "Traceback" not in log
        assert '"error": "unavailable"' in log


@pytest.mark.slow
def test_an_api_that_is_stopped_while_the_bucket_is_silent_ends_soon(tmp_path: Path, moto_server: S3Server):
    """An API that is stopped while the bucket is silent ends a few seconds after its time to stop. Its
    supervisor would kill it otherwise, because its threads wait for the bucket for half a minute more.
    """
    environment = {**QUICK, "SPEAKER_API_SHUTDOWN_SECONDS": "1"}
    with Relay(urlsplit(moto_server.endpoint).port or 0) as relay:
        relay.open()
        store = {
            "SPEAKER_STORE_URL": f"s3://{moto_server.bucket}/stopped-in-silence",
            "SPEAKER_STORE_ENDPOINT": relay.url,
            "SPEAKER_STORE_ACCESS_KEY_ID": KEY_ID,
            "SPEAKER_STORE_SECRET_ACCESS_KEY": SECRET,
        }
        with RegistryProcesses(tmp_path, workers=0, environment=environment, store=store) as registry:
            [api], url = registry.apis, httpx.URL(registry.urls[0])
            relay.close()
            relay.open(silent=True)
            with socket.create_connection((url.host, url.port), timeout=20) as connection:
                accepted = relay.accepted
                connection.sendall(b"GET /v1/voices/wren HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                wait_until(lambda: relay.accepted > accepted)
                os.kill(api.pid, signal.SIGTERM)
                wait_until(lambda: api.exit_status is not None, 20)
                assert api.exit_status == 0
                assert connection.recv(1000).startswith(b"HTTP/1.1 503 ")


@pytest.mark.slow
def test_an_api_that_starts_while_redis_is_away_serves_reads(tmp_path: Path):
    """An API that starts while Redis is away serves reads. A replica that is replaced during an outage would
    otherwise be lost for reads.
    """
    with RegistryProcesses(tmp_path, workers=0) as registry:
        [api] = registry.apis
        registry.valkey.stop(seconds=5)
        api.kill()
        api.start()
        wait_until(lambda: _status(f"{registry.urls[0]}/healthz") == 200, START_SECONDS)
        assert _status(f"{registry.urls[0]}/v1/audio/voices") == 200
        assert _status(f"{registry.urls[0]}/readyz") == 503


def _status(url: str) -> int | None:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=30).status_code
    return None
