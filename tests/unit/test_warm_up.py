"""What a worker does with an extractor before it says that it serves."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from services.extractor_worker.process import warm_up
from services.extractor_worker.torch_extractor import Loading, TorchExtractor
from services.extractor_worker.weights import UntrainedWeights
from services.shared.profiles import BUILT_IN


class Extractor:
    """Notes what came at once, and what was finished."""

    def __init__(self, batch_seconds: float) -> None:
        self.batch_seconds = batch_seconds
        self.encoded: list[int] = []
        self.finished = 0

    def example(self) -> Any:
        return SimpleNamespace(seconds=3.0)

    def prepare(self, clip: Any) -> Any:
        return clip

    def encode(self, prepared: Sequence[Any]) -> Sequence[Any]:
        self.encoded.append(len(prepared))
        return prepared

    def finish(self, _encoded: Any) -> None:
        self.finished += 1


@pytest.mark.parametrize(("batch_seconds", "encoded"), [(0.0, [1]), (5.9, [1]), (6.0, [1, 2])])
def test_what_is_encoded_together_later_is_warmed_up_together(batch_seconds: float, encoded: list[int]):
    """A batch has kernels of its own; one clip more than may be encoded at once could be one too many."""
    extractor = Extractor(batch_seconds)
    warm_up(extractor)
    assert extractor.encoded == encoded
    assert extractor.finished == sum(encoded)


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
