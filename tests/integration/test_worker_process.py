"""A worker process from start to end: without Redis, replaced by a newer one, stopped while it loads."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.extractor_worker.process import EXIT_OUTDATED
from tests.processes import PROFILE, RegistryProcesses
from tests.queue_workers import wait_until


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcesses]:
    """One worker, no API, nothing started."""
    registry = RegistryProcesses(tmp_path, apis=0, workers=1)
    registry.bucket.mkdir()
    yield registry
    registry.close()


def test_a_worker_waits_for_redis(registry: RegistryProcesses):
    """After a power cut everything starts at once; ending would mean loading the models again."""
    [worker] = registry.workers
    worker.start()
    wait_until(lambda: "worker.waits" in registry.log(), 30)
    registry.valkey.start()
    wait_until(lambda: "worker.started" in registry.log(), 30)
    with registry.registrar() as registrar:
        wait_until(lambda: registrar.announcements.workers(PROFILE) == 1)
    assert worker.exit_status is None


def test_a_worker_that_was_replaced_ends(registry: RegistryProcesses):
    """What it makes would not be served; whoever starts it again is told by the status."""
    registry.valkey.start()
    [worker] = registry.workers
    worker.start()
    wait_until(lambda: "worker.started" in registry.log(), 30)
    with registry.registrar() as registrar:
        registrar.announcements.announce(PROFILE, "sha256:" + "2" * 64, {}, untrained=True)
        wait_until(lambda: worker.exit_status is not None)
        assert registrar.announcements.workers(PROFILE) == 0
    assert worker.exit_status == EXIT_OUTDATED
    assert "worker.outdated" in registry.log()


def test_a_worker_ends_at_once_while_it_loads(registry: RegistryProcesses):
    """Loading may take minutes, and there is nothing in hand that would have to be finished."""
    registry.valkey.start()
    registry.pace(60)  # its warm-up takes so long
    [worker] = registry.workers
    worker.start()
    wait_until(lambda: "worker.loads" in registry.log(), 30)
    worker.ask_to_stop()
    assert wait_until(lambda: worker.exit_status is not None) < 3
