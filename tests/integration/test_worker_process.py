"""Tests of a worker process from start to end: without Redis, replaced by a newer one,
stopped while it loads.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import httpx
import pytest

from services.embedded.managed_process import ROOT
from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.process import EXIT_NOTHING_TO_SERVE
from services.shared.registry.opened import Opened
from speaker_registry import RegistryClient
from speaker_registry.errors import ArtifactNotReady, Unavailable
from speaker_registry.schemas import Profile
from tests.encoders import make_current
from tests.process_load import Rounds, noise_clip, ready_voices
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


def served(opened: Opened, profile: str) -> int:
    """Return how many live workers have the current encoder of a profile."""
    fingerprint = opened.profile_records.read(profile).fingerprint
    try:
        return opened.workers.of([profile])[profile][fingerprint]
    except Unavailable:
        return 0


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
            assert "the last heartbeat" in healthy(beats).stderr
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
    with registry.opened() as opened:
        wait_until(lambda: served(opened, PROFILE) == 1)
    assert worker.exit_status is None


@pytest.mark.slow
def test_a_worker_whose_encoder_is_replaced_goes_on_and_serves_again_after_the_way_back(
    registry: RegistryProcesses,
):
    """A worker whose encoder is replaced keeps running, also for its other profiles, and takes no jobs of the
    new encoder. When its encoder is promoted again, it works at once, without being loaded again.
    """
    registry.valkey.start()
    [worker] = registry.workers
    worker.start()
    with registry.opened() as opened:
        alive = partial(served, opened)
        wait_until(lambda: alive(PROFILE) == alive(OPTIONAL_PROFILE) == 1, START_SECONDS)
        before = opened.profile_records.read(PROFILE).fingerprint
        make_current(opened.profile_records, PROFILE, NEWER)
        assert (alive(PROFILE), alive(OPTIONAL_PROFILE)) == (0, 1)
        until_logged(registry, "profile.not_served")
        make_current(opened.profile_records, PROFILE, before)
        assert alive(PROFILE) == 1
        until_logged(registry, "profile.served")
    assert worker.exit_status is None


@pytest.mark.slow
def test_workers_of_another_encoder_change_nothing_that_is_served(tmp_path: Path):
    """A second worker with another dtype, and one with untrained weights, change nothing that is served. They
    come and go beside a registry under load, and every answer is 200 with the same bytes.
    """
    trained = {"SPEAKER_EXTRACTOR_WEIGHTS": "hub", "SPEAKER_PROFILES": PROFILE}
    with with_valkey(tmp_path, trained, apis=1) as registry, RegistryClient(registry.urls[0]) as client:
        registry.workers[0].start()
        names = ready_voices(client, VOICES)
        with Fetching(registry.urls[0], names) as fetching:
            for differing, other in OTHERS.items():
                second = registry.another_worker(other)
                second.start()
                wait_until(partial(is_candidate, client, differing), START_SECONDS)
                fetching.go_round()
                assert fingerprint_of_a_new_voice(client, differing) == profile_of(client).fingerprint
                second.kill()
                fetching.go_round()
        assert fetching.strange == []
        assert (profile_of(client).workers, profile_of(client).former) == (1, [])


VOICES = 200
OTHERS = {
    "dtype": {"SPEAKER_EXTRACTOR_DTYPE": "bfloat16"},
    "weights.untrained": {"SPEAKER_EXTRACTOR_WEIGHTS": "untrained"},
}
"""The fingerprint input that differs -> the settings of a worker in which it does."""


class Fetching(Rounds):
    """Fetches the files of voices, one after the other. `strange` lists unexpected answers."""

    def __init__(self, url: str, names: Sequence[str]) -> None:
        super().__init__()
        self._paths = [f"{url}/v1/voices/{name}/versions/1/artifacts/{PROFILE}/file" for name in names]
        self._digests: dict[str, str] = {}
        self.strange: list[tuple[str, int]] = []

    def fetch_all(self, client: httpx.Client) -> None:
        for path in self._paths:
            answer = client.get(path)
            digest = hashlib.sha256(answer.content).hexdigest()
            if (answer.status_code, digest) != (200, self._digests.setdefault(path, digest)):
                self.strange.append((path, answer.status_code))


def profile_of(client: RegistryClient) -> Profile:
    return next(one for one in client.profiles() if one.id == PROFILE)


def is_candidate(client: RegistryClient, differing: str) -> bool:
    return any(one.differs.keys() == {differing} for one in profile_of(client).candidates)


def fingerprint_of_a_new_voice(client: RegistryClient, name: str) -> str:
    """Register a voice, and return the fingerprint with which its artifact is made."""
    client.register(name, noise_clip(1000 + len(name))[0], consent="yes")
    return client.fetch(f"{name}@1", PROFILE, wait=START_SECONDS).manifest.fingerprint


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
            [live] = shown[OPTIONAL_PROFILE].live_workers
            assert (live.worker, live.device, live.extracted_last_hour) == (failed.worker, "cpu", 0)
            assert live.proven_at == pytest.approx(time.time(), abs=600)
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
        with registry.opened() as opened:
            assert len(opened.workers.failed([PROFILE])[PROFILE]) == 1


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
    assert worker.exit_status == 0, "supervisors take any other status for a crash"
