"""The artifact file: named tensors and one manifest in a safetensors file whose bytes are reproducible.

The safetensors library writes metadata keys in random order. Therefore the whole manifest is stored as
canonical JSON under one header key, `manifest`, so that the same tensors and manifest always give the same
bytes.
"""

import hashlib
import importlib
import json
import mmap
import re
import struct
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError

from speaker_registry.errors import InvalidArtifact
from speaker_registry.notebooks import html_table
from speaker_registry.safetensors_header import check_entries, read_header
from speaker_registry.terminal import printable

MAX_TENSORS = 256
_MAX_NAME = 200
"""Maximum number of characters in the name of a device or library."""
_TENSOR_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_DTYPES = {
    "F32": np.float32,
    "F64": np.float64,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
}
_PER_FRAME: Mapping[int | str, int] = {"T": 1, "2T": 2}
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
_CODES_BY_DTYPE = {np.dtype(dtype): code for code, dtype in _DTYPES.items()}


class TensorSpec(BaseModel):
    """The dtype, shape and range that a profile requires of one tensor."""

    model_config = ConfigDict(frozen=True)

    dtype: str
    """Dtype as safetensors writes it, such as `F32` or `I32`."""
    shape: tuple[int | str, ...]
    """Size of each axis. A number is an exact size, `T` is the artifact's number of frames, `2T` is twice
    that number, and any other word allows any size.
    """
    minimum: float | None = None
    """Smallest allowed value."""
    maximum: float | None = None
    """Largest allowed value."""
    codebook_sizes: tuple[int, ...] | None = None
    """Sizes of the codebooks along the last axis, if they differ. The values of codebook k are below the k-th
    size.
    """
    counts_frames: bool = False
    """True if each value of the tensor is the number of frames, `T`."""
    required: bool = True
    """False for a tensor that only some versions have. For example, a version made from an embedding has no
    codes.
    """
    needs_ref_text: bool = False
    """True for a tensor that only versions with a transcript have."""


class TensorInfo(BaseModel):
    """Dtype and shape of one tensor in an artifact."""

    model_config = ConfigDict(frozen=True)

    dtype: str
    shape: tuple[int, ...]


class ComputedOn(BaseModel):
    """The machine that computed an artifact. The machines of one fleet may differ, so this is not part of the
    fingerprint.
    """

    model_config = ConfigDict(frozen=True)

    device: str = Field(max_length=_MAX_NAME)
    """Type of the device: `cpu` or `cuda`."""
    gpu: str | None = Field(None, max_length=_MAX_NAME)
    """Name of the GPU, for example `NVIDIA H200`."""
    instruction_set: str | None = Field(None, max_length=_MAX_NAME)
    """Instruction set of the CPU if the device is `cpu`, for example `AVX512 (avx2 avx512_f avx512_bf16)`."""
    torch: str | None = Field(None, max_length=_MAX_NAME)
    """Version of torch, if torch computed the artifact."""

    def __str__(self) -> str:
        known = (self.device, self.gpu, self.instruction_set, self.torch and f"torch {self.torch}")
        return ", ".join(filter(None, known))


