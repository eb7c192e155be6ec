"""The embedding is the one that vLLM-Omni computes for Ming-TTS with the same CAM++ file.

tools/make_cosyvoice3_goldens.py made the goldens. CosyVoice3 has the same encoder, but prepares clips in
another way.
"""

import dataclasses

import numpy as np
import pytest

from services.extractor_worker.models import campplus
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort
from tests.unit.extractors import cosyvoice3_tiny
from tests.unit.extractors.conftest import Goldens, extract
from tests.unit.extractors.cosyvoice3_tiny import (
    CLIPS,
    RATES,
    clip_of,
    golden_clip,
    load_ming,
    ming,
)
from tests.unit.extractors.parity import assert_parity

TINY = cosyvoice3_tiny.TINY


@pytest.mark.parametrize("name", [*CLIPS, *RATES])
def test_the_embedding_is_vllm_omnis(goldens: Goldens, name: str) -> None:
    """Clips are resampled in one step from their own rate."""
    embedding = extract(ming(), golden_clip(name))[0]["speaker_embedding"]
    assert_parity(embedding, goldens, f"ming_{name}")


def test_what_comes_out_is_what_the_profile_promises() -> None:
    tensors = extract(ming(), golden_clip("7.31"))[0]
    check_tensors(tensors, BUILT_IN["ming-tts"].tensors)
    assert tensors["speaker_embedding"].flags.c_contiguous


@pytest.mark.parametrize("samples", [0, 399, 879])
def test_a_clip_of_fewer_than_four_frames_is_refused(samples: int) -> None:
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.055 s"):
        ming().prepare(clip_of(samples, 16_000))


def test_four_frames_go_through() -> None:
    """Four frames need 880 samples at 16 kHz."""
    assert np.isfinite(extract(ming(), clip_of(880, 16_000))[0]["speaker_embedding"]).all()


def test_the_settings_of_the_features_change_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_ming().fingerprint.digest
    monkeypatch.setattr(campplus, "FBANK", dataclasses.replace(campplus.FBANK, preemphasis=0.9))
    assert load_ming().fingerprint.digest != before
