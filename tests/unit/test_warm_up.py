"""Tests of what a worker does with an extractor before it announces it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor
from services.extractor_worker.process import _limits_of_accepted_clips, warm_up
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import ComputedOn
from speaker_registry.errors import AudioTooLong, ExtractorOutOfMemory


class Extractor:
    """Notes what came at once, and what was finished."""

    def __init__(
        self,
        batch_seconds: float,
        most_seconds: float = 30.0,
        room_seconds: float = 30.0,
        device: str = "cuda",
    ) -> None:
        self.computed_on = ComputedOn(device=device, torch="2.0")
        self.batch_seconds = batch_seconds
        self.most_seconds = most_seconds
        self.room_seconds = room_seconds
        self.encoded: list[list[float]] = []
        self.finished = 0

    def example(self) -> ReferenceAudio:
        return ReferenceAudio(np.ones(3000, np.float32), 1000)

    def prepare(self, clip: ReferenceAudio) -> float:
        if clip.seconds > self.most_seconds:
            raise AudioTooLong
        return clip.seconds

    def encode(self, prepared: Sequence[float]) -> Sequence[float]:
        if sum(prepared) > self.room_seconds:
            raise ExtractorOutOfMemory
        self.encoded.append(list(prepared))
        return prepared

    def finish(self, _encoded: Any) -> None:
        self.finished += 1


@pytest.mark.parametrize(
    ("batch_seconds", "encoded"), [(0.0, [[3.0]]), (5.9, [[3.0]]), (6.0, [[3.0], [3.0, 3.0]])]
)
def test_what_is_encoded_together_later_is_warmed_up_together(
    batch_seconds: float, encoded: list[list[float]]
):
    """A batch has kernels of its own; one clip more than may be encoded at once could be one too many. The
    longest clip comes last: for it memory is fetched that all others find.
    """
    extractor = Extractor(batch_seconds)
    warm_up(extractor)
    assert extractor.encoded == [*encoded, [30.0]]
    assert extractor.finished == sum(map(len, extractor.encoded))


def test_a_cpu_is_not_warmed_up_with_the_longest_clip():
    """It would take ten seconds of the processor's time, and no clip after it would be noticeably faster."""
    extractor = Extractor(0.0, device="cpu")
    warm_up(extractor)
    assert extractor.encoded == [[3.0]]


@pytest.mark.parametrize("limits", [{"most_seconds": 20.0}, {"room_seconds": 20.0}])
def test_who_has_no_room_for_the_longest_clip_serves_shorter_ones(limits: dict[str, float]):
    """A long one is refused or fails, alone, when it comes."""
    extractor = Extractor(0.0, **limits)
    warm_up(extractor)
    assert extractor.encoded == [[3.0]]


class OnGpuTogether(TorchExtractor[Tensor, Tensor]):
    code_version = 1
    gpu_batch_seconds = 30.0
    _prepare = _encode = _finish = None  # not run here


@pytest.mark.parametrize(
    ("device", "seconds"), [("cpu", 0.0), ("meta", 0.0), ("cuda", 30.0), ("cuda:1", 30.0)]
)
def test_what_is_declared_for_a_gpu_holds_on_a_gpu_alone(device: str, seconds: float):
    """A CPU would only compute the padding."""
    loading = Loading(profile=BUILT_IN["voxcpm2"], source=UntrainedWeights(), device=device)
    assert OnGpuTogether(loading, weights={"untrained": True}).batch_seconds == seconds


def test_a_worker_decodes_every_clip_that_the_api_accepted(monkeypatch: pytest.MonkeyPatch):
    """The worker's environment may be that of an API whose limits were lowered since."""
    before = _limits_of_accepted_clips()
    for name in ("MAX_SECONDS", "DECODE_SECONDS"):
        monkeypatch.setenv(f"SPEAKER_UPLOAD_{name}", "1")
    monkeypatch.setenv("SPEAKER_UPLOAD_DECODE_MEMORY_BYTES", str(64 * 1024**2))
    assert _limits_of_accepted_clips() == before
