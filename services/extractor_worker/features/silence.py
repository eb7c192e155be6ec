"""Cutting silence out of a clip as OmniVoice's own package does before it encodes one. Knows samples only.

That package leaves it to pydub, which counts in whole milliseconds of 16-bit samples; so does this, and gives
the same samples. What is silent there is silent here: a root mean square, rounded down, of at most 103.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Milliseconds = NDArray[np.int16]
"""[M, K]: M milliseconds of K samples."""
Ranges = list[tuple[int, int]]
"""First millisecond and the one after the last, ascending, apart from each other."""

_FULL_SCALE = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRules:
    """Every number involved; part of the fingerprint. The defaults are the omnivoice package's.

    All but the level are milliseconds.
    """

    silent_decibels: float = -50.0
    """Relative to full scale; what is no louder is silent."""
    longest_pause: int = 200
    """A longer one is cut, and this much of it is kept on either side."""
    step: int = 10
    """Pauses are looked for in steps of it, the ends of the clip in pieces of it."""
    kept_before: int = 100
    kept_after: int = 200

    @property
    def loudest_silence(self) -> int:
        """As a root mean square of 16-bit samples, rounded down."""
        return math.floor(10 ** (self.silent_decibels / 20) * _FULL_SCALE)


def without_silence(
    samples: NDArray[np.float32], sample_rate: int, rules: SilenceRules
) -> NDArray[np.float32]:
    """Shorten long pauses, and silence at both ends.

    Args:
        samples: float32 [N], in [-1, 1]; what is beyond is cut off.
        sample_rate: Hz, a multiple of 1000.
        rules: every number involved.

    Returns:
        float32 [K], a whole number of milliseconds, rounded to 16 bits; K = 0 if all was silent.
    """
    clip = _without_pauses(_milliseconds(samples, sample_rate // 1000), rules)
    clip = clip[max(0, _leading_silence(clip, rules) - rules.kept_before) :]
    behind = max(0, _leading_silence(clip[::-1], rules) - rules.kept_after)
    clip = clip[: len(clip) - behind]
    return clip.reshape(-1).astype(np.float32) / np.float32(_FULL_SCALE)


def _milliseconds(samples: NDArray[np.float32], each: int) -> Milliseconds:
    """What does not fill a millisecond is filled with zeros if it is more than half of one, else left out."""
    levels = (samples * np.float32(_FULL_SCALE)).clip(-_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)
    count = round(1000 * (len(levels) / (1000 * each)))
    filled = np.zeros(count * each, np.int16)
    filled[: len(levels)] = levels[: len(filled)]
    return filled.reshape(count, each)


def _without_pauses(clip: Milliseconds, rules: SilenceRules) -> Milliseconds:
    kept = [clip[start:end] for start, end in _kept(_sounds(clip, rules), len(clip), rules.longest_pause)]
    return np.concatenate(kept) if kept else clip[:0]


def _kept(sounds: Ranges, length: int, margin: int) -> Ranges:
    """Each sound with a margin on either side; where two margins meet, they share what is between."""
    starts = [start - margin for start, _ in sounds]
    ends = [end + margin for _, end in sounds]
    for one in range(len(sounds) - 1):
        if starts[one + 1] < ends[one]:
            ends[one] = starts[one + 1] = (ends[one] + starts[one + 1]) // 2
    return [(max(start, 0), min(end, length)) for start, end in zip(starts, ends, strict=True)]


def _sounds(clip: Milliseconds, rules: SilenceRules) -> Ranges:
    """What is between the pauses."""
    edges = [0, *(edge for pause in _pauses(clip, rules) for edge in pause), len(clip)]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def _pauses(clip: Milliseconds, rules: SilenceRules) -> Ranges:
    """Wherever a window as long as the longest pause is silent, with what silent windows overlap."""
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
    """Milliseconds until the first piece that is not silent; all of the clip if there is none."""
    pieces = range(0, len(clip), rules.step)
    energy = _energy(clip)
    for start in pieces:
        piece = energy[start : start + rules.step]
        if _level(piece.sum(), len(piece), clip) > rules.loudest_silence:
            return start
    return len(clip)


def _energy(clip: Milliseconds) -> NDArray[np.int64]:
    """int64 [M]: the sum of squares of each millisecond."""
    return np.asarray(np.square(clip.astype(np.int64)).sum(axis=1))


def _level(energy: NDArray[np.int64], milliseconds: int, clip: Milliseconds) -> NDArray[np.float64]:
    """Root mean square, rounded down."""
    return np.asarray(np.floor(np.sqrt(energy / (milliseconds * clip.shape[1]))))