class Manifest(BaseModel):
    """The description that an artifact contains of itself. Unknown keys are kept, because newer versions may
    add some.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    schema_version: int = 1
    profile: str
    model_type: str
    fingerprint: str
    """SHA-256 of everything that determines the artifact besides the clip."""
    extractor: dict[str, Any] = Field(default_factory=dict)
    """The inputs of the fingerprint: weights, revision, preprocessing, dtype and code."""
    untrained: bool = False
    """True if the artifact was made with random weights, for trying things out. Such a voice is useless."""
    custom_weights: bool = False
    """True if the weights differ from the published ones on purpose, such as fine-tuned weights."""
    voice: str
    version: int
    version_id: str
    created_at: int
    source: str
    """Source of the version: `audio` or `embedding`."""
    audio_sha256: str | None = None
    """SHA-256 of the clip's bytes as uploaded."""
    seconds: float | None = None
    used_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds of the clip that the tensors represent, if the extractor left out a part of the clip."""
    ref_text: str | None = None
    consent: str | None = None
    frame_rate: float | None = None
    """Frames of codes per second (Hz)."""
    computed_on: ComputedOn | None = None
    """The machine that computed the tensors. None if it is not known. Two machines of one fleet may round
    differently, and the fingerprint does not show that.
    """


@dataclass(frozen=True, slots=True, repr=False)
class Artifact:
    """A complete and verified artifact.

    Its `repr`, and the table that a notebook shows, name the voice, the profile and the tensors. They contain
    neither the values of the tensors nor the transcript.
    """

    tensors: Mapping[str, np.ndarray]
    """Numpy arrays by name."""
    manifest: Manifest
    digest: str
    """SHA-256 of the file, as `sha256:…`."""
    size: int
    """Size of the file in bytes."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Parse an artifact file. The bytes need not be trusted.

        Raises:
            InvalidArtifact: The file is not accepted by `read_tensors`, or has no manifest.
        """
        tensors, manifest = read_tensors(data)
        if manifest is None:
            raise InvalidArtifact("the file has no manifest in its safetensors header")
        return cls(tensors, manifest, sha256_digest(data), len(data))

    @classmethod
    def over(cls, data: bytes | mmap.mmap, digest: str) -> Self:
        """Parse a file that was verified before, without copying it. The tensors are read-only views of it.

        Raises:
            InvalidArtifact: The file is not an artifact.
        """
        header = read_header(data)
        manifest = _read_manifest(header.pop("__metadata__", None))
        if manifest is None:
            raise InvalidArtifact("the file has no manifest in its safetensors header")
        (length,) = struct.unpack("<Q", data[:8])
        try:
            tensors = {
                name: np.ndarray(
                    info["shape"], _DTYPES[info["dtype"]], data, 8 + length + info["data_offsets"][0]
                )
                for name, info in header.items()
            }
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InvalidArtifact("the file is not a whole safetensors file") from error
        return cls(tensors, manifest, digest, len(data))

    def torch_tensors(self) -> dict[str, Any]:
        """Return the tensors as `torch.Tensor`s that share the memory of `tensors`. This imports torch.

        The memory is read-only, because other callers may share it, and torch does not enforce that: writing
        to such a tensor may end the process. Use `clone()` or `to(device)` before changing a tensor.

        Raises:
            ImportError: torch is not installed.
        """
        torch = importlib.import_module("torch")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return {name: torch.from_numpy(tensor) for name, tensor in self.tensors.items()}

    @property
    def content_digest(self) -> str:
        """Digest of the tensors without the manifest: `sha256:…` over sorted names, dtypes, shapes and
        bytes.
        """
        return content_digest(self.tensors)

    @property
    def info(self) -> dict[str, TensorInfo]:
        """Dtype and shape of each tensor."""
        return describe(self.tensors)

    def __repr__(self) -> str:
        tensors = ", ".join(" ".join(row) for row in self._rows())
        return f"<Artifact {self._title}: {tensors}; {self._summary}>"

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show instead of the `repr`."""
        return html_table(f"{self._title}; {self._summary}", ("tensor", "dtype", "shape"), self._rows())

    @property
    def _title(self) -> str:
        return printable(f"{self.manifest.voice}@{self.manifest.version} for {self.manifest.profile}")

    @property
    def _summary(self) -> str:
        weights = "untrained; " if self.manifest.untrained else ""
        weights += "custom weights; " if self.manifest.custom_weights else ""
        return f"{weights}{self.size} bytes, {self.digest[:19]}…"

    def _rows(self) -> list[tuple[str, str, str]]:
        """Return name, dtype and shape of each tensor as text."""
        return [
            (printable(name), str(tensor.dtype), str(list(tensor.shape)))
            for name, tensor in sorted(self.tensors.items())
        ]


