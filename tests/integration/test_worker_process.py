"""Tests of a worker process from start to end: without Redis, replaced by a newer one,
stopped while it loads.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from services.embedded.managed_process import ROOT
from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.process import EXIT_NOTHING_TO_SERVE, EXIT_OUTDATED
from speaker_registry import RegistryClient
from speaker_registry.errors import ArtifactNotReady
from tests.process_load import noise_clip
from tests.processes import LEASE_SECONDS, OPTIONAL_PROFILE, PROFILE, PROFILES, QUICK, RegistryProcesses
from tests.queue_workers import START_SECONDS, wait_until

NEWER = "sha256:" + "2" * 64


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryProcesses]:
    """A registry with one worker and no API, of which nothing is started."""
    registry = RegistryProcesses(tmp_path, apis=0, workers=1)
    registry.bucket.mkdir()
    yield registry
    registry.close()


@contextmanager
def with_valkey(
    folder: Path, profiles: Mapping[str, str] = PROFILES, *, apis: int = 0, **environment: str
) -> Iterator[RegistryProcesses]:
    """A registry with one worker that is not started, while Valkey and the APIs are."""
    environment = {**QUICK, **environment}
    registry = RegistryProcesses(folder, apis=apis, workers=1, environment=environment, profiles=profiles)
    registry.bucket.mkdir()
    try:
        registry.valkey.start()
        for api in registry.apis:
            api.start()
        for url in registry.urls:
            wait_until(lambda url=url: is_ready(url), START_SECONDS)
        yield registry
    finally:
        registry.close()


def is_ready(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/readyz").status_code == 200
    return False


def until_logged(registry: RegistryProcesses, event: str, times: int = 1) -> None:
    """Wait until the worker has logged it. If the worker ends first, fail at once with its last words."""
    [worker] = registry.workers
    wait_until(lambda: registry.log().count(event) >= times or worker.exit_status is not None, START_SECONDS)
    assert registry.log().count(event) >= times, worker.failure_reason()


def healthy(file: Path) -> subprocess.CompletedProcess[str]:
    """Run the worker's health check as a container does."""
    command = [sys.executable, "-m", "services.extractor_worker", "healthy"]
    environment = {**os.environ, **QUICK, "SPEAKER_WORKER_BEAT_FILE": str(file)}
    return subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_worker_that_hangs_is_found_unhealthy_and_one_that_waits_for_redis_is_not(tmp_path: Path):
    """A worker that hangs is reported as unhealthy and one that waits for Redis is not. Restarting the first
    helps; restarting the second only loads its models again.
    """
    beats = tmp_path / "beat"
    with with_valkey(tmp_path, SPEAKER_WORKER_BEAT_FILE=str(beats)) as registry:
        [worker] = registry.workers
        registry.valkey.stop(seconds=5)
        worker.start()
        until_logged(registry, "worker.waits")
        assert healthy(beats).returncode == 0
        registry.valkey.start()
        until_logged(registry, "worker.ready")
        registry.valkey.stop(seconds=5)
        time.sleep(LEASE_SECONDS + 1)
        assert (healthy(beats).returncode, worker.exit_status) == (0, None)
        os.kill(worker.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: healthy(beats).returncode == 1)
            assert "the last beat" in healthy(beats).stderr
        finally:
            os.kill(worker.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_worker_waits_for_redis(registry: RegistryProcesses):
    """A worker waits for Redis. Everything starts at once after a power cut, and a worker that ended would
    have to load its models again.
    """
    [worker] = registry.workers
    worker.start()
    until_logged(registry, "worker.waits")
    registry.valkey.start()
    until_logged(registry, "worker.started")
    with registry.parts() as parts:
        wait_until(lambda: parts.announcements.workers(PROFILE) == 1)
    assert worker.exit_status is None


@pytest.mark.slow
def test_a_worker_whose_profiles_were_all_replaced_ends(registry: RegistryProcesses):
    """A worker whose profiles were all replaced ends, because its artifacts would not be served. Its exit
    status tells the supervisor why.
    """
    registry.valkey.start()
    [worker] = registry.workers
    worker.start()
    until_logged(registry, "worker.started")
    with registry.parts() as parts:
        for name in (PROFILE, OPTIONAL_PROFILE):
            parts.announcements.announce(name, NEWER, {}, untrained=True)
        wait_until(lambda: worker.exit_status is not None)
        assert parts.announcements.workers(PROFILE) == 0
    assert worker.exit_status == EXIT_OUTDATED
    assert "moved on to sha256:2222" in registry.log()


@pytest.mark.slow
def test_a_worker_goes_on_with_those_of_its_profiles_that_were_not_replaced(registry: RegistryProcesses):
    """A worker goes on with those of its profiles that were not replaced, also after a restart. One upgraded
    profile must not stop fourteen others.
    """
    registry.valkey.start()
    [worker] = registry.workers
    worker.start()
    with registry.parts() as parts:
        alive = parts.announcements.workers
        wait_until(lambda: alive(PROFILE) == alive(OPTIONAL_PROFILE) == 1, START_SECONDS)
        parts.announcements.announce(PROFILE, NEWER, {}, untrained=True)
        wait_until(lambda: alive(PROFILE) == 0)
        assert "profile.not_served" in registry.log()
        worker.kill()
        worker.start()
        until_logged(registry, "worker.started", times=2)
        wait_until(lambda: alive(OPTIONAL_PROFILE) == 2)  # the dead one is remembered for a while
        assert alive(PROFILE) == 0
        assert worker.exit_status is None
    assert f'"not_served": ["{PROFILE}"]' in registry.log()


@pytest.mark.slow
def test_a_profile_without_weights_stops_no_other(tmp_path: Path):
    """A profile without weights stops no other. The log gives the reason, `/v1/profiles` shows that a
    required profile has no worker, and the others' artifacts are made.
    """
    required = {"SPEAKER_PROFILES": f"{PROFILE},{OPTIONAL_PROFILE}"}
    with with_valkey(tmp_path, required, apis=1, LIGHT_WORKER_LACKS=PROFILE) as registry:
        registry.workers[0].start()
        until_logged(registry, "worker.started")
        wait_until(lambda: "model.safetensors missing" in registry.log())
        with RegistryClient(registry.urls[0], cache=None) as client:
            wait_until(lambda: {one.id: one for one in client.profiles()}[OPTIONAL_PROFILE].workers == 1)
            lacking = {one.id: one for one in client.profiles()}[PROFILE]
            assert (lacking.required, lacking.workers, lacking.fingerprint) == (True, 0, None)
            client.register("alice", noise_clip(1)[0], consent="yes")
            manifest = client.fetch("alice@1", OPTIONAL_PROFILE, wait=20).manifest
            assert manifest.profile == OPTIONAL_PROFILE
            assert str(manifest.computed_on) == "cpu, none"
            with pytest.raises(ArtifactNotReady):
                client.fetch("alice@1", PROFILE, wait=0)


@pytest.mark.slow
def test_an_encoder_that_fails_its_proof_is_not_served_and_every_surface_says_so(tmp_path: Path):
    """An encoder that fails its proof is not served, and every surface reports it. Its artifacts would be
    wrong without a sign of it.
    """
    required = {"SPEAKER_PROFILES": f"{PROFILE},{OPTIONAL_PROFILE}"}
    with with_valkey(tmp_path, required, apis=1, LIGHT_WORKER_UNPROVEN=PROFILE) as registry:
        [worker] = registry.workers
        worker.start()
        until_logged(registry, "worker.ready")
        assert f"{PROFILE}: 12.00% of the codes are equal" in registry.log()
        with RegistryClient(registry.urls[0], cache=None) as client:
            wait_until(lambda: {one.id: one for one in client.profiles()}[OPTIONAL_PROFILE].workers == 1)
            shown = {one.id: one for one in client.profiles()}
            [failed] = shown[PROFILE].failed_proofs
            assert (failed.device, failed.reason) == ("cpu", f"{PROFILE}: 12.00% of the codes are equal")
            assert (shown[PROFILE].workers, shown[OPTIONAL_PROFILE].failed_proofs) == (0, [])
            worker.request_stop()
            wait_until(lambda: worker.exit_status is not None, START_SECONDS)
            assert {one.id: one for one in client.profiles()}[PROFILE].failed_proofs == []


def test_a_failed_proof_is_told_also_by_a_worker_that_ends_over_it(tmp_path: Path):
    """A failed proof is also reported by a worker that ends because of it. A fleet of one broken GPU would
    otherwise be silent: no process is left to be scraped.
    """
    profiles = {"SPEAKER_PROFILES": PROFILE}
    with with_valkey(tmp_path, profiles, LIGHT_WORKER_UNPROVEN=PROFILE) as registry:
        [worker] = registry.workers
        worker.start()
        wait_until(lambda: worker.exit_status is not None, START_SECONDS)
        assert worker.exit_status == EXIT_NOTHING_TO_SERVE
        with registry.parts() as parts:
            assert len(parts.announcements.failed_proofs_of([PROFILE])[PROFILE]) == 1


def test_a_worker_that_can_serve_nothing_ends_and_says_why(tmp_path: Path):
    with with_valkey(tmp_path, {"SPEAKER_PROFILES": PROFILE}, LIGHT_WORKER_LACKS=PROFILE) as registry:
        [worker] = registry.workers
        worker.start()
        wait_until(lambda: worker.exit_status is not None, START_SECONDS)
        assert worker.exit_status == EXIT_NOTHING_TO_SERVE
        assert worker.failure_reason() == f"{PROFILE}: model.safetensors missing"


@pytest.mark.slow
def test_a_worker_that_loses_its_device_ends_and_its_clips_get_another(tmp_path: Path):
    """A worker that loses its device ends, and its clips get another worker. It would otherwise fail every
    clip of every voice. In a new process the device works again.
    """
    lost = tmp_path / "lost"
    with with_valkey(tmp_path, apis=1, LIGHT_WORKER_LOST=str(lost)) as registry:
        [worker] = registry.workers
        worker.start()
        until_logged(registry, "worker.started")
        lost.touch()
        with RegistryClient(registry.urls[0], cache=None) as client:
            client.register("alice", noise_clip(1)[0], consent="yes")
            wait_until(lambda: worker.exit_status is not None)
            assert worker.exit_status == EXIT_UNFINISHED
            assert "device.lost" in registry.log()
            lost.unlink()
            worker.start()
            client.wait_ready("alice@1", timeout=60)
            assert next(iter(client.jobs(voice="alice", profile=PROFILE))).attempt == 2


def test_a_worker_ends_at_once_while_it_loads(registry: RegistryProcesses):
    """A worker ends at once while it loads. Loading may take minutes, and no job has started that would have
    to be finished.
    """
    registry.valkey.start()
    registry.pace(600)  # its warm-up takes so long
    [worker] = registry.workers
    worker.start()
    until_logged(registry, "worker.loads")
    worker.request_stop()
    wait_until(lambda: worker.exit_status is not None)
