"""The tiny checkpoint of Higgs Audio's tokenizer, its goldens, and extractors loaded from it."""

from pathlib import Path
from typing import Any

import numpy as np

from services.extractor_worker.engines.higgs_audio import HiggsAudioExtractor, OmniVoiceExtractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.configuration.settings import OmniVoiceSettings
from tests.unit.extractors.conftest import tiny_profile

TINY = Path(__file__).parents[2] / "data/higgs_audio_tiny"
CONFIG, TENSORS = "audio_tokenizer/config.json", "audio_tokenizer/model.safetensors"


def load_higgs(folder: Path = TINY, name: str = "higgs-tiny", **loading: Any) -> HiggsAudioExtractor:
    profile = tiny_profile("higgs-audio-v2", name, **_repo(loading))
    return HiggsAudioExtractor(Loading(**{"profile": profile, "source": LocalWeights(folder), **loading}))


def load_omnivoice(folder: Path = TINY, name: str = "omnivoice-tiny", **settings: bool) -> OmniVoiceExtractor:
    """Its settings: none of the package's steps unless they are named."""
    steps = {"loudness": False, "trim": False, "whole_frames": False} | settings
    loading = Loading(profile=tiny_profile("omnivoice", name), source=LocalWeights(folder))
    return OmniVoiceExtractor(loading, OmniVoiceSettings(**steps))


def extract(extractor: HiggsAudioExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    """`ref_audio_tokens` of each."""
    encoded = extractor.encode([extractor.prepare(clip) for clip in clips])
    return [extractor.finish(one)["ref_audio_tokens"] for one in encoded]


def _repo(loading: dict[str, Any]) -> dict[str, str]:
    return {"repo": loading.pop("repo")} if "repo" in loading else {}
