"""Tests of metrics for which no whole process is needed."""

import mmap
import re
import socket
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import httpx
import pytest
import torch

from services.embedded.supervisor import StartFailed, _next_metrics_port
from services.extractor_worker.device.device_memory import show_device_memory
from services.shared.bucket.connection import BucketClock
from services.shared.bucket.folder_store import FolderStore
from services.shared.bucket.opening import open_store
from services.shared.configuration.listening import CannotListen
from services.shared.configuration.store import StoreSettings
from services.shared.configuration.telemetry import MetricsSettings
from services.shared.telemetry import metrics
from speaker_registry import __version__
from speaker_registry.errors import Unavailable
from tests.scraping import Scrape, counted


def test_all_names_are_ours_and_say_what_they_are():
    """Prometheus holds the metrics of everything else, too. Units are at the end of names."""
    own = [one for one in metrics.REGISTRY.collect() if not one.name.startswith(("process_", "python_"))]
    assert len(own) > 15
    for family in [*own, *(asked.family() for asked in metrics.SCRAPED_GAUGES)]:
        assert re.fullmatch(r"registry_[a-z_]+", family.name)
        assert family.documentation.endswith("."), family.name
        if family.type == "histogram" and family.name != "registry_batch_size":
            assert family.name.endswith("_seconds")


def test_every_operation_of_the_store_is_timed_by_how_it_ended(tmp_path: Path):
    """A slow bucket is the first suspect when the registry is slow."""
    store, name = FolderStore(tmp_path), "registry_store_seconds_count"
    with counted(name, op="put", result="ok") as put, counted(name, op="get", result="ok") as got:
        store.put("a/b", b"1")
        store.get("a/b")
    with counted(name, op="get", result="missing") as missing, pytest.raises(FileNotFoundError):
        store.get("a/c")
    with counted(name, op="list", result="ok") as listed, counted(name, op="delete", result="ok") as deleted:
        store.list("a/")
        store.delete(["a/b"])
    (tmp_path / "a").write_text("in the way of the folder")
    with counted(name, op="put", result="failed") as failed, pytest.raises(Unavailable):
        store.put("a/b", b"1")
    assert [put, got, missing, listed, deleted, failed] == [[1.0]] * 6


def test_the_buckets_clock_is_timed_when_it_is_read(monkeypatch: pytest.MonkeyPatch):
    """The time is asked for often, and hardly ever from the server: a store that fails would look well."""
    monkeypatch.setattr(BucketClock, "_read", lambda _: datetime.now(UTC))
    settings = StoreSettings(
        url="s3://voices", endpoint="http://127.0.0.1:1", access_key_id="id", secret_access_key="secret"
    )
    store = open_store(settings)
    with counted("registry_store_seconds_count", op="check", result="ok") as read:
        times = [store.now() for _ in range(3)]
    assert times == sorted(times)
    assert read == [1.0]


def test_a_cpus_memory_is_what_is_resident_of_the_worker():
    """An operator should see memory that grows without end before the kernel does."""
    show_device_memory(torch.device("cpu"))
    value = partial(metrics.REGISTRY.get_sample_value, "registry_device_memory_bytes")
    used, total = value({"device": "cpu", "kind": "used"}), value({"device": "cpu", "kind": "total"})
    assert used is not None
    assert total is not None
    with mmap.mmap(-1, 64 * 2**20) as held:  # never what others have freed, which is there already
        held[::4096] = b"x" * len(held[::4096])
        now = value({"device": "cpu", "kind": "used"})
    assert now is not None
    assert now - used > 32 * 2**20
    assert 2**24 < used < total


def test_a_gpus_memory_is_what_torch_keeps_of_it(monkeypatch: pytest.MonkeyPatch):
    """Asked of torch, which knows what is ours; and not before torch has woken the GPU itself."""
    device = torch.device("cuda:0")
    awake = False
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: awake)
    monkeypatch.setattr(torch.cuda, "memory_reserved", {device: 5 * 2**30}.__getitem__)
    properties = type("Properties", (), {"total_memory": 80 * 2**30})
    monkeypatch.setattr(torch.cuda, "get_device_properties", {device: properties}.__getitem__)
    show_device_memory(device)
    value = partial(metrics.REGISTRY.get_sample_value, "registry_device_memory_bytes")
    used, total = {"device": "cuda:0", "kind": "used"}, {"device": "cuda:0", "kind": "total"}
    try:
        assert (value(used), value(total)) == (0, 0)
        awake = True
        assert (value(used), value(total)) == (5 * 2**30, 80 * 2**30)
    finally:
        metrics.DEVICE_MEMORY.clear()


