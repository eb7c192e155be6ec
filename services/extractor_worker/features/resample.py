"""Resampling by windowed sinc, as torchaudio does it. This module knows sample rates, but no clips, files or
models.

The kernel that resamples a clip changes the artifact: from 16 kHz, 93 % of the codes agree between this
kernel and soxr's. Every extractor therefore uses torchaudio's kernel, as TTS servers do, and the fingerprint
names the kernel. (For its tokens, CosyVoice3 resamples a second time with scipy's, as its engine does.) The
fingerprint does not say which code computes it: torchaudio where that imports, otherwise the same arithmetic
in this module.

The kernel has two variants, which differ in the seventh digit: `torchaudio.transforms.Resample` builds it in
float64, `torchaudio.functional.resample` in the dtype of the samples.
"""

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from services.extractor_worker.features import real_torchaudio
from speaker_registry.errors import UnsupportedAudio

_transforms = real_torchaudio.imported("torchaudio.transforms")

KERNEL = "sinc-hann-w6-r0.99-f64"
"""The usual kernel: sinc under a Hann window, 6 zero crossings, roll-off 0.99, built in float64."""
KERNEL_FLOAT32 = "sinc-hann-w6-r0.99-f32"
"""The same kernel built in float32, for engines that resample with `torchaudio.functional`."""

_ZERO_CROSSINGS = 6
_ROLLOFF = 0.99
_MAX_KERNELS = 16
_MAX_KERNEL_VALUES = 1_000_000
"""Usual rates need at most a third. 23,999 Hz to 24 kHz would need 600 million, at first in float64."""

Resampler = Callable[[Tensor], Tensor]


def resample(samples: Tensor, from_rate: int, to_rate: int, kernel: str = KERNEL) -> Tensor:
    """Change the sample rate of one mono clip.

    Args:
        samples: float32 [N], on the CPU.
        from_rate: the sample rate of `samples` in Hz.
        to_rate: the sample rate of the result in Hz. If it equals `from_rate`, `samples` is returned.
        kernel: `KERNEL` or `KERNEL_FLOAT32`.

    Returns:
        float32 [ceil(N * to_rate / from_rate)].

    Raises:
        UnsupportedAudio: the rates have so small a common divisor that the kernel would be too large.
    """
    if from_rate == to_rate:
        return samples
    return _resampler(from_rate, to_rate, kernel)(samples)


@functools.lru_cache(maxsize=_MAX_KERNELS)
def _resampler(from_rate: int, to_rate: int, kernel: str = KERNEL) -> Resampler:
    if _kernel_values(from_rate, to_rate) > _MAX_KERNEL_VALUES:
        raise UnsupportedAudio(f"a sample rate of {from_rate} Hz cannot be converted to {to_rate} Hz")
    if kernel == KERNEL_FLOAT32:
        return SincHann(from_rate, to_rate, torch.float32)  # torchaudio would build it for every clip
    if _transforms is None:
        return SincHann(from_rate, to_rate)
    return _transforms.Resample(from_rate, to_rate)  # type: ignore[no-any-return]


def _kernel_values(from_rate: int, to_rate: int) -> int:
    common = math.gcd(from_rate, to_rate)
    source, target = from_rate // common, to_rate // common
    return target * (source + 2 * _reach(source, target))


def _reach(source: int, target: int) -> int:
    """Return the number of source samples that a filter spans on either side."""
    return math.ceil(_ZERO_CROSSINGS * source / (min(source, target) * _ROLLOFF))


class SincHann:
    """The kernel for one pair of rates: a filter per output phase, applied as one strided convolution.

    Args:
        dtype: the dtype that the kernel is built in.
        device: where the kernel is built and used. The last bit of a sine differs between devices.
    """

    def __init__(
        self,
        from_rate: int,
        to_rate: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | None = None,
    ) -> None:
        common = math.gcd(from_rate, to_rate)
        self.source, self.target = from_rate // common, to_rate // common
        self.reach = _reach(self.source, self.target)
        self.filters = _filters(self.source, self.target, dtype, device)

    def __call__(self, samples: Tensor) -> Tensor:
        """Resample float32 [..., N] to float32 [..., ceil(N * target / source)]."""
        rows = samples.reshape(-1, 1, samples.shape[-1])  # [R, 1, N]
        padded = functional.pad(rows, (self.reach, self.reach + self.source))  # [R, 1, N + …]
        phases = functional.conv1d(padded, self.filters, stride=self.source)  # [R, target, steps]
        interleaved = phases.transpose(1, 2).reshape(len(rows), -1)  # [R, steps * target]
        count = math.ceil(self.target * samples.shape[-1] / self.source)
        return interleaved[:, :count].reshape(*samples.shape[:-1], count)


def _filters(source: int, target: int, dtype: torch.dtype, device: torch.device | None) -> Tensor:
    """Build the filters in `dtype` and return float32 [target, 1, 2 * reach + source]."""
    cutoff, reach = min(source, target) * _ROLLOFF, _reach(source, target)
    taps = torch.arange(-reach, reach + source, dtype=dtype, device=device) / source  # [W]
    # torchaudio's output phases are float32 even in its float64 kernel, which shows in the seventh digit.
    steps = torch.arange(0, -target, -1, dtype=torch.float32, device=device)
    phases = steps[:, None] / target  # [target, 1]
    crossings = ((phases + taps) * cutoff).clamp(-_ZERO_CROSSINGS, _ZERO_CROSSINGS)  # [target, W]
    window = torch.cos(crossings * math.pi / _ZERO_CROSSINGS / 2) ** 2
    angle = crossings * math.pi
    sinc = torch.where(angle == 0, torch.ones_like(angle), angle.sin() / angle)
    return (sinc * (window * (cutoff / source))).to(torch.float32)[:, None]  # [target, 1, W]
