"""Converts a published pickle or ONNX graph to a safetensors file, which is kept, and checked before each
use.

A pickle is read by torch's reader for untrusted files, which builds tensors and runs no code. Tensors that
are larger than the file justifies are refused. Of a graph, only the tensors are read. So a hostile file can
contain wrong weights and nothing worse. This module knows no model.
"""

import tempfile
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from services.extractor_worker.weights.file_digest import sha256_of_file
from speaker_registry.errors import WeightsInvalid

ONNX = ".onnx"
_CONVERSION_VERSION = 1
"""The version of the conversion. It must grow with each change, so that older results are not used."""
_WRAPPER_KEYS = ("state_dict", "generator", "model")
"""Keys under which training code saves its tensors."""
_GENERATOR_PREFIX = "generator."
"""The prefix that training code with a discriminator gives to the keys of the published part."""
_MAX_GROWTH = 4
"""Maximum size of a converted file as a multiple of the original's, to which a megabyte is added. A converted
file can be larger, because tensors that share memory are stored separately.
"""


def converted(path: Path, name: str, sha256: str, cache: Path) -> Path:
    """Return a safetensors file with the tensors of a file, which is converted on first use.

    Several processes may convert the same file at once. Each writes a complete result, and one of the results
    remains.

    Args:
        name: the name of the file, for messages.
        sha256: the SHA-256 of its content, which is part of the result's name.
        cache: the folder for the results. It is created if it does not exist.

    Raises:
        WeightsInvalid: the file is no pickle of tensors by name, or no ONNX graph that contains its tensors;
            or the cache cannot be written.
    """
    stem = f"{sha256}{path.suffix}.{_CONVERSION_VERSION}"
    if kept := _earlier_result(cache, stem):
        return kept
    tensors = _initialisers(path, name) if path.suffix == ONNX else _unpickle(path, name)
    if not tensors:
        raise WeightsInvalid(f"{name} holds no tensors by name")
    try:
        return _store(tensors, cache, stem)
    except (OSError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else "the disk may be full"
        raise WeightsInvalid(
            f"the tensors of {name} cannot be stored as safetensors: the folder that "
            f"SPEAKER_EXTRACTOR_CACHE names cannot be written ({reason})"
        ) from error
    except (ValueError, RuntimeError) as error:
        raise WeightsInvalid(f"{name} holds tensors that a safetensors file cannot hold") from error


def _earlier_result(cache: Path, stem: str) -> Path | None:
    """Return an earlier result whose content still has the SHA-256 in its name, or None.

    Artifacts name the published file as their source, so they must be made with exactly its weights. A result
    that a crash or the disk has damaged is not used, and the file is converted again.
    """
    for path in cache.glob(f"{stem}.*.safetensors"):
        with suppress(OSError):
            if path.name == f"{stem}.{sha256_of_file(path)}.safetensors":
                return path
    return None


def _store(tensors: Mapping[str, Tensor], cache: Path, stem: str) -> Path:
    """Store tensors in the cache, under a name that contains the SHA-256 of the file."""
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        part = Path(folder) / "part"
        # The tensors are cloned, because safetensors refuses tensors that share memory.
        save_file({key: tensor.detach().clone().contiguous() for key, tensor in tensors.items()}, part)
        return part.replace(cache / f"{stem}.{sha256_of_file(part)}.safetensors")


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
    tensors = {key: value for key, value in found if isinstance(key, str) and isinstance(value, Tensor)}
    of_generator = {key: tensor for key, tensor in tensors.items() if key.startswith(_GENERATOR_PREFIX)}
    return {key.removeprefix(_GENERATOR_PREFIX): tensor for key, tensor in of_generator.items()} or tensors


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
        f"{node}:{index}:{used}": torch.tensor(arrays[used]) for node, index, used in uses if used in arrays
    }
