"""Cuts silence out of a clip as OmniVoice's own package does before it encodes one. This module knows samples
only.

That package uses pydub, which counts in whole milliseconds of 16-bit samples. This module does the same and
returns the same samples. Silence is the same as there: a root mean square, rounded down, of at most 103.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Milliseconds = NDArray[np.int16]
"""Samples by millisecond: [M, K] for M milliseconds of K samples."""
Ranges = list[tuple[int, int]]
"""Ranges as (first millisecond, millisecond after the last), ascending, with gaps between them."""

_FULL_SCALE = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRules:
    """The numbers that decide what is cut. They are part of the fingerprint.

    All but the level are milliseconds. The defaults are those of the omnivoice package.
    """

    silent_decibels: float = -50.0
    """The loudest silence, relative to full scale."""
    longest_pause: int = 200
    """Longer pauses are cut, and this much of them is kept on either side."""
    step: int = 10
    """The step of the search for pauses, and the length of the pieces in which both ends are searched."""
    kept_before: int = 100
    kept_after: int = 200

    @property
    def loudest_silence(self) -> int:
        """The root mean square of the loudest silence in 16-bit samples, rounded down."""
        return math.floor(10 ** (self.silent_decibels / 20) * _FULL_SCALE)


def without_silence(
    samples: NDArray[np.float32], sample_rate: int, rules: SilenceRules
) -> NDArray[np.float32]:
    """Shorten long pauses, and silence at both ends.

    Args:
        samples: float32 [N] in [-1, 1]. Values outside are clipped.
        sample_rate: Hz, a multiple of 1000.
        rules: every number involved.

    Returns:
        float32 [K], a whole number of milliseconds, rounded to 16 bits. K is 0 if the whole clip is silent.
    """
    clip = _without_pauses(_milliseconds(samples, sample_rate // 1000), rules)
    clip = clip[max(0, _leading_silence(clip, rules) - rules.kept_before) :]
    trailing = max(0, _leading_silence(clip[::-1], rules) - rules.kept_after)
    clip = clip[: len(clip) - trailing]
    return clip.reshape(-1).astype(np.float32) / np.float32(_FULL_SCALE)


def _milliseconds(samples: NDArray[np.float32], each: int) -> Milliseconds:
    """Split a clip into milliseconds: [M, K].

    A remainder of more than half a millisecond is filled up with zeros. A shorter remainder is dropped.
    """
    levels = (samples * np.float32(_FULL_SCALE)).clip(-_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)
    count = round(1000 * (len(levels) / (1000 * each)))
    filled = np.zeros(count * each, np.int16)
    filled[: len(levels)] = levels[: len(filled)]
    return filled.reshape(count, each)


def _without_pauses(clip: Milliseconds, rules: SilenceRules) -> Milliseconds:
    ranges = _with_margins(_sounds(clip, rules), len(clip), rules.longest_pause)
    kept = [clip[start:end] for start, end in ranges]
    return np.concatenate(kept) if kept else clip[:0]


def _with_margins(sounds: Ranges, length: int, margin: int) -> Ranges:
    """Add a margin to both sides of each sound. Where two margins overlap, they share the gap equally."""
    starts = [start - margin for start, _ in sounds]
    ends = [end + margin for _, end in sounds]
    for one in range(len(sounds) - 1):
        if starts[one + 1] < ends[one]:
            ends[one] = starts[one + 1] = (ends[one] + starts[one + 1]) // 2
    return [(max(start, 0), min(end, length)) for start, end in zip(starts, ends, strict=True)]


def _sounds(clip: Milliseconds, rules: SilenceRules) -> Ranges:
    """Return the ranges between the pauses."""
    edges = [0, *(edge for pause in _pauses(clip, rules) for edge in pause), len(clip)]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def _pauses(clip: Milliseconds, rules: SilenceRules) -> Ranges:
    """Find the silent windows that are as long as the longest pause, and merge those that overlap."""
    window, last = rules.longest_pause, len(clip) - rules.longest_pause
    if last < 0:
        return []
    starts = np.unique(np.append(np.arange(0, last + 1, rules.step), last))
    power = np.append(0, np.cumsum(_energy(clip)))
    silent = starts[_level(power[starts + window] - power[starts], window, clip) <= rules.loudest_silence]
    if not len(silent):
        return []
    breaks = np.flatnonzero(np.diff(silent) > window)
    first, final = silent[np.append(0, breaks + 1)], silent[np.append(breaks, -1)] + window
    return list(zip(first.tolist(), final.tolist(), strict=True))


def _leading_silence(clip: Milliseconds, rules: SilenceRules) -> int:
    """Return the milliseconds before the first piece that is not silent, or the clip's length if all are."""
    pieces = range(0, len(clip), rules.step)
    energy = _energy(clip)
    for start in pieces:
        piece = energy[start : start + rules.step]
        if _level(piece.sum(), len(piece), clip) > rules.loudest_silence:
            return start
    return len(clip)


def _energy(clip: Milliseconds) -> NDArray[np.int64]:
    """Return the sum of squares of each millisecond: int64 [M]."""
    return np.asarray(np.square(clip.astype(np.int64)).sum(axis=1))


def _level(energy: NDArray[np.int64], milliseconds: int, clip: Milliseconds) -> NDArray[np.float64]:
    """Return the root mean square, rounded down."""
    return np.asarray(np.floor(np.sqrt(energy / (milliseconds * clip.shape[1]))))
