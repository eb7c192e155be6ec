"""Wrong weights are refused before a single voice is made with them, and by name."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from speaker_registry.errors import WeightsInvalid, WeightsMissing
from tests.unit.extractors.conftest import edit_json
from tests.unit.extractors.test_voxcpm2 import TINY, clip_of, extract, load, tiny

CONVERTED = "audiovae.safetensors"
PICKLE = "audiovae.pth"
Tensors = dict[str, torch.Tensor]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint to spoil."""
    return shutil.copytree(TINY, tmp_path / "checkpoint")


def refused(folder: Path, message: str) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder)


def tensors_of(folder: Path) -> Tensors:
    return {key: tensor.clone() for key, tensor in torch.load(folder / PICKLE)["state_dict"].items()}


def edit_pickle(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = tensors_of(folder)
    change(tensors)
    (folder / PICKLE).unlink()  # the copy may share the original's inode
    torch.save({"state_dict": tensors}, folder / PICKLE)


@pytest.mark.parametrize(
    "key", ["encoder.fc_mu.weight_g", "encoder.block.2.block.1.block.2.alpha", "encoder.fc_logvar.bias"]
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    """Even one that is not used: it shows that this is not the published file."""
    edit_pickle(copy, lambda tensors: tensors.pop(key))
    refused(copy, f"{PICKLE} lacks {key}")


@pytest.mark.parametrize("key", ["encoder.block.5.block.3.alpha", "encoder.fc_mu.weight"])
def test_an_unexpected_key_is_named(copy: Path, key: str) -> None:
    """A larger model, or one whose weight norm somebody has folded."""
    edit_pickle(copy, lambda tensors: tensors.update({key: torch.zeros(2)}))
    refused(copy, f"{PICKLE} has {key}, which this architecture does not")


def test_a_file_without_the_encoder_is_another_models(copy: Path) -> None:
    """Half a checkpoint."""

    def strip(tensors: Tensors) -> None:
        for key in [key for key in tensors if key.startswith("encoder.")]:
            del tensors[key]

    edit_pickle(copy, strip)
    refused(copy, f"{PICKLE} has no encoder.* tensors: it is of another model")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architecture": "voxcpm"}, "config.json: architecture is 'voxcpm', 'voxcpm2' is expected: earlier"),
        ({"architecture": None}, "architecture is None"),
        ({"patch_size": 2}, "patch_size is 2, 4 is expected"),
        ({"feat_dim": 128}, "feat_dim is 128, 64 is expected"),
        ({"audio_vae_config": None}, "audio_vae_config is missing or not a JSON object"),
        ({"audio_vae_config": {"encoder_dim": "4"}}, "encoder_dim is '4', int is expected"),
        ({"audio_vae_config": {"sample_rate": 44_100}}, "sample_rate is 44100, 16000 is expected"),
        ({"audio_vae_config": {"latent_dim": 32}, "feat_dim": 32}, "latent_dim is 32, 64 is expected"),
        (
            {"audio_vae_config": {"encoder_rates": [2, 4, 8, 8]}},
            "encoder_rates make 7.8125 patches a second, 6.25 are expected",
        ),
        (
            {"audio_vae_config": {"encoder_dim": 4, "depthwise": False}},
            "has wrong shapes (expected in brackets): encoder.block.1.block.0.block.1.weight_v [4, 1, 7]",
        ),
    ],
)
def test_the_configuration_of_another_model_is_refused(
    copy: Path, change: dict[str, Any], message: str
) -> None:
    """Named by field, in the file it stands in."""
    edit_json(copy / "config.json", lambda config: config.update(change))
    refused(copy, message)


@pytest.mark.parametrize("file", ["config.json", PICKLE])
def test_a_missing_file_is_missing_weights(copy: Path, file: str) -> None:
    """Asked for under the published names, not those of a conversion nobody needs to make."""
    (copy / file).unlink()
    with pytest.raises(
        WeightsMissing, match=rf"^tiny: {re.escape(file)} missing\..* config\.json, audiovae\.pth"
    ):
        load(copy)


def test_a_changed_file_changes_the_fingerprint(copy: Path) -> None:
    """One value of one tensor, even of the decoder: it is another file."""

    def nudge(tensors: Tensors) -> None:
        tensors["decoder.model.0.bias"] += 1

    edit_pickle(copy, nudge)
    assert load(copy).fingerprint.digest != tiny().fingerprint.digest


def test_a_pickle_of_the_bare_tensors_will_do(copy: Path) -> None:
    """The engine takes it with and without the wrapper."""
    tensors = tensors_of(copy)
    (copy / PICKLE).unlink()
    torch.save(tensors, copy / PICKLE)
    assert_same(copy)


@pytest.mark.parametrize("pickle_too", [True, False])
def test_a_converted_file_is_taken_before_the_pickle(copy: Path, pickle_too: bool) -> None:
    """As the engine does, which may have been given one with other weights."""
    tensors = tensors_of(copy)
    save_file(tensors, copy / CONVERTED)
    if pickle_too:
        edit_pickle(copy, lambda tensors: tensors["encoder.fc_mu.bias"].add_(1))
    else:
        (copy / PICKLE).unlink()
    assert list(assert_same(copy)["files"]) == [CONVERTED]


def test_so_it_is_on_a_shelf_of_several_models(tmp_path: Path) -> None:
    """In a sub-folder named like the profile."""
    shutil.copytree(TINY, tmp_path / "tiny")
    save_file(tensors_of(tmp_path / "tiny"), tmp_path / "tiny" / CONVERTED)
    (tmp_path / "tiny" / PICKLE).unlink()
    assert_same(tmp_path)


def assert_same(folder: Path) -> dict[str, Any]:
    """As the tiny checkpoint itself. What the fingerprint says of the weights."""
    extractor = load(folder)
    ours, expected = (extract(one, clip_of(5000))[0] for one in (extractor, tiny()))
    assert all(np.array_equal(ours[name], expected[name]) for name in expected)
    weights: dict[str, Any] = extractor.fingerprint.facts["weights"]
    return weights
