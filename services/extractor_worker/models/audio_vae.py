"""The encoder of VoxCPM2's audio VAE: 16 kHz samples in, means of 64 latents at 25 Hz out. This module knows
no files.

Every layer is causal, so zeros after a clip change none of its frames, and clips of several lengths can share
a batch. Attribute names are the key names of the published weights. `published_name` says which weights are
under weight norm.
"""

import math
from dataclasses import dataclass

from torch import Tensor, nn

from services.extractor_worker.models import weight_norm
from services.extractor_worker.models.causal import KERNEL, Block, CausalConv, downsampling_layers
from services.extractor_worker.models.weight_norm import TwoParts
from services.extractor_worker.weights.modules import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioVaeConfig:
    """The encoder's part of `audio_vae_config` in a published config.json, under the names used there."""

    encoder_dim: int = 128
    """The number of channels at 16 kHz. Each stage doubles it."""
    encoder_rates: tuple[int, ...] = (2, 5, 8, 8)
    latent_dim: int = 64
    depthwise: bool = True
    sample_rate: int = 16_000

    @property
    def samples_per_frame(self) -> int:
        """The samples in one frame of latents: 640, which is 40 ms."""
        return math.prod(self.encoder_rates)


class AudioVaeEncoder(nn.Module):
    def __init__(self, config: AudioVaeConfig) -> None:
        super().__init__()
        width = config.encoder_dim
        stages: list[nn.Module] = [CausalConv(1, width, KERNEL)]
        for rate in config.encoder_rates:
            groups = width if config.depthwise else 1
            stages.append(Block(*downsampling_layers(width, rate, CausalConv, groups)))
            width *= 2
        self.block = nn.Sequential(*stages)
        self.fc_mu = CausalConv(width, config.latent_dim, 3)

    def forward(self, samples: Tensor) -> Tensor:
        """Encode clips.

        Args:
            samples: float32 [B, 1, N] at `sample_rate`; N a multiple of `samples_per_frame`.

        Returns:
            float32 [B, latent_dim, N / samples_per_frame].
        """
        return self.fc_mu(self.block(samples))  # type: ignore[no-any-return]


def published_name(key: str) -> str | TwoParts:
    return TwoParts.of_hooks(key) if key.endswith(".weight") else key


def published_layout(layout: Layout) -> Layout:
    """Return the layout that a file must have for an `AudioVaeEncoder` of this layout.

    The file also has a head for the variance, which is not used: engines take the mean.
    """
    published = weight_norm.published_layout(layout, published_name)
    return published | {key.replace("fc_mu.", "fc_logvar."): shape for key, shape in published.items()}
