"""The engine that makes artifacts of the profile `loudness`. Only workers import this module."""

from typing import Any

from loudness import FRAMES_PER_SECOND
from torch import Tensor

from speaker_registry.engine import NO_WEIGHTS, Engine, Loading, ReferenceAudio

FLOOR = 1e-5
"""The root mean square of the quietest level, -100 dB."""


class LoudnessEngine(Engine[Tensor, Tensor]):
    """Computes the level of each frame."""

    code_version = 1
    always_float32 = True

    def __init__(self, loading: Loading) -> None:
        """Remember the sizes. A model would read its weights from `loading.checkpoint()` here."""
        self._loading = loading
        self._sample_rate = loading.profile.sample_rate
        self._hop = self._sample_rate // FRAMES_PER_SECOND

    @property
    def fingerprint_inputs(self) -> dict[str, Any]:
        """Everything that changes a result. An artifact made with other inputs is not served as current."""
        return {"weights": NO_WEIGHTS, "hop": self._hop, "floor": FLOOR}

    def prepare(self, clip: ReferenceAudio) -> Tensor:
        """Return float32 [N] at 16 kHz. Raises `AudioTooShort` below one frame."""
        samples: Tensor = self._loading.resampled(clip, self._sample_rate, min_samples=self._hop)
        return samples

    def encode(self, prepared: Tensor) -> Tensor:
        """Return float32 [T], T = floor(N / 320): the root mean square of each frame."""
        frames = prepared.to(self._loading.device).unfold(0, self._hop, self._hop)  # [T, 320]
        return frames.square().mean(dim=1).sqrt()

    def finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """Return `level`: float32 [T], dB below full scale."""
        return {"level": 20 * encoded.float().clamp(min=FLOOR).log10()}
