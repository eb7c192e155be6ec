"""Mel bands in decibels as SpeechBrain's `Fbank` computes them. This module knows samples and bands, no
model, no files.

The bands and the filter bank are computed in float32, as in SpeechBrain. A more exact filter bank would
differ in the fifth digit.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_BANKS = 4


@dataclass(frozen=True, slots=True)
class FbankSettings:
    """Every number that changes the bands. They are part of the fingerprint.

    The defaults are those of `Fbank(n_mels=80)`.
    """

    sample_rate: int = 16_000
    window: int = 400
    """The samples in the periodic Hamming window and in the FFT: 25 ms."""
    hop: int = 160
    """The samples between two frames: 10 ms."""
    bands: int = 80
    lowest_hertz: float = 0.0
    highest_hertz: float = 8000.0
    band_floor: float = 1e-10
    """Smaller powers are raised to this before the logarithm."""
    range_decibels: float = 80.0
    """Values further than this below the clip's loudest band are raised to that level."""

    def frames(self, samples: int) -> int:
        return 1 + samples // self.hop

    def samples(self, frames: int) -> int:
        """Return the fewest samples that give this many frames."""
        return (frames - 1) * self.hop


def fbank(samples: Tensor, settings: FbankSettings) -> Tensor:
    """Compute the power in mel bands, in decibels.

    Args:
        samples: float32 [B, N] at `settings.sample_rate`; N >= 1.
        settings: every number involved.

    Returns:
        float32 [B, 1 + floor(N / hop), bands]. Frame t is centred on sample t * hop. The clip is padded with
        zeros at both ends.
    """
    window = _hamming(settings.window, samples.device)
    spectrum = torch.stft(
        samples,
        settings.window,
        settings.hop,
        window=window,
        center=True,
        pad_mode="constant",
        return_complex=True,
    )  # [B, F, T]
    power = torch.view_as_real(spectrum).pow(2).sum(-1).transpose(1, 2)  # [B, T, F]
    bands = power @ _bank(settings, samples.device)  # [B, T, bands]
    decibels = 10 * bands.clamp(min=settings.band_floor).log10()  # [B, T, bands]
    loudest = decibels.amax(dim=(1, 2), keepdim=True)  # [B, 1, 1]
    return torch.maximum(decibels, loudest - settings.range_decibels)


def mel_bank(settings: FbankSettings) -> Tensor:
    """Build triangles of height 1 on O'Shaughnessy's mel scale: float32 [window // 2 + 1, bands].

    Unlike usual triangles, their upper side falls as steeply as their lower side rises.
    """
    lowest, highest = _mel(settings.lowest_hertz), _mel(settings.highest_hertz)
    mels = torch.linspace(lowest, highest, settings.bands + 2)
    corners = 700 * (10 ** (mels / 2595) - 1)  # Hz, [bands + 2]
    widths = (corners[1:] - corners[:-1])[:-1]  # [bands]
    bins = torch.linspace(0, settings.sample_rate // 2, settings.window // 2 + 1)  # Hz, [F]
    slope = (bins[:, None] - corners[1:-1]) / widths  # [F, bands]
    return torch.minimum(slope + 1, -slope + 1).clamp(min=0)


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


@functools.lru_cache(maxsize=_MAX_BANKS)
def _bank(settings: FbankSettings, device: torch.device) -> Tensor:
    return mel_bank(settings).to(device)


@functools.lru_cache(maxsize=_MAX_BANKS)
def _hamming(length: int, device: torch.device) -> Tensor:
    return torch.hamming_window(length).to(device)
