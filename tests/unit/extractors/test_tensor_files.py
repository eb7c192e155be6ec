"""Published pickles are treated as hostile."""

import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from services.extractor_worker.weights.file_digest import sha256_of_file
from services.extractor_worker.weights.loading import Checkpoint, LocalWeights, locate
from speaker_registry.engine import PublishedWeights
from speaker_registry.errors import WeightsInvalid

TENSORS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([1.0, 2.0, 3.0])}
LAYOUT = {"a.weight": (2, 3), "b": (3,)}
NAME = "codec.pth"
Tensors = dict[str, torch.Tensor]


class Hostile:
    """Creates a file if it is unpickled by an unsafe reader."""

    def __init__(self, trace: Path) -> None:
        self._trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._trace}",)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "checkpoint").mkdir()
    return Checkpoint(tmp_path / "checkpoint", None, None)


def published(checkpoint: Checkpoint, content: object, **options: Any) -> Path:
    path = checkpoint.folder / NAME
    torch.save(content, path, **options)
    return path


def read(checkpoint: Checkpoint, layout: dict[str, tuple[int, ...]] = LAYOUT) -> Tensors:
    return checkpoint.read_tensors(NAME, "", layout)


def refused(checkpoint: Checkpoint, message: str) -> None:
    with pytest.raises(WeightsInvalid, match=message):
        read(checkpoint)


def same(found: Tensors, expected: Tensors = TENSORS) -> bool:
    return found.keys() == expected.keys() and all(
        torch.equal(found[key], expected[key]) and found[key].dtype == expected[key].dtype for key in found
    )


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda tensors: tensors,
        lambda tensors: {"state_dict": tensors, "epoch": 7, "optimizer": {"lr": 0.1}},
        lambda tensors: {"generator": tensors, "discriminator": {"c": torch.zeros(1)}},
        lambda tensors: {"model": tensors},
        lambda tensors: {"state_dict": {"generator": tensors}},
        lambda tensors: {**tensors, "version": "1.0", 3: torch.zeros(1)},
        lambda tensors: {f"generator.{key}": tensor for key, tensor in tensors.items()},
        lambda tensors: {key: torch.nn.Parameter(tensor, False) for key, tensor in tensors.items()},
    ],
)
def test_tensors_come_out_as_they_were_published(
    checkpoint: Checkpoint, wrap: Callable[[Tensors], object], zipped: bool
):
    """Both formats of torch are read, and every wrapper that training code adds."""
    published(checkpoint, wrap(TENSORS), _use_new_zipfile_serialization=zipped)
    assert same(read(checkpoint))


def test_tensors_that_share_memory_come_out_separately(checkpoint: Checkpoint):
    """Tied weights, and views of one buffer, are ordinary tensors."""
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": whole, "again": whole, "row": whole[1], "turned": whole.T}
    published(checkpoint, tensors)
    found = read(checkpoint, {key: tuple(one.shape) for key, one in tensors.items()})
    assert same(found, tensors)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_hostile_pickle_is_refused_and_runs_nothing(checkpoint: Checkpoint, tmp_path: Path, zipped: bool):
    """The file is read by torch's reader for untrusted files."""
    trace = tmp_path / "trace"
    published(checkpoint, {**TENSORS, "c": Hostile(trace)}, _use_new_zipfile_serialization=zipped)
    refused(checkpoint, f"{NAME} is damaged, cut short or holds more than tensors")
    assert not trace.exists()
    careless = pickle.dumps(Hostile(trace))
    (checkpoint.folder / NAME).write_bytes(careless)
    refused(checkpoint, "holds more than tensors")
    assert not trace.exists()
    pickle.loads(careless)
    assert trace.exists(), "it would have run"


