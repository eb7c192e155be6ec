"""Properties that all engines have in common, tested with their tiny checkpoints."""

import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper

from services.extractor_worker.pipeline import torch_extractor
from services.extractor_worker.pipeline.torch_extractor import FingerprintKnown, TorchExtractor
from services.extractor_worker.weights import loading
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.errors import WeightsMissing
from tests.unit.extractors.conftest import edit_json, edit_pickle, edit_tensors, extract
from tests.unit.extractors.signals import speechlike
from tests.unit.extractors.tiny_engines import ENGINES, every_engine, every_file, every_weight_file

BATCHED = {"qwen3-tts", "voxcpm2"}
"""The engines that encode clips in one batch. Their own tests say how far a batch may move results."""
IN_FLOAT32 = [name for name in ENGINES if name != "qwen3-tts"]


def clips_for(name: str) -> list[ReferenceAudio]:
    """Return clips of several lengths, two of which are equally long."""
    rate = BUILT_IN[ENGINES[name].profile].sample_rate
    lengths = (1.0, 0.35, 1.61, 1.0)
    return [ReferenceAudio(speechlike(seconds, rate, seed), rate) for seed, seconds in enumerate(lengths)]


@pytest.fixture
def copy(name: str, tmp_path: Path) -> Path:
    """Return the folder of a copy of the engine's checkpoint, which a test may change."""
    return shutil.copytree(ENGINES[name].folder, tmp_path / "checkpoint")


@cache
def loaded(name: str) -> TorchExtractor[Any, Any]:
    """Return the engine as its own checkpoint makes it. It is loaded once, and no test changes it."""
    return ENGINES[name].load()


@pytest.mark.parametrize("name", sorted(ENGINES.keys() - BATCHED))
def test_other_clips_do_not_change_a_clips_artifact(name: str) -> None:
    """An upload at the same moment must not change a voice."""
    extractor, clips = loaded(name), clips_for(name)
    assert extractor.batch_seconds == 0
    for clip, ours in zip(clips, extract(extractor, *clips), strict=True):
        [alone] = extract(extractor, clip)
        assert ours.keys() == alone.keys()
        assert all(np.array_equal(ours[tensor], alone[tensor]) for tensor in alone)


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_encoders_that_engines_run_in_float32_ignore_the_dtype(name: str) -> None:
    """The engines run these encoders in float32, whatever type their language models use."""
    asked, usual = ENGINES[name].load(dtype="bfloat16"), loaded(name)
    assert asked.fingerprint == usual.fingerprint
    assert asked.fingerprint.inputs["dtype"] == "float32"
    [ours], [expected] = (extract(one, clips_for(name)[0]) for one in (asked, usual))
    assert all(np.array_equal(ours[tensor], expected[tensor]) for tensor in expected)


