"""What the handler of extraction jobs does with good clips, bad clips and outages. Bucket and index are one
object here, which counts.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from services.extractor_worker.extraction import Extraction, Station
from speaker_registry.errors import (
    AudioTooShort,
    ExtractorFailed,
    LeaseExpired,
    ProfileUnknown,
    SpeakerRegistryError,
    Unavailable,
)

PROFILE = "qwen3-tts-0.6b"


@dataclass
class Work:
    job_id: str
    attempt: int = 1
    max_attempts: int = 3


class Extractor:
    """A clip is its job's id. `on_device`: what encoding does besides."""

    def __init__(self) -> None:
        self.on_device: Callable[[str], None] = lambda clip: None

    def prepare(self, clip: str) -> str:
        if clip == "short":
            raise AudioTooShort("0.1 s")
        return clip

    def encode(self, prepared: list[str]) -> list[str]:
        assert len(prepared) == 1, "one clip at a time keeps it exact"
        self.on_device(prepared[0])
        return prepared

    def finish(self, encoded: str) -> str:
        return encoded


@dataclass
class Publisher:
    """`trouble`: steps that find bucket or index away. `attempts`: of a job, where not its first."""

    unwanted: set[str] = field(default_factory=set)
    attempts: dict[str, int] = field(default_factory=dict)
    trouble: set[str] = field(default_factory=set)
    away: bool = False
    tries: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    failed: dict[str, SpeakerRegistryError] = field(default_factory=dict)

    def in_service(self) -> bool:
        return not self.away

    def _step(self, name: str) -> None:
        self.tries.append(name)
        if name in self.trouble:
            raise Unavailable("away")

    def take(self, job_id: str, *_: Any) -> Work | None:
        self._step("take")
        self.taken.append(job_id)
        return None if job_id in self.unwanted else Work(job_id, self.attempts.get(job_id, 1))

    def read_clip(self, work: Work) -> str:
        self._step("read_clip")
        return work.job_id

    def progress(self, *_: Any) -> None:
        pass

    def publish(self, work: Work, tensors: str) -> bool:
        self._step("publish")
        assert tensors == work.job_id
        self.published.append(work.job_id)
        return True

    def fail(self, work: Work, error: SpeakerRegistryError) -> None:
        self.failed[work.job_id] = error


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def extractor() -> Extractor:
    return Extractor()


@pytest.fixture
def extraction(publisher: Publisher, extractor: Extractor) -> Iterator[Extraction]:
    stations = {PROFILE: Station(SimpleNamespace(), extractor)}
    extraction = Extraction(publisher, stations, threads=2, patience_seconds=0.2)
    yield extraction
    extraction.close()


def jobs(*ids: str, profile: str = PROFILE) -> list[Any]:
    return [
        SimpleNamespace(id=one, kwargs={"speaker": "default/a"}, origin=f"extract.{profile}") for one in ids
    ]


def test_results_come_in_the_order_of_the_jobs(extraction: Extraction, publisher: Publisher):
    """The queue gives each job the result at its place."""
    publisher.unwanted = {"b"}
    assert extraction(jobs("a", "b", "c")) == ["published", "superseded", "published"]
    assert sorted(publisher.published) == ["a", "c"]


def test_one_bad_clip_fails_alone(extraction: Extraction, publisher: Publisher):
    """Thirty-one people must not wait because of the thirty-second's upload."""
    first, short, last = extraction(jobs("a", "short", "c"))
    assert (first, last) == ("published", "published")
    assert isinstance(short, AudioTooShort)
    assert publisher.failed == {"short": short}


def test_few_clips_are_in_hand_ahead_of_the_device(
    extraction: Extraction, extractor: Extractor, publisher: Publisher
):
    """What is taken early is held from others, runs out of time, and is computed although it was deleted."""
    most = 0

    def look(clip: str) -> None:
        nonlocal most
        most = max(most, len(publisher.taken) - int(clip))

    extractor.on_device = look
    assert extraction(jobs(*map(str, range(20)))) == ["published"] * 20
    assert most <= 3, "the one on the device, and one per thread"


def test_an_outage_is_waited_for_however_long(extraction: Extraction, publisher: Publisher):
    """A bucket that is away for a quarter of an hour must not have a hundred clips given up."""
    publisher.trouble, publisher.away = {"read_clip"}, True
    alive = []
    extraction.on_progress = lambda: alive.append(1)
    threading.Timer(1.0, publisher.trouble.clear).start()
    assert extraction(jobs("a")) == ["published"]
    assert publisher.tries.count("read_clip") > 3
    assert len(alive) > 3, "the watchdog would take it for hung"


def test_one_object_that_cannot_be_read_stops_nobody_else(extraction: Extraction, publisher: Publisher):
    """While bucket and index answer, trouble is this clip's own."""
    publisher.trouble = {"read_clip"}
    [error] = extraction(jobs("a"))
    assert isinstance(error, Unavailable)
    assert publisher.failed == {"a": error}


def test_a_process_that_is_told_to_stop_waits_for_nothing(extraction: Extraction, publisher: Publisher):
    """Whoever stops it during an outage has stopped it because of that."""
    publisher.trouble, publisher.away = {"publish"}, True
    extraction.stopping = lambda: True
    [error] = extraction(jobs("a"))
    assert isinstance(error, Unavailable)
    assert publisher.tries.count("publish") == 1


def test_what_a_crash_says_goes_to_the_log_not_into_the_job(
    extraction: Extraction, extractor: Extractor, publisher: Publisher
):
    """Its text may quote a path or the clip, and a job's error is shown to callers."""

    def crash(clip: str) -> None:
        raise RuntimeError("/home/someone/weights: broken")

    extractor.on_device = crash
    [error] = extraction(jobs("a"))
    assert isinstance(error, ExtractorFailed)
    assert str(error) == "The extractor failed with RuntimeError."


def test_a_clip_that_ended_every_worker_is_given_up(extraction: Extraction, publisher: Publisher):
    """Before it is prepared: that may be what they died of."""
    publisher.attempts = {"a": 4}
    [error] = extraction(jobs("a"))
    assert isinstance(error, LeaseExpired)
    assert not error.retryable
    assert "read_clip" not in publisher.tries


def test_a_job_of_a_profile_not_served_is_refused(extraction: Extraction, publisher: Publisher):
    """A worker that was given the wrong queue must not guess."""
    [error] = extraction(jobs("a", profile="other"))
    assert isinstance(error, ProfileUnknown)
    assert publisher.taken == []
