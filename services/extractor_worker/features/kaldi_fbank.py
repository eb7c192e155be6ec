"""Filterbank features as Kaldi defines them and torchaudio computes them. This module knows samples and
bands, no model.

Every step is computed in float32 and in the order of `torchaudio.compliance.kaldi.fbank`, so that both
results are equal to the last bit. Kaldi's own arithmetic differs by 3e-4 in quiet bands, which moves a CAM++
embedding by 1e-5.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_FLOOR = torch.finfo(torch.float32).eps
"""Smaller band powers are raised to this before the logarithm."""
_POVEY_EXPONENT = 0.85
"""Povey's window is a Hann window to this power. It is zero at its ends and otherwise resembles Hamming's."""


@dataclass(frozen=True, slots=True)
class FbankSettings:
    """Every number that changes the features. They are part of the fingerprint. The defaults are CAM++'s."""

    sample_rate: int = 16_000
    bands: int = 80
    window: int = 400
    """The samples in the Povey window."""
    fft: int = 512
    """The samples in the FFT: the window, followed by zeros up to a power of two."""
    hop: int = 160
    preemphasis: float = 0.97
    """The share of the previous sample that is subtracted from each sample, after the window's mean."""
    lowest_hertz: float = 20.0
    highest_hertz: float = 8_000.0
    mean_subtracted: bool = True
    """True if the mean over the clip is subtracted from each band."""

    def samples_for(self, frames: int) -> int:
        """Return the fewest samples that give this many frames. Only whole windows count."""
        return self.window + (frames - 1) * self.hop


def fbank(samples: Tensor, settings: FbankSettings) -> Tensor:
    """Compute the natural logarithm of mel band powers. No noise is added (Kaldi's dither is 0).

    Args:
        samples: float32 [N] on the CPU, within [-1, 1]; N >= `settings.samples_for(1)`.
        settings: every number involved.

    Returns:
        float32 [T, bands], T = number of whole windows.
    """
    frames = samples.unfold(0, settings.window, settings.hop)  # [T, window]
    frames = frames - frames.mean(dim=1, keepdim=True)
    before = torch.cat([frames[:, :1], frames[:, :-1]], dim=1)  # [T, window]
    windowed = (frames - settings.preemphasis * before) * _povey(settings.window)
    power: Tensor = torch.fft.rfft(functional.pad(windowed, (0, settings.fft - settings.window))).abs().pow(2)
    bands = (power @ _bank(settings).T).clamp(min=_FLOOR).log()  # [T, bands]
    return bands - bands.mean(dim=0, keepdim=True) if settings.mean_subtracted else bands


@functools.lru_cache(maxsize=4)
def _povey(length: int) -> Tensor:
    return torch.hann_window(length, periodic=False).pow(_POVEY_EXPONENT)


@functools.lru_cache(maxsize=4)
def _bank(settings: FbankSettings) -> Tensor:
    """Build triangles of height one on Kaldi's mel scale: float32 [bands, fft / 2 + 1]."""
    low, high = (
        1127 * math.log(1 + hertz / 700) for hertz in (settings.lowest_hertz, settings.highest_hertz)
    )
    step = (high - low) / (settings.bands + 1)
    band = torch.arange(settings.bands)[:, None]  # [bands, 1]
    left, centre, right = low + band * step, low + (band + 1.0) * step, low + (band + 2.0) * step
    bins = settings.sample_rate / settings.fft * torch.arange(settings.fft // 2)
    mel = 1127 * (1 + bins / 700).log()  # [fft / 2]
    triangles = torch.minimum((mel - left) / (centre - left), (right - mel) / (right - centre))
    return functional.pad(triangles.clamp(min=0), (0, 1))  # the highest frequency is in no band
