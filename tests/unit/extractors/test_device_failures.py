"""Extractors report a device that is full and a device that is lost. torch's errors are simulated."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from structlog.testing import capture_logs
from torch import Tensor

from services.extractor_worker.device.failures import is_lost, is_out_of_memory
from services.extractor_worker.pipeline import extraction as pipeline_extraction
from services.extractor_worker.pipeline.extraction import Extraction, LoadedProfile
from services.extractor_worker.pipeline.extractor import DeviceLost
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.errors import ExtractorFailed, ExtractorOutOfMemory
from tests.unit.test_extraction import PROFILE, Attempts, jobs

ILLEGAL_ACCESS = RuntimeError("CUDA error: an illegal memory access was encountered")


class Greedy(TorchExtractor[Tensor, Tensor]):
    """Encodes a clip as itself, with a large activation on the way. `fails` is raised for the next clip."""

    code_version = 1

    def __init__(self) -> None:
        super().__init__(Loading(profile=BUILT_IN["qwen3-tts-0.6b"], source=UntrainedWeights()))
        self.fails: Exception | None = None
        self.activations: list[weakref.ref[Tensor]] = []
        self.held: list[bool] = []
        """One value per clip: whether an activation of an earlier clip existed when its encoding began."""

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        return torch.tensor(clip.samples)

    def _encode(self, prepared: Tensor) -> Tensor:
        self.held.append(any(one() is not None for one in self.activations))
        activation = prepared.expand(10, -1).clone()
        self.activations.append(weakref.ref(activation))
        return self._forward(activation)[0]

    def _forward(self, activation: Tensor) -> Tensor:
        if self.fails:
            raise self._made()
        return activation

    def _made(self) -> Exception:
        """Return a new exception, to which no other reference exists."""
        failure, self.fails = self.fails, None
        return type(failure)(*failure.args)  # type: ignore[union-attr]

    def _finish(self, encoded: Tensor) -> Mapping[str, Tensor]:
        return {"tensor": encoded}


@pytest.fixture(autouse=True)
def _no_luck() -> Iterator[None]:
    """Switch off the garbage collector, because objects that only it would free may stay for a long time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def greedy() -> Greedy:
    return Greedy()


def lose(monkeypatch: pytest.MonkeyPatch, extractor: Greedy) -> None:
    """Make every later call of CUDA fail."""

    def fail(_device: Any) -> None:
        raise ILLEGAL_ACCESS

    extractor.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", fail)


def failing(error: Exception) -> Callable[..., Any]:
    """Return a step that raises this error."""

    def fail(*_: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("could not create a primitive"),
        MemoryError(),
    ],
)
@pytest.mark.parametrize(("clips", "says"), [(1, "one clip"), (3, "3 clips at once")])
def test_every_lack_of_memory_raises_the_same_error(greedy: Greedy, error: Exception, clips: int, says: str):
    """cuBLAS and cuDNN allocate memory outside torch.

    Their error must not be reported as the clip's failure.
    """
    greedy.fails = error
    with pytest.raises(ExtractorOutOfMemory) as caught:
        greedy.encode([torch.ones(3)] * clips)
    assert caught.value.message == f"the device cpu has too little memory for {says}"
    assert caught.value.retryable
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize("step", ["prepare", "finish"])
def test_a_lack_of_memory_on_the_host_is_reported_as_such(
    greedy: Greedy, monkeypatch: pytest.MonkeyPatch, step: str
):
    """Resampling a long clip takes memory as well, and the clip may succeed when it is tried again."""
    no_memory = RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(greedy, f"_{step}", failing(no_memory))
    with pytest.raises(ExtractorOutOfMemory, match="the host has too little memory"):
        getattr(greedy, step)(greedy.example())


def test_other_failures_are_not_taken_for_a_lack_of_memory():
    assert not is_out_of_memory(RuntimeError("shape '[2]' is invalid for input of size 3"))
    assert not is_out_of_memory(ValueError("out of memory"))
    unsupported = "could not create a primitive descriptor for a convolution forward propagation primitive"
    assert not is_out_of_memory(RuntimeError(unsupported))


def test_memory_is_given_back_after_what_was_computed_is_gone(
    greedy: Greedy, monkeypatch: pytest.MonkeyPatch
):
    """No memory can be given back while the error's frames hold the tensors.

    The next attempt would fail, too.
    """
    seen: list[bool] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(greedy.activations[0]() is None))
    greedy.fails = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(ExtractorOutOfMemory):
        greedy.encode([torch.ones(3)])
    assert seen == [True]


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), ExtractorOutOfMemory),
        (RuntimeError("no"), ExtractorFailed),
        (ExtractorFailed("of its own"), ExtractorFailed),
    ],
)
def test_a_clip_that_failed_holds_no_memory_while_the_others_are_encoded(
    greedy: Greedy, error: Exception, outcome: type[Exception], monkeypatch: pytest.MonkeyPatch
):
    """Its error is kept until the batch ends: one long clip too many, and the whole batch would fail."""
    monkeypatch.setattr(pipeline_extraction, "_MEMORY_PAUSE_SECONDS", 0.0)
    greedy.fails = error
    extraction = Extraction(Clips(), {PROFILE: loaded_profile(greedy)}, threads=2, retry_seconds=0.2)
    with capture_logs():  # or structlog's printer, which ours replaces, would hold the frames
        first, *others = extraction(jobs("a", "b", "c"))
    extraction.close()
    assert isinstance(first, outcome)
    assert others == ["published", "published"]
    assert greedy.held == [False, False, False]


class Clips(Attempts):
    """Attempts that read real clips."""

    def read_clip(self, work: Any) -> ReferenceAudio:  # type: ignore[override]
        return ReferenceAudio(torch.ones(3).numpy(), 16_000)

    def publish(self, *_: Any) -> bool:
        return True


def loaded_profile(extractor: Any) -> LoadedProfile:
    provenance: Any = SimpleNamespace(profile=SimpleNamespace(name=PROFILE))
    return LoadedProfile(provenance, extractor)


def test_after_a_failure_a_gpu_is_asked_whether_it_still_lives(
    greedy: Greedy, monkeypatch: pytest.MonkeyPatch
):
    """An illegal access breaks the process's context, so that every later call fails for every clip."""
    lose(monkeypatch, greedy)
    assert is_lost(greedy.device)
    with pytest.raises(DeviceLost, match="an illegal memory access"):
        greedy._run(failing(ILLEGAL_ACCESS), "")


def test_a_clip_s_own_failure_loses_no_device(greedy: Greedy, monkeypatch: pytest.MonkeyPatch):
    asked: list[Any] = []
    greedy.device = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "synchronize", asked.append)
    with pytest.raises(ZeroDivisionError):
        greedy._run(failing(ZeroDivisionError()), "")
    assert asked == [greedy.device]
    with pytest.raises(ExtractorFailed):
        greedy._run(failing(ExtractorFailed("said by the extractor itself")), "")
    assert asked == [greedy.device]


@pytest.mark.parametrize("step", ["prepare", "encode", "finish"])
def test_every_step_reports_a_lost_device(greedy: Greedy, monkeypatch: pytest.MonkeyPatch, step: str):
    """A device works asynchronously, so the next step that waits for it gets the error.

    A prepared clip is copied to page-locked memory, and a finished one is copied from the device.
    """

    def fail(*_: Any) -> None:
        raise ILLEGAL_ACCESS

    lose(monkeypatch, greedy)
    for inner in ("_prepare", "_encode_all", "_finish"):
        monkeypatch.setattr(greedy, inner, fail)
    with pytest.raises(DeviceLost):
        getattr(greedy, step)(torch.ones(3))
