"""Tests of what the handler of extraction jobs does with good clips, bad clips and outages. Bucket and Redis
are one object here, which counts calls.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.pipeline import attempts as pipeline_attempts
from services.extractor_worker.pipeline import extraction as pipeline_extraction
from services.extractor_worker.pipeline.attempts import Attempts as RealAttempts
from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.extractor import DeviceLost
from services.shared.bucket.store import StoreFull
from services.shared.registry.fail import JobHandedBack
from speaker_registry.errors import (
    AudioTooShort,
    ExtractorFailed,
    ExtractorOutOfMemory,
    LeaseExpired,
    ProfileUnknown,
    SpeakerRegistryError,
    Unavailable,
)
from tests.threads import no_more_threads

PROFILE = "qwen3-tts-0.6b"
PROVENANCE: Any = SimpleNamespace(profile=SimpleNamespace(name=PROFILE))


@dataclass
class Work:
    job_id: str
    number: int = 1
    max_attempts: int = 3
    traceparent: str | None = None

    @property
    def version(self) -> Any:
        """Return a version whose clip lasts ten seconds."""
        return SimpleNamespace(clip=SimpleNamespace(seconds=10.0))


class Extractor:
    """A clip is its job's id. `on_device`: what encoding does besides. `batches`: what came at once."""

    def __init__(self) -> None:
        self.on_device: Callable[[str], None] = lambda clip: None
        self.batch_seconds = 0.0
        self.most = 100
        self.batches: list[list[str]] = []

    def prepare(self, clip: str) -> str:
        if clip == "short":
            raise AudioTooShort("0.1 s")
        return clip

    def encode(self, prepared: list[str]) -> list[str]:
        self.batches.append(list(prepared))
        if len(prepared) > self.most:
            raise ExtractorOutOfMemory(f"{len(prepared)} clips")
        for clip in prepared:
            self.on_device(clip)
        return prepared

    def finish(self, encoded: str) -> str:
        return encoded

    def used_seconds(self, encoded: str) -> float | None:
        return 0.5 if encoded == "trimmed" else None


@dataclass
class Attempts:
    """`trouble`: steps that find bucket or Redis away. `numbers`: those of later attempts at a job."""

    unwanted: set[str] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    trouble: set[str] = field(default_factory=set)
    error: type[Unavailable] = Unavailable
    away: bool = False
    cut_off: bool = False
    """Whether the worker counts as cut off from the first step on that finds the bucket away."""
    looks: int = 0
    """How often the pipeline asked whether the worker is cut off."""
    tries: list[str] = field(default_factory=list)
    taken: list[str] = field(default_factory=list)
    published: list[str] = field(default_factory=list)
    failed: dict[str, SpeakerRegistryError] = field(default_factory=dict)

    def in_service(self) -> bool:
        return not self.away

    def is_cut_off(self) -> bool:
        self.looks += 1
        return self.cut_off and not self.trouble.isdisjoint(self.tries)

    def _step(self, name: str) -> None:
        self.tries.append(name)
        if name in self.trouble:
            raise self.error("away")

    def take(self, job_id: str, *_: Any) -> Work | None:
        self._step("take")
        self.taken.append(job_id)
        if job_id in self.given_up:
            raise LeaseExpired("The worker stopped.")
        return None if job_id in self.unwanted else Work(job_id, self.numbers.get(job_id, 1))

    def read_clip(self, work: Work) -> str:
        self._step("read_clip")
        return work.job_id

    def progress(self, *_: Any) -> None:
        pass

    def publish(self, work: Work, tensors: str, used_seconds: float | None) -> bool:
        self._step("publish")
        assert tensors == work.job_id
        assert used_seconds == (0.5 if tensors == "trimmed" else None)
        self.published.append(work.job_id)
        return True

    def fail(self, work: Work, error: SpeakerRegistryError) -> None:
        self.failed[work.job_id] = error


@pytest.fixture
def attempts() -> Attempts:
    return Attempts()


@pytest.fixture
def extractor() -> Extractor:
    return Extractor()


@pytest.fixture
def extraction(attempts: Attempts, extractor: Extractor) -> Iterator[Extraction]:
    loaded_profiles = {PROFILE: LoadedProfile(PROVENANCE, extractor)}
    extraction = Extraction(attempts, loaded_profiles, threads=2, retry_seconds=0.2)
    yield extraction
    extraction.close()


def jobs(*ids: str, profile: str = PROFILE) -> list[Any]:
    return [
        SimpleNamespace(id=one, kwargs={"speaker": "default/a"}, origin=f"extract.{profile}") for one in ids
    ]


