"""The tiny checkpoint of CosyVoice3, which Ming-TTS shares, and extractors loaded from it."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from services.extractor_worker.engines.cosyvoice3 import CosyVoice3Extractor
from services.extractor_worker.engines.ming_tts import MingTTSExtractor
from services.extractor_worker.models.s3_tokenizer import S3Config
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from tests.unit.extractors import conftest, signals
from tests.unit.extractors.conftest import tiny_profile

TINY = Path(__file__).parents[2] / "data/cosyvoice3_tiny"
TOKENIZER = S3Config(width=64, layers=2)
TOKENIZER_FILE, CAMPPLUS_FILE = "speech_tokenizer_v3.onnx", "campplus.onnx"
CLIPS = ["1.0", "3.0", "7.31", "12.4"]
RATES = ["16000", "44100"]

Tensors = dict[str, np.ndarray]


def load_cosyvoice(
    folder: Path = TINY, tokenizer: S3Config = TOKENIZER, **loading: Any
) -> CosyVoice3Extractor:
    loading = {"profile": tiny_profile("cosyvoice3-0.5b"), "source": LocalWeights(folder), **loading}
    return CosyVoice3Extractor(Loading(**loading), tokenizer)


def load_ming(folder: Path = TINY, **loading: Any) -> MingTTSExtractor:
    loading = {"profile": tiny_profile("ming-tts"), "source": LocalWeights(folder), **loading}
    return MingTTSExtractor(Loading(**loading))


@functools.cache
def cosyvoice() -> CosyVoice3Extractor:
    return load_cosyvoice()


@functools.cache
def ming() -> MingTTSExtractor:
    return load_ming()


def golden_clip(name: str) -> ReferenceAudio:
    rate = int(name) if name in RATES else 24_000
    return conftest.golden_clip(conftest.read_goldens(TINY), name, rate)


def clip_of(samples: int, rate: int = 24_000) -> ReferenceAudio:
    return ReferenceAudio(signals.speechlike(3.0, rate)[:samples], rate)
