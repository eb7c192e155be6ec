"""Clips of one batch change each other's results by no more than rounding errors, at published sizes.

Another clip that is uploaded at the same moment must not be heard in a voice. A batch is summed in another
order than a clip alone, so results differ. But both must be equally near the exact results, which float64
computes here from the same random weights.
"""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.extractor_worker.features.mel import MelSettings, log_mel
from services.extractor_worker.models.audio_vae import AudioVaeConfig, AudioVaeEncoder
from services.extractor_worker.models.ecapa import SpeakerEncoder, SpeakerEncoderConfig
from services.extractor_worker.weights.modules import filled, layout_of
from services.extractor_worker.weights.untrained import random_tensors
from tests.unit.extractors.parity import HALF_STEP_BFLOAT16, HALF_STEP_FLOAT32, assert_near
from tests.unit.extractors.signals import speechlike


def voices(rate: int, *seconds: float) -> list[Tensor]:
    return [torch.from_numpy(speechlike(each, rate, seed)) for seed, each in enumerate(seconds)]


def assert_as_near(together: Tensor, alone: Tensor, exact: Tensor, half_step: float) -> None:
    deviation = float((alone.double() - exact).abs().max())
    assert_near(together.double().numpy(), exact.numpy(), deviation, half_step)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "half_step"), [(torch.float32, HALF_STEP_FLOAT32), (torch.bfloat16, HALF_STEP_BFLOAT16)]
)
@torch.inference_mode()
def test_a_batch_moves_qwen3_ttss_embedding_within_rounding(dtype: torch.dtype, half_step: float) -> None:
    """The embedding has 2048 values."""
    build = partial(SpeakerEncoder, SpeakerEncoderConfig(enc_dim=2048))
    encoder = filled(build, random_tensors(layout_of(build), 0)).to(dtype)
    mels = [log_mel(clip[None], MelSettings())[0] for clip in voices(24_000, 1.0, 1.61, 2.37)]
    frames = torch.tensor([len(mel) for mel in mels])
    together = encoder(pad_sequence(mels, batch_first=True).to(dtype), frames)
    alone = [encoder(mel[None].to(dtype))[0] for mel in mels]
    encoder.double()
    for batched, single, mel in zip(together, alone, mels, strict=True):
        assert_as_near(batched, single, encoder(mel[None].double())[0], half_step)


@pytest.mark.slow
@torch.inference_mode()
def test_a_batch_moves_voxcpm2s_latents_within_rounding() -> None:
    """The encoder has 48 million weights. The clips are whole patches, and zeros follow the shorter one."""
    build = partial(AudioVaeEncoder, AudioVaeConfig())
    encoder = filled(build, random_tensors(layout_of(build), 0))
    clips = voices(16_000, 0.16, 0.32)
    together = encoder(pad_sequence(clips, batch_first=True)[:, None])
    alone = [encoder(clip[None, None])[0] for clip in clips]
    encoder.double()
    for batched, single, clip in zip(together, alone, clips, strict=True):
        exact = encoder(clip[None, None].double())[0]
        assert_as_near(batched[:, : exact.shape[1]], single, exact, HALF_STEP_FLOAT32)
