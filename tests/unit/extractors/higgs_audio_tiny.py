"""The tiny checkpoint of Higgs Audio's tokenizer, and extractors loaded from it."""

from pathlib import Path
from typing import Any

import numpy as np

from services.extractor_worker.engines.higgs_audio import (
    HiggsAudioExtractor,
    HiggsAudioV3Extractor,
    OmniVoiceExtractor,
)
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.configuration.worker import OmniVoiceSettings
from tests.unit.extractors.conftest import extract, tiny_profile

TINY = Path(__file__).parents[2] / "data/higgs_audio_tiny"
CONFIG, TENSORS = "audio_tokenizer/config.json", "audio_tokenizer/model.safetensors"


def load_higgs(folder: Path = TINY, name: str = "higgs-tiny", **loading: Any) -> HiggsAudioExtractor:
    profile = tiny_profile("higgs-audio-v2", name)
    return HiggsAudioExtractor(Loading(**{"profile": profile, "source": LocalWeights(folder), **loading}))


def load_higgs_v3(folder: Path = TINY, name: str = "higgs-v3-tiny", **loading: Any) -> HiggsAudioV3Extractor:
    profile = tiny_profile("higgs-audio-v3", name)
    return HiggsAudioV3Extractor(Loading(**{"profile": profile, "source": LocalWeights(folder), **loading}))


def load_omnivoice(folder: Path = TINY, name: str = "omnivoice-tiny", **settings: bool) -> OmniVoiceExtractor:
    """Load OmniVoice's extractor, with only the named steps of its package switched on."""
    steps = {"loudness": False, "trim": False, "whole_frames": False} | settings
    loading = Loading(profile=tiny_profile("omnivoice", name), source=LocalWeights(folder))
    return OmniVoiceExtractor(loading, OmniVoiceSettings(**steps))


def codes(extractor: HiggsAudioExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    return [tensors["ref_audio_tokens"] for tensors in extract(extractor, *clips)]
