"""Checkpoints of another model are refused before any voice is made with them.

The message names the file and the tensor or field that differs.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from speaker_registry.errors import WeightsInvalid
from tests.unit.extractors.conftest import edit_json, edit_pickle, edit_tensors
from tests.unit.extractors.test_every_engine import copy
from tests.unit.extractors.tiny_engines import ENGINES

__all__ = ["copy"]

QWEN, QWEN_CODEC = "model.safetensors", "speech_tokenizer/model.safetensors"
DAC, ECAPA, FISH, VOXCPM2 = "model.safetensors", "embedding_model.ckpt", "codec.pth", "audiovae.pth"
HIGGS, SPEECHTOKENIZER = "audio_tokenizer/model.safetensors", "speechtokenizer_hubert_avg/SpeechTokenizer.pt"
QWEN_BOOK = "encoder.quantizer.acoustic_residual_vector_quantizer.layers.30.codebook"
FISH_CONV = "encoder.block.1.block.4.conv"

MISSING = [
    ("qwen3-tts", QWEN, "speaker_encoder.asp.conv.bias"),
    ("qwen3-tts", QWEN_CODEC, f"{QWEN_BOOK}.embed_sum"),
    ("fish-speech", FISH, f"{FISH_CONV}.parametrizations.weight.original0"),
    ("fish-speech", FISH, "quantizer.pre_module.norm.weight"),
    ("dac", DAC, "encoder.block.3.res_unit2.snake1.alpha"),
    ("ecapa", ECAPA, "fc.conv.bias"),
    (
        "higgs-audio",
        HIGGS,
        "semantic_model.encoder.pos_conv_embed.conv.parametrizations.weight.original0",
    ),
    ("higgs-audio", HIGGS, "quantizer.quantizers.7.codebook.embed"),
    ("speechtokenizer", SPEECHTOKENIZER, "encoder.model.0.conv.conv.weight_g"),
    ("speechtokenizer", SPEECHTOKENIZER, "quantizer.vq.layers.7._codebook.embed_avg"),  # only for training
    ("voxcpm2", VOXCPM2, "encoder.fc_mu.weight_g"),
    ("voxcpm2", VOXCPM2, "encoder.fc_logvar.bias"),  # not used
]
UNEXPECTED = [
    ("qwen3-tts", QWEN, "speaker_encoder.blocks.4.conv.weight"),
    ("qwen3-tts", QWEN_CODEC, "encoder.encoder.layers.15.conv.weight"),  # a prefix that transformers ignores
    ("fish-speech", FISH, "encoder.block.7.alpha"),
    ("fish-speech", FISH, "quantizer.pre_module.input_proj.weight"),
    ("dac", DAC, "encoder.conv1.weight_g"),  # weight norm that is not folded
    ("ecapa", ECAPA, "blocks.4.tdnn1.conv.conv.weight"),
    ("higgs-audio", HIGGS, "acoustic_encoder.block.5.snake1.alpha"),
    ("speechtokenizer", SPEECHTOKENIZER, "encoder.model.13.lstm.weight_ih_l2"),
    ("speechtokenizer", SPEECHTOKENIZER, "encoder.model.1.block.0.alpha"),  # of the Snake activation
    ("voxcpm2", VOXCPM2, "encoder.block.5.block.3.alpha"),
    ("voxcpm2", VOXCPM2, "encoder.fc_mu.weight"),  # weight norm that was folded
]


def edit(path: Path, change: Any) -> None:
    (edit_tensors if path.suffix == ".safetensors" else edit_pickle)(path, change)


def refused(name: str, folder: Path, message: str) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        ENGINES[name].load(folder)


@pytest.mark.parametrize(("name", "file", "key"), MISSING)
def test_a_missing_key_is_named(copy: Path, name: str, file: str, key: str) -> None:
    """Libraries would fill it with random numbers. A key that is not used shows another file, too."""
    edit(copy / file, lambda tensors: tensors.pop(key))
    refused(name, copy, f"{file} lacks {key}")


@pytest.mark.parametrize(("name", "file", "key"), UNEXPECTED)
def test_an_unexpected_key_is_named(copy: Path, name: str, file: str, key: str) -> None:
    """Otherwise a larger model would lose a layer unnoticed."""
    edit(copy / file, lambda tensors: tensors.update({key: torch.zeros(2)}))
    refused(name, copy, f"{file} has {key}, which this architecture does not")


@pytest.mark.parametrize(
    ("name", "file", "prefix", "message"),
    [
        ("qwen3-tts", QWEN, "speaker_encoder.", "a CustomVoice or VoiceDesign model"),
        ("fish-speech", FISH, "encoder.", "of another model"),
        ("fish-speech", FISH, "quantizer.", "of another model"),
        ("speechtokenizer", SPEECHTOKENIZER, "encoder.", "of another model"),
        ("voxcpm2", VOXCPM2, "encoder.", "of another model"),
        (
            "higgs-audio",
            HIGGS,
            "acoustic_encoder.",
            # This repository has the right config.json beside a copy of the language model.
            "not Higgs Audio's tokenizer; bosonai/higgs-audio-v2-tokenizer, for one",
        ),
    ],
)
def test_a_file_without_the_encoder_is_of_another_model(
    copy: Path, name: str, file: str, prefix: str, message: str
) -> None:
    """Configurations get copied, so only the tensors may show which model a file is of."""
    edit(copy / file, lambda tensors: [tensors.pop(key) for key in [*tensors] if key.startswith(prefix)])
    refused(name, copy, f"{file} has no {prefix}* tensors: it is {message}")


CONFIGURATIONS: dict[tuple[str, str, str | None], list[tuple[dict[str, Any], str]]] = {
    ("qwen3-tts", "config.json", None): [
        ({"model_type": "fish_speech"}, "config.json: model_type is 'fish_speech'"),
        ({"speaker_encoder_config": None}, "speaker_encoder_config is missing"),
        ({"speaker_encoder_config": {}}, "speaker_encoder_config: enc_dim is missing"),
        ({"speaker_encoder_config": {"enc_dim": "64"}}, "enc_dim is '64', int is expected"),
        (
            {"tts_model_type": "custom_voice"},
            "tts_model_type is 'custom_voice', 'base' is expected: this is a Cu",
        ),
        (
            {"tts_model_type": "voice_design"},
            "'voice_design', 'base' is expected: this is a CustomVoice or V",
        ),
    ],
    ("qwen3-tts", "config.json", "speaker_encoder_config"): [
        ({"enc_channels": [8, 8]}, "enc_channels, enc_kernel_sizes and enc_dilations differ in length"),
        ({"sample_rate": 16_000}, "the encoder takes 16000 Hz, 24000 is expected"),
    ],
    ("qwen3-tts", "speech_tokenizer/config.json", None): [
        ({"model_type": "mimi"}, "model_type is 'mimi'"),
        ({"encoder_valid_num_quantizers": 8}, "encoder_valid_num_quantizers is 8"),
        ({"encode_downsample_rate": 960}, "encode_downsample_rate is 960"),
        ({"encoder_config": []}, "encoder_config is missing or not a JSON object"),
    ],
    ("dac", "config.json", None): [
        ({"model_type": "encodec"}, "config.json: model_type is 'encodec', 'dac' is expected"),
        ({"sampling_rate": 24_000}, "sampling_rate is 24000, 16000 is expected"),
        ({"n_codebooks": 9}, "n_codebooks is 9, 12 is expected"),
        ({"n_codebooks": None}, "n_codebooks is 9, 12 is expected"),
        ({"codebook_size": 1024}, "codebook_size is 1024, 64 is expected"),
        ({"downsampling_ratios": [2, 4, 8, 8]}, "ratios make 512 samples a frame, 320 are expected"),
        ({"downsampling_ratios": "2458"}, "downsampling_ratios is '2458', tuple is expected"),
        (
            {"downsampling_ratios": [8, 5, 4, 2]},
            "has wrong shapes (expected in brackets): encoder.block.0.conv1.weight [4, 2, 4] ([4, 2, 16])",
        ),
        ({"codebook_dim": 8}, "quantizer.quantizers.0.codebook.weight [64, 4] ([64, 8])"),
    ],
    ("speechtokenizer", "speechtokenizer_hubert_avg/config.json", None): [
        ({"activation": "Snake"}, "activation is 'Snake', 'ELU' is expected"),
        ({"lstm_layers": 0}, "lstm_layers is less than 1"),
        ({"n_q": 4}, "n_q is 4, 8 is expected"),
        ({"codebook_size": 1024}, "codebook_size is 1024, 64 is expected"),
        ({"sample_rate": 24_000}, "sample_rate is 24000, 16000 is expected"),
        ({"strides": [8, 5, 4, 4]}, "strides make 25 frames a second, 50 are expected"),
        ({"n_filters": "2"}, "n_filters is '2', int is expected"),
        ({"bidirectional": 1}, "bidirectional is 1, bool is expected"),
        # The decoder's LSTM runs forward only, so one is easily taken for the other.
        ({"bidirectional": False}, f"{SPEECHTOKENIZER} has encoder.model.13.lstm.bias_hh_l0_reverse"),
    ],
    ("voxcpm2", "config.json", None): [
        ({"architecture": "voxcpm"}, "config.json: architecture is 'voxcpm', 'voxcpm2' is expected: earlier"),
        ({"architecture": None}, "architecture is None"),
        ({"patch_size": 2}, "patch_size is 2, 4 is expected"),
        ({"feat_dim": 128}, "feat_dim is 128, 64 is expected"),
        ({"audio_vae_config": None}, "audio_vae_config is missing or not a JSON object"),
        ({"audio_vae_config": {"latent_dim": 32}, "feat_dim": 32}, "latent_dim is 32, 64 is expected"),
    ],
    ("voxcpm2", "config.json", "audio_vae_config"): [
        ({"encoder_dim": "4"}, "encoder_dim is '4', int is expected"),
        ({"sample_rate": 44_100}, "sample_rate is 44100, 16000 is expected"),
        ({"encoder_rates": [2, 4, 8, 8]}, "encoder_rates make 7.8125 patches a second, 6.25 are expected"),
        (
            {"depthwise": False},
            "has wrong shapes (expected in brackets): encoder.block.1.block.0.block.1.weight_v [4, 1, 7]",
        ),
    ],
    ("higgs-audio", "audio_tokenizer/config.json", None): [
        ({"model_type": "higgs_audio_v2"}, "model_type is 'higgs_audio_v2', 'higgs_audio_v2_tokenizer'"),
        ({"sample_rate": 16_000}, "sample_rate is 16000, 24000 is expected"),
        ({"semantic_sample_rate": 24_000}, "semantic_sample_rate is 24000, 16000 is expected"),
        ({"downsample_factor": 160}, "downsample_factor is 160, 320 is expected"),
        ({"target_bandwidths": [0.15, 0.6]}, "codebooks is 4, 8 is expected"),
        ({"target_bandwidths": []}, "target_bandwidths is [], numbers are expected"),
        ({"target_bandwidths": None}, "target_bandwidths is None, numbers are expected"),
        ({"strides": [2, 1]}, "strides is (2, 1), ones are expected"),
        ({"codebook_size": "64"}, "codebook_size is '64', int is expected"),
        ({"semantic_model_config": None}, "semantic_model_config is missing"),
    ],
    ("higgs-audio", "audio_tokenizer/config.json", "acoustic_model_config"): [
        ({"model_type": "encodec"}, "model_type is 'encodec', 'dac' is expected"),
        ({"downsampling_ratios": [8, 5, 4, 2]}, "samples_per_frame is 320, 960 is expected"),
    ],
    ("higgs-audio", "audio_tokenizer/config.json", "semantic_model_config"): [
        ({"model_type": "wavlm"}, "model_type is 'wavlm', 'hubert' is expected"),
        ({"feat_extract_norm": "layer"}, "feat_extract_norm is 'layer', 'group' is expected"),
        ({"do_stable_layer_norm": True}, "do_stable_layer_norm is True, False is"),
        ({"conv_stride": [5, 2, 2, 2, 2, 2, 1]}, "semantic_samples_per_frame is 160, 320 is expected"),
        ({"conv_stride": [5, 2]}, "conv_dim, conv_kernel and conv_stride differ in length"),
    ],
}
"""Changes of a file, or of an object in it, and a part of the message that each leads to."""


@pytest.mark.parametrize(
    ("name", "file", "part", "change", "message"),
    [(*place, *one) for place, changes in CONFIGURATIONS.items() for one in changes],
)
def test_the_configuration_of_another_model_is_refused(
    copy: Path, name: str, file: str, part: str | None, change: dict[str, Any], message: str
) -> None:
    """The message names the field that differs."""
    edit_json(copy / file, lambda config: (config[part] if part else config).update(change))
    refused(name, copy, message)
