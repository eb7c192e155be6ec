"""Tests of how long a start tries to reach what it needs, and of what it says meanwhile."""

import errno
import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.shared.bucket import durable_folder
from services.shared.bucket.connection import StoreUnfit, StoreUnreachable
from services.shared.configuration.store import StoreSettings
from services.shared.model.clock import Clock
from services.shared.registry.opening import _open_bucket, _retried_until_open

SETTINGS = StoreSettings(url="s3://voices", start_seconds=30)


class FakeClock(Clock):
    def __init__(self) -> None:
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_a_store_that_stays_away_is_tried_again_with_longer_and_longer_pauses():
    """Each try writes one line. Then the process ends, and its supervisor decides."""
    clock = FakeClock()

    def refuse() -> None:
        raise StoreUnreachable("SPEAKER_STORE_ENDPOINT: refused")

    with capture_logs() as logs, pytest.raises(StoreUnreachable):
        _retried_until_open(refuse, SETTINGS, clock)
    assert clock.slept == [1, 2, 4, 8, 10]
    assert [line["again_in_seconds"] for line in logs] == clock.slept
    assert {line["reason"] for line in logs} == {"SPEAKER_STORE_ENDPOINT: refused"}


def test_a_store_that_comes_is_opened():
    clock, tries = FakeClock(), iter([StoreUnreachable("away"), None])

    def open_it() -> str:
        if error := next(tries):
            raise error
        return "open"

    assert _retried_until_open(open_it, SETTINGS, clock) == "open"
    assert clock.slept == [1]


def test_a_store_that_is_unfit_is_not_tried_again():
    """A typo does not pass."""
    clock = FakeClock()

    def refuse() -> None:
        raise StoreUnfit("there is none")

    with pytest.raises(StoreUnfit):
        _retried_until_open(refuse, SETTINGS, clock)
    assert clock.slept == []


@pytest.mark.parametrize("number", [errno.EROFS, errno.EMFILE])
def test_a_folder_that_takes_no_writes_is_opened_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
):
    """A process with too many open files writes nothing either. Its disk is not read-only."""
    settings = StoreSettings(url=tmp_path.as_uri())
    _, identity = _open_bucket(settings, Clock())

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(durable_folder, "_write", refuse)
    with capture_logs() as logs:
        assert _open_bucket(settings, Clock())[1] == identity
    said = {"event": "store.cannot_write", "reason": f"put: {os.strerror(number)}", "log_level": "error"}
    assert said in logs
