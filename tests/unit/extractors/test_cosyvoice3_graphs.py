"""Wrong graphs are refused before any voice is made with them, and the message names the file.

s3tokenizer, for one, loads the parts of a graph that it recognises and leaves the rest random.
"""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from services.extractor_worker.models.s3_tokenizer import S3Config
from services.extractor_worker.weights import onnx_graph
from speaker_registry.errors import WeightsInvalid, WeightsMissing
from tests.unit.extractors.cosyvoice3_tiny import (
    CAMPPLUS_FILE,
    TINY,
    TOKENIZER_FILE,
    load_cosyvoice,
    load_ming,
)

Change = Callable[[onnx.GraphProto], object]


def edit(path: Path, change: Change) -> None:
    model = onnx.load(path)
    change(model.graph)
    onnx.save(model, path)


def node(graph: onnx.GraphProto, name: str) -> onnx.NodeProto:
    return next(one for one in graph.node if one.name == name)


def without(name: str) -> Change:
    """Remove the node and the tensors that only this node used."""

    def change(graph: onnx.GraphProto) -> None:
        gone = node(graph, name)
        for one in [one for one in graph.initializer if one.name in gone.input]:
            graph.initializer.remove(one)
        graph.node.remove(gone)

    return change


def with_extra(name: str) -> Change:
    def change(graph: onnx.GraphProto) -> None:
        graph.initializer.append(numpy_helper.from_array(np.zeros(2, np.float32), f"{name}.values"))
        graph.node.append(helper.make_node("Add", ["x", f"{name}.values"], [f"{name}.out"], name=name))

    return change


def refused(folder: Path, message: str, load: Callable[[Path], object] = load_cosyvoice) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder)


@pytest.mark.parametrize(
    ("gone", "key"),
    [
        ("/conv2/Conv", "conv2.bias, conv2.weight"),
        ("/blocks.1/attn/key/MatMul", "blocks.1.attn.key.weight"),
        ("/blocks.0/attn/fsmn_block/Conv", "blocks.0.attn.memory.weight"),
        ("/blocks.1/mlp_ln/Add_1", "blocks.1.mlp_norm.bias"),
        ("/quantizer/project_in/Add", "project_in.bias"),
    ],
)
def test_a_missing_tensor_is_named(copy: Path, gone: str, key: str) -> None:
    """The tensor would otherwise stay random."""
    edit(copy / TOKENIZER_FILE, without(gone))
    refused(copy, f"{TOKENIZER_FILE} lacks {key}")


@pytest.mark.parametrize("name", ["/blocks.2/attn/query/Add", "/blocks.0/attn/key/Add", "/something/Mul"])
def test_an_unexpected_tensor_is_named(copy: Path, name: str) -> None:
    """Such a graph is a larger tokenizer or another version."""
    edit(copy / TOKENIZER_FILE, with_extra(name))
    with pytest.raises(WeightsInvalid, match=rf"{TOKENIZER_FILE} has .*, which this architecture does not"):
        load_cosyvoice(copy)


def test_two_tensors_in_one_place_are_refused(copy: Path) -> None:
    """It cannot be known which of the two tensors is meant."""
    edit(copy / TOKENIZER_FILE, with_extra("/blocks.0/attn_ln/Add"))
    refused(copy, f"{TOKENIZER_FILE} has two tensors where this architecture has one")


def test_a_wrong_shape_is_named(copy: Path) -> None:
    def cut(graph: onnx.GraphProto) -> None:
        name = node(graph, "/blocks.0/attn/query/MatMul").input[1]
        old = next(one for one in graph.initializer if one.name == name)
        old.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(old)[:, :63].copy(), name))

    edit(copy / TOKENIZER_FILE, cut)
    refused(copy, "has wrong shapes (expected in brackets): blocks.0.attn.query.weight [64, 63] ([64, 64])")


def test_a_tensor_that_nothing_uses_is_named(copy: Path) -> None:
    edit(copy / TOKENIZER_FILE, lambda graph: graph.node.remove(node(graph, "/conv1/Conv")))
    with pytest.raises(WeightsInvalid, match=r"has conv1\.bias.* which none of its nodes uses"):
        load_cosyvoice(copy)


def test_the_architecture_is_the_profiles_not_the_files() -> None:
    """A tokenizer of another size makes codes that no CosyVoice3 was trained with."""
    with pytest.raises(WeightsInvalid, match=f"{TOKENIZER_FILE} lacks blocks"):
        load_cosyvoice(TINY, S3Config())


@pytest.mark.parametrize("file", [TOKENIZER_FILE, CAMPPLUS_FILE])
def test_a_tensor_in_another_file_is_refused(copy: Path, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No checksum would cover the other file.

    A graph may name any file, relative to itself or to this folder.
    """
    monkeypatch.chdir(copy)
    onnx.save_model(
        onnx.load(copy / file),
        copy / file,
        save_as_external_data=True,
        location="outside.bin",
        size_threshold=0,
    )
    assert (copy / "outside.bin").stat().st_size > 10_000
    refused(copy, f"{file} keeps the tensor ")
    refused(copy, " in another file, 'outside.bin': a graph with all its tensors in it is expected")


def test_a_file_too_large_for_a_graph_is_refused_unread(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real limit is 2 GB. The test lowers it."""
    size = (copy / TOKENIZER_FILE).stat().st_size
    monkeypatch.setattr(onnx_graph, "_MAX_BYTES", size - 1)
    refused(copy, f"{TOKENIZER_FILE} has {size} bytes, an ONNX graph has at most {size - 1}")


@pytest.mark.parametrize("file", [TOKENIZER_FILE, CAMPPLUS_FILE])
@pytest.mark.parametrize("cut", [lambda data: data[: len(data) // 2], lambda _: b"PK\x03\x04" * 99])
def test_a_file_that_is_no_whole_graph_is_named(copy: Path, file: str, cut: Callable[[bytes], bytes]) -> None:
    """The download was cut short, or the file is of another kind."""
    (copy / file).write_bytes(cut((copy / file).read_bytes()))
    refused(copy, f"{file} is damaged, cut short or not an ONNX graph")


@pytest.mark.parametrize("file", [TOKENIZER_FILE, CAMPPLUS_FILE])
def test_an_empty_file_is_named(copy: Path, file: str) -> None:
    (copy / file).write_bytes(b"")
    refused(copy, file)


def test_ming_asks_for_the_speaker_encoder_only(copy: Path) -> None:
    (copy / TOKENIZER_FILE).unlink()
    load_ming(copy)
    (copy / CAMPPLUS_FILE).unlink()
    with pytest.raises(WeightsMissing, match=rf"{CAMPPLUS_FILE} missing"):
        load_ming(copy)
