"""Makes clips that resemble speech and are equal to the last bit on every machine. This module knows only
numpy.

Tests and proofs need a clip that any machine can reproduce and that is not a recording of a person. Only
operations with exact results in IEEE 754 and numpy are used: integers, and elementwise float64 arithmetic. A
parabola replaces the sine, whose last bit differs between CPUs.
"""

import numpy as np
from numpy.typing import NDArray

Samples = NDArray[np.float32]

_CYCLE = 1 << 32
"""One period of the phase accumulator."""
_FORMANTS = ((3, 9, 20), (5, 7, 22), (2, 17, 25), (4, 10, 21), (3, 15, 19))
"""The harmonics that dominate each vowel."""
_HARMONICS = 28


def speechlike(seconds: float, sample_rate: int, seed: int = 0) -> Samples:
    """Return a synthetic voice: its pitch glides, its vowels change, and breath noise is mixed in.

    Returns:
        float32 [round(seconds * sample_rate)], within [-1, 1].
    """
    count = round(seconds * sample_rate)
    index = np.arange(count, dtype=np.int64)
    phase = np.cumsum(_phase_steps(index, sample_rate, seed))  # [N]
    vowel = (index * 5 // sample_rate + seed) % len(_FORMANTS)  # five vowels a second
    voiced = sum(
        _harmonic_loudness(harmonic, vowel) * _wave(phase * harmonic) for harmonic in range(1, _HARMONICS)
    )
    breath = np.random.PCG64(seed).random_raw(count) / 2.0**63 - 1.0  # numpy promises the raw stream only
    clip = _syllable_loudness(index, sample_rate) * (0.09 * voiced + 0.01 * breath) + 0.002 * breath
    return np.asarray(clip, dtype=np.float32).clip(-1.0, 1.0)


def _phase_steps(index: NDArray[np.int64], sample_rate: int, seed: int) -> NDArray[np.int64]:
    """Return the pitch as integer steps of the accumulator: 90 to 170 Hz, up and down every 0.7 s."""
    glide = index * 10 // 7 % (2 * sample_rate)
    rise = np.minimum(glide, 2 * sample_rate - glide)  # 0 … sample_rate
    millihertz = 90_000 + 7_000 * (seed % 5) + 80_000 * rise // sample_rate
    return millihertz * (_CYCLE // 1000) // sample_rate


def _wave(phase: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return two parabolas that approximate a sine, in [-1, 1]."""
    turn = (phase % _CYCLE).astype(np.float64) * (2.0 / _CYCLE) - 1.0
    return 4.0 * turn * (1.0 - np.abs(turn))


def _harmonic_loudness(harmonic: int, vowel: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how loud a harmonic is in the vowel of each sample."""
    peaks = [sum(1.0 / (1 + (harmonic - formant) ** 2) for formant in formants) for formants in _FORMANTS]
    return (np.array(peaks) / 2 + 1.0 / harmonic)[vowel]


def _syllable_loudness(index: NDArray[np.int64], sample_rate: int) -> NDArray[np.float64]:
    """Return the loudness of syllables: three and a half bumps a second with near silence in between."""
    position = (index * 7 // 2 % sample_rate).astype(np.float64) / sample_rate  # in the syllable, 0 … 1
    return 4.0 * position * (1.0 - position)