def test_an_artifact_of_less_than_the_clip_is_published_as_such(extraction: Extraction, attempts: Attempts):
    """Its frames would otherwise be held against the length of the whole clip."""
    assert extraction(jobs("trimmed", "a")) == ["published", "published"]


def test_results_come_in_the_order_of_the_jobs(extraction: Extraction, attempts: Attempts):
    """The queue gives each job the result at its place."""
    attempts.unwanted = {"b"}
    made: list[str] = []
    extraction.on_made = made.append
    assert extraction(jobs("a", "b", "c")) == ["published", "superseded", "published"]
    assert sorted(attempts.published) == ["a", "c"]
    assert made == [PROFILE, PROFILE], "each artifact counts once for the throughput"


def test_clips_need_no_further_thread(extraction: Extraction):
    """A system may refuse one at any time: a worker would fail the clips of everybody, one batch after
    another.
    """
    with no_more_threads():
        assert extraction(jobs("a", "b", "c")) == ["published"] * 3


def test_one_bad_clip_fails_alone(extraction: Extraction, attempts: Attempts):
    """Thirty-one people must not wait because of the thirty-second's upload."""
    first, short, last = extraction(jobs("a", "short", "c"))
    assert (first, last) == ("published", "published")
    assert isinstance(short, AudioTooShort)
    assert attempts.failed == {"short": short}


def test_a_lack_of_memory_while_a_clip_is_read_is_reported_as_such(
    extraction: Extraction, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
):
    """It is neither a fault of the extractor nor of the clip."""

    def read_clip(_: Work) -> str:
        raise MemoryError

    monkeypatch.setattr(attempts, "read_clip", read_clip)
    monkeypatch.setattr(pipeline_extraction, "_MEMORY_PAUSE_SECONDS", 0.0)
    (outcome,) = extraction(jobs("a"))
    assert isinstance(outcome, ExtractorOutOfMemory)
    assert attempts.failed == {"a": outcome}


def test_clips_are_encoded_one_at_a_time_unless_the_extractor_says_otherwise(
    extraction: Extraction, extractor: Extractor
):
    """A padded batch would change what most encoders give."""
    extraction(jobs(*"abcdef"))
    assert extractor.batches == [[clip] for clip in "abcdef"]


Batching = Callable[[int], Extraction]


@pytest.fixture
def batching_by(
    attempts: Attempts, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Batching]:
    """Return a function that makes a handler with this many threads. All clips that were begun are prepared
    before a batch is put together, and four clips of ten seconds may be encoded at once.
    """
    extractor.batch_seconds = 40.0
    made: list[Extraction] = []

    def make(threads: int) -> Extraction:
        extraction = Extraction(attempts, {PROFILE: LoadedProfile(PROVENANCE, extractor)}, threads=threads)
        next_device_batch = extraction._next_device_batch

        def when_all_are_there(coming: Any) -> Any:
            wait(coming)
            return next_device_batch(coming)

        monkeypatch.setattr(extraction, "_next_device_batch", when_all_are_there)
        made.append(extraction)
        return extraction

    yield make
    for extraction in made:
        extraction.close()


@pytest.fixture
def batching(batching_by: Batching) -> Extraction:
    return batching_by(8)


def test_few_threads_do_not_make_batches_small(batching_by: Batching, extractor: Extractor):
    """`batch_seconds` alone says how much the device takes: with as many clips in hand as there are threads,
    a GPU would be left half empty.
    """
    assert batching_by(2)(jobs(*"abcdefghi")) == ["published"] * 9
    assert [len(batch) for batch in extractor.batches] == [2, 4, 3]


def test_no_more_clips_are_begun_than_the_device_and_the_threads_can_use(
    batching_by: Batching, extractor: Extractor, attempts: Attempts
):
    """Time runs for each clip that was begun, and one that is deleted before it is begun costs nothing."""
    begun: list[int] = []
    extractor.on_device = lambda _: begun.append(len(attempts.taken))
    extraction = batching_by(2)
    extraction(jobs(*(f"clip-{number}" for number in range(20))))
    assert begun[2] <= 2 + (2 + 4), "the first batch, then two threads' and the next batch"


def test_a_batch_holds_no_more_padded_seconds_than_the_extractor_allows(
    batching: Extraction, extractor: Extractor, attempts: Attempts
):
    assert batching(jobs(*"abcdefg")) == ["published"] * 7
    assert [len(batch) for batch in extractor.batches] == [4, 3]
    assert [clip for batch in extractor.batches for clip in batch] == list("abcdefg")
    assert sorted(attempts.published) == list("abcdefg")


