"""Reads ONNX graphs whose tensors are all in one file. This module knows no model and does not run graphs.

A graph may keep its tensors in other files. Those would be missing from checksums and fingerprints, and would
be opened relative to the process's working directory. So they are never opened, and such a graph is refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from speaker_registry.errors import WeightsInvalid

_MAX_BYTES = 2**31 - 1
"""The largest size of a protobuf message in bytes."""
_WEIGHT_TYPES = {onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
_INTEGER_TYPES = {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL}
"""Types of the values that exporters store besides weights: shapes, axes, switches."""


def read_graph(path: Path, name: str) -> bytes:
    """Return the bytes of a graph's file.

    Args:
        name: the name of the file, for messages.

    Raises:
        WeightsInvalid: the file is too large for a graph.
    """
    if (size := path.stat().st_size) > _MAX_BYTES:
        raise WeightsInvalid(f"{name} has {size} bytes, an ONNX graph has at most {_MAX_BYTES}")
    return path.read_bytes()


def parsed_graph(data: bytes, name: str) -> onnx.ModelProto:
    """Parse an ONNX graph. Raises WeightsInvalid if the data are no graph, or it keeps tensors elsewhere."""
    try:
        model = onnx.load_model_from_string(data)
    except Exception as error:  # a damaged file can raise anything
        raise WeightsInvalid(f"{name} is damaged, cut short or not an ONNX graph") from error
    for tensor in _tensors(model):
        if onnx.external_data_helper.uses_external_data(tensor):
            where = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
            raise WeightsInvalid(
                f"{name} keeps the tensor {tensor.name[:80]!a} in another file, {where[:80]!a}: a graph with "
                "all its tensors in it is expected"
            )
    return model


def refuse_unfit_weights(graph: onnx.GraphProto, name: str) -> None:
    """Check the graph's initialisers.

    Raises:
        WeightsInvalid: an initialiser is of a type that weights are not published in, such as the integers of
            a quantised graph, or has a value that is not finite. The message names the file and the
            initialiser.
    """
    for tensor in graph.initializer:
        if tensor.data_type in _INTEGER_TYPES:
            continue
        if tensor.data_type not in _WEIGHT_TYPES:
            kind = onnx.TensorProto.DataType.Name(tensor.data_type)
            raise WeightsInvalid(
                f"{name}: {tensor.name[:80]} is of type {kind}; accepted are FLOAT, FLOAT16, BFLOAT16"
            )
        values = numpy_helper.to_array(tensor).astype(np.float32)
        if wrong := values.size - int(np.isfinite(values).sum()):
            raise WeightsInvalid(
                f"{name}: {tensor.name[:80]} has {wrong} of {values.size} values that are not finite"
            )


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Yield all tensors of a graph: initialisers, attributes of nodes, and those of inner graphs."""
    if isinstance(message, onnx.TensorProto):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for part in [value] if hasattr(value, "ListFields") else value:
                yield from _tensors(part)
