"""Clips with silences in them, the same to the last bit on every machine. Knows numpy only."""

import numpy as np

from tests.unit.extractors.signals import Samples, speechlike

_PER_MILLISECOND = 24

PLANS = {
    "no pause": [(0, 2_500)],
    "pauses": [(0, 700), (900, 1_500), (1_750, 2_400), (3_100, 4_000)],
    "quiet ends": [(1_230, 2_000), (2_150, 3_333)],
    "a click": [(40, 43), (1_500, 2_600)],
    "all silent": [],
    "shorter than a pause": [(20, 90)],
    "pauses that meet": [(0, 300), (501, 640), (1_039, 1_100), (1_501, 1_502), (2_500, 2_900)],
}
"""The sounds of each clip, as their first millisecond and the millisecond after their last."""


def paused(plan: str, gain: float = 1.0) -> Samples:
    """Return float32 samples at 24 kHz, whose length is not a whole number of milliseconds.

    Where the plan has no sound there is only a hiss near -80 dBFS.
    """
    sounds = PLANS[plan]
    count = (max((end for _, end in sounds), default=900) + 450) * _PER_MILLISECOND + 13
    if plan == "shorter than a pause":
        count = 130 * _PER_MILLISECOND + 5
    loud = speechlike(count / 24_000, 24_000, seed=3)[:count]
    heard = np.zeros(count, bool)
    for start, end in sounds:
        heard[start * _PER_MILLISECOND : end * _PER_MILLISECOND] = True
    hiss = (np.random.PCG64(5).random_raw(count) / 2.0**64 - 0.5) * 0.0004
    return np.where(heard, loud * np.float32(gain), hiss.astype(np.float32)).astype(np.float32)
