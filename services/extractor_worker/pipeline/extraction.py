"""The handler of extraction jobs: starts each job, prepares clips ahead of the device, encodes, publishes.

Preparing and publishing run on threads, so that the device waits for neither bucket nor resampler. The device
encodes as many clips at once as the extractor's `batch_seconds` allows, so that the other clips of a batch
change an artifact by no more than rounding errors, and on a CPU not at all. A clip that cannot be encoded
fails alone. If a batch is too large for the device, it is halved, and after a clip that is too large alone
the handler pauses before its next attempt. During an outage of the bucket or Redis the handler waits, and the
outage uses up no attempts. If the process is to stop meanwhile, or only the bucket has been away for a
minute, the jobs go back to their queue, which uses up none either. If the device is lost, the process ends,
and another process gets its jobs.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import structlog
from structlog.contextvars import bound_contextvars

from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.extractor_worker.jobs.leases import SUPERSEDED
from services.extractor_worker.pipeline.attempts import Attempts
from services.extractor_worker.pipeline.extractor import DeviceLost, Extractor
from services.shared.bucket.store import StoreFull
from services.shared.model.speaker import SpeakerId
from services.shared.model.threads import started_pool
from services.shared.queue.rq_jobs import QueuedJob, profile_of
from services.shared.registry.fail import JobHandedBack
from services.shared.registry.publish import Attempt, Provenance
from services.shared.telemetry import tracing
from services.shared.telemetry.metrics import BATCH_SIZE, COMPUTE_SECONDS
from speaker_registry.errors import (
    ExtractorFailed,
    ExtractorOutOfMemory,
    ProfileUnknown,
    SpeakerRegistryError,
    Unavailable,
)

log = structlog.get_logger()

Result = TypeVar("Result")
_FULL_SECONDS = 600.0
"""After an artifact has waited in vain for room in the bucket, the next ones hardly wait for this long, so
that smaller ones behind them are not kept.
"""
_FULL_RETRY_SECONDS = 2.0
"""Such an artifact is retried for this long, so that a worker with nothing else to do is not busy in vain."""
_MEMORY_PAUSE_SECONDS = 10.0
"""The worker takes no job for this long after a clip alone was too much for the device, because another
process may hold the memory, and the clip's next attempts would fail within seconds.
"""
_MEMORY_PAUSES_SECONDS = 60.0
"""It pauses once in this time, so that clips that are always too long cannot stop it for other clips."""


@dataclass(frozen=True, slots=True)
class LoadedProfile:
    """A profile that this worker serves, with its extractor loaded and warm."""

    provenance: Provenance
    extractor: Extractor


@dataclass(frozen=True, slots=True)
class _PipelineItem:
    """A clip between two steps of the pipeline.

    `content` is the result of the last step, or the exception with which that step failed.
    """

    attempt: Attempt
    loaded: LoadedProfile
    content: Any

    @property
    def seconds(self) -> float:
        """Return the length of the clip in seconds."""
        clip = self.attempt.version.clip
        assert clip is not None
        return clip.seconds

    @property
    def failed(self) -> bool:
        return isinstance(self.content, Exception)

    def after_step(self, content: Any) -> "_PipelineItem":
        """Return this item with the result of a further step."""
        return _PipelineItem(self.attempt, self.loaded, content)


_Outcome = Future[object]
"""The outcome of a job, as soon as its last step has ended."""


class Extraction:
    """Runs the extraction jobs of one profile at a time.

    A call with jobs returns an outcome or an exception for each of them, in their order. It raises SystemExit
    with `EXIT_UNFINISHED` when the device is lost.

    Args:
        loaded_profiles: the loaded profiles by name.
        threads: how many clips are read, prepared or published at the same time. They do not limit how many
            clips the device encodes at once.
        retry_seconds: how long a failing step is retried while bucket and Redis can be used.
    """

    def __init__(
        self,
        attempts: Attempts,
        loaded_profiles: Mapping[str, LoadedProfile],
        *,
        threads: int,
        retry_seconds: float = 60,
    ) -> None:
        self._attempts = attempts
        self._loaded_profiles = loaded_profiles
        self._threads = threads
        self._pool = started_pool(threads, "clip")
        self._retry_seconds = retry_seconds
        self.on_progress: Callable[[], None] = lambda: None
        """Called whenever the batch has made progress, which shows that the worker does not hang."""
        self.on_made: Callable[[str], None] = lambda _: None
        """Called with the name of the profile whenever an artifact was published."""
        self.stopping: Callable[[], bool] = lambda: False
        """Returns whether the process is to end. If so, no step waits for an outage to end."""
        self._hands_back = False
        """Whether a step of this batch has found that the worker is cut off, or that bucket or Redis is away
        while the process is to end. No other step is tried then.
        """
        self._full_until = self._next_memory_pause = float("-inf")

    def close(self) -> None:
        """Stop the threads after the last call. Steps that have not begun are dropped."""
        self._pool.shutdown(cancel_futures=True)

    def __call__(self, jobs: Sequence[QueuedJob]) -> list[object]:
        self._hands_back = False
        waiting, outcomes = iter(jobs), list[_Outcome]()
        preparing = deque[Future[_PipelineItem | None]]()
        self._prepare_ahead(waiting, preparing, self._threads)
        while preparing:
            batch = self._next_device_batch(preparing)
            self._prepare_ahead(waiting, preparing, self._threads + _max_batch(batch))
            outcomes.extend(self._encode(batch))
        results = [_result_or_error(outcome) for outcome in outcomes]
        if any(isinstance(one, ExtractorOutOfMemory) and one.retryable for one in results):
            self._wait_for_memory()
        return results

    def _wait_for_memory(self) -> None:
        """Pause before the jobs go back to their queue. Artifacts of the batch are published already."""
        now = time.monotonic()
        if now < self._next_memory_pause:
            return
        self._next_memory_pause = now + _MEMORY_PAUSES_SECONDS
        while not self.stopping() and time.monotonic() < now + _MEMORY_PAUSE_SECONDS:
            time.sleep(0.1)
            self.on_progress()

    def _prepare_ahead(
        self, waiting: Iterator[QueuedJob], preparing: "deque[Future[_PipelineItem | None]]", limit: int
    ) -> None:
        """Begin to prepare waiting jobs until `limit` are in preparation.

        The limit is one job per thread, and the device's next batch. Clips that are prepared earlier would
        only use up the time of their attempts, and might be deleted meanwhile.
        """
        for job in islice(waiting, max(0, limit - len(preparing))):
            preparing.append(self._pool.submit(self._prepare, job))

    def _prepare(self, job: QueuedJob) -> _PipelineItem | None:
        """Start the job, read its clip and prepare the clip for the device. Runs on a thread.

        Returns None if the artifact is not wanted any more.
        """
        with bound_contextvars(job_id=job.id):
            self._hand_back_if_away()
            loaded = self._loaded_profile(job)
            speaker_id = SpeakerId.parse(str(job.kwargs["speaker"]))
            attempt = self._retried(lambda: self._attempts.take(job.id, speaker_id, loaded.provenance))
            if attempt is None:
                return None
            with _step("prepare", loaded, [attempt]):
                ready = self._attempt(lambda: self._ready_for_device(attempt, loaded))
            return _PipelineItem(attempt, loaded, ready)

    def _loaded_profile(self, job: QueuedJob) -> LoadedProfile:
        profile = profile_of(job.origin)
        if profile not in self._loaded_profiles:
            raise ProfileUnknown(
                f"This worker does not serve {profile!r}; it serves {sorted(self._loaded_profiles)}."
            )
        return self._loaded_profiles[profile]

    def _ready_for_device(self, attempt: Attempt, loaded: LoadedProfile) -> Any:
        clip = self._retried(lambda: self._attempts.read_clip(attempt))
        return _exit_if_device_lost(loaded, lambda: loaded.extractor.prepare(clip))

    def _next_device_batch(
        self, preparing: "deque[Future[_PipelineItem | None]]"
    ) -> "list[_PipelineItem | _Outcome]":
        """Return the next clip, with those after it that are prepared already and may be encoded with it."""
        batch = [self._prepared(preparing.popleft())]
        while preparing and preparing[0].done() and _fits(batch, following := self._prepared(preparing[0])):
            preparing.popleft()
            batch.append(following)
        return batch

    def _prepared(self, preparation: "Future[_PipelineItem | None]") -> "_PipelineItem | _Outcome":
        """Wait for a preparation, and return its clip, or the job's outcome if there is nothing to encode."""
        try:
            clip = preparation.result()
        except Exception as error:  # noqa: BLE001 - the outcome of this job alone
            return _known_outcome(error)
        finally:
            self.on_progress()
        return _known_outcome(SUPERSEDED) if clip is None else clip

    def _encode(self, batch: "Sequence[_PipelineItem | _Outcome]") -> Iterator[_Outcome]:
        """Encode a batch on the device, and hand the results to the threads for publication."""
        encodable = [clip for clip in batch if isinstance(clip, _PipelineItem) and not clip.failed]
        for clip in encodable:
            self._attempts.progress(clip.attempt, "encoding")
        encoded = iter(self._on_device(encodable))
        self.on_progress()
        for one in batch:
            if isinstance(one, _PipelineItem):
                yield self._pool.submit(self._finish, one if one.failed else next(encoded))
            else:
                yield one

    def _on_device(self, clips: Sequence[_PipelineItem]) -> list[_PipelineItem]:
        """Return each clip with its encoded result or a `SpeakerRegistryError`."""
        if not clips:
            return []
        if len(clips) == 1:
            with bound_contextvars(job_id=clips[0].attempt.job_id):
                return [clips[0].after_step(self._attempt(lambda: self._encoded(clips)[0]))]
        try:
            return [clip.after_step(one) for clip, one in zip(clips, self._encoded(clips), strict=True)]
        except ExtractorOutOfMemory:
            seconds = sum(clip.seconds for clip in clips)
            log.warning("extraction.halved", clips=len(clips), seconds=seconds, job_ids=_ids(clips))
        except Exception:
            log.exception("extraction.batch_failed", clips=len(clips), job_ids=_ids(clips))
        # The batch was too large, or one of its clips cannot be encoded. Encoding the halves finds that clip.
        self.on_progress()
        half = len(clips) // 2
        return self._on_device(clips[:half]) + self._on_device(clips[half:])

    def _encoded(self, clips: Sequence[_PipelineItem]) -> Sequence[Any]:
        loaded = clips[0].loaded
        BATCH_SIZE.labels(loaded.provenance.profile.name).observe(len(clips))
        with _step("encode", loaded, [clip.attempt for clip in clips]):
            return _exit_if_device_lost(
                loaded, lambda: loaded.extractor.encode([clip.content for clip in clips])
            )

    def _finish(self, clip: _PipelineItem) -> object:
        """Publish the clip's tensors, or record why there are none. Runs on a thread."""
        with bound_contextvars(job_id=clip.attempt.job_id):
            outcome = clip.content
            if not isinstance(outcome, Exception):
                self._attempts.progress(clip.attempt, "publishing")
                with _step("publish", clip.loaded, [clip.attempt]):
                    outcome = self._attempt(lambda: self._publish(clip))
            if isinstance(outcome, SpeakerRegistryError):
                self._retried(lambda: self._attempts.fail(clip.attempt, outcome))
                if clip.attempt.number >= clip.attempt.max_attempts:
                    outcome.retryable = False  # the queue would allow further tries
            return outcome

    def _publish(self, clip: _PipelineItem) -> str:
        self._hand_back_if_away()
        extractor = clip.loaded.extractor
        tensors = _exit_if_device_lost(clip.loaded, lambda: extractor.finish(clip.content))
        seconds = extractor.used_seconds(clip.content)
        counted = self._retried(lambda: self._attempts.publish(clip.attempt, tensors, seconds))
        if counted:
            self.on_made(clip.loaded.provenance.profile.name)
        return "published" if counted else SUPERSEDED

    def _hand_back_if_away(self) -> None:
        """Raise `JobHandedBack` if an earlier step has found out that this one would fail. It would take its
        time, such as a minute with a bucket that never answers.
        """
        if not self._hands_back and self._attempts.is_cut_off():  # that takes seconds to find out
            self._hands_back = True
        if self._hands_back:
            raise JobHandedBack("The bucket or Redis cannot be used now.")

    def _retried(self, step: Callable[[], Result]) -> Result:
        """Repeat a step that raises Unavailable.

        During an outage of bucket or Redis, the step is repeated until the process stops or is cut off from
        the bucket. Otherwise it is repeated for `retry_seconds` in all, or for less if another artifact has
        waited in vain for room lately.

        Raises:
            JobHandedBack: the process stops or is cut off, or the bucket is too full for this artifact, and
                not for the little that `in_service` stores. Smaller ones may fit meanwhile.
        """
        left, pause = self._retry_seconds, 0.1
        while True:
            began = time.monotonic()
            try:
                return step()
            except Unavailable as error:
                if not self._hands_back and (self.stopping() or self._attempts.is_cut_off()):
                    self._hands_back = True
                if self._hands_back:
                    raise JobHandedBack(error.message) from error
                spent = time.monotonic() - began
                is_full = isinstance(error, StoreFull)
                if is_full and began < self._full_until:
                    left = min(left, _FULL_RETRY_SECONDS)
                if self._attempts.in_service():
                    left -= spent + pause
                if left <= 0 and is_full:
                    self._full_until = time.monotonic() + _FULL_SECONDS
                    raise JobHandedBack(error.message) from error
                if left <= 0:
                    raise
                log.warning("extraction.waits", reason=error.message, seconds=pause)
            time.sleep(pause)
            self.on_progress()
            pause = min(2 * pause, 2.0)

    def _attempt(self, step: Callable[[], Any]) -> Any:
        """Return the step's result, or its failure as a `SpeakerRegistryError`."""
        try:
            return step()
        except SpeakerRegistryError as error:
            _clear_frames(error)
            return error
        except MemoryError as error:  # outside the extractor, for example while the clip is read
            _clear_frames(error)
            return ExtractorOutOfMemory("the host has too little memory for one clip")
        except Exception as error:
            # The text may quote the clip or a path: it goes to the log, not into the job.
            log.exception("extraction.crashed")
            _clear_frames(error)
            return ExtractorFailed(f"The extractor failed with {type(error).__name__}.")


