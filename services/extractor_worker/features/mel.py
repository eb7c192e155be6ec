"""Log-mel spectrograms for TTS models and for Whisper's descendants. This module knows samples and bands, no
model.

They are always computed in float32, because the logarithm of quiet bands is not accurate in bfloat16.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

_MAX_BANKS = 8

# The Slaney scale (Auditory Toolbox, 1998): linear to 1 kHz, above it 27 steps for each factor of 6.4.
_HERTZ_PER_MEL = 200 / 3
_KNEE_HERTZ = 1000.0
_KNEE_MEL = _KNEE_HERTZ / _HERTZ_PER_MEL
_LOG_STEP = math.log(6.4) / 27


@dataclass(frozen=True, slots=True)
class MelSettings:
    """Every number that changes the spectrogram. They are part of the fingerprint.

    The defaults are those of Qwen3-TTS.
    """

    sample_rate: int = 24_000
    window: int = 1024
    """Samples of the Hann window and of the FFT."""
    hop: int = 256
    bands: int = 128
    lowest_hertz: float = 0.0
    highest_hertz: float = 12_000.0
    power_floor: float = 1e-9
    """Added to the squared magnitude before the square root."""
    band_floor: float = 1e-5
    """Smaller values are raised to this before the logarithm."""

    @property
    def padding(self) -> int:
        """The samples that are reflected at each end, so that N samples give floor(N / hop) frames."""
        return (self.window - self.hop) // 2


@dataclass(frozen=True, slots=True)
class WhisperMelSettings:
    """The numbers of Whisper's kind of spectrogram. The defaults are those of the S3 tokenizer v3."""

    sample_rate: int = 16_000
    window: int = 400
    """Samples of the Hann window and of the FFT."""
    hop: int = 160
    bands: int = 128
    lowest_hertz: float = 0.0
    highest_hertz: float = 8_000.0
    power_floor: float = 1e-10
    """Smaller band powers are raised to this before the logarithm."""
    range_bels: float = 8.0
    """Values further than this below the clip's loudest band are raised to that level. 8 bels are 80 dB."""
    shift: float = 4.0
    """Added to the logarithm. The sum is divided by the same number."""


def log_mel(samples: Tensor, settings: MelSettings) -> Tensor:
    """Compute the natural logarithm of mel band magnitudes.

    Args:
        samples: float32 [B, N] at `settings.sample_rate`; N > `settings.padding` and N >= `settings.hop`.
        settings: every number involved.

    Returns:
        float32 [B, floor(N / hop), bands].
    """
    padded = functional.pad(samples[:, None], (settings.padding, settings.padding), mode="reflect")[:, 0]
    window = _hann(settings.window, samples.device)
    spectrum = torch.stft(
        padded, settings.window, settings.hop, window=window, center=False, return_complex=True
    )  # [B, window // 2 + 1, T]
    power = torch.view_as_real(spectrum).pow(2).sum(-1)
    magnitude = torch.sqrt(power + settings.power_floor)
    bands = _bank(settings, samples.device) @ magnitude  # [B, bands, T]
    return bands.clamp(min=settings.band_floor).log().transpose(1, 2)  # [B, T, bands]


def whisper_log_mel(samples: Tensor, settings: WhisperMelSettings) -> Tensor:
    """Compute the decimal logarithm of mel band powers, with a floor relative to the clip's loudest band.

    Args:
        samples: float32 [N] at `settings.sample_rate`, N > `settings.window` / 2. The clip must not be
            padded: padding would not change its loudest band, but would change its last frames.
        settings: every number involved.

    Returns:
        float32 [bands, floor(N / hop)].
    """
    window = _hann(settings.window, samples.device)
    spectrum = torch.stft(samples, settings.window, settings.hop, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2  # [window // 2 + 1, T]; the last frame is mostly padding
    bands = (_bank(settings, samples.device) @ power).clamp(min=settings.power_floor).log10()  # [bands, T]
    floored = torch.maximum(bands, bands.max() - settings.range_bels)  # [bands, T]
    return (floored + settings.shift) / settings.shift


def slaney_bank(settings: MelSettings | WhisperMelSettings) -> NDArray[np.float32]:
    """Build triangles of unit area (in Hz) on the Slaney scale: float32 [bands, window // 2 + 1]."""
    bins = np.fft.rfftfreq(settings.window, 1 / settings.sample_rate)  # [F]
    ends = _mel(np.array([settings.lowest_hertz, settings.highest_hertz]))
    corners = _hertz(np.linspace(ends[0], ends[1], settings.bands + 2))  # [bands + 2]
    widths = np.diff(corners)[:, None]
    distance = corners[:, None] - bins[None]  # [bands + 2, F]
    rising, falling = -distance[:-2] / widths[:-1], distance[2:] / widths[1:]  # [bands, F] each
    unit_area = 2 / (corners[2:] - corners[:-2])
    return (np.maximum(0, np.minimum(rising, falling)) * unit_area[:, None]).astype(np.float32)


def _mel(hertz: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _KNEE_MEL + np.log(np.maximum(hertz, _KNEE_HERTZ) / _KNEE_HERTZ) / _LOG_STEP
    return np.where(hertz < _KNEE_HERTZ, hertz / _HERTZ_PER_MEL, above)


def _hertz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    above = _KNEE_HERTZ * np.exp(_LOG_STEP * (mel - _KNEE_MEL))
    return np.where(mel < _KNEE_MEL, mel * _HERTZ_PER_MEL, above)


@functools.lru_cache(maxsize=_MAX_BANKS)
def _bank(settings: MelSettings | WhisperMelSettings, device: torch.device) -> Tensor:
    return torch.from_numpy(slaney_bank(settings)).to(device)


@functools.lru_cache(maxsize=_MAX_BANKS)
def _hann(length: int, device: torch.device) -> Tensor:
    return torch.hann_window(length).to(
        device
    )  # periodic; made on the CPU so that every device has the same one
