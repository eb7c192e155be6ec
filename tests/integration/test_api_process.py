"""Tests of an API process as its supervisor sees it: by its exit status."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from tests.processes import RegistryProcesses
from tests.queue_workers import START_SECONDS, wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_api_that_is_told_to_stop_ends_with_status_0(tmp_path: Path, number: signal.Signals):
    """An API that is told to stop ends with status 0, because Kubernetes and service managers take any other
    status for a crash.
    """
    with RegistryProcesses(tmp_path, workers=0) as registry:
        [api] = registry.apis
        os.kill(api.pid, number)
        wait_until(lambda: api.exit_status is not None)
        assert api.exit_status == 0


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
