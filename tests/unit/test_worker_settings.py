"""Settings of a worker that contradict each other are refused before it takes a job."""

import pytest
from pydantic import ValidationError

from services.shared.configuration.settings import WorkerSettings


def test_a_lease_outlasts_several_beats(monkeypatch):
    """Otherwise one slow answer of Redis would have every job computed twice."""
    monkeypatch.setenv("SPEAKER_WORKER_LEASE_SECONDS", "10")
    with pytest.raises(ValidationError, match="less than three times SPEAKER_WORKER_BEAT_SECONDS"):
        WorkerSettings()
    monkeypatch.setenv("SPEAKER_WORKER_BEAT_SECONDS", "3")
    assert WorkerSettings().lease_seconds == 10
