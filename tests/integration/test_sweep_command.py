"""The sweep as a command of its own, as a schedule starts it: by its exit status and what it leaves."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog.testing

from services.embedded.children import ROOT
from services.shared import sweep
from speaker_registry import RegistryClient
from tests.process_load import noise_clip
from tests.processes import PROFILES, RegistryProcesses

NO_GRACE = {"SPEAKER_HOUSEKEEPING_DELETED_GRACE_SECONDS": "0"}


def test_a_sweep_takes_the_data_of_a_deleted_voice(tmp_path: Path):
    """With its grace over, nobody may find the clip any more, and the other voice is whole."""
    with RegistryProcesses(tmp_path, workers=0) as registry:
        with RegistryClient(registry.urls[0]) as client:
            for name in ("gone", "kept"):
                client.register(name, noise_clip(len(name))[0], consent="cons_1")
            client.delete("gone")
        before = names(registry.bucket)
        environment = {
            **os.environ,
            **PROFILES,
            **NO_GRACE,
            "SPEAKER_STORE_URL": registry.bucket.as_uri(),
            "SPEAKER_REDIS_URL": registry.valkey.url,
        }
        command = [sys.executable, "-m", "services.shared.sweep"]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == sweep.DONE, done.stderr
        assert "sweep.done" in done.stderr
        after = names(registry.bucket)
    assert {name for name in before - after if "/v/gone/d/" in name}
    assert not {name for name in after if "/v/gone/d/" in name}
    assert {name for name in after if "/v/kept/" in name} == {name for name in before if "/v/kept/" in name}


def names(bucket: Path) -> set[str]:
    return {f"/{file.relative_to(bucket)}" for file in bucket.rglob("*") if file.is_file()}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose logs it leaves as they are."""
    monkeypatch.setattr(sweep, "configure_logs", lambda level: None)


def test_a_sweep_that_finds_no_index_says_not_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None
):
    """The schedule's next try may find it; a sweep on an index that is not trusted would find nothing."""
    monkeypatch.setenv("SPEAKER_STORE_URL", tmp_path.as_uri())
    monkeypatch.setenv("SPEAKER_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(sweep, "PAUSE_SECONDS", 0.1)
    started = time.monotonic()
    assert sweep.main(patience_seconds=0.3) == sweep.NOT_NOW
    assert 0.3 <= time.monotonic() - started < 10


def test_a_sweep_with_wrong_settings_is_not_tried_again(
    monkeypatch: pytest.MonkeyPatch, in_this_process: None
):
    """It says which."""
    monkeypatch.setenv("SPEAKER_STORE_URL", "http://voices")
    with structlog.testing.capture_logs() as logged:
        assert sweep.main() == sweep.WRONG
    assert "SPEAKER_STORE_URL" in logged[-1]["reason"]
