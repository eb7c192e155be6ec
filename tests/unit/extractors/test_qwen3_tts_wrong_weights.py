"""Wrong weights are refused before a single voice is made with them, and by name."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from services.shared.audio import ReferenceAudio
from speaker_registry.errors import AudioTooShort, WeightsInvalid, WeightsMissing
from tests.unit.extractors.conftest import TINY, edit_json, edit_tensors, load_tiny
from tests.unit.extractors.signals import speechlike

SPEAKER, CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
BOOK = "encoder.quantizer.acoustic_residual_vector_quantizer.layers.30.codebook"
Tensors = dict[str, torch.Tensor]


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load_tiny(folder, **options)


@pytest.mark.parametrize(
    ("file", "key"),
    [
        (SPEAKER, "speaker_encoder.asp.conv.bias"),
        (CODEC, "encoder.downsample.conv.weight"),
        (CODEC, f"{BOOK}.embed_sum"),
    ],
)
def test_a_missing_key_is_named(copy: Path, file: str, key: str) -> None:
    """transformers would fill it with random numbers and carry on."""
    edit_tensors(copy / file, lambda tensors: tensors.pop(key))
    refused(copy, f"{file} lacks {key}")


@pytest.mark.parametrize(
    ("file", "key"),
    [
        (SPEAKER, "speaker_encoder.blocks.4.conv.weight"),
        (CODEC, "encoder.encoder.layers.15.conv.weight"),  # under a prefix that transformers ignores
        (CODEC, "encoder.upsample.conv.weight"),
    ],
)
def test_an_unexpected_key_is_named(copy: Path, file: str, key: str) -> None:
    """A larger model would otherwise lose a layer unnoticed."""

    def add(tensors: Tensors) -> None:
        tensors[key] = torch.zeros(2)

    edit_tensors(copy / file, add)
    refused(copy, f"{file} has {key}, which this architecture does not")


def test_a_width_the_profile_does_not_have_names_both() -> None:
    """A 0.6B embedding does not fit into the 1.7B talker, and the other way round."""
    refused(TINY, "the embedding is 64 wide, this profile's is 1024", width=1024)


@pytest.mark.parametrize("kind", ["custom_voice", "voice_design"])
def test_a_model_without_a_speaker_encoder_is_called_by_its_name(copy: Path, kind: str) -> None:
    """Same layout, nearly the same size, and cannot clone."""
    edit_json(copy / "config.json", lambda config: config.update(tts_model_type=kind))
    refused(
        copy, f"tts_model_type is '{kind}', 'base' is expected: this is a CustomVoice or VoiceDesign model"
    )


def test_so_it_is_when_only_the_tensors_show_it(copy: Path) -> None:
    """Configurations get copied."""

    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith("speaker_encoder.")]:
            del tensors[key]

    edit_tensors(copy / SPEAKER, strip)
    refused(copy, "has no speaker_encoder.* tensors: it is a CustomVoice or VoiceDesign model")


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"model_type": "fish_speech"}, "config.json: model_type is 'fish_speech'"),
        ("config.json", {"speaker_encoder_config": None}, "speaker_encoder_config is missing"),
        ("config.json", {"speaker_encoder_config": {}}, "speaker_encoder_config: enc_dim is missing"),
        ("config.json", {"speaker_encoder_config": {"enc_dim": "64"}}, "enc_dim is '64', int is expected"),
        (
            "config.json",
            {"speaker_encoder_config": {"enc_dim": 64, "enc_channels": [8, 8]}},
            "enc_channels, enc_kernel_sizes and enc_dilations differ in length",
        ),
        (
            "config.json",
            {"speaker_encoder_config": {"enc_dim": 64, "sample_rate": 16_000}},
            "the encoder takes 16000 Hz, 24000 is expected",
        ),
        ("speech_tokenizer/config.json", {"model_type": "mimi"}, "model_type is 'mimi'"),
        (
            "speech_tokenizer/config.json",
            {"encoder_valid_num_quantizers": 8},
            "encoder_valid_num_quantizers is 8",
        ),
        ("speech_tokenizer/config.json", {"encode_downsample_rate": 960}, "encode_downsample_rate is 960"),
        (
            "speech_tokenizer/config.json",
            {"encoder_config": []},
            "encoder_config is missing or not a JSON object",
        ),
    ],
)
def test_the_configuration_of_another_model_is_refused(
    copy: Path, file: str, change: dict[str, Any], message: str
) -> None:
    """Named by field, in the file it stands in."""
    edit_json(copy / file, lambda config: config.update(change))
    refused(copy, message)


def test_a_missing_file_is_missing_weights(copy: Path) -> None:
    """The extractor asks for all four files before it reads any."""
    (copy / SPEAKER).unlink()
    with pytest.raises(WeightsMissing, match=r"model\.safetensors missing"):
        load_tiny(copy)


def test_fields_nobody_here_knows_are_ignored(copy: Path) -> None:
    """Published configurations carry what their library happened to write."""

    def add(config: dict[str, Any]) -> None:
        config["encoder_config"] |= {"torchscript": False, "id2label": {"0": "x"}, "architectures": None}

    edit_json(copy / "speech_tokenizer/config.json", add)
    assert load_tiny(copy).profile_name == "qwen3-tts-tiny"


def test_nothing_is_read_of_the_keys_of_other_parts() -> None:
    """The published files are mostly talker and decoder."""
    config = json.loads((TINY / "config.json").read_text())
    assert config["talker_config"]
    extractor = load_tiny()
    assert not [key for key in extractor._speaker_encoder.state_dict() if "talker" in key]


@pytest.mark.parametrize("samples", [0, 1, 383, 1023, 1279])
def test_a_clip_too_short_to_reflect_is_refused(samples: int) -> None:
    """Five mel frames, 1280 samples: fewer, and torch would fail in the middle of the encoder."""
    clip = ReferenceAudio(speechlike(1.0, 24_000)[:samples], 24_000)
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.053 s"):
        load_tiny().prepare(clip)


def test_the_shortest_clip_goes_through() -> None:
    """The limit is where the encoder's is, not above it."""
    extractor = load_tiny()
    prepared = extractor.prepare(ReferenceAudio(speechlike(1.0, 24_000)[:1280], 24_000))
    assert extractor.finish(extractor.encode([prepared])[0])["ref_code"].shape == (1, 16)