def read_tensors(
    data: bytes, specs: Mapping[str, TensorSpec] | None = None
) -> tuple[dict[str, np.ndarray], Manifest | None]:
    """Read the tensors of a safetensors file, and its manifest if it has one. The bytes need not be trusted.

    Args:
        specs: What a profile requires of the tensors. Only error messages use it: `check_tensors` checks it.

    Raises:
        InvalidArtifact: The file is not a complete safetensors file, its header is larger than 64 KiB, tensor
            names are duplicate or not accepted, there are more than 256 tensors, the manifest is invalid, or
            values are not finite.
    """
    header = read_header(data)
    manifest = _read_manifest(header.pop("__metadata__", None))
    if len(header) > MAX_TENSORS:
        raise InvalidArtifact(f"the file has {len(header)} tensors; at most {MAX_TENSORS} are accepted")
    for name in header:
        if not _TENSOR_NAME.fullmatch(name):
            raise InvalidArtifact(
                f"tensor name {name[:80]!a} is not accepted: [A-Za-z0-9._-], 1 to 128 characters"
            )
    required = {name: spec.dtype for name, spec in (specs or {}).items()}
    check_entries(data, header, {code: np.dtype(dtype).itemsize for code, dtype in _DTYPES.items()}, required)
    try:
        tensors = safetensors.numpy.load(data)
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        reason = printable(str(error).removeprefix("Error while deserializing: ")[:200])
        raise InvalidArtifact(f"the file is not a whole safetensors file: {reason}") from error
    _check_finite(tensors)
    return tensors, manifest


def encode(tensors: Mapping[str, np.ndarray], manifest: Manifest) -> bytes:
    """Encode an artifact file. The same tensors and manifest always give the same bytes.

    Raises:
        InvalidArtifact: The manifest makes the header longer than readers accept.
    """
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
    data = safetensors.numpy.save(
        contiguous, metadata={"manifest": canonical_json(manifest.model_dump(mode="json"))}
    )
    read_header(data)  # applies the limits that readers apply
    return data


def describe(tensors: Mapping[str, np.ndarray]) -> dict[str, TensorInfo]:
    """Return dtype code and shape of each tensor. Raises `InvalidArtifact` for a dtype that cannot be
    stored.
    """
    return {
        name: TensorInfo(dtype=_dtype_code(name, tensor), shape=tensor.shape)
        for name, tensor in sorted(tensors.items())
    }


def check_tensors(
    tensors: Mapping[str, np.ndarray],
    specs: Mapping[str, TensorSpec],
    *,
    seconds: float | None = None,
    frame_rate: float | None = None,
) -> None:
    """Check tensors against a profile: names, dtypes, shapes, ranges, finite values, and one number of
    frames.

    Args:
        seconds: Length of the clip. If `frame_rate` is given too, the number of frames may differ by at most
            one from `seconds * frame_rate`.
        frame_rate: Frames per second (Hz).

    Raises:
        InvalidArtifact: A check failed. The message names the tensor, what it is and what the profile
            requires.
    """
    if unknown := sorted(tensors.keys() - specs.keys()):
        raise InvalidArtifact(f"unexpected tensors {unknown}; the profile has {sorted(specs)}")
    if missing := sorted(name for name, spec in specs.items() if spec.required and name not in tensors):
        raise InvalidArtifact(f"missing tensors {missing}; the file has {sorted(tensors)}")
    for name, tensor in tensors.items():
        _check_tensor(name, tensor, specs[name])
    _check_finite(tensors)
    frames = round(seconds * frame_rate, 6) if seconds is not None and frame_rate is not None else None
    _check_frames(tensors, specs, frames)