def test_a_batch_that_is_too_much_for_the_device_is_halved_and_nobody_notices(
    batching: Extraction, extractor: Extractor, attempts: Attempts
):
    """Somebody else took the memory meanwhile."""
    extractor.most = 1
    assert batching(jobs(*"abcd")) == ["published"] * 4
    assert [len(batch) for batch in extractor.batches] == [4, 2, 1, 1, 2, 1, 1]
    assert attempts.failed == {}


def test_one_clip_that_is_too_much_for_the_device_may_be_tried_again_later(
    batching: Extraction, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
):
    """Another process may hold the memory for a while. Without a pause, all attempts would fail meanwhile."""
    monkeypatch.setattr(pipeline_extraction, "_MEMORY_PAUSE_SECONDS", 0.2)
    extractor.most = 0
    began = time.monotonic()
    (outcome,) = batching(jobs("a"))
    assert isinstance(outcome, ExtractorOutOfMemory)
    assert outcome.retryable
    assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    "reason", ["it is the last attempt", "the process is to stop", "it has waited a moment ago"]
)
def test_nothing_waits_for_memory_in_vain(
    batching: Extraction,
    extractor: Extractor,
    attempts: Attempts,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
):
    monkeypatch.setattr(pipeline_extraction, "_MEMORY_PAUSE_SECONDS", 0.0)
    extractor.most = 0
    if reason == "it has waited a moment ago":
        batching(jobs("b"))
    monkeypatch.setattr(pipeline_extraction, "_MEMORY_PAUSE_SECONDS", 3600.0)
    if reason == "it is the last attempt":
        attempts.numbers = {"a": 3}
    elif reason == "the process is to stop":
        batching.stopping = lambda: True
    (outcome,) = batching(jobs("a"))
    assert isinstance(outcome, ExtractorOutOfMemory)


def test_a_clip_that_cannot_be_encoded_fails_alone_also_in_a_batch(
    batching: Extraction, extractor: Extractor, attempts: Attempts
):
    """A clip that could not even be prepared fails alone too, and so does one that is no longer wanted."""

    def fail_on_c(clip: str) -> None:
        if clip == "c":
            raise RuntimeError("no")

    extractor.on_device = fail_on_c
    attempts.unwanted = {"e"}
    outcomes = batching(jobs("a", "short", "b", "c", "d", "e"))
    assert [type(one).__name__ for one in outcomes] == [
        "str", "AudioTooShort", "str", "ExtractorFailed", "str", "str",
    ]  # fmt: skip
    assert outcomes[5] == "superseded"
    assert sorted(attempts.published) == ["a", "b", "d"]


def test_few_clips_are_in_hand_ahead_of_the_device(
    extraction: Extraction, extractor: Extractor, attempts: Attempts
):
    """A job that is taken early is kept from other workers, runs out of time, and is computed although it was
    deleted.
    """
    most = 0

    def look(clip: str) -> None:
        nonlocal most
        most = max(most, len(attempts.taken) - int(clip))

    extractor.on_device = look
    assert extraction(jobs(*map(str, range(20)))) == ["published"] * 20
    assert most <= 3, "the one on the device, and one per thread"


def test_an_outage_is_waited_for_however_long(extraction: Extraction, attempts: Attempts):
    """A bucket that is away for a quarter of an hour must not have a hundred clips given up."""
    attempts.trouble, attempts.away = {"read_clip"}, True
    alive = []
    extraction.on_progress = lambda: alive.append(1)
    threading.Timer(1.0, attempts.trouble.clear).start()
    assert extraction(jobs("a")) == ["published"]
    assert attempts.tries.count("read_clip") > 3
    assert len(alive) > 3, "the watchdog would take it for hung"


def test_one_object_that_cannot_be_read_stops_nobody_else(extraction: Extraction, attempts: Attempts):
    """While bucket and view answer, the trouble concerns only this clip."""
    attempts.trouble = {"read_clip"}
    [error] = extraction(jobs("a"))
    assert isinstance(error, Unavailable)
    assert attempts.failed == {"a": error}


def test_an_artifact_for_which_there_is_no_room_goes_back(extraction: Extraction, attempts: Attempts):
    """Smaller ones may fit. Sound clips would fail for good if the attempt counted, and others would wait for
    ever if it did not end.
    """
    attempts.trouble, attempts.error = {"publish"}, StoreFull
    [error] = extraction(jobs("a"))
    assert isinstance(error, JobHandedBack)
    assert attempts.failed == {"a": error}


