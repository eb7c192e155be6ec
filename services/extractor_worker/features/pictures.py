"""Draws the pictures of a clip: its waveform as SVG, and its mel spectrogram as PNG. This module knows no
bucket.

The same samples give the same bytes on one machine. On another machine, rounding errors may change single
pixels of the spectrogram.
"""

import math
from collections.abc import Iterator
from fractions import Fraction

import av
import numpy as np
import torch
from numpy.typing import NDArray

from services.extractor_worker.features.mel import MelSettings, log_mel
from services.shared.audio import ReferenceAudio
from services.shared.model.pictures import Picture

_COLUMNS = 500
"""Maximum number of columns of the waveform. Each shows the least and the greatest of its samples."""
_WIDTH, _HEIGHT = 1000, 160
"""The size of the waveform in pixels of its own scale."""
_MOST_MARKS = 60
"""Maximum number of lines that mark seconds in a waveform. The waveform of a longer clip has none."""
_QUIETEST_PEAK = 1e-3
"""A waveform is as high as its peak, but noise below this (-60 dBFS) is not magnified to the full height."""

_WINDOW_SECONDS = 0.05
_BANDS = 80
_PIXELS_OF_BAND = 2
_MOST_FRAMES = 800
_RANGE = math.log(10) * 80 / 20
"""The natural logarithm of 80 dB. Values further below the loudest band are black."""
_BRIGHTEST = 95
"""The highest level of brightness. Fewer levels would show as steps; more would only make larger files."""
_COLOURS = np.array(
    [(10, 8, 34), (62, 22, 104), (147, 38, 103), (221, 81, 58), (252, 165, 10), (252, 255, 164)], np.float64
)
"""The colours from silence to the loudest band, in equal steps. Their lightness rises evenly."""


def draw(clip: ReferenceAudio) -> dict[Picture, bytes]:
    """Return the pictures of a clip, which has samples."""
    return {
        Picture.WAVEFORM: waveform(clip.samples, clip.sample_rate).encode(),
        Picture.MEL: png(mel_pixels(clip.samples, clip.sample_rate)),
    }


def waveform(samples: NDArray[np.float32], sample_rate: int) -> str:
    """Draw the envelope of a clip as SVG: at most 1,000 points.

    Args:
        samples: float32 [N], N > 0.
        sample_rate: in Hz.
    """
    seconds, peak = len(samples) / sample_rate, float(np.abs(samples).max())
    level = f"peak {20 * math.log10(peak):.1f} dBFS" if peak else "silence"
    middle, scale = _HEIGHT / 2, (_HEIGHT / 2 - 2) / max(peak, _QUIETEST_PEAK)
    low, high = _envelope(samples)
    across = np.linspace(0, _WIDTH, len(low)) if len(low) > 1 else np.array([0.0])
    outline = [
        *zip(across, middle - scale * high, strict=True),
        *zip(across[::-1], middle - scale * low[::-1], strict=True),
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
        f"<title>Waveform: {seconds:.1f} seconds, {level}</title>"
        f'<path d="{"".join(_marks(seconds))}M0 {middle:.0f}h{_WIDTH}" fill="none" stroke="#808080" '
        'stroke-opacity=".3"/>'
        f'<path d="M{"L".join(f"{x:.0f} {y:.1f}" for x, y in outline)}Z" fill="#4f7be0" stroke="#4f7be0" '
        'stroke-width=".8" stroke-linejoin="round"/></svg>\n'
    )


def _envelope(samples: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the greatest sample of each column: float64 [min(N, `_COLUMNS`)] each."""
    columns = min(_COLUMNS, len(samples))
    starts = np.arange(columns) * len(samples) // columns
    exact = samples.astype(np.float64)
    return np.minimum.reduceat(exact, starts), np.maximum.reduceat(exact, starts)


def _marks(seconds: float) -> Iterator[str]:
    """Return a vertical line for each whole second within the clip."""
    if seconds <= _MOST_MARKS:
        for second in range(1, math.ceil(seconds)):
            yield f"M{_WIDTH * second / seconds:.1f} 0v{_HEIGHT}"


def mel_pixels(samples: NDArray[np.float32], sample_rate: int) -> NDArray[np.uint8]:
    """Draw the log-mel spectrogram of a clip, with low frequencies at the bottom.

    Args:
        samples: float32 [N], N > 0.
        sample_rate: in Hz.

    Returns:
        uint8 [160, frames]: levels of brightness from 0 to `_BRIGHTEST`.
    """
    window = 2 ** max(4, round(math.log2(sample_rate * _WINDOW_SECONDS)))
    settings = MelSettings(
        sample_rate=sample_rate,
        window=window,
        hop=window // 4,
        bands=_BANDS,
        highest_hertz=min(12_000.0, sample_rate / 2),
    )
    padded = np.pad(samples, (0, max(0, window - len(samples))))
    with torch.inference_mode():
        bands = log_mel(torch.from_numpy(padded)[None], settings)[0].numpy()  # [T, bands]
    bands = _fewer_frames(bands)
    brightness = np.clip(1 + (bands - bands.max()) / _RANGE, 0, 1).T[::-1]  # [bands, T]
    levels = (_BRIGHTEST * brightness).round().astype(np.uint8)
    pixels: NDArray[np.uint8] = levels.repeat(_PIXELS_OF_BAND, axis=0)
    return pixels


def _fewer_frames(bands: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return at most `_MOST_FRAMES` frames. Where several become one, the loudest counts."""
    frames = min(_MOST_FRAMES, len(bands))
    starts = np.arange(frames) * len(bands) // frames
    loudest: NDArray[np.float32] = np.maximum.reduceat(bands, starts, axis=0)
    return loudest


def png(levels: NDArray[np.uint8]) -> bytes:
    """Encode uint8 [height, width], levels of brightness from 0 to `_BRIGHTEST`, as PNG with a palette."""
    encoder = av.VideoCodecContext.create("png", "w")
    encoder.height, encoder.width = levels.shape
    encoder.pix_fmt, encoder.time_base = "pal8", Fraction(1)
    encoder.options = {"compression_level": "9"}
    frame = av.VideoFrame.from_ndarray((levels, _palette()), format="pal8")  # type: ignore[arg-type]
    return b"".join(bytes(packet) for packet in [*encoder.encode(frame), *encoder.encode(None)])


def _palette() -> NDArray[np.uint8]:
    """Return the colour of each level: uint8 [256, 4], of which the first channel is the opacity."""
    levels = np.linspace(0, _BRIGHTEST, len(_COLOURS))
    channels = [np.interp(np.arange(256), levels, channel) for channel in _COLOURS.T]
    return np.stack([np.full(256, 255.0), *channels], axis=-1).round().astype(np.uint8)
