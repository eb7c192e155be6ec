"""A clip after decoding, and the bytes in which its samples are stored. Knows nothing of the files clips come
in.
"""

import json
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from speaker_registry.errors import InvalidAudio

SCHEMA = 1
_MAX_HEADER_BYTES = 512
"""Ours takes about 130."""


@dataclass(frozen=True, slots=True, eq=False)  # arrays do not compare to a truth value
class ReferenceAudio:
    """samples: float32 [N], mono, finite. sample_rate: Hz."""

    samples: NDArray[np.float32]
    sample_rate: int

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def to_bytes(self) -> bytes:
        """The normalised rendition: safetensors with the tensor `audio`. The same clip always gives the same
        bytes.
        """
        manifest = json.dumps(
            {"sample_rate": self.sample_rate, "schema": SCHEMA}, sort_keys=True, separators=(",", ":")
        )
        # One header key only: safetensors keeps them in a hash map, and with two their order would vary.
        return bytes(safetensors.numpy.save({"audio": self.samples}, metadata={"manifest": manifest}))

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Read what `to_bytes` wrote. Raises InvalidAudio for anything else."""
        try:
            sample_rate = _sample_rate(data)
            tensors = safetensors.numpy.load(data)
        except (SafetensorError, ValueError, KeyError, TypeError, RecursionError):
            raise InvalidAudio("not a stored clip: one tensor `audio` and a manifest are expected") from None
        samples = tensors.get("audio")
        if len(tensors) != 1 or samples is None or samples.dtype != np.float32 or samples.ndim != 1:
            raise InvalidAudio("not a stored clip: one tensor `audio` of float32 [N] is expected")
        if not samples.size or not np.isfinite(samples).all():
            raise InvalidAudio("not a stored clip: its samples are empty or not all finite")
        return cls(samples, sample_rate)


@dataclass(frozen=True, slots=True)
class DecodedClip:
    """container: wav, flac, mp3, ogg, aac, m4a, mp4 or webm. codec: as libav names it (pcm_s16le, opus, …).
    mime_type: of what was found, whatever the uploader said. channels: before they were mixed down.
    """

    audio: ReferenceAudio
    container: str
    codec: str
    mime_type: str
    channels: int


def _sample_rate(data: bytes) -> int:
    """Of the manifest in a safetensors header. Raises ValueError, KeyError or TypeError if it is not ours."""
    size = int.from_bytes(data[:8], "little")
    if size > _MAX_HEADER_BYTES:
        raise ValueError("header is too long")
    metadata: dict[str, str] = json.loads(data[8 : 8 + size])["__metadata__"]
    manifest: dict[str, Any] = json.loads(metadata["manifest"])
    rate = manifest["sample_rate"]
    if metadata.keys() != {"manifest"} or manifest != {"sample_rate": rate, "schema": SCHEMA}:
        raise ValueError("unknown keys")
    if type(rate) is not int or rate <= 0:
        raise ValueError("sample_rate is not a positive integer")
    return rate