@contextmanager
def _step(name: str, loaded: LoadedProfile, attempts: Sequence[Attempt]) -> Iterator[None]:
    """Measure a step, whether it succeeds or fails.

    Clips that take a step together share its time equally. In traces the step belongs to the request that
    asked for the extraction.
    """
    began, profile = time.perf_counter(), loaded.provenance.profile.name
    with ExitStack() as spans:
        for attempt in attempts:
            about: dict[str, str | int] = {
                "job.id": attempt.job_id,
                "profile": profile,
                "clips": len(attempts),
            }
            spans.enter_context(
                tracing.span(name, kind="consumer", parent=attempt.traceparent, attributes=about)
            )
        try:
            yield
        finally:
            seconds = COMPUTE_SECONDS.labels(profile, name)
            share = (time.perf_counter() - began) / len(attempts)
            for _ in attempts:
                seconds.observe(share)


def _exit_if_device_lost(loaded: LoadedProfile, step: Callable[[], Result]) -> Result:
    """Run a step of an extractor, and end the process if the device is lost.

    The jobs of a process that ends stay open: they return to the queue when their leases run out.
    """
    try:
        return step()
    except DeviceLost as error:
        log.critical("device.lost", profile=loaded.provenance.profile.name, reason=str(error))
        raise SystemExit(EXIT_UNFINISHED) from error