@every_engine
def test_the_fingerprint_is_known_without_reading_weights(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker asks whether it will be a candidate before it spends half a minute on loading."""
    expected = loaded(name).fingerprint
    monkeypatch.setattr(loading, "_weight", lambda *_: pytest.fail("a weight was read"))
    with torch.device("meta"), pytest.raises(FingerprintKnown) as known:
        ENGINES[name].load(only_fingerprint=True)
    assert known.value.fingerprint == expected


@every_engine
def test_tensors_are_contiguous(name: str) -> None:
    """The artifact file stores the bytes of each tensor as they are."""
    [tensors] = extract(loaded(name), clips_for(name)[0])
    assert all(tensor.flags.c_contiguous for tensor in tensors.values())


@every_file
def test_each_missing_file_is_named_with_all_that_are_expected(name: str, file: str, copy: Path) -> None:
    (copy / file).unlink()
    expected = ", ".join(ENGINES[name].files)
    with pytest.raises(WeightsMissing, match=rf": {re.escape(file)} missing\..* {re.escape(expected)}, "):
        ENGINES[name].load(copy)


@every_engine
def test_the_fingerprint_names_the_weight_files_but_not_their_folder(name: str, copy: Path) -> None:
    """Two workers that keep the same files in different folders have the same fingerprint."""
    fingerprint = ENGINES[name].load(copy).fingerprint
    assert fingerprint == loaded(name).fingerprint
    assert not fingerprint.untrained
    assert fingerprint.inputs["weights"]["files"].keys() == set(ENGINES[name].weight_files)


@every_weight_file
def test_one_changed_value_of_any_weight_file_changes_the_fingerprint(
    name: str, file: str, copy: Path
) -> None:
    EDITORS[Path(file).suffix](copy / file)
    assert ENGINES[name].load(copy).fingerprint.digest != loaded(name).fingerprint.digest


@every_engine
@pytest.mark.parametrize("what", ["code_version", "resampler"])
def test_the_codes_version_and_the_resampler_change_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, name: str, what: str
) -> None:
    before = loaded(name)
    if what == "resampler" and before.resampler is None:
        monkeypatch.setattr(torch_extractor, "KERNEL", "soxr-hq")
    else:
        monkeypatch.setattr(type(before), what, 99)
    assert ENGINES[name].load().fingerprint.digest != before.fingerprint.digest


QWEN_CODEC, HIGGS = "speech_tokenizer/config.json", "audio_tokenizer/config.json"
SPEECHTOKENIZER = "speechtokenizer_hubert_avg/config.json"


@pytest.mark.parametrize(
    ("name", "file", "part", "change"),
    [
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"sliding_window": 125}),
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"rope_theta": 20_000.0}),
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"hidden_act": "relu"}),
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"norm_eps": 1e-6}),
        ("qwen3-tts", "config.json", "speaker_encoder_config", {"enc_dilations": [1, 2, 3, 5, 1]}),
        ("higgs-audio", HIGGS, "semantic_model_config", {"layer_norm_eps": 1e-6}),
        ("higgs-audio", HIGGS, "semantic_model_config", {"hidden_act": "relu"}),
        ("higgs-audio", HIGGS, "semantic_model_config", {"num_attention_heads": 4}),
        ("higgs-audio", HIGGS, None, {"block_dilations": [1, 2]}),
        ("speechtokenizer", SPEECHTOKENIZER, None, {"dilation_base": 3}),
    ],
)
def test_configuration_that_no_weights_shape_shows_changes_the_fingerprint(
    copy: Path, name: str, file: str, part: str | None, change: dict[str, Any]
) -> None:
    edit_json(copy / file, lambda config: (config[part] if part else config).update(change))
    assert ENGINES[name].load(copy).fingerprint.digest != loaded(name).fingerprint.digest


@pytest.mark.parametrize(
    ("name", "file", "part", "change"),
    [
        ("qwen3-tts", "config.json", None, {"talker_config": {"hidden_size": 99}}),
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"use_cache": True}),
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"torchscript": False, "id2label": {"0": "x"}}),
        ("qwen3-tts", QWEN_CODEC, "encoder_config", {"architectures": None}),
        ("dac", "config.json", None, {"decoder_hidden_size": 32, "upsampling_ratios": [2]}),
        ("dac", "config.json", None, {"quantizer_dropout": 0.5}),
        ("dac", "config.json", None, {"hop_length": 512}),  # the ratios contradict it
        ("higgs-audio", HIGGS, None, {"initializer_range": 0.5}),
        ("higgs-audio", HIGGS, "acoustic_model_config", {"decoder_hidden_size": 64}),
        ("speechtokenizer", SPEECHTOKENIZER, None, {"batch_size": 7, "semantic_dimension": 99}),
        ("voxcpm2", "config.json", "audio_vae_config", {"decoder_dim": 99}),
        ("voxcpm2", "config.json", None, {"lm_config": {}}),
    ],
)
def test_configuration_that_does_not_matter_changes_nothing(
    copy: Path, name: str, file: str, part: str | None, change: dict[str, Any]
) -> None:
    """An edited field that has no effect must not make every artifact stale."""
    edit_json(copy / file, lambda config: (config[part] if part else config).update(change))
    changed, usual = ENGINES[name].load(copy), loaded(name)
    assert changed.fingerprint == usual.fingerprint
    [ours], [expected] = (extract(one, clips_for(name)[0]) for one in (changed, usual))
    assert all(np.array_equal(ours[tensor], expected[tensor]) for tensor in expected)


def nudge(tensors: dict[str, torch.Tensor]) -> None:
    tensors[max(tensors)].add_(1)


def nudge_graph(path: Path) -> None:
    model = onnx.load(path)
    tensor = next(one for one in model.graph.initializer if one.data_type == onnx.TensorProto.FLOAT)
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, tensor.name))
    onnx.save(model, path)


EDITORS: dict[str, Callable[[Path], object]] = {
    ".safetensors": lambda path: edit_tensors(path, nudge),
    ".onnx": nudge_graph,
    **dict.fromkeys((".pth", ".pt", ".ckpt"), lambda path: edit_pickle(path, nudge)),
}
"""Change one tensor of a file, by the file's suffix."""
