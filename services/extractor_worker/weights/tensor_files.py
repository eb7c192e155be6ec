"""Reads the tensors of a published pickle or ONNX graph.

A pickle is read by torch's reader for untrusted files, which builds tensors and runs no code. Tensors that
are larger than the file justifies are refused. Of a graph, only the tensors are read. So a hostile file can
contain wrong weights and nothing worse. This module knows no model.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from speaker_registry.errors import WeightsInvalid

ONNX = ".onnx"
_WRAPPER_KEYS = ("state_dict", "generator", "model")
"""Keys under which training code saves its tensors."""
_GENERATOR_PREFIX = "generator."
"""The prefix that training code with a discriminator gives to the keys of the published part."""
_MAX_GROWTH = 4
"""Maximum size of all tensors as a multiple of the file's, to which a megabyte is added. They can be larger
than the file, because tensors that share memory are counted separately.
"""


def tensors_of(path: Path, name: str) -> dict[str, Tensor]:
    """Return the tensors of a pickle or an ONNX graph, by name and on the CPU.

    Args:
        name: the name of the file, for messages.

    Raises:
        WeightsInvalid: the file is no pickle of tensors by name, or no ONNX graph that contains its tensors.
    """
    tensors = _initialisers(path, name) if path.suffix == ONNX else _unpickle(path, name)
    if not tensors:
        raise WeightsInvalid(f"{name} holds no tensors by name")
    return {key: tensor.detach().contiguous() for key, tensor in tensors.items()}


def _unpickle(path: Path, name: str) -> dict[str, Tensor]:
    _refuse_compressed(path, name)
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        raise WeightsInvalid(f"{name} is damaged, cut short or holds more than tensors") from error
    tensors = _tensors_by_name(content)
    size, allowed = sum(map(_size, tensors.values())), _MAX_GROWTH * path.stat().st_size + 2**20
    if size > allowed:
        raise WeightsInvalid(f"{name} describes {size} bytes of tensors, far more than it holds")
    return tensors


def _refuse_compressed(path: Path, name: str) -> None:
    """Refuse compressed files, which could unpack to any size. torch stores tensors uncompressed."""
    try:
        with zipfile.ZipFile(path) as file:
            compressed = any(entry.compress_type != zipfile.ZIP_STORED for entry in file.infolist())
    except zipfile.BadZipFile:  # torch's older format is no zip file, and torch refuses damaged files itself
        return
    if compressed:
        raise WeightsInvalid(f"{name} is compressed, which torch's own files are not")


def _tensors_by_name(content: Any) -> dict[str, Tensor]:
    for wrapper in _WRAPPER_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    found = content.items() if isinstance(content, Mapping) else ()
    tensors = {key: value for key, value in found if isinstance(key, str) and _is_plain(value)}
    of_generator = {key: tensor for key, tensor in tensors.items() if key.startswith(_GENERATOR_PREFIX)}
    return {key.removeprefix(_GENERATOR_PREFIX): tensor for key, tensor in of_generator.items()} or tensors


def _is_plain(value: Any) -> bool:
    """Return whether a value is a tensor that holds a number for each of its elements."""
    return isinstance(value, Tensor) and value.layout is torch.strided and not value.is_meta


def _size(tensor: Tensor) -> int:
    """Return the bytes of a tensor that shares no memory. A few stored numbers can describe a tensor of any
    size.
    """
    return tensor.numel() * tensor.element_size()


def _initialisers(path: Path, name: str) -> dict[str, Tensor]:
    """Return the tensor for each use of an initialiser, by `<node>:<index among its inputs>:<initialiser>`.

    Exporters invent names for initialisers that they transpose, but a node keeps the name of its module.
    """
    from onnx import numpy_helper  # noqa: PLC0415 — few profiles need it

    from services.extractor_worker.weights.onnx_graph import parsed_graph, read_graph  # noqa: PLC0415

    graph = parsed_graph(read_graph(path, name), name).graph
    try:
        arrays = {one.name: numpy_helper.to_array(one) for one in graph.initializer}
    except Exception as error:  # a damaged file can raise anything
        raise WeightsInvalid(f"{name} has tensors that cannot be read") from error
    uses = [(node.name, index, used) for node in graph.node for index, used in enumerate(node.input)]
    if unused := arrays.keys() - {used for _, _, used in uses}:
        raise WeightsInvalid(f"{name} has {min(unused)}, which none of its nodes uses")
    return {
        f"{node}:{index}:{used}": torch.tensor(arrays[used], device="cpu")
        for node, index, used in uses
        if used in arrays
    }
