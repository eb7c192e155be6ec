"""VoxCPM2's weights are published as a pickle and may also come as a converted safetensors file."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.unit.extractors.conftest import edit_pickle, extract
from tests.unit.extractors.test_voxcpm2 import TINY, clip_of, load, tiny

CONVERTED = "audiovae.safetensors"
PICKLE = "audiovae.pth"
Tensors = dict[str, torch.Tensor]


def tensors_of(folder: Path) -> Tensors:
    return {key: tensor.clone() for key, tensor in torch.load(folder / PICKLE)["state_dict"].items()}


def test_a_pickle_of_the_bare_tensors_will_do(copy: Path) -> None:
    """The engine takes tensors with and without a wrapper."""
    tensors = tensors_of(copy)
    (copy / PICKLE).unlink()
    torch.save(tensors, copy / PICKLE)
    assert_same(copy)


@pytest.mark.parametrize("pickle_too", [True, False])
def test_a_converted_file_is_taken_before_the_pickle(copy: Path, pickle_too: bool) -> None:
    """The engine prefers a converted file, too, which may have other weights than the pickle."""
    tensors = tensors_of(copy)
    save_file(tensors, copy / CONVERTED)
    if pickle_too:
        edit_pickle(copy / PICKLE, lambda tensors: tensors["encoder.fc_mu.bias"].add_(1))
    else:
        (copy / PICKLE).unlink()
    assert list(assert_same(copy)["files"]) == [CONVERTED]


def test_a_converted_file_is_found_in_a_folder_of_several_models(tmp_path: Path) -> None:
    """A folder of several models has a sub-folder named like each profile."""
    shutil.copytree(TINY, tmp_path / "tiny")
    save_file(tensors_of(tmp_path / "tiny"), tmp_path / "tiny" / CONVERTED)
    (tmp_path / "tiny" / PICKLE).unlink()
    assert_same(tmp_path)


def assert_same(folder: Path) -> dict[str, Any]:
    """Compare a folder's latents with the tiny checkpoint's. Return the fingerprint inputs of its weights."""
    extractor = load(folder)
    ours, expected = (extract(one, clip_of(5000))[0] for one in (extractor, tiny()))
    assert all(np.array_equal(ours[name], expected[name]) for name in expected)
    weights: dict[str, Any] = extractor.fingerprint.inputs["weights"]
    return weights
