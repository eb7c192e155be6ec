"""Wrong weights are refused before a single voice is made with them, by name; what does not matter is not.

The published file is a pickle with much that an encoder does not need, and comes wrapped in several ways.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.extractor_worker.engines.fish_speech import FishSpeechExtractor
from speaker_registry.engine import PublishedWeights
from speaker_registry.errors import WeightsInvalid, WeightsMissing
from tests.unit.extractors.conftest import edit_pickle
from tests.unit.extractors.fish_speech_tiny import (
    FILE,
    TINY,
    Tensors,
    TinyAudio8,
    TinyFishSpeech,
    clip_of,
    codes,
    load,
    profile,
    with_codec,
)

TABLES = ("freqs_cis", "causal_mask")
CONV = "encoder.block.1.block.4.conv"


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """Codes of the tiny checkpoint as it is."""
    return codes(load(), clip_of(44_100))[0]


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder, **options)


# --- what is left alone


def test_the_tiny_file_has_what_an_encoder_does_not_need() -> None:
    """Or the tests below would show nothing: a decoder, and tables of another size than ours."""
    tensors = torch.load(TINY / FILE, weights_only=True)
    assert {"decoder", "encoder", "quantizer"} == {key.partition(".")[0] for key in tensors}
    assert any(key.startswith("quantizer.post_module.") for key in tensors)
    assert any(key.startswith("quantizer.upsample.") for key in tensors)
    tables = {key: value.shape[0] for key, value in tensors.items() if key.endswith(TABLES)}
    assert len(tables) == 6
    assert set(tables.values()) == {80, 48}
    assert max(tables.values()) < TinyFishSpeech.codec.max_frames


def test_tables_and_decoder_are_dropped() -> None:
    """Their sizes differ between releases of the same weights; the ones in force are our own."""
    kept = load()._encoder.state_dict()
    dropped = (*TABLES, "decoder", "post_module", "upsample", "weight_g", "weight_v", "original")
    assert not [key for key in kept if any(word in key for word in dropped)]


@pytest.mark.parametrize("size", [None, 7, 500])
def test_tables_of_any_size_or_none_change_nothing(
    copy: Path, expected: np.ndarray, size: int | None
) -> None:
    """They are computed from the configuration, whatever the file has."""

    def resize(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.endswith(TABLES)]:
            del tensors[key]
            if size is not None:
                tensors[key] = torch.zeros(size, size)

    edit_pickle(copy / FILE, resize)
    assert np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)


def test_without_anything_of_the_decoder_it_loads_too(copy: Path, expected: np.ndarray) -> None:
    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith("decoder.") or "post_module" in key]:
            del tensors[key]

    edit_pickle(copy / FILE, strip)
    assert np.array_equal(codes(load(copy, TinyAudio8), clip_of(44_100))[0], expected)


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda tensors: {"state_dict": tensors},
        lambda tensors: {"generator": tensors, "step": 7},
        lambda tensors: {"state_dict": {"generator": tensors}},
        lambda tensors: {f"generator.{key}": value for key, value in tensors.items()},
        lambda tensors: {
            "state_dict": {f"generator.{key}": value for key, value in tensors.items()}
            | {"discriminator.encoder.bias": torch.zeros(2)}
        },
    ],
)
def test_wrapped_as_training_code_leaves_it_it_loads(
    copy: Path, expected: np.ndarray, wrapped: Callable[[Tensors], Any]
) -> None:
    """All the ways that the engines' own loaders unwrap."""
    edit_pickle(copy / FILE, wrapped)
    assert np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)


def test_weights_kept_in_float32_are_the_same_weights(copy: Path, expected: np.ndarray) -> None:
    """As the published ones are; the tiny file is in bfloat16 to be small."""
    edit_pickle(copy / FILE, lambda tensors: {key: value.float() for key, value in tensors.items()})
    assert np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)


def test_lengths_and_directions_are_folded_together(copy: Path, expected: np.ndarray) -> None:
    """Twice as long a direction is the same weight; twice the length is another."""

    def longer(which: str) -> Callable[[Tensors], None]:
        def change(tensors: Tensors) -> None:
            for key in [key for key in tensors if key.startswith("encoder.") and key.endswith(which)]:
                tensors[key] = tensors[key] * 2

        return change

    edit_pickle(copy / FILE, longer("original1"))
    assert np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)
    edit_pickle(copy / FILE, longer("original0"))
    assert not np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)


# --- what is refused


@pytest.mark.parametrize(
    "key",
    [
        f"{CONV}.bias",
        f"{CONV}.parametrizations.weight.original0",
        "encoder.block.4.block.5.layers.0.attention.wqkv.weight",
        "quantizer.semantic_quantizer.quantizers.0.in_proj.weight_g",
        "quantizer.quantizer.quantizers.8.codebook.weight",
        "quantizer.downsample.1.1.gamma",
        "quantizer.pre_module.norm.weight",
    ],
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    """The engine's own loader, which is not strict, would go on with random numbers."""

    def drop(tensors: Tensors) -> None:
        del tensors[key]

    edit_pickle(copy / FILE, drop)
    refused(copy, f"{FILE} lacks {key}")


@pytest.mark.parametrize(
    "key",
    [
        "encoder.block.7.alpha",
        "encoder.block.3.block.5.layers.0.attention.wo.weight",
        "quantizer.quantizer.quantizers.9.codebook.weight",
        "quantizer.pre_module.layers.2.ffn_norm.weight",
        "quantizer.pre_module.input_proj.weight",
    ],
)
def test_an_unexpected_key_is_named(copy: Path, key: str) -> None:
    """A larger codec would otherwise lose a layer unnoticed."""

    def add(tensors: Tensors) -> None:
        tensors[key] = torch.zeros(2)

    edit_pickle(copy / FILE, add)
    refused(copy, f"{FILE} has {key}, which this architecture does not")


def test_another_size_of_the_codec_is_refused() -> None:
    """By its shapes, which is all there is: no configuration is published with it."""
    refused(TINY, f"{FILE} lacks encoder.block.4.block.5.layers.1.", kind=FishSpeechExtractor)
    refused(TINY, f"{FILE} has wrong shapes", kind=with_codec(codebook_size=1024))


@pytest.mark.parametrize("part", ["encoder.", "quantizer."])
def test_a_file_without_an_encoder_is_of_another_model(copy: Path, part: str) -> None:
    """The engine's decoder stage may have been given one."""

    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith(part)]:
            del tensors[key]

    edit_pickle(copy / FILE, strip)
    refused(copy, f"{FILE} has no {part}* tensors: it is of another model")


def test_a_changed_file_is_not_the_published_one(copy: Path) -> None:
    """Where its sha256 is known, as it is of Fish Speech S2 Pro."""
    facts = profile()
    known = PublishedWeights(repo="example/tiny", licence="none", files={FILE: "0" * 64})
    refused(copy, "is not the file that example/tiny published", profile=replace(facts, weights=known))


def test_a_missing_file_is_missing_weights(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match=r"codec\.pth missing"):
        load(tmp_path)


def test_the_file_counts_in_the_fingerprint(copy: Path) -> None:
    """One value of one tensor."""

    def nudge(tensors: Tensors) -> None:
        tensors["encoder.block.5.alpha"] = tensors["encoder.block.5.alpha"] + 1

    assert load(copy).fingerprint == load().fingerprint
    edit_pickle(copy / FILE, nudge)
    assert load(copy).fingerprint.digest != load().fingerprint.digest
