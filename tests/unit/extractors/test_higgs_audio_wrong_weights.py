"""Wrong weights are refused before a single voice is made with them, and by name."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from services.extractor_worker.weights.loading import HubWeights
from speaker_registry.errors import WeightsInvalid, WeightsMissing
from tests.unit.extractors.conftest import edit_json, edit_tensors
from tests.unit.extractors.higgs_audio_tiny import CONFIG, TENSORS, TINY, load_higgs

BOOK = "quantizer.quantizers.7.codebook.embed"
Tensors = dict[str, torch.Tensor]


def refused(folder: Path, message: str) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load_higgs(folder)


@pytest.mark.parametrize(
    "key",
    [
        "acoustic_encoder.block.4.res_unit3.snake2.alpha",
        "encoder_semantic.conv_blocks.1.conv.bias",
        "semantic_model.feature_extractor.conv_layers.0.layer_norm.weight",
        "semantic_model.encoder.pos_conv_embed.conv.parametrizations.weight.original0",
        "fc.bias",
        BOOK,
    ],
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    """transformers would fill it with random numbers and carry on."""
    edit_tensors(copy / TENSORS, lambda tensors: tensors.pop(key))
    refused(copy, f"{TENSORS} lacks {key}")


@pytest.mark.parametrize(
    "key",
    [
        "acoustic_encoder.block.5.snake1.alpha",
        "semantic_model.encoder.layers.2.layer_norm.weight",
        "quantizer.quantizers.8.codebook.embed",
    ],
)
def test_an_unexpected_key_is_named(copy: Path, key: str) -> None:
    """A larger model would otherwise lose a layer unnoticed."""

    def add(tensors: Tensors) -> None:
        tensors[key] = torch.zeros(2)

    edit_tensors(copy / TENSORS, add)
    refused(copy, f"{TENSORS} has {key}, which this architecture does not")


@pytest.mark.parametrize(
    "key", ["semantic_model.masked_spec_embed", "acoustic_decoder.conv1.bias", "fc1.bias"]
)
def test_what_encoding_does_not_need_is_left_alone(copy: Path, key: str) -> None:
    """The decoder, and what HuBERT was trained with."""

    def add(tensors: Tensors) -> None:
        tensors[key] = torch.zeros(2)

    edit_tensors(copy / TENSORS, add)
    assert load_higgs(copy).profile_name == "higgs-tiny"


def test_the_language_model_is_called_by_its_name(copy: Path) -> None:
    """bosonai/higgs-audio-v2-tokenizer has the right config.json beside a copy of it."""
    (copy / TENSORS).unlink()
    save_file({"embed_tokens.weight": torch.zeros(2), "layers.0.mlp.weight": torch.zeros(2)}, copy / TENSORS)
    refused(copy, "has no acoustic_encoder.* tensors: it is not Higgs Audio's tokenizer; bosonai/")


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        (
            None,
            {"model_type": "higgs_audio_v2"},
            "model_type is 'higgs_audio_v2', 'higgs_audio_v2_tokenizer'",
        ),
        (None, {"sample_rate": 16_000}, "sample_rate is 16000, 24000 is expected"),
        (None, {"semantic_sample_rate": 24_000}, "semantic_sample_rate is 24000, 16000 is expected"),
        (None, {"downsample_factor": 160}, "downsample_factor is 160, 320 is expected"),
        (None, {"target_bandwidths": [0.15, 0.6]}, "codebooks is 4, 8 is expected"),
        (None, {"target_bandwidths": []}, "target_bandwidths is [], numbers are expected"),
        (None, {"target_bandwidths": None}, "target_bandwidths is None, numbers are expected"),
        (None, {"strides": [2, 1]}, "strides is (2, 1), ones are expected"),
        (None, {"codebook_size": "64"}, "codebook_size is '64', int is expected"),
        (None, {"semantic_model_config": None}, "semantic_model_config is missing"),
        ("acoustic_model_config", {"model_type": "encodec"}, "model_type is 'encodec', 'dac' is expected"),
        (
            "acoustic_model_config",
            {"downsampling_ratios": [8, 5, 4, 2]},
            "samples_per_frame is 320, 960 is expected",
        ),
        ("semantic_model_config", {"model_type": "wavlm"}, "model_type is 'wavlm', 'hubert' is expected"),
        (
            "semantic_model_config",
            {"feat_extract_norm": "layer"},
            "feat_extract_norm is 'layer', 'group' is expected",
        ),
        ("semantic_model_config", {"do_stable_layer_norm": True}, "do_stable_layer_norm is True, False is"),
        (
            "semantic_model_config",
            {"conv_stride": [5, 2, 2, 2, 2, 2, 1]},
            "semantic_samples_per_frame is 160, 320 is expected",
        ),
        (
            "semantic_model_config",
            {"conv_stride": [5, 2]},
            "conv_dim, conv_kernel and conv_stride differ in length",
        ),
    ],
)
def test_the_configuration_of_another_model_is_refused(
    copy: Path, part: str | None, change: dict[str, Any], message: str
) -> None:
    """Named by field, in the file it stands in."""
    edit_json(copy / CONFIG, lambda config: (config[part] if part else config).update(change))
    refused(copy, message)


def test_a_missing_file_is_missing_weights(copy: Path) -> None:
    """With how to get it."""
    (copy / TENSORS).unlink()
    with pytest.raises(WeightsMissing, match=r"audio_tokenizer/model\.safetensors missing"):
        load_higgs(copy)


# --- the fingerprint


def test_the_same_files_elsewhere_have_the_same_fingerprint(copy: Path) -> None:
    """Two workers agree. What does not change a code is not in it."""
    edit_json(copy / CONFIG, lambda config: config.update(initializer_range=0.5))
    edit_json(copy / CONFIG, lambda config: config["acoustic_model_config"].update(decoder_hidden_size=64))
    assert load_higgs(copy).fingerprint == load_higgs().fingerprint


def test_the_weights_count(copy: Path) -> None:
    """One value of one tensor."""
    edit_tensors(copy / TENSORS, lambda tensors: tensors["fc.bias"].add_(1))
    assert load_higgs(copy).fingerprint.digest != load_higgs().fingerprint.digest


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("semantic_model_config", {"layer_norm_eps": 1e-6}),
        ("semantic_model_config", {"hidden_act": "relu"}),
        ("semantic_model_config", {"num_attention_heads": 4}),
        (None, {"block_dilations": [1, 2]}),
    ],
)
def test_the_configuration_counts(copy: Path, part: str | None, change: dict[str, Any]) -> None:
    """It changes the codes without changing a weight."""
    edit_json(copy / CONFIG, lambda config: (config[part] if part else config).update(change))
    assert load_higgs(copy).fingerprint.digest != load_higgs().fingerprint.digest


def test_the_profile_and_the_source_count(tmp_path: Path) -> None:
    """An artifact says whose it is and where its weights are from."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(TINY, tmp_path / "models--example--a" / "snapshots" / commit)
    source = HubWeights(commit, local_files_only=True, cache=tmp_path)
    from_hub = load_higgs(source=source, repo="example/a").fingerprint
    assert from_hub.facts["weights"]["revision"] == commit
    assert (
        len({from_hub.digest, load_higgs().fingerprint.digest, load_higgs(name="x").fingerprint.digest}) == 3
    )