def test_metrics_are_served_on_a_port_of_their_own_only_if_one_is_given(unused_port: int):
    """The port needs no key, so it is opened only where an operator names one."""
    url = f"http://127.0.0.1:{unused_port}/metrics"
    metrics.listen(MetricsSettings(port=None))
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    metrics.listen(MetricsSettings(port=unused_port))
    assert Scrape.of(url).value("registry_build_info", version=__version__) == 1
    with pytest.raises(
        CannotListen, match=rf"^Port {unused_port} of 127.0.0.1 .* Set SPEAKER_METRICS_PORT to"
    ):
        metrics.listen(MetricsSettings(port=unused_port))


def test_any_version_of_the_format_may_be_asked_for(unused_port: int):
    """A version without sense gets plain text. It was answered 500, with a traceback on standard error."""
    metrics.listen(MetricsSettings(port=unused_port))
    for version in ("x", "1.x", "2.x", '"1.0.0"', "1" * 5000, "", "0.0.4", "1.0.0", " 2"):
        accept = f"application/openmetrics-text; version={version}; q=0.5, text/plain"
        answer = httpx.get(f"http://127.0.0.1:{unused_port}/metrics", headers={"Accept": accept})
        assert answer.status_code == 200, version
        content, media_type = metrics.exposition(accept)
        assert answer.headers["Content-Type"] == media_type
        assert ("openmetrics" in media_type) == (version in {"1.0.0", " 2"})
        assert b"registry_build_info" in content


@pytest.mark.parametrize("host", [" ", "203.0.113.9"])
def test_a_host_at_which_metrics_cannot_be_served_is_named(host: str, unused_port: int):
    """Another port would not help."""
    with pytest.raises(CannotListen, match="SPEAKER_METRICS_HOST") as caught:
        metrics.listen(MetricsSettings(host=host, port=unused_port))
    assert "SPEAKER_METRICS_PORT" not in str(caught.value)


def test_on_one_machine_the_worker_has_the_next_port(monkeypatch: pytest.MonkeyPatch):
    """Both processes get the same environment, and only one of them can have a port."""
    monkeypatch.setenv("SPEAKER_METRICS_PORT", "9464")
    assert _next_metrics_port() == {"SPEAKER_METRICS_PORT": "9465"}
    monkeypatch.setenv("SPEAKER_METRICS_PORT", "")
    assert _next_metrics_port() == {}
    monkeypatch.setenv("SPEAKER_METRICS_PORT", "65535")
    with pytest.raises(
        StartFailed, match=r"^SPEAKER_METRICS_PORT is 65535, and the worker's port is one higher"
    ):
        _next_metrics_port()


@pytest.fixture
def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_what_is_counted_in_a_batch_is_shown_at_every_scrape():
    """A batch adds exactly what was counted since the last scrape."""
    registry = metrics.REGISTRY
    labels = {"route": "/test", "method": "GET"}
    counter = metrics.HTTP_REQUESTS.labels(*labels.values(), "200")
    batch = metrics.Batch([counter], metrics.HTTP_SECONDS.labels(*labels.values()))

    def shown() -> tuple[float | None, ...]:
        scraped = {
            (sample.name, sample.labels.get("le")): sample.value
            for family in registry.collect()
            for sample in family.samples
            if sample.labels.get("route") == "/test"
        }
        names = [("registry_http_requests_total", None)]
        names += [("registry_http_request_duration_seconds_count", None)]
        names += [("registry_http_request_duration_seconds_bucket", "0.001")]
        names += [("registry_http_request_duration_seconds_sum", None)]
        return tuple(scraped.get(name) for name in names)

    assert shown() == (0, 0, 0, 0)
    batch.count, batch.seconds = 3, 0.5
    assert shown() == (3, 3, 3, 0.5)
    assert shown() == (3, 3, 3, 0.5)
    counter.inc()
    batch.count, batch.seconds = 5, 0.75
    assert shown() == (6, 5, 5, 0.75)
