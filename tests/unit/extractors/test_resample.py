"""Resampling gives torchaudio's results, with and without torchaudio."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch

from services.extractor_worker.features import resample as module
from services.extractor_worker.features.resample import KERNEL, KERNEL_FLOAT32, SincHann, resample
from speaker_registry.errors import UnsupportedAudio
from tests.unit.extractors.parity import assert_parity
from tests.unit.extractors.signals import speechlike
from tests.unit.extractors.with_torchaudio import needs_torchaudio

RATE_PAIRS = [
    (16_000, 24_000),
    (22_050, 24_000),
    (44_100, 24_000),
    (48_000, 24_000),
    (48_000, 16_000),
    (24_000, 16_000),
]


@pytest.mark.parametrize(("source", "target"), RATE_PAIRS)
def test_our_kernel_gives_what_torchaudio_gives(
    goldens: Mapping[str, np.ndarray], source: int, target: int
) -> None:
    """Artifacts must not depend on whether a worker's image can import torchaudio."""
    ours = SincHann(source, target)(torch.from_numpy(speechlike(0.1337, source, seed=1))).numpy()
    assert ours.dtype == np.float32
    assert_parity(ours, goldens, f"resample_{source}_{target}")


@needs_torchaudio
@pytest.mark.parametrize(("source", "target"), RATE_PAIRS)
def test_torchaudio_here_gives_what_our_kernel_gives(source: int, target: int) -> None:
    """torchaudio resamples where it can be imported, so the installed version must agree, too."""
    clip = torch.from_numpy(speechlike(0.5, source, seed=2))
    difference = resample(clip, source, target) - SincHann(source, target)(clip)
    assert difference.abs().max() <= 1e-6


def test_the_kernel_built_in_float32_is_another_one() -> None:
    """Engines that resample with `torchaudio.functional` get other seventh digits.

    The goldens come from them.
    """
    clip = torch.from_numpy(speechlike(0.5, 44_100))
    usual, other = (resample(clip, 44_100, 24_000, kernel) for kernel in (KERNEL, KERNEL_FLOAT32))
    assert torch.equal(usual, resample(clip, 44_100, 24_000))
    assert 0 < (usual - other).abs().max() < 1e-4


def test_several_clips_are_resampled_as_each_alone() -> None:
    """A model that resamples its own input passes a batch: [B, 1, N]."""
    clips = torch.from_numpy(speechlike(0.3, 24_000)).reshape(3, 1, -1)
    resampler = SincHann(24_000, 16_000, torch.float32)
    alone = torch.stack([resampler(clip[0])[None] for clip in clips])
    assert (resampler(clips) - alone).abs().max() <= 1e-6


@pytest.mark.parametrize(("source", "target"), RATE_PAIRS)
@pytest.mark.parametrize("length", [1, 441, 4_410, 4_411, 4_499])
def test_the_result_is_as_long_as_the_rates_say_rounded_up(source: int, target: int, length: int) -> None:
    """One sample too many can make one frame of codes too many."""
    assert len(resample(torch.zeros(length), source, target)) == math.ceil(length * target / source)


def test_equal_rates_leave_the_clip_alone() -> None:
    """A 24 kHz clip must reach the encoder bit by bit."""
    clip = torch.from_numpy(speechlike(0.1, 24_000))
    assert resample(clip, 24_000, 24_000) is clip


@pytest.mark.parametrize("rate", [8_000, 11_025, 12_000, 32_000, 37_800, 88_200, 96_000, 176_400, 192_000])
def test_every_usual_rate_can_be_converted(rate: int) -> None:
    """The guard against strange rates must not catch these."""
    assert len(resample(torch.zeros(rate), rate, 24_000)) == 24_000


@pytest.mark.parametrize("rate", [23_999, 44_101, 191_999])
def test_a_rate_that_has_nothing_in_common_is_refused_before_it_costs_anything(rate: int) -> None:
    """One upload with a made-up rate would take gigabytes for its kernel."""
    with pytest.raises(UnsupportedAudio, match=f"{rate} Hz cannot be converted to 24000 Hz"):
        resample(torch.zeros(1_000), rate, 24_000)


def test_kernels_are_kept_up_to_a_limit() -> None:
    """Building a kernel costs more than applying it, but keeping every kernel would be a memory leak."""
    assert module._resampler(16_000, 24_000) is module._resampler(16_000, 24_000)
    for rate in range(8_000, 8_000 + 2 * module._MAX_KERNELS * 1_000, 1_000):
        module._resampler(rate, 25_000)
    assert module._resampler.cache_info().currsize == module._MAX_KERNELS
