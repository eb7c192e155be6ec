"""The sweep that is asked for by a command, as a schedule does: its exit status, and what is left then."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.embedded.children import ROOT
from services.shared import sweep
from speaker_registry import RegistryClient
from tests.process_load import noise_clip
from tests.processes import QUICK, RegistryProcesses
from tests.queue_workers import wait_until

NO_GRACE = {"SPEAKER_HOUSEKEEPING_DELETED_GRACE_SECONDS": "0"}


def test_a_sweep_that_is_asked_for_takes_the_data_of_a_deleted_voice(tmp_path: Path):
    """With its grace over, nobody may find the clip any more, and the other voice is whole."""
    with RegistryProcesses(tmp_path, workers=0, environment={**QUICK, **NO_GRACE}) as registry:
        wait_until(lambda: "sweep.done" in registry.log(), 30)  # the one that each new registry begins with
        with RegistryClient(registry.urls[0]) as client:
            for name in ("gone", "kept"):
                client.register(name, noise_clip(len(name))[0], consent="cons_1")
            client.delete("gone")
        before = names(registry.bucket)
        command = [sys.executable, "-m", "services.shared.sweep"]
        environment = {**os.environ, "SPEAKER_REDIS_URL": registry.valkey.url}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == sweep.ASKED, done.stderr
        assert "sweep.asked" in done.stderr
        wait_until(lambda: registry.log().count("sweep.done") == 2, 30)
        after = names(registry.bucket)
    assert {name for name in before - after if "/v/gone/d/" in name}
    assert not {name for name in after if "/v/gone/d/" in name}
    assert {name for name in after if "/v/kept/" in name} == {name for name in before if "/v/kept/" in name}


def names(bucket: Path) -> set[str]:
    return {f"/{file.relative_to(bucket)}" for file in bucket.rglob("*") if file.is_file()}


def test_a_sweep_that_cannot_be_asked_for_says_not_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The schedule's next try may find Redis."""
    monkeypatch.setattr(sweep, "configure_logs", lambda level="INFO": None)  # this process keeps its own
    monkeypatch.setenv("SPEAKER_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(sweep, "PAUSE_SECONDS", 0.1)
    started = time.monotonic()
    assert sweep.main(patience_seconds=0.3) == sweep.NOT_NOW
    assert 0.3 <= time.monotonic() - started < 10
