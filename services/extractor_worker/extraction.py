"""The handler of extraction jobs: takes each in hand, prepares clips ahead of the device, encodes, publishes.

Preparing and publishing run on threads, so that the device waits for neither bucket nor resampler; the device
sees one clip at a time, in order, so that an artifact is what it would be if its clip were alone. One bad
clip fails alone. An outage of bucket or index is no clip's fault: it is waited for, and uses up no attempts.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import structlog

from services.extractor_worker.extractor import Extractor
from services.shared.facts import SpeakerId
from services.shared.publication import Assignment, Maker, Publisher
from services.shared.queue import SafeJob
from speaker_registry.errors import (
    ExtractorFailed,
    LeaseExpired,
    ProfileUnknown,
    SpeakerRegistryError,
    Unavailable,
)

log = structlog.get_logger()

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Station:
    """One profile this worker serves, loaded and warm."""

    maker: Maker
    extractor: Extractor


@dataclass(frozen=True, slots=True)
class _OnItsWay:
    """A clip between two steps. `content` is what the last step made of it; an exception if that failed."""

    work: Assignment
    station: Station
    content: Any


class Extraction:
    """Call it with jobs of one profile; it returns an outcome or an exception for each, in order.

    Args:
        stations: by profile.
        threads: for reading, preparing and publishing; as many clips are in hand ahead of the device.
        patience_seconds: how long a step is tried again although bucket and index answer.
    """

    def __init__(
        self,
        publisher: Publisher,
        stations: Mapping[str, Station],
        *,
        threads: int,
        patience_seconds: float = 60,
    ) -> None:
        self._publisher = publisher
        self._stations = stations
        self._ahead = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="clip")
        self._patience_seconds = patience_seconds
        self.on_progress: Callable[[], None] = lambda: None
        """Called whenever something shows that the batch is alive."""
        self.stopping: Callable[[], bool] = lambda: False
        """Whether the process is to end: then nothing is waited for."""

    def close(self) -> None:
        """After the last call."""
        self._pool.shutdown()

    def __call__(self, jobs: Sequence[SafeJob]) -> list[object]:
        waiting, going = iter(jobs), []
        # Not all at once: an attempt's time runs from here, and one that was deleted meanwhile is not begun.
        coming = deque(self._pool.submit(self._prepare, job) for job in islice(waiting, self._ahead))
        while coming:
            going.append(self._encode(coming.popleft()))
            coming.extend(self._pool.submit(self._prepare, job) for job in islice(waiting, 1))
        return [_outcome(clip) for clip in going]

    def _prepare(self, job: SafeJob) -> _OnItsWay | None:
        """On a thread: take the job in hand, read its clip, make it ready for the device. None: not wanted
        any more.
        """
        station = self._station(job)
        speaker_id = SpeakerId.parse(str(job.kwargs["speaker"]))
        work = self._patiently(lambda: self._publisher.take(job.id, speaker_id, station.maker))
        if work is None:
            return None
        return _OnItsWay(work, station, self._attempt(lambda: self._ready_for_device(work, station)))

    def _station(self, job: SafeJob) -> Station:
        profile = job.origin.partition(".")[2]
        if profile not in self._stations:
            raise ProfileUnknown(
                f"This worker does not serve {profile!r}; it serves {sorted(self._stations)}."
            )
        return self._stations[profile]

    def _ready_for_device(self, work: Assignment, station: Station) -> Any:
        if work.attempt > work.max_attempts:
            raise LeaseExpired(f"The worker died or hung each of the {work.max_attempts} times it tried.")
        clip = self._patiently(lambda: self._publisher.read_clip(work))
        return station.extractor.prepare(clip)

    def _encode(self, coming: "Future[_OnItsWay | None]") -> "Future[object]":
        """On the device. What follows goes back to the threads."""
        try:
            clip = coming.result()
        except Exception as error:  # noqa: BLE001 - the outcome of this job alone
            return _done(error)
        finally:
            self.on_progress()
        if clip is None:
            return _done("superseded")
        content = clip.content
        if not isinstance(content, Exception):
            self._publisher.progress(clip.work, "encoding", 1)
            content = self._attempt(lambda: self._on_device(clip))
        self.on_progress()
        return self._pool.submit(self._finish, _OnItsWay(clip.work, clip.station, content))

    def _on_device(self, clip: _OnItsWay) -> Any:
        (encoded,) = clip.station.extractor.encode([clip.content])
        return encoded

    def _finish(self, clip: _OnItsWay) -> object:
        """On a thread: to tensors, into the bucket, into force; or record why not."""
        outcome = clip.content
        if not isinstance(outcome, Exception):
            self._publisher.progress(clip.work, "publishing", 2)
            outcome = self._attempt(lambda: self._publish(clip))
        if isinstance(outcome, SpeakerRegistryError):
            self._patiently(lambda: self._publisher.fail(clip.work, outcome))
            if clip.work.attempt >= clip.work.max_attempts:
                outcome.retryable = False  # the queue would still have tries left
        return outcome

    def _publish(self, clip: _OnItsWay) -> str:
        tensors = clip.station.extractor.finish(clip.content)
        counted = self._patiently(lambda: self._publisher.publish(clip.work, tensors))
        return "published" if counted else "superseded"

    def _patiently(self, step: Callable[[], Result]) -> Result:
        """Try again while bucket or index are away, however long; where they are not, for a while."""
        patience, pause = self._patience_seconds, 0.1
        while True:
            try:
                return step()
            except Unavailable as error:
                if self.stopping() or patience <= 0:
                    raise
                log.warning("extraction.waits", reason=error.message, seconds=pause)
            time.sleep(pause)
            self.on_progress()
            if self._publisher.in_service():
                patience -= pause
            pause = min(2 * pause, 2.0)

    def _attempt(self, step: Callable[[], Any]) -> Any:
        """The step's result, or what went wrong as an error of ours."""
        try:
            return step()
        except SpeakerRegistryError as error:
            return error
        except Exception as error:
            # The text may quote the clip or a path: it goes to the log, not into the job.
            log.exception("extraction.crashed")
            return ExtractorFailed(f"The extractor failed with {type(error).__name__}.")


def _done(value: object) -> "Future[object]":
    future: Future[object] = Future()
    future.set_result(value)
    return future


def _outcome(going: "Future[object]") -> object:
    try:
        return going.result()
    except Exception as error:  # noqa: BLE001 - the outcome of this job alone
        return error
