"""Tests of the metrics of real processes: after a known scenario, the exact counts."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.shared.bucket.documents import Documents
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import PROBED
from services.shared.bucket.registry_identity import open_identity
from services.shared.configuration.store import StoreSettings
from services.shared.model.clock import Clock
from services.shared.telemetry.metrics import REAPED, WORKED
from speaker_registry import __version__
from tests.process_load import noise_clip
from tests.processes import OPTIONAL_PROFILE, PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until
from tests.scraping import Scrape

UPLOAD = "/v1/audio/voices"
FILE = "/v1/voices/{name}/versions/{ref}/artifacts/{profile}/file"
CACHE = "/v1/audio/voices/{name}/cache"
PAGE = "https://page.example"
"""The origin from which a browser may send requests."""
JOBS = {(PROFILE, "finished"): 3, (OPTIONAL_PROFILE, "failed"): 1}
"""The jobs of the scenario: one extraction, and two more after the file was lost."""


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    """A registry with one API and one worker whose clips all fail for the optional profile. The bucket has
    its identity before they start, or the one that comes first would look for it in vain. Leases are long,
    because a job whose lease ends while the machine is busy is tried again, and every attempt is counted.
    """
    environment = {
        **QUICK,
        "SPEAKER_WORKER_LEASE_SECONDS": "60",
        "LIGHT_WORKER_FAILS": OPTIONAL_PROFILE,
        "SPEAKER_API_CORS_ORIGINS": PAGE,
    }
    running = RegistryProcesses(tmp_path_factory.mktemp("metrics"), environment=environment)
    settings, clock = StoreSettings(url=running.bucket.as_uri()), Clock()
    store = open_store(settings)
    open_identity(store, Documents(store, clock), settings, clock, now=lambda: int(clock.now()))
    with running:
        yield running


@pytest.fixture
def client(registry: RegistryProcesses) -> Iterator[httpx.Client]:
    registry.make_whole()
    with httpx.Client(base_url=registry.urls[0], timeout=30) as client:
        yield client


def upload(client: httpx.Client, name: str, clip: bytes, **fields: str) -> httpx.Response:
    files = {"audio_sample": ("clip.wav", clip, "audio/wav")}
    return client.post(UPLOAD, data={"name": name, "consent": "cons_1", **fields}, files=files)


def file_of(client: httpx.Client, name: str, profile: str = PROFILE, **headers: str) -> httpx.Response:
    path = FILE.format(name=name, ref="default", profile=profile)
    return client.get(path, headers={key.replace("_", "-"): value for key, value in headers.items()})


def play(registry: RegistryProcesses, client: httpx.Client) -> None:
    """Play the scenario: uploads, of which one is repeated and two are refused, and requests for files with
    every possible result. A file that was extracted and lost is extracted again; one that came with the
    registration cannot be.
    """
    registry.pace(0.5)
    clip = noise_clip(1)[0]
    assert upload(client, "wren", clip).json()["created"] is True
    assert file_of(client, "wren").status_code == 202
    assert client.post(CACHE.format(name="wren")).status_code == 200
    assert upload(client, "wren", clip).json()["created"] is False
    assert upload(client, "robin", b"no audio at all").status_code == 400
    assert client.post(UPLOAD, data={"name": "robin"}).status_code == 400
    first = file_of(client, "wren")
    assert first.status_code == 200
    assert file_of(client, "WREN").status_code == 200
    assert file_of(client, "wren", If_None_Match=first.headers["etag"]).status_code == 304
    assert file_of(client, "nobody").status_code == 404
    assert file_of(client, "wren", OPTIONAL_PROFILE).status_code == 404
    assert file_of(client, "wren", "made-up").status_code == 404
    refused = client.post(CACHE.format(name="wren"), params={"profile": OPTIONAL_PROFILE})
    assert refused.status_code == 409
    assert file_of(client, "wren", OPTIONAL_PROFILE).status_code == 409
    for spoil in (_change_last_byte, Path.unlink):
        for stored in list(registry.bucket.rglob("*.safetensors")):
            spoil(stored)
        assert file_of(client, "wren").status_code == 202
        assert client.post(CACHE.format(name="wren")).status_code == 200
    extracted = set(registry.bucket.rglob("*.safetensors"))
    given = {"name": "owl", "consent": "cons_1", "speaker_embedding": str([0.5] * 1024)}
    assert client.post(UPLOAD, data=given).status_code == 200
    [stored] = set(registry.bucket.rglob("*.safetensors")) - extracted
    _change_last_byte(stored)
    assert file_of(client, "owl").status_code == 500
    assert client.get("/no/such/place").status_code == 404
    assert client.request("PROPFIND", "/v1/voices").status_code == 405
    asked_first = {"Origin": PAGE, "Access-Control-Request-Method": "GET"}
    assert client.options("/v1/voices", headers=asked_first).status_code == 200


def _change_last_byte(file: Path) -> None:
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


@pytest.mark.slow
def test_after_a_known_scenario_the_counts_are_exact(registry: RegistryProcesses, client: httpx.Client):
    """The counts after a known scenario are exact. Wrong metrics are worse than none,
    since people believe them.
    """
    play(registry, client)
    worker_url = registry.metrics_urls["worker0"]
    api_url, name = registry.metrics_urls["api0"], "registry_http_requests_total"
    # The last ones of each: an answer is out a moment before it is counted.
    jobs = sum(JOBS.values())
    wait_until(lambda: sum(Scrape.of(worker_url).series("registry_jobs_total").values()) >= jobs)
    wait_until(lambda: Scrape.of(api_url).series(name, method="OPTIONS") != {})
    api, worker = Scrape.of(api_url), Scrape.of(worker_url)
    waiting_room = ("/readyz", "/v1/profiles")  # requested by the fixture until everything was ready
    requests = api.series("registry_http_requests_total")
    assert {key: count for key, count in requests.items() if key[1] not in waiting_room} == {
        ("POST", UPLOAD, "200"): 3,
        ("POST", UPLOAD, "400"): 2,
        ("POST", CACHE, "200"): 3,
        ("POST", CACHE, "409"): 1,
        ("GET", FILE, "200"): 2,
        ("GET", FILE, "202"): 3,
        ("GET", FILE, "304"): 1,
        ("GET", FILE, "404"): 3,
        ("GET", FILE, "409"): 1,
        ("GET", FILE, "500"): 1,
        ("GET", "none", "404"): 1,
        ("other", "/v1/voices", "405"): 1,
        ("OPTIONS", "none", "200"): 1,
    }
    timed = api.series("registry_http_request_duration_seconds_count")
    assert timed["GET", FILE] == 11
    assert timed["POST", UPLOAD] == 5
    uploads = {("created",): 2, ("repeated",): 1, ("refused",): 2, ("failed",): 0}
    assert api.series("registry_uploads_total") == uploads
    assert api.series("registry_upload_rejected_total") == {
        ("unsupported_audio",): 1,
        ("invalid_request",): 1,
    }
    assert api.series("registry_artifact_requests_total") == {
        (PROFILE, "hit"): 2,
        (PROFILE, "pending"): 3,
        (PROFILE, "not_modified"): 1,
        (PROFILE, "miss"): 1,
        (PROFILE, "error"): 1,
        (OPTIONAL_PROFILE, "miss"): 1,
        (OPTIONAL_PROFILE, "failed"): 1,
        ("unknown", "miss"): 1,
    }
    failures = {("missing",): 1, ("damaged",): 2, ("record",): 0}
    assert api.series("registry_integrity_failures_total") == failures
    assert api.value("registry_reconcile_repairs_total", kind="artifact_void") == 2
    assert api.series("registry_view_rebuilds_total") == {
        ("done",): 1,
        ("stopped",): 0,
        ("lost",): 0,
        ("failed",): 0,
    }
    assert api.value("registry_view_rebuild_seconds_count") == 1
    # The probe at the start asks for objects before it puts them, and again after it deleted them.
    # The store is asked twice for the file that is missing, and for each document that is.
    assert api.value("registry_store_seconds_count", op="get", result="missing") >= 2 * PROBED + 2
    assert_the_worker_counted(worker)


def assert_the_worker_counted(worker: Scrape) -> None:
    nothing = {(profile, result): 0 for profile in (PROFILE, OPTIONAL_PROFILE) for result in WORKED}
    assert worker.series("registry_jobs_total") == {**nothing, **JOBS}
    assert worker.series("registry_artifact_compute_seconds_count") == {
        (PROFILE, "prepare"): 3,
        (PROFILE, "encode"): 3,
        (PROFILE, "publish"): 3,
        (OPTIONAL_PROFILE, "prepare"): 1,
        (OPTIONAL_PROFILE, "encode"): 1,
    }
    seconds = worker.value("registry_artifact_compute_seconds_sum", profile=PROFILE, step="encode")
    assert seconds is not None
    assert seconds >= 1.5
    assert worker.series("registry_batch_size_sum") == {(PROFILE,): 3, (OPTIONAL_PROFILE,): 1}
    beat = worker.value("registry_worker_last_beat_timestamp_seconds")
    assert beat is not None
    assert 0 <= time.time() - beat < 60
    assert worker.series("registry_http_requests_total") == {}


def test_the_api_shows_the_same_on_its_own_port(registry: RegistryProcesses, client: httpx.Client):
    """The API shows the same metrics on its own port. If keys are required, a scrape needs one here; on the
    port for metrics it never does.
    """
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    assert response.headers["cache-control"] == "no-store"
    here, there = Scrape.parse(response.text), Scrape.of(registry.metrics_urls["api0"])
    name = "registry_uploads_total"
    assert here.series(name) == there.series(name)
    assert here.samples.keys() - there.samples.keys() == set()
    assert here.value("registry_build_info", version=__version__) == 1


def test_counts_of_jobs_begin_at_zero(registry: RegistryProcesses, client: httpx.Client):
    """Prometheus sees no increase if a count is first shown after a backlog has failed."""
    shown = {
        process: Scrape.of(url).series("registry_jobs_total", profile=OPTIONAL_PROFILE)
        for process, url in registry.metrics_urls.items()
    }
    assert {result for (result,) in shown["worker0"]} == set(WORKED)
    assert shown["api0"] == {(result,): 0 for result in REAPED}


def test_a_backlog_shows_in_depth_and_age(registry: RegistryProcesses, client: httpx.Client):
    """A backlog shows in depth and age, by which workers are scaled and operators are alerted."""
    url, [worker] = registry.metrics_urls["api0"], registry.workers
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        for number in (1, 2, 3):
            assert upload(client, f"backlog-{number}", noise_clip(10 + number)[0]).status_code == 200
        time.sleep(1)
        scrape = Scrape.of(url)
    finally:
        os.kill(worker.pid, signal.SIGCONT)
    depth = scrape.series("registry_queue_depth", profile=PROFILE)
    assert depth == {("queued",): 3, ("moving",): 0, ("running",): 0}
    assert 1 <= (scrape.value("registry_queue_oldest_job_age_seconds", profile=PROFILE) or 0) < 60
    assert scrape.value("registry_workers", profile=PROFILE) == 1
    assert scrape.value("registry_view_in_use") == 1
    assert scrape.value("registry_redis_append_log_ok") == 1
    assert scrape.value("registry_quarantined_jobs") == 0
    wait_until(lambda: not any(Scrape.of(url).series("registry_queue_depth", profile=PROFILE).values()))
    assert Scrape.of(url).value("registry_queue_oldest_job_age_seconds", profile=PROFILE) == 0


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_scrape_ends_where_redis_does_not_answer(
    registry: RegistryProcesses, client: httpx.Client, number: signal.Signals
):
    """A scrape ends although Redis does not answer. Prometheus would otherwise take the API for down, and
    lose all that it counts itself.
    """
    url = registry.metrics_urls["api0"]
    assert Scrape.of(url).value("registry_redis_up") == 1
    server: Any = registry.valkey._process
    os.kill(server.pid, number)
    try:
        for _ in range(3):
            scrape = Scrape.of(url)  # gives up when Prometheus does
            assert scrape.value("registry_redis_up") == 0
            assert scrape.series("registry_queue_depth") == {}
            assert scrape.value("registry_view_in_use") is None
            assert scrape.value("registry_uploads_total", result="created") is not None
    finally:
        if number == signal.SIGSTOP:
            os.kill(server.pid, signal.SIGCONT)
        else:
            registry.valkey.stop(seconds=1)
            registry.valkey.start()
    wait_until(lambda: Scrape.of(url).value("registry_view_in_use") == 1)


@pytest.mark.slow
def test_a_taken_port_for_metrics_is_said_and_ends_the_process(tmp_path: Path):
    """A taken port for metrics is reported and ends the process. Metrics that are missing unnoticed are
    missed when they are needed.
    """
    with RegistryProcesses(tmp_path, workers=0) as registry:
        port = registry.metrics_urls["api0"].partition(":")[2].rpartition(":")[2].partition("/")[0]
        other = registry._child("second", "services.registry_api", registry.apis[0]._environment)
        other._environment = {**other._environment, "SPEAKER_METRICS_PORT": port, "SPEAKER_API_PORT": "0"}
        other.start()
        wait_until(lambda: other.exit_status is not None)
        assert other.exit_status == 1
        assert other.failure_reason().startswith(f"Port {port} of 127.0.0.1 cannot be used")
        other.kill()