def _check_tensor(name: str, tensor: np.ndarray, spec: TensorSpec) -> None:
    dtype = _dtype_code(name, tensor)
    if dtype != spec.dtype:
        raise InvalidArtifact(f"tensor '{name}' is {dtype}, but the profile requires {spec.dtype}")
    sizes = tensor.shape
    if len(sizes) != len(spec.shape) or any(
        wanted != size if isinstance(wanted, int) else size < 1
        for size, wanted in zip(sizes, spec.shape, strict=True)
    ):
        raise InvalidArtifact(
            f"tensor '{name}' has shape {list(sizes)}, but the profile requires {list(spec.shape)}"
        )
    low, high = float(tensor.min()), float(tensor.max())
    if (spec.minimum is not None and low < spec.minimum) or (
        spec.maximum is not None and high > spec.maximum
    ):
        raise InvalidArtifact(
            f"tensor '{name}' has values from {low:g} to {high:g}, "
            f"but the profile requires {spec.minimum} to {spec.maximum}"
        )
    if spec.codebook_sizes is not None:
        _check_codebooks(name, tensor, spec.codebook_sizes)


def _check_frames(
    tensors: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec], expected: float | None
) -> None:
    """Check that all tensors have the same number of frames, which differs by at most one from `expected`."""
    found = {
        name: size / _PER_FRAME[symbol]
        for name, tensor in tensors.items()
        for size, symbol in zip(tensor.shape, specs[name].shape, strict=True)
        if symbol in _PER_FRAME
    }
    for name, frames in found.items():
        if expected is not None and abs(frames - expected) > 1:
            raise InvalidArtifact(f"tensor '{name}' has {frames:g} frames, but the clip has {expected:.1f}")
    if len(set(found.values())) > 1:
        counts = ", ".join(f"'{name}' has {frames:g}" for name, frames in sorted(found.items()))
        raise InvalidArtifact(f"the tensors differ in their number of frames: {counts}")
    for frames in set(found.values()):
        _check_counts(tensors, specs, frames)


def _check_counts(tensors: Mapping[str, np.ndarray], specs: Mapping[str, TensorSpec], frames: float) -> None:
    for name, tensor in tensors.items():
        if specs[name].counts_frames and (tensor != frames).any():
            raise InvalidArtifact(
                f"tensor '{name}' is {tensor.tolist()!s:.80}, but there are {frames:g} frames"
            )


def _check_codebooks(name: str, tensor: np.ndarray, sizes: Sequence[int]) -> None:
    highest = tensor.reshape(-1, tensor.shape[-1]).max(axis=0)
    for book, (value, size) in enumerate(zip(highest, sizes, strict=True)):
        if value >= size:
            raise InvalidArtifact(
                f"tensor '{name}' has code {value} in codebook {book}, which has only {size} codes"
            )


def _check_finite(tensors: Mapping[str, np.ndarray]) -> None:
    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise InvalidArtifact(f"tensor '{name}' has values that are not finite")


def _dtype_code(name: str, tensor: np.ndarray) -> str:
    try:
        return _CODES_BY_DTYPE[tensor.dtype]
    except KeyError:
        raise InvalidArtifact(f"tensor '{name}' is {tensor.dtype}; accepted: {sorted(_DTYPES)}") from None


def _read_manifest(metadata: Any) -> Manifest | None:
    if not isinstance(metadata, dict) or not isinstance(metadata.get("manifest"), str):
        return None
    try:
        return Manifest.model_validate_json(metadata["manifest"])
    except ValidationError as error:
        faults = ((".".join(map(str, fault["loc"])) or "it is not a JSON object") for fault in error.errors())
        places = sorted(set(faults))
        raise InvalidArtifact(f"the manifest is not valid: {', '.join(places)}") from error


def canonical_json(value: object) -> str:
    """Encode a value as JSON with sorted keys, no spaces between tokens, unescaped non-ASCII characters and
    no NaN, so that each value has exactly one text.
    """
    return _CANONICAL.encode(value)


def sha256_digest(data: bytes) -> str:
    """Return the SHA-256 of data as `sha256:<hex>`, the form of all digests in the API."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def content_digest(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the digest of tensors: `sha256:…` over sorted names, dtypes, shapes and bytes."""
    digest = hashlib.sha256()
    for name, info in describe(tensors).items():
        digest.update(canonical_json([name, info.dtype, list(info.shape)]).encode())
        digest.update(np.ascontiguousarray(tensors[name]).data)
    return "sha256:" + digest.hexdigest()
