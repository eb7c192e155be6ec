"""Every built-in engine with its tiny checkpoint, for tests of what all engines have in common."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from services.extractor_worker.pipeline.torch_extractor import TorchExtractor
from services.shared.model.profiles import BUILT_IN
from tests.unit.extractors import (
    conftest,
    cosyvoice3_tiny,
    fish_speech_tiny,
    higgs_audio_tiny,
    test_dac,
    test_ecapa_voxceleb,
    test_speech_tokenizer,
    test_voxcpm2,
)


@dataclass(frozen=True)
class TinyEngine:
    profile: str
    """The name of the built-in profile that the checkpoint is a small version of."""
    folder: Path
    load: Callable[..., TorchExtractor[Any, Any]]
    """Takes the folder of a copy (`folder`) and the fields of `Loading`."""

    @property
    def files(self) -> list[str]:
        return list(BUILT_IN[self.profile].weights.files)

    @property
    def weight_files(self) -> list[str]:
        return [name for name in self.files if not name.endswith(".json")]


ENGINES: Mapping[str, TinyEngine] = {
    "qwen3-tts": TinyEngine("qwen3-tts-0.6b", conftest.TINY, conftest.load_tiny),
    "fish-speech": TinyEngine("fish-speech-s2-pro", fish_speech_tiny.TINY, fish_speech_tiny.load),
    "cosyvoice3": TinyEngine("cosyvoice3-0.5b", cosyvoice3_tiny.TINY, cosyvoice3_tiny.load_cosyvoice),
    "ming-tts": TinyEngine("ming-tts", cosyvoice3_tiny.TINY, cosyvoice3_tiny.load_ming),
    "dac": TinyEngine("dac-16khz", test_dac.TINY / "dac-16khz", test_dac.load),
    "ecapa": TinyEngine("ecapa-voxceleb", test_ecapa_voxceleb.TINY, test_ecapa_voxceleb.load),
    "higgs-audio": TinyEngine("higgs-audio-v2", higgs_audio_tiny.TINY, higgs_audio_tiny.load_higgs),
    "speechtokenizer": TinyEngine("speechtokenizer", test_speech_tokenizer.TINY, test_speech_tokenizer.load),
    "voxcpm2": TinyEngine("voxcpm2", test_voxcpm2.TINY, test_voxcpm2.load),
}

every_engine = pytest.mark.parametrize("name", ENGINES)
every_file = pytest.mark.parametrize(
    ("name", "file"), [(name, file) for name, engine in ENGINES.items() for file in engine.files]
)
every_weight_file = pytest.mark.parametrize(
    ("name", "file"), [(name, file) for name, engine in ENGINES.items() for file in engine.weight_files]
)
