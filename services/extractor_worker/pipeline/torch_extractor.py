"""The common part of all extractors that run in torch. This module knows no model.

It resamples clips, runs encoders on the device, and adds the inputs that every fingerprint has.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from services.extractor_worker.device.failures import is_lost, is_out_of_memory
from services.extractor_worker.device.host_memory import give_back_surplus
from services.extractor_worker.device.machine import computed_on
from services.extractor_worker.device.precision import exact_float32
from services.extractor_worker.features.resample import KERNEL, resample
from services.extractor_worker.pipeline.extractor import DeviceLost
from services.extractor_worker.weights.loading import Checkpoint, UntrainedWeights, WeightsSource, locate
from services.shared.audio import ReferenceAudio
from services.shared.model.fingerprint import Fingerprint
from speaker_registry.artifact import ComputedOn
from speaker_registry.engine import Dtype, Profile
from speaker_registry.engine import ReferenceAudio as Clip
from speaker_registry.errors import AudioTooShort, ExtractorOutOfMemory, SpeakerRegistryError

Prepared = TypeVar("Prepared")
Encoded = TypeVar("Encoded")
Model = TypeVar("Model")
Result = TypeVar("Result")

_DTYPES: Mapping[Dtype, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class FingerprintKnown(Exception):
    """Ends the loading of an extractor of which only the fingerprint was wanted."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        super().__init__(fingerprint.digest)
        self.fingerprint = fingerprint


class SharedModels:
    """Models that several extractors of a process share. Each is loaded once and kept until the process ends.

    Their number is bounded by the number of profiles that the process serves.
    """

    def __init__(self) -> None:
        self._models: dict[Hashable, Any] = {}

    def get(self, key: Hashable, load: Callable[[], Model]) -> Model:
        """Return the model with this key, and load it the first time. The key must cover everything that
        determines the model, including its device.
        """
        if key not in self._models:
            self._models[key] = load()
        return cast(Model, self._models[key])


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Tells how to load an extractor: its profile, the source of its weights, and its device."""

    profile: Profile
    source: WeightsSource
    device: str = "cpu"
    """The device's name in torch, for example `cuda:0`."""
    dtype: Dtype = "float32"
    """The type for everything that may be computed in less than float32. An encoder that is only exact in
    float32 ignores it, and says so in its fingerprint."""
    shared_models: SharedModels = field(default_factory=SharedModels)
    trusted: bool = False
    """True for the trusted copy with which a proof compares the served one. Libraries other than torch
    then compute in their plainest way, whatever it costs."""
    only_fingerprint: bool = False
    """True if `FingerprintKnown` is to be raised as soon as the fingerprint is known."""

    @property
    def seed(self) -> int | None:
        """The seed of random weights, or None for published weights."""
        return self.source.seed if isinstance(self.source, UntrainedWeights) else None

    def checkpoint(self) -> Checkpoint:
        """Find or download the published files. Must not be called for untrained weights. Raises
        `WeightsMissing`, `WeightsInvalid`.
        """
        assert not isinstance(self.source, UntrainedWeights)
        return locate(self.source, profile=self.profile.name, weights=self.profile.weights)

    def resampled(self, clip: Clip, sample_rate: int, *, min_samples: int = 1) -> Tensor:
        """Return float32 [N] at `sample_rate` Hz. Raises `AudioTooShort` below `min_samples` samples."""
        return _resampled(clip, sample_rate, min_samples, KERNEL)


