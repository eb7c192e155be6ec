"""Tests of what a container's health check learns about a worker from the file of its beats."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import structlog.testing

from services.extractor_worker.jobs.beat_file import main, problem_with, remove_stale, write_beat


def test_a_worker_that_beats_is_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The check is a process of its own: all it has are the environment and the file."""
    monkeypatch.setenv("SPEAKER_WORKER_BEAT_FILE", str(tmp_path / "beat"))
    assert main() == 1
    write_beat(tmp_path / "beat")
    assert main() == 0


@pytest.mark.parametrize("age", [31, -5], ids=["old", "of another boot"])
def test_a_beat_that_is_older_than_the_lease_is_none(
    age: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The worker's jobs have gone to others by then. A file that outlived a reboot says nothing."""
    monkeypatch.setenv("SPEAKER_WORKER_BEAT_FILE", str(tmp_path / "beat"))
    (tmp_path / "beat").write_text(f"{time.monotonic() - age}\n")
    assert main() == 1
    assert "at most 30 s are allowed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.processes
def test_the_beat_of_the_process_before_is_none(tmp_path: Path):
    """A worker in its place loads its models for minutes: found healthy before, it would be killed."""
    beats = tmp_path / "beat"
    write_beat(beats)
    environment = {**os.environ, "SPEAKER_WORKER_BEAT_FILE": str(beats), "SPEAKER_LOG_LEVEL": "none"}
    done = subprocess.run([sys.executable, "-m", "services.extractor_worker"], env=environment, check=False)
    assert done.returncode == 1
    assert not beats.exists()


def test_a_beat_that_cannot_be_taken_away_stops_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Settings that its start reports in any case do not stop it either."""
    monkeypatch.setenv("SPEAKER_WORKER_BEAT_FILE", str(tmp_path))
    with structlog.testing.capture_logs() as logged:
        remove_stale()
        monkeypatch.setenv("SPEAKER_WORKER_LEASE_SECONDS", "1")
        remove_stale()
    assert [line["event"] for line in logged] == ["beat_file.failed"]


def test_what_is_wrong_is_said(tmp_path: Path):
    """An operator who looks at an unhealthy container finds only this message."""
    assert "SPEAKER_WORKER_BEAT_FILE is not set" in str(problem_with(None, 30))
    assert "does not exist" in str(problem_with(tmp_path / "beat", 30))
    (tmp_path / "beat").write_text("soon")
    assert "could not convert" in str(problem_with(tmp_path / "beat", 30))


def test_invalid_settings_are_not_healthy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The worker itself does not start with them either."""
    monkeypatch.setenv("SPEAKER_WORKER_LEASE_SECONDS", "1")
    assert main() == 1
    assert "SPEAKER_WORKER_LEASE_SECONDS" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_stops_no_worker(tmp_path: Path):
    """Its jobs are worth more than the sign."""
    with structlog.testing.capture_logs() as logged:
        write_beat(tmp_path / "nowhere" / "beat")
    assert [line["event"] for line in logged] == ["beat_file.failed"]
