"""The tiny Fish Speech checkpoint: its architecture, and extractors loaded from it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from services.extractor_worker.engines.fish_speech import Audio8Extractor, FishSpeechExtractor
from services.extractor_worker.models.fish_dac import CodecConfig
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.engine import Profile
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import extract, tiny_profile

TINY = Path(__file__).parents[2] / "data/fish_speech_tiny"
FILE = "codec.pth"
BOOK_SIZES = (64, *9 * [32])
ARCHITECTURE: dict[str, Any] = {
    "encoder_dim": 4,
    "encoder_transformer_layers": (0, 0, 0, 1),
    "pre_layers": 2,
    "pre_heads": 2,
    "pre_head_dim": 32,
    "pre_inner": 96,
    "semantic_codebook_size": 64,
    "codebook_size": 32,
}

Tensors = dict[str, torch.Tensor]


class TinyFishSpeech(FishSpeechExtractor):
    codec = CodecConfig(**ARCHITECTURE)


class TinyAudio8(Audio8Extractor):
    codec = CodecConfig(**ARCHITECTURE, straight_through=False)


def profile(name: str = "tiny", repo: str = "example/tiny") -> Profile:
    spec = BUILT_IN["fish-speech-s2-pro"].tensors["ref_codes_fq"]
    small = spec.model_copy(update={"codebook_sizes": BOOK_SIZES, "maximum": 63})
    return tiny_profile("fish-speech-s2-pro", name, repo, tensors={"ref_codes_fq": small})


def load(
    folder: Path = TINY, kind: type[FishSpeechExtractor] = TinyFishSpeech, **changes: Any
) -> FishSpeechExtractor:
    return kind(Loading(**{"profile": profile(), "source": LocalWeights(folder), **changes}))


def with_codec(**changes: Any) -> type[FishSpeechExtractor]:
    """Return an extractor class whose tiny architecture has these changes."""
    return type("Changed", (FishSpeechExtractor,), {"codec": CodecConfig(**{**ARCHITECTURE, **changes})})


def codes(extractor: FishSpeechExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    return [tensors["ref_codes_fq"] for tensors in extract(extractor, *clips)]


def clip_of(samples: int, seed: int = 0) -> ReferenceAudio:
    return ReferenceAudio(signals.speechlike(3.0, 44_100, seed)[:samples], 44_100)
