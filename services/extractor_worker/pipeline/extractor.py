"""The contract between the worker and the code that makes one profile's artifacts.

This module knows no engine, queue or storage.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from services.shared.audio import ReferenceAudio
from services.shared.model.fingerprint import Fingerprint
from speaker_registry.artifact import ComputedOn


class DeviceLost(Exception):
    """The process can no longer compute on the device. No clip caused that, and only a new process helps."""


class Extractor(Protocol):
    """An encoder's description and the three steps that turn clips into tensors.

    Each step keeps the number and order of its inputs. Each may raise `DeviceLost`, or `ExtractorOutOfMemory`
    if memory is short.

    `prepare` and `finish` may run on several threads at once; `encode` is called by one thread at a time.
    """

    profile_name: str
    fingerprint: Fingerprint
    batch_seconds: float
    """The seconds of audio, padded to the longest clip, that are encoded at once. With 0, clips are encoded
    one by one, and no artifact depends on what else is encoded."""

    @property
    def computed_on(self) -> ComputedOn:
        """The machine that computes. The manifest names it; the fingerprint does not cover it."""

    def prepare(self, clip: ReferenceAudio) -> Any:
        """Resample a clip and compute its features, on the CPU.

        Raises:
            InvalidAudio: the encoder cannot take the clip.
        """

    def encode(self, prepared: Sequence[Any]) -> Sequence[Any]:
        """Encode prepared clips on the device.

        Clips that are encoded together (`batch_seconds`) do not mix, but a batch is summed in another order
        than a clip alone. Real numbers then differ by rounding errors, and a code that is chosen from them
        may be another one where two entries are equally near. The extractor's docstring says by how much.
        """

    def finish(self, encoded: Any) -> dict[str, np.ndarray]:
        """Return the artifact's tensors, contiguous and in their final dtypes. Runs on the CPU."""

    def used_seconds(self, encoded: Any) -> float | None:
        """Return the seconds of audio that the result holds if the clip was cut, else None."""

    def example(self) -> ReferenceAudio:
        """Return a clip for the warm-up, which takes it through all three steps, resampling included."""