def test_artifacts_that_find_no_room_wait_for_it_only_once(
    attempts: Attempts, extractor: Extractor, monkeypatch: pytest.MonkeyPatch
):
    """Each would keep its batch, and all smaller artifacts behind it, for a minute."""
    clock = count(step=0.01)
    monkeypatch.setattr(pipeline_extraction.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(pipeline_extraction.time, "sleep", lambda _: None)
    attempts.trouble, attempts.error = {"publish"}, StoreFull
    profiles = {PROFILE: LoadedProfile(PROVENANCE, extractor)}  # type: ignore[arg-type]
    with closing(Extraction(attempts, profiles, threads=1)) as extraction:  # type: ignore[arg-type]
        extraction(jobs("a"))
        first = attempts.tries.count("publish")
        outcomes = extraction(jobs("b", "c"))
    assert first > 20
    assert attempts.tries.count("publish") - first < 12
    assert {type(one) for one in outcomes} == {JobHandedBack}


def test_the_time_that_a_failing_step_takes_counts(
    extraction: Extraction, attempts: Attempts, monkeypatch: pytest.MonkeyPatch
):
    """Otherwise a bucket that never answers for one object would keep a worker busy for many minutes."""
    clock = iter(range(0, 100_000, 25))
    monkeypatch.setattr(pipeline_extraction.time, "monotonic", lambda: next(clock))
    attempts.trouble = {"read_clip"}
    [error] = extraction(jobs("a"))
    assert isinstance(error, Unavailable)
    assert attempts.tries.count("read_clip") == 1


@pytest.mark.parametrize("is_stopping", [True, False])
@pytest.mark.parametrize("step", ["take", "read_clip", "publish"])
def test_a_process_that_is_told_to_stop_or_is_cut_off_waits_for_nothing(
    extraction: Extraction, attempts: Attempts, step: str, is_stopping: bool
):
    """An operator who stops the process during an outage does so because of the outage. If only this worker
    is cut off, others could run its jobs. The job is not at fault, so it loses no attempt.
    """
    attempts.trouble, attempts.away, attempts.cut_off = {step}, True, not is_stopping
    extraction.stopping = lambda: is_stopping
    [error] = extraction(jobs("a"))
    assert isinstance(error, JobHandedBack)
    assert attempts.tries.count(step) == 1
    assert attempts.failed == ({} if step == "take" else {"a": error})


@pytest.mark.parametrize("is_stopping", [True, False])
@pytest.mark.parametrize("step", ["take", "read_clip", "publish"])
def test_a_worker_that_stops_or_is_cut_off_tries_no_further_step_of_its_batch(
    extraction: Extraction, attempts: Attempts, step: str, is_stopping: bool
):
    """Each would find out by itself that the bucket is away, one after the other."""
    attempts.trouble, attempts.away, attempts.cut_off = {step}, True, not is_stopping
    extraction.stopping = lambda: is_stopping
    outcomes = extraction(jobs(*map(str, range(20))))
    assert {type(one) for one in outcomes} == {JobHandedBack}
    assert attempts.tries.count(step) <= 4
    assert is_stopping or attempts.looks < 20, "each look may take seconds"


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Return a bucket and a Redis that answer unless they are `away`, a clock, and how often the bucket was
    asked.
    """
    servers = SimpleNamespace(away=set[str](), now=1000.0, asked=0)
    monkeypatch.setattr(pipeline_attempts, "time", SimpleNamespace(monotonic=lambda: servers.now))
    return servers


@pytest.fixture
def real_attempts(servers: SimpleNamespace) -> RealAttempts:
    def check(server: str) -> None:
        servers.asked += server == "bucket"
        if server in servers.away:
            raise Unavailable("away")

    store: Any = SimpleNamespace(check_writing=lambda: check("bucket"))
    speakers: Any = SimpleNamespace(generation=SimpleNamespace(check=lambda: check("redis")))
    rest: Any = None
    return RealAttempts(store=store, speakers=speakers, blobs=rest, jobs=rest, profiles=rest, decode=rest)


def test_a_worker_is_cut_off_if_only_the_bucket_is_away_for_a_minute(
    real_attempts: RealAttempts, servers: SimpleNamespace
):
    """Without Redis no job could be handed back, and a bucket that restarts is back within a minute."""
    servers.away = {"bucket"}
    assert not real_attempts.in_service()
    servers.now += 59
    assert not real_attempts.is_cut_off()
    servers.now += 1
    assert real_attempts.is_cut_off()
    servers.away = {"bucket", "redis"}
    assert not real_attempts.is_cut_off()


def test_a_worker_whose_steps_succeed_again_is_not_cut_off(
    real_attempts: RealAttempts, servers: SimpleNamespace
):
    """Only failed steps check the bucket. A check from before the bucket came back says nothing later."""
    servers.away = {"bucket"}
    assert not real_attempts.in_service()
    servers.away, servers.now = set(), servers.now + 60
    assert not real_attempts.is_cut_off()
    servers.away, servers.now = {"bucket"}, servers.now + 60
    asked = servers.asked
    assert not real_attempts.in_service()
    servers.now += 60
    assert all(real_attempts.is_cut_off() for _ in range(3))
    assert servers.asked == asked + 2, "a silent bucket takes seconds to ask"


def test_a_worker_that_did_not_reach_the_bucket_takes_no_jobs_until_it_does(
    real_attempts: RealAttempts, servers: SimpleNamespace
):
    """It would hand each batch back and take it again. While the bucket answers, it is not asked."""
    assert real_attempts.may_take()
    assert servers.asked == 0
    servers.away = {"bucket"}
    assert not real_attempts.in_service()
    assert not real_attempts.may_take()
    servers.away = set()
    assert real_attempts.may_take()
    assert real_attempts.may_take()
    assert servers.asked == 3


def test_what_a_crash_says_goes_to_the_log_not_into_the_job(
    extraction: Extraction, extractor: Extractor, attempts: Attempts
):
    """Its text may quote a path or the clip, and a job's error is shown to callers."""

    def crash(clip: str) -> None:
        raise RuntimeError("/home/someone/weights: broken")

    extractor.on_device = crash
    [error] = extraction(jobs("a"))
    assert isinstance(error, ExtractorFailed)
    assert str(error) == "The extractor failed with RuntimeError."


@pytest.mark.parametrize("step", ["prepare", "encode", "finish"])
def test_a_line_about_a_clip_carries_its_jobs_id(
    extraction: Extraction, extractor: Extractor, monkeypatch: pytest.MonkeyPatch, step: str
):
    """Each step logs the id on whatever thread it runs, because nobody could find the clip otherwise."""

    def crash(*_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(extractor, step, crash)
    with capture_logs(processors=[merge_contextvars]) as lines:
        extraction(jobs("a"))
    [crashed] = (line for line in lines if line["event"] == "extraction.crashed")
    assert crashed["job_id"] == "a"


def test_a_clip_that_ended_every_worker_is_given_up(extraction: Extraction, attempts: Attempts):
    """The clip is given up before it is prepared, because preparing it may have killed the workers."""
    attempts.given_up = {"a"}
    error, published = extraction(jobs("a", "b"))
    assert isinstance(error, LeaseExpired)
    assert published == "published"
    assert attempts.tries.count("read_clip") == 1


def test_a_job_of_a_profile_not_served_is_refused(extraction: Extraction, attempts: Attempts):
    """A worker that was given the wrong queue must not guess."""
    [error] = extraction(jobs("a", profile="other"))
    assert isinstance(error, ProfileUnknown)
    assert attempts.taken == []


class OnALostDevice(Extractor):
    """An extractor that fails from some step on."""

    def __init__(self, step: str) -> None:
        super().__init__()

        def fail(_: Any) -> Any:
            raise DeviceLost("cuda: an illegal memory access was encountered")

        setattr(self, step, fail)


@pytest.mark.parametrize("batch_seconds", [0.0, 40.0])
@pytest.mark.parametrize("step", ["prepare", "encode", "finish"])
def test_without_its_device_the_process_ends_and_no_clip_is_blamed(
    attempts: Attempts, step: str, batch_seconds: float
):
    """It would fail all clips of all voices, as often as they may be tried. Nothing is recorded: the jobs
    come back after their lease.
    """
    extractor = OnALostDevice(step)
    extractor.batch_seconds = batch_seconds
    loaded = LoadedProfile(PROVENANCE, extractor)
    extraction = Extraction(attempts, {PROFILE: loaded}, threads=2)
    with pytest.raises(SystemExit) as ending:
        extraction(jobs("a", "b", "c"))
    extraction.close()
    assert ending.value.code == EXIT_UNFINISHED
    assert attempts.failed == {}
    assert attempts.published == []
