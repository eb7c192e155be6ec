"""Fish Speech's weights are read from every form in which they are published.

The published file is a pickle, comes wrapped in several ways, and has many tensors that an encoder does not
need.
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
from speaker_registry.errors import WeightsInvalid
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


@pytest.fixture(scope="module")
def expected() -> np.ndarray:
    """Return the codes that the unchanged tiny checkpoint gives."""
    return codes(load(), clip_of(44_100))[0]


def refused(folder: Path, message: str, **options: Any) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder, **options)


# --- what is left alone


def test_the_tiny_file_has_what_an_encoder_does_not_need() -> None:
    """The tests below need a file with a decoder, and with tables of another size than ours."""
    tensors = torch.load(TINY / FILE, weights_only=True)
    assert {"decoder", "encoder", "quantizer"} == {key.partition(".")[0] for key in tensors}
    assert any(key.startswith("quantizer.post_module.") for key in tensors)
    assert any(key.startswith("quantizer.upsample.") for key in tensors)
    tables = {key: value.shape[0] for key, value in tensors.items() if key.endswith(TABLES)}
    assert len(tables) == 6
    assert set(tables.values()) == {80, 48}
    assert max(tables.values()) < TinyFishSpeech.codec.max_frames


def test_tables_and_decoder_are_dropped() -> None:
    """Table sizes differ between releases of the same weights, so the encoder computes its own tables."""
    kept = load()._encoder.state_dict()
    dropped = (*TABLES, "decoder", "post_module", "upsample", "weight_g", "weight_v", "original")
    assert not [key for key in kept if any(word in key for word in dropped)]


@pytest.mark.parametrize("size", [None, 7, 500])
def test_tables_of_any_size_or_none_change_nothing(
    copy: Path, expected: np.ndarray, size: int | None
) -> None:
    """The tables are computed from the configuration, whatever the file contains."""

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
    """The engines' own loaders unwrap all of these forms."""
    edit_pickle(copy / FILE, wrapped)
    assert np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)


def test_weights_kept_in_float32_are_the_same_weights(copy: Path, expected: np.ndarray) -> None:
    """The published weights are in float32. The tiny file is in bfloat16 to be small."""
    edit_pickle(copy / FILE, lambda tensors: {key: value.float() for key, value in tensors.items()})
    assert np.array_equal(codes(load(copy), clip_of(44_100))[0], expected)


def test_lengths_and_directions_are_folded_together(copy: Path, expected: np.ndarray) -> None:
    """Doubling the direction gives the same weight. Doubling the length gives another."""

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


def test_another_size_of_the_codec_is_refused() -> None:
    """Only the shapes of the tensors show the size, because no configuration is published."""
    refused(TINY, f"{FILE} lacks encoder.block.4.block.5.layers.1.", kind=FishSpeechExtractor)
    refused(TINY, f"{FILE} has wrong shapes", kind=with_codec(codebook_size=1024))


def test_a_changed_file_is_not_the_published_one(copy: Path) -> None:
    """The sha256 of Fish Speech S2 Pro's file is known, and a changed file has another one."""
    usual = profile()
    known = PublishedWeights(repo="example/tiny", licence="none", files={FILE: "0" * 64})
    refused(copy, "is not the file that example/tiny published", profile=replace(usual, weights=known))
