"""The samples of a clip after decoding, and the format in which they are stored and sent."""

import json
import struct
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from speaker_registry.errors import InvalidAudio

SCHEMA = 1
_MAX_HEADER_BYTES = 512
"""Limit for the header of a stored clip, which takes about 130 bytes."""
_WAV_FLOAT = 3
"""The number of IEEE floats among the formats of WAV files."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)  # arrays do not compare to a truth value
class ReferenceAudio:
    """The decoded samples of a clip. The `repr` does not contain them."""

    samples: NDArray[np.float32]
    """float32 [N], mono and finite."""
    sample_rate: int
    """Samples per second (Hz)."""

    def __repr__(self) -> str:
        return f"<ReferenceAudio {self.seconds:.2f} s, {self.sample_rate} Hz>"

    @property
    def seconds(self) -> float:
        return len(self.samples) / self.sample_rate

    def to_bytes(self) -> bytes:
        """Encode the normalised rendition: a safetensors file with the tensor `audio`. The same clip always
        gives the same bytes.
        """
        manifest = json.dumps(
            {"sample_rate": self.sample_rate, "schema": SCHEMA}, sort_keys=True, separators=(",", ":")
        )
        # There is only one header key, because safetensors writes several keys in varying order.
        return bytes(safetensors.numpy.save({"audio": self.samples}, metadata={"manifest": manifest}))

    def to_wav(self) -> bytes:
        """Encode the clip as a WAV file with float32 samples, which keeps every sample exactly."""
        data = self.samples.astype("<f4", copy=False).tobytes()
        # Files that do not hold integers need a length in their format, and a count of their samples.
        layout = struct.pack(
            "<4sIHHIIHHH", b"fmt ", 18, _WAV_FLOAT, 1, self.sample_rate, self.sample_rate * 4, 4, 32, 0
        )
        chunks = layout + struct.pack("<4sII4sI", b"fact", 4, len(self.samples), b"data", len(data)) + data
        return struct.pack("<4sI4s", b"RIFF", 4 + len(chunks), b"WAVE") + chunks

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Decode what `to_bytes` encoded. Raises InvalidAudio for anything else."""
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


def _sample_rate(data: bytes) -> int:
    """Read the sample rate from a stored clip's manifest. Raises ValueError, KeyError or TypeError if it
    is invalid.
    """
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