@pytest.mark.parametrize("cut", [0, 1, 100, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_that_is_cut_short_is_refused(checkpoint: Checkpoint, cut: float, zipped: bool):
    """The download was interrupted."""
    path = published(checkpoint, {"a": torch.rand(1000)}, _use_new_zipfile_serialization=zipped)
    data = path.read_bytes()
    path.write_bytes(data[: int(cut * len(data)) if 0 < cut < 1 else int(cut)])
    refused(checkpoint, f"{NAME} is damaged, cut short or holds more than tensors")


@pytest.mark.parametrize("data", [b"\x80\x02.", b"PK\x03\x04" * 99, b"x" * 999])
def test_a_file_of_another_kind_is_refused(checkpoint: Checkpoint, data: bytes):
    """The files are an empty pickle, the beginning of an archive, and bytes of no format."""
    (checkpoint.folder / NAME).write_bytes(data)
    refused(checkpoint, f"{NAME} is damaged, cut short or holds more than tensors")


@pytest.mark.parametrize(
    "content",
    [
        [1, 2],
        {"a": 1},
        {"state_dict": {}},
        torch.zeros(3),
        {1: torch.zeros(1)},
        {"a": torch.eye(2).to_sparse()},
        {"a": torch.empty(2, device="meta")},
    ],
)
def test_a_pickle_without_tensors_by_name_is_refused(checkpoint: Checkpoint, content: object):
    """The pickles hold lists, configurations, a single tensor, or tensors that are not plain."""
    published(checkpoint, content)
    refused(checkpoint, f"{NAME} holds no tensors by name")


def test_a_few_numbers_described_as_many_are_refused(checkpoint: Checkpoint):
    """A hundred bytes could describe a terabyte of tensors."""
    published(checkpoint, {"a": torch.zeros(1).expand(10**12)})
    refused(checkpoint, f"{NAME} describes 4000000000000 bytes of tensors, far more than it holds")


def test_a_compressed_file_is_refused(checkpoint: Checkpoint):
    """torch never compresses files, and compressed zeros unpack to a thousand times their size."""
    path = published(checkpoint, TENSORS)
    with zipfile.ZipFile(path) as file:
        entries = {one: file.read(one) for one in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in entries.items():
            file.writestr(name, data)
    refused(checkpoint, f"{NAME} is compressed")


def test_a_file_changed_after_it_was_pinned_is_refused_before_it_is_read(checkpoint: Checkpoint):
    """The sha256 of the file shows that it was changed."""
    path = published(checkpoint, TENSORS)
    fields = {"repo": "example/codec", "licence": "none", "files": {NAME: sha256_of_file(path)}}
    weights = PublishedWeights.model_validate(fields)
    source = LocalWeights(checkpoint.folder)
    found = locate(source, profile="x", weights=weights)
    assert same(found.read_tensors(NAME, "", LAYOUT))
    published(checkpoint, {**TENSORS, "b": torch.tensor([1, 2, 4])})
    with pytest.raises(WeightsInvalid, match=f"{NAME} is not the file that example/codec published"):
        locate(source, profile="x", weights=weights)


def test_an_empty_graph_is_refused(checkpoint: Checkpoint):
    """An empty file is a valid protobuf message."""
    (checkpoint.folder / "codec.onnx").write_bytes(b"")
    with pytest.raises(WeightsInvalid, match=r"codec\.onnx holds no tensors by name"):
        checkpoint.read_tensors("codec.onnx", "", LAYOUT)


def test_a_file_that_cannot_be_read_is_named(checkpoint: Checkpoint):
    """The file was removed after it was found and before it was read."""
    with pytest.raises(WeightsInvalid, match=f"{NAME} is damaged or cut short$"):
        read(checkpoint)


def test_a_configuration_as_large_as_weights_is_not_read(checkpoint: Checkpoint):
    """Such a file would be in memory several times."""
    with (checkpoint.folder / "config.json").open("wb") as file:
        file.truncate(2**30)  # takes no room on the disk
    with pytest.raises(WeightsInvalid, match=r"config\.json is larger than any configuration"):
        checkpoint.read_json("config.json")
