"""Tests of a worker that has loaded its profiles, and waits for Redis before it can take jobs."""

import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.extractor_worker import process
from services.extractor_worker.process import WorkerProcess
from services.shared.telemetry.metrics import WORKER_BEAT
from speaker_registry.errors import Unavailable
from tests import light_worker
from tests.processes import PROFILE


def test_a_worker_that_waits_for_redis_can_be_seen_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The alert for silent workers needs a time from which the worker is silent. The log says why it waits,
    but not every second.
    """
    monkeypatch.setenv("SPEAKER_STORE_URL", tmp_path.as_uri())
    monkeypatch.setenv("SPEAKER_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("SPEAKER_EXTRACTOR_WEIGHTS", "untrained")
    monkeypatch.setattr(process, "_PAUSE_SECONDS", 0)
    shown: list[float] = []

    def announce(*_: object, worker: str) -> bool:
        assert worker
        shown.append(WORKER_BEAT._value.get())
        if len(shown) < 5:
            raise Unavailable("Redis is away.")
        return True

    monkeypatch.setattr(process, "announce", announce)
    worker = WorkerProcess(
        light_worker.identify, light_worker.LightExtractor, light_worker.prove, light_worker.draw
    )
    profile = worker._opened.catalogue.get(PROFILE)
    monkeypatch.setattr(worker._standings, "find_out", lambda *_: None)
    WORKER_BEAT.set(0)
    began = time.time()
    try:
        with capture_logs() as logs:
            announced = worker._announced(worker._loaded([profile]))
    finally:
        WORKER_BEAT.set(0)
    assert list(announced) == [PROFILE]
    assert len(shown) == 5
    assert all(began <= beat <= time.time() for beat in shown)
    assert [line["reason"] for line in logs if line["event"] == "worker.waits"] == ["Redis is away."]
