"""Exactly the samples are cut out that pydub cuts out for the omnivoice package."""

from collections.abc import Mapping

import numpy as np
import pytest

from services.extractor_worker.features.silence import SilenceRules, without_silence
from tests.unit.extractors import higgs_audio_tiny, signals
from tests.unit.extractors.pauses import PLANS, paused

TINY = higgs_audio_tiny.TINY


def cut(samples: np.ndarray) -> np.ndarray:
    return without_silence(samples.astype(np.float32), 24_000, SilenceRules())


@pytest.mark.parametrize("plan", PLANS)
def test_what_is_left_is_what_pydub_leaves(goldens: Mapping[str, np.ndarray], plan: str) -> None:
    """Every sample counts, because another millisecond moves all codes after it."""
    left = cut(paused(plan))
    assert [str(len(left)), signals.digest(left)] == goldens[f"silence_{plan}"].tolist()


def test_nothing_is_left_of_silence() -> None:
    """The caller refuses such a clip."""
    assert cut(np.zeros(30_000)).shape == (0,)
    assert cut(np.zeros(0)).shape == (0,)


def test_a_sound_keeps_a_little_silence_around_it() -> None:
    """100 ms before and 200 ms after a sound are kept, because the ends of words are quiet."""
    clip = np.zeros(3 * 24_000)
    clip[24_000:48_000] = np.tile([0.5, -0.5], 12_000)
    left = cut(clip)
    assert np.count_nonzero(left) == 24_000
    assert (np.flatnonzero(left)[0], len(left) - 1 - np.flatnonzero(left)[-1]) == (2_400, 4_800)


@pytest.mark.parametrize(("level", "silent"), [(103, True), (104, False)])
def test_silence_is_up_to_minus_50_decibels(level: int, silent: bool) -> None:
    """Full scale is 32768, and the root mean square is rounded down."""
    assert SilenceRules().loudest_silence == 103
    assert (cut(np.full(24_000, level / 32_768)).size == 0) == silent


def test_samples_beyond_full_scale_are_cut_off() -> None:
    """A clip that was made louder may exceed full scale, which 16 bits cannot represent."""
    left = cut(np.tile([1.5, -1.5], 12_000))
    assert (left.min(), left.max()) == (-1.0, np.float32(32_767 / 32_768))
