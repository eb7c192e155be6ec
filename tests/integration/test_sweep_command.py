"""Tests of the sweep that a command asks for, as a schedule does: its exit status, and
what is left afterwards.
"""

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.embedded.managed_process import ROOT
from services.registry_api.commands import sweep
from services.registry_api.commands.exit_statuses import DONE, NOT_NOW
from services.shared.view.keys import agenda_key
from speaker_registry import RegistryClient
from tests.process_load import noise_clip
from tests.processes import QUICK, RegistryProcesses
from tests.queue_workers import wait_until

OLD_SECONDS = 2 * 86_400
NO_GRACE = {"SPEAKER_HOUSEKEEPING_DELETED_GRACE_SECONDS": "0"}


@pytest.mark.slow
def test_a_sweep_that_is_asked_for_takes_the_data_of_a_deleted_voice(tmp_path: Path):
    """A requested sweep removes the data of a deleted voice. The data was erased and came back from a backup,
    which only a sweep notices. Other data stays.
    """
    with RegistryProcesses(tmp_path, workers=0, environment={**QUICK, **NO_GRACE}) as registry:
        with RegistryClient(registry.urls[0]) as client:
            for name in ("gone", "kept"):
                client.register(name, noise_clip(len(name))[0], consent="cons_1")
            backup = {path: path.read_bytes() for path in of_voice(registry.bucket, "gone")}
            client.delete("gone")
        wait_until(lambda: erased(registry, "gone"), 30)
        restore(backup)
        before = of_voice(registry.bucket, "kept")
        command = [sys.executable, "-m", "services.registry_api", "sweep"]
        environment = {**os.environ, "SPEAKER_REDIS_URL": registry.valkey.url}
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == DONE, done.stderr
        assert "sweep.requested" in done.stderr
        wait_until(lambda: "sweep.done" in registry.log(), 30)
        assert not backup.keys() & of_voice(registry.bucket, "gone")
        assert of_voice(registry.bucket, "kept") == before


def of_voice(bucket: Path, name: str) -> set[Path]:
    return {path for path in bucket.rglob("*") if path.is_file() and f"/d/{name}/" in str(path)}


def erased(registry: RegistryProcesses, name: str) -> bool:
    """Return whether only the document is left of the voice, and no look at it is due any more."""
    with registry.opened() as opened, opened.generation.plain as redis:
        due = redis.zscore(agenda_key(opened.generation.for_reading()), f"default/{name}")
    return due is None and not of_voice(registry.bucket, name)


def restore(backup: Mapping[Path, bytes]) -> None:
    for path, data in backup.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        os.utime(path, (time.time() - OLD_SECONDS,) * 2)  # a backup keeps the times of files


def test_a_sweep_that_cannot_be_asked_for_says_not_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A sweep that cannot be requested ends with a status that means "not now", because the schedule's next
    attempt may find Redis.
    """
    monkeypatch.setattr(sweep, "configure_logs", lambda level="INFO": None)  # this process keeps its own
    monkeypatch.setenv("SPEAKER_REDIS_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setattr(sweep, "RETRY_SECONDS", 0.1)
    started = time.monotonic()
    assert sweep.run(timeout_seconds=0.3) == NOT_NOW
    assert time.monotonic() - started >= 0.3
