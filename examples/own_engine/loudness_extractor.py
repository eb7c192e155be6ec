"""What makes artifacts of the profile `loudness`. Only workers import this."""

from loudness import FRAMES_PER_SECOND
from torch import Tensor

from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor
from services.shared.audio import ReferenceAudio

FLOOR = 1e-5
"""-100 dB: silence."""


class LoudnessExtractor(TorchExtractor[Tensor, Tensor]):
    """Three steps for a clip: on the CPU, on the device, on the CPU again."""

    code_version = 1

    def __init__(self, loading: Loading) -> None:
        """A model would read its files here: `loading.checkpoint()` finds, fetches and checks them."""
        self._sample_rate = loading.profile.sample_rate
        self._hop = self._sample_rate // FRAMES_PER_SECOND
        # Everything that changes a result: one made with other facts is not served as current.
        super().__init__(loading, weights={"untrained": False}, hop=self._hop, floor=FLOOR)

    def _prepare(self, clip: ReferenceAudio) -> Tensor:
        """float32 [N] at 16 kHz. Raises `AudioTooShort` below one frame."""
        return self.pinned(self.resampled(clip, self._sample_rate, least=self._hop))

    def _encode(self, prepared: Tensor) -> Tensor:
        """float32 [T], T = floor(N / 320): root mean square of each frame."""
        frames = self.on_device(prepared).unfold(0, self._hop, self._hop)  # [T, 320]
        return frames.square().mean(dim=1).sqrt()

    def _finish(self, encoded: Tensor) -> dict[str, Tensor]:
        """`level`: float32 [T], dB below full scale."""
        return {"level": 20 * encoded.float().clamp(min=FLOOR).log10()}
