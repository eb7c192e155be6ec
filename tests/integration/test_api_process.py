"""An API process as whoever started it sees it: by its exit status."""

import os
import signal
from pathlib import Path

import pytest

from tests.processes import RegistryProcesses
from tests.queue_workers import wait_until


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_api_that_is_told_to_stop_ends_with_status_0(tmp_path: Path, number: signal.Signals):
    """Kubernetes and service managers take any other status for a crash."""
    with RegistryProcesses(tmp_path, workers=0) as registry:
        [api] = registry.apis
        os.kill(api.pid, number)
        wait_until(lambda: api.exit_status is not None)
        assert api.exit_status == 0
