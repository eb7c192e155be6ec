"""The contract for an engine of your own: a profile, and the extractor that makes its artifacts.

A package registers both through entry points. The group `speaker_registry.profiles` names a `Profile`, and
the group `speaker_registry.extractors` names, under the profile's name, a subclass of `Engine`. API processes
read profiles and run without torch, so a package keeps the two in different modules. Importing this module
needs no torch either. `examples/own_engine` in the repository is a complete package.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from speaker_registry.artifact import TensorSpec

__all__ = [
    "NO_WEIGHTS",
    "Checkpoint",
    "Dtype",
    "Engine",
    "Loading",
    "Profile",
    "PublishedWeights",
    "ReferenceAudio",
    "TensorSpec",
]

_Repo = Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
_File = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]

NO_WEIGHTS: Mapping[str, bool] = {"untrained": False}
"""The value of `weights` in the `fingerprint_inputs` of an engine without weights. Any other value counts as
weights.
"""
Dtype = Literal["float32", "bfloat16"]
"""The number format that an encoder computes in."""
Prepared = TypeVar("Prepared")
Encoded = TypeVar("Encoded")


def kind_of_weights(weights: object, *, untrained: bool, custom: bool) -> str:
    """Return the kind of weights that an encoder has: `untrained`, `none`, `custom` or `published`.

    Args:
        weights: The value of `weights` in its `fingerprint_inputs`.
    """
    if untrained:
        return "untrained"
    if weights == NO_WEIGHTS:
        return "none"
    return "custom" if custom else "published"


class PublishedWeights(BaseModel):
    """The model repository that an extractor reads its weights from, and the files that it needs. An engine
    without weights has the repository `none` and no files.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: _Repo
    """The repository on the Hugging Face hub."""
    commit: str | None = Field(None, pattern="^[0-9a-f]{40}$")
    """The commit to use unless the operator names another one. With None the operator must name one."""
    licence: str
    """The SPDX identifier of the licence, if it has one."""
    notes: str | None = None
    """The terms for commercial use that users must know, or where the weights come from."""
    files: Mapping[_File, _Sha256 | None]
    """Maps each file in the repository to its SHA-256 (hex), or to None if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Describes what the artifact of one engine holds, and what it is made with. The extractor has the same
    name.
    """

    name: str
    model_type: str
    """The engine's own word for the model, for example vLLM-Omni's `qwen3_tts`."""
    description: str
    tensors: Mapping[str, TensorSpec]
    sample_rate: int
    """The sample rate that the encoder takes, in Hz."""
    frame_rate: float | None = None
    """Frames of codes per second, in Hz. Their number is the `T` in the shapes of the tensors."""
    ref_text_required: bool = False
    weights: PublishedWeights
    not_extractable: str | None = None
    """The reason why no worker can make this artifact from a clip. None means that a worker can."""

    @property
    def embedding_width(self) -> int | None:
        """Return the width of a `speaker_embedding` that is a complete artifact by itself, or None if other
        tensors are needed as well.
        """
        spec = self.tensors.get("speaker_embedding")
        others = [
            other for name, other in self.tensors.items() if name != "speaker_embedding" and other.required
        ]
        width = spec.shape[0] if spec is not None and len(spec.shape) == 1 and not others else None
        return width if isinstance(width, int) else None


class ReferenceAudio(Protocol):
    """A decoded clip."""

    @property
    def samples(self) -> NDArray[np.float32]:
        """The samples: float32 [N], mono, finite."""

    @property
    def sample_rate(self) -> int:
        """The sample rate in Hz. It is the clip's own, not the profile's."""

    @property
    def seconds(self) -> float:
        """The length of the clip in seconds."""


class Checkpoint(Protocol):
    """The published files of one model on this machine: at the pinned commit, with digests checked."""

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a configuration file. Raises `WeightsInvalid` if it is not a JSON object."""

    def read_tensors(
        self,
        name: str,
        prefix: str,
        layout: Mapping[str, tuple[int, ...]],
        if_none: str = ...,
        renamed: Callable[[str], str] = ...,
    ) -> dict[str, Any]:
        """Read the torch tensors whose keys begin with `prefix`. They must be exactly those of `layout`.

        Args:
            name: the file: safetensors, a pickle of tensors (`.pth`, `.pt`, `.ckpt`) or an ONNX graph.
            prefix: the beginning of the keys. The keys of `layout` and of the result come without it.
            layout: the shape of each tensor by its key.
            if_none: how an error describes the file if no key has the prefix.
            renamed: maps each key of the file to the prefix followed by a key of `layout`.

        Raises:
            WeightsInvalid: keys are missing, unexpected or of another shape, or values are not finite.
        """

    def fingerprint_inputs(self, names: Iterable[str]) -> dict[str, Any]:
        """Return what a fingerprint says about the weights in these files."""


class Loading(Protocol):
    """The worker gives this to an engine: which weights to load, and where to compute."""

    @property
    def profile(self) -> Profile:
        """The profile that the engine is loaded for."""

    @property
    def device(self) -> str:
        """The device as torch names it, for example `cpu` or `cuda:0`."""

    @property
    def dtype(self) -> Dtype:
        """The format to compute in, unless the engine is `always_float32`."""

    @property
    def trusted(self) -> bool:
        """True for the trusted copy that a proof compares with. It may be slow."""

    @property
    def seed(self) -> int | None:
        """The seed for random weights, or None if `checkpoint` provides real ones."""

    def checkpoint(self) -> Checkpoint:
        """Find or download the published files. Only allowed while `seed` is None.

        Raises:
            WeightsMissing: a file is missing; the message says how to get it.
            WeightsInvalid: a file is not the published one.
        """

    def resampled(self, clip: ReferenceAudio, sample_rate: int, *, min_samples: int = 1) -> Any:
        """Resample a clip to a torch tensor on the CPU: float32 [N] at `sample_rate` Hz.

        Raises `AudioTooShort` if the result has fewer than `min_samples` samples.
        """


class Engine(ABC, Generic[Prepared, Encoded]):
    """Makes the artifacts of one profile in three steps. Subclasses take a `Loading` in `__init__`.

    The worker calls each step under `torch.inference_mode()`, with exact float32 arithmetic on the device.
    `prepare` and `finish` may run on several threads at once; `encode` runs on one thread at a time. To prove
    an engine, the worker loads it a second time, on the CPU in float32, and compares the results. Weights and
    tables must therefore be attributes of the engine or of objects in its attributes, as torch tensors or
    modules.
    """

    code_version: ClassVar[int]
    """Part of the fingerprint. Raise it with every change of the code that changes a result."""
    always_float32: ClassVar[bool] = False
    """True if the engine computes in float32 even if the worker is configured for bfloat16."""

    @property
    @abstractmethod
    def fingerprint_inputs(self) -> Mapping[str, Any]:
        """Everything that can change a result besides the clip, the profile's name, `code_version`, the dtype
        and the resampler, as JSON values. `weights` is required: `NO_WEIGHTS` for an engine without
        weights, `{"untrained": True, "seed": …}` for random ones, else `Checkpoint.fingerprint_inputs`.
        """

    @abstractmethod
    def prepare(self, clip: ReferenceAudio) -> Prepared:
        """Compute features on the CPU. Raises `InvalidAudio` for a clip that the encoder cannot take."""

    @abstractmethod
    def encode(self, prepared: Prepared) -> Encoded:
        """Compute on the device of the `Loading`."""

    @abstractmethod
    def finish(self, encoded: Encoded) -> Mapping[str, Any]:
        """Return the artifact's tensors by name, as torch tensors on any device."""