def _clear_frames(error: BaseException) -> None:
    """Clear the stack frames of an error and of its causes.

    Errors are kept until their batch ends, and their frames would keep the clip's tensors in memory.
    """
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__cause__ or one.__context__


def _fits(batch: "Sequence[_PipelineItem | _Outcome]", following: "_PipelineItem | _Outcome") -> bool:
    """Return whether a clip may be encoded together with the batch.

    All clips, padded to the longest of them, may last no longer than the extractor's `batch_seconds`.
    """
    clips = [clip for clip in (*batch, following) if isinstance(clip, _PipelineItem) and not clip.failed]
    if not clips:
        return True
    padded = len(clips) * max(clip.seconds for clip in clips)
    return len(clips) == 1 or padded <= clips[0].loaded.extractor.batch_seconds


def _max_batch(batch: "Sequence[_PipelineItem | _Outcome]") -> int:
    """Return how many clips may be encoded at once if all are as long as the longest one of this batch.

    0 means that every clip is encoded alone.
    """
    clips = [clip for clip in batch if isinstance(clip, _PipelineItem) and not clip.failed]
    if not clips:
        return 0
    return int(clips[0].loaded.extractor.batch_seconds / max(clip.seconds for clip in clips))


def _ids(clips: Sequence[_PipelineItem]) -> list[str]:
    return [clip.attempt.job_id for clip in clips]


def _known_outcome(value: object) -> _Outcome:
    future: _Outcome = Future()
    future.set_result(value)
    return future


def _result_or_error(outcome: _Outcome) -> object:
    try:
        return outcome.result()
    except Exception as error:  # noqa: BLE001 - the outcome of this job alone
        return error