class TorchExtractor(ABC, Generic[Prepared, Encoded]):
    """An `Extractor` whose device is torch's. Subclasses say what the three steps do with one clip.

    Args:
        inputs: the fingerprint inputs besides profile, code version, dtype and resampler: `weights`
            (`Checkpoint.fingerprint_inputs`, or `untrained_inputs`), the configuration, and every number of
            the preprocessing.

    Raises:
        WeightsMissing: a file is missing. The message names it and says how to get it.
        WeightsInvalid: a file is not the expected one. The message names the file and what is wrong.
    """

    code_version: ClassVar[int]
    """Part of the fingerprint. Raise it with every change, here or in what is imported, that changes a
    result."""
    batch_seconds: float = 0.0
    """The seconds of padded audio that may be encoded at once. They may exceed 0 only if the other clips of a
    batch change a result by no more than rounding errors."""
    gpu_batch_seconds: ClassVar[float] = 0.0
    """Replaces `batch_seconds` on a GPU, for encoders that can use batches only there without larger changes
    of the results. A CPU gains nothing from batches, because it computes the padding.
    """
    always_float32: ClassVar[bool] = False
    """True if engines run this encoder in float32, whatever type the rest of the engine uses."""
    resampler: ClassVar[str | None] = None
    """The name of the resampling kernel, if the engine does not use the usual one."""

    def __init__(self, loading: Loading, **inputs: Any) -> None:
        dtype: Dtype = "float32" if self.always_float32 else loading.dtype
        self.profile_name = loading.profile.name
        self.device, self.dtype = torch.device(loading.device), _DTYPES[dtype]
        self.fingerprint = Fingerprint.of(
            profile=loading.profile.name,
            code=self.code_version,
            dtype=dtype,
            resampler=self.resampler or KERNEL,
            **inputs,
        )
        if loading.only_fingerprint:
            raise FingerprintKnown(self.fingerprint)
        if self.gpu_batch_seconds and self.device.type == "cuda":
            self.batch_seconds = self.gpu_batch_seconds

    @property
    def computed_on(self) -> ComputedOn:
        """The device, its GPU or instruction set, and the version of torch."""
        return computed_on(self.device)

    @torch.inference_mode()
    def prepare(self, clip: ReferenceAudio) -> Prepared:
        """Prepare a clip on the CPU. Raises `AudioTooShort`, `UnsupportedAudio`, and the errors of `_run`."""
        return self._run(lambda: self._prepare(clip), "the host has too little memory to prepare one clip")

    @torch.inference_mode()
    def encode(self, prepared: Sequence[Prepared]) -> list[Encoded]:
        """Encode prepared clips on the device. `Extractor.encode` says how a batch changes results.

        Raises the errors of `_run`.
        """

        def encode_all() -> list[Encoded]:
            with exact_float32(self.device):
                encoded = self._encode_all(prepared)
            if self.device.type == "cpu":
                give_back_surplus()
            return encoded

        clips = "one clip" if len(prepared) == 1 else f"{len(prepared)} clips at once"
        return self._run(encode_all, f"the device {self.device} has too little memory for {clips}")

    @torch.inference_mode()
    def finish(self, encoded: Encoded) -> dict[str, np.ndarray]:
        """Return the artifact's tensors. Runs on the CPU. Raises the errors of `_run`."""

        def finished() -> dict[str, np.ndarray]:
            return {
                name: np.ascontiguousarray(tensor.cpu().numpy())
                for name, tensor in self._finish(encoded).items()
            }

        return self._run(finished, "the host has too little memory for the result of one clip")

    def _run(self, step: Callable[[], Result], out_of_memory: str) -> Result:
        """Run a step of the extractor. A GPU works asynchronously, so its failure can appear in any step.

        Raises:
            ExtractorOutOfMemory: memory was short. `out_of_memory` is the message.
            DeviceLost: the error comes from a lost device.
        """
        try:
            return step()
        except SpeakerRegistryError:
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                if is_lost(self.device):
                    raise DeviceLost(f"{self.device}: {error!r:.200}") from error
                raise
        # The cache is emptied outside the handler, because the error's frames hold what was computed so far.
        torch.cuda.empty_cache()  # the next try gets all of the memory
        raise ExtractorOutOfMemory(out_of_memory)

    def used_seconds(self, encoded: Encoded) -> float | None:  # noqa: ARG002 — extractors that cut clips use it
        """Return None: the whole clip is used."""
        return None

    def example(self) -> ReferenceAudio:
        """Return a second of quiet noise, at a sample rate that every encoder has to resample."""
        noise = np.random.default_rng(0).uniform(-0.1, 0.1, 22_050)
        return ReferenceAudio(noise.astype(np.float32), 22_050)

    @abstractmethod
    def _prepare(self, clip: ReferenceAudio) -> Prepared: ...

    @abstractmethod
    def _encode(self, prepared: Prepared) -> Encoded: ...

    @abstractmethod
    def _finish(self, encoded: Encoded) -> Mapping[str, Tensor]: ...

    def _encode_all(self, prepared: Sequence[Prepared]) -> list[Encoded]:
        """Encode clips one by one.

        Override this method together with `batch_seconds`, and only if the other clips of a batch change a
        result by no more than rounding errors.
        """
        return [self._encode(clip) for clip in prepared]

    def held_tensors(self) -> dict[str, Tensor]:
        """Return every tensor that the extractor keeps between clips: weights, codebooks, tables."""
        return tensors_held_by(self)

    def resampled(self, clip: ReferenceAudio, sample_rate: int, *, min_samples: int = 1) -> Tensor:
        """Return float32 [N] at `sample_rate` Hz. Raises `AudioTooShort` below `min_samples` samples."""
        return _resampled(clip, sample_rate, min_samples, self.resampler or KERNEL)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Lock the tensor's pages if a GPU will fetch it, so that the copy does not wait for earlier work."""
        return tensor.pin_memory() if self.device.type == "cuda" else tensor

    def on_device(self, tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Copy the tensor to the device, in `dtype` or else in the extractor's own type."""
        return tensor.to(self.device, dtype or self.dtype, non_blocking=True)


def _resampled(clip: Clip, sample_rate: int, min_samples: int, kernel: str) -> Tensor:
    samples = resample(torch.tensor(clip.samples), clip.sample_rate, sample_rate, kernel)
    if len(samples) < min_samples:
        needed = min_samples / sample_rate
        raise AudioTooShort(f"the clip is {clip.seconds:.3f} s, the encoder needs at least {needed:.3f} s")
    return samples


def tensors_held_by(thing: object) -> dict[str, Tensor]:
    """Return the tensors in the attributes of an object, and in the attributes of the objects there.

    The key of a tensor is the path of its attribute.
    """
    found = dict(_tensors_of(thing))
    for name, value in vars(thing).items():
        if not isinstance(value, nn.Module) and hasattr(value, "__dict__"):
            found |= {f"{name}.{key}": tensor for key, tensor in _tensors_of(value)}
    return found


def _tensors_of(thing: object) -> Iterator[tuple[str, Tensor]]:
    for name, value in vars(thing).items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, nn.Module):
            for key, tensor in (*value.named_parameters(), *value.named_buffers()):
                yield f"{name}.{key}", tensor


def untrained_inputs(seed: int) -> dict[str, Any]:
    """Return the fingerprint inputs of random weights."""
    return {"untrained": True, "seed": seed}


def weights_identity(weights: Mapping[str, Any], file: str) -> Hashable:
    """Return a value that is equal for two extractors whose weights in this file are equal.

    Args:
        weights: the fingerprint inputs of the weights.
        file: the name of the file. It does not matter for random weights.
    """
    return weights["seed"] if weights["untrained"] else weights["files"][file]  # type: ignore[no-any-return]
