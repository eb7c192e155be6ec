"""What the worker asks of the code that makes one profile's artifact. Knows no engine, queue or storage."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from services.shared.audio import ReferenceAudio
from services.shared.model.fingerprint import Fingerprint
from speaker_registry.artifact import ComputedOn


class DeviceLost(Exception):
    """The device computes nothing more for this process: no clip's fault, and only a new process helps."""


class Extractor(Protocol):
    """Facts plus three steps. Each step keeps number and order of what it is given, and may raise
    `DeviceLost`.

    `prepare` and `finish` may run on several threads at once; `encode` is called by one thread at a time.
    """

    profile_name: str
    fingerprint: Fingerprint
    batch_seconds: float
    """How many seconds of audio, padded to the longest clip, are encoded at once. With 0, clips are encoded
    one by one, and no artifact depends on what else is encoded."""

    @property
    def computed_on(self) -> ComputedOn:
        """The machine. It goes into the manifest and not into the fingerprint."""

    def prepare(self, clip: ReferenceAudio) -> Any:
        """On the CPU: resample, compute features. Raises InvalidAudio for a clip the encoder cannot take."""

    def encode(self, prepared: Sequence[Any]) -> Sequence[Any]:
        """On the device.

        Clips that are encoded together (`batch_seconds`) do not mix, but a batch is summed in another order
        than a clip alone. Real numbers then differ by rounding errors, and a code that is chosen from them
        may be another one where two entries are equally near. The extractor's docstring says by how much.

        Raises:
            ExtractorOutOfMemory: the device could not hold this much at once.
        """

    def finish(self, encoded: Any) -> dict[str, np.ndarray]:
        """On the CPU: the artifact's tensors, contiguous and in their final dtypes."""

    def used_seconds(self, encoded: Any) -> float | None:
        """Of audio that it holds, where something was cut out of the clip; None: the whole clip."""

    def example(self) -> ReferenceAudio:
        """A clip to warm up with: through all three steps, resampling included."""
