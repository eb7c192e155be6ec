"""The embedding is the one vLLM-Omni computes for Ming-TTS with the same CAM++ file.

The goldens are those of tools/make_cosyvoice3_goldens.py: the encoder is CosyVoice3's, the way to it is not.
"""

import dataclasses

import numpy as np
import pytest

from services.extractor_worker.engines.ming_tts import MingTTSExtractor
from services.extractor_worker.models import campplus
from services.extractor_worker.pipeline import torch_extractor
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort
from tests.unit.extractors import cosyvoice3_tiny
from tests.unit.extractors.conftest import Goldens
from tests.unit.extractors.cosyvoice3_tiny import (
    CLIPS,
    RATES,
    clip_of,
    extract,
    golden_clip,
    load_ming,
    ming,
)
from tests.unit.extractors.parity import assert_parity

TINY = cosyvoice3_tiny.TINY


@pytest.mark.parametrize("name", [*CLIPS, *RATES])
def test_the_embedding_is_vllm_omnis(goldens: Goldens, name: str) -> None:
    """Resampled in one step from the clip's own rate."""
    embedding = extract(ming(), golden_clip(name))[0]["speaker_embedding"]
    assert_parity(embedding, goldens, f"ming_{name}")


def test_what_comes_out_is_what_the_profile_promises() -> None:
    tensors = extract(ming(), golden_clip("7.31"))[0]
    check_tensors(tensors, BUILT_IN["ming-tts"].tensors)
    assert tensors["speaker_embedding"].flags.c_contiguous


def test_a_clip_among_others_is_the_clip_alone() -> None:
    """Zero-padded company would reach it through means over time."""
    clips = [golden_clip(name) for name in CLIPS]
    for clip, ours in zip(clips, extract(ming(), *clips), strict=True):
        assert np.array_equal(ours["speaker_embedding"], extract(ming(), clip)[0]["speaker_embedding"])


@pytest.mark.parametrize("samples", [0, 399, 879])
def test_a_clip_of_fewer_than_four_frames_is_refused(samples: int) -> None:
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.055 s"):
        ming().prepare(clip_of(samples, 16_000))


def test_four_frames_go_through() -> None:
    """880 samples at 16 kHz."""
    assert np.isfinite(extract(ming(), clip_of(880, 16_000))[0]["speaker_embedding"]).all()


@pytest.mark.parametrize(
    ("where", "constant", "value"),
    [
        (MingTTSExtractor, "code_version", 99),
        (torch_extractor, "KERNEL", "soxr-hq"),
        (campplus, "FBANK", dataclasses.replace(campplus.FBANK, preemphasis=0.9)),
    ],
)
def test_what_the_code_decides_counts(
    monkeypatch: pytest.MonkeyPatch, where: object, constant: str, value: object
) -> None:
    before = load_ming().fingerprint.digest
    monkeypatch.setattr(where, constant, value)
    assert load_ming().fingerprint.digest != before


def test_random_weights_say_so() -> None:
    first = load_ming(source=UntrainedWeights()).fingerprint
    assert first.facts["weights"] == {"untrained": True, "seed": 0}
    assert first.digest != load_ming(source=UntrainedWeights(seed=1)).fingerprint.digest
    assert ming().fingerprint.facts["weights"]["files"].keys() == {"campplus.onnx"}
