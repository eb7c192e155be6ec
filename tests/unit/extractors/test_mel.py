"""The mel front end has the properties of a mel filter bank. Parity tests compare it with qwen-tts."""

import numpy as np
import pytest
import torch

from services.extractor_worker.features import mel
from services.extractor_worker.features.mel import MelSettings, log_mel, slaney_bank
from tests.unit.extractors.parity import HALF_STEP_FLOAT32
from tests.unit.extractors.signals import speechlike


@pytest.mark.parametrize("length", [1024, 1025, 24_000, 24_255, 24_256, 175_440])
def test_a_frame_for_every_whole_hop(length: int) -> None:
    """Padding that gives one frame more or less gives another embedding."""
    assert log_mel(torch.zeros(1, length), MelSettings()).shape == (1, length // 256, 128)


def test_silence_is_the_floor_of_the_logarithm() -> None:
    """ln(1e-5): an infinity here would make the whole embedding NaN."""
    floor = log_mel(torch.zeros(1, 4800), MelSettings())
    assert torch.isfinite(floor).all()
    assert floor.max() <= np.log(1e-5) + 5e-1


def test_every_band_has_unit_area_and_its_peak_inside_the_range() -> None:
    """Slaney normalisation: without it low bands would weigh ten times as much as high ones."""
    bank = slaney_bank(MelSettings(window=8192))  # fine bins, so that a sum is nearly the area
    area = bank.sum(axis=1) * 24_000 / 8192
    assert bank.shape == (128, 4097)
    assert np.allclose(area, 1.0, atol=0.05)
    assert (np.diff(bank.argmax(axis=1)) > 0).all()


def test_a_batch_of_equal_lengths_is_the_clips_one_by_one() -> None:
    """Clips of equal length may be computed in a batch.

    A band is a sum of 513 terms, none of them negative. In another order the sum differs by no more than half
    a step for each term.
    """
    clips = torch.stack([torch.from_numpy(speechlike(1.0, 24_000, seed)) for seed in (0, 1)])
    together, alone = log_mel(clips, MelSettings())[1], log_mel(clips[1:], MelSettings())[0]
    assert torch.allclose(together.exp(), alone.exp(), rtol=513 * HALF_STEP_FLOAT32, atol=0)


def test_banks_are_kept_up_to_a_limit() -> None:
    """A bank is half a megabyte."""
    for bands in range(20, 20 + 2 * mel._MAX_BANKS):
        log_mel(torch.zeros(1, 2048), MelSettings(bands=bands))
    assert mel._bank.cache_info().currsize == mel._MAX_BANKS
