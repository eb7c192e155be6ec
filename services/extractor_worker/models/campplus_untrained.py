"""CAM++'s architecture at its published size as an ONNX graph with random weights. This module knows no
files, no audio.

CAM++ is published only as a graph, so a graph has to be built for untrained weights. The sizes are those of
the paper (arXiv 2303.00332) and of 3D-Speaker: a small convolutional head over frequency and time, then a
time delay network of three densely connected blocks, in which each layer is gated by the context of its
segment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from services.extractor_worker.weights.untrained import random_tensors

_OPSET, _IR_VERSION = 17, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CamPlusPlusConfig:
    """The sizes of the network. The defaults are the published ones and give 6.85 million weights."""

    bands: int = 80
    width: int = 192
    head_channels: int = 32
    first_channels: int = 128
    growth: int = 32
    bottleneck: int = 128
    squeezed: int = 64
    layers: tuple[int, ...] = (12, 24, 16)
    dilations: tuple[int, ...] = (1, 2, 2)
    segment: int = 100
    """The number of frames that share one context."""


def untrained_campplus(seed: int, config: CamPlusPlusConfig | None = None) -> bytes:
    """Build the serialised graph: `input` float32 [B, T, bands] -> `output` float32 [B, width]."""
    config = config or CamPlusPlusConfig()
    graph = _Graph(seed)
    hidden = graph.add("Transpose", "input", perm=[0, 2, 1])  # [B, bands, T]
    hidden = _head(graph, graph.add("Unsqueeze", hidden, graph.numbers([1])), config)
    _dense(graph, _blocks(graph, hidden, config), config)
    return graph.serialized(config)


class _Graph:
    """The graph under construction. Each node is named after its output."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._nodes: list[onnx.NodeProto] = []
        self._tensors: dict[str, onnx.TensorProto] = {}

    def add(self, operation: str, *inputs: str, output: str | None = None, **attributes: Any) -> str:
        output = output or f"{operation.lower()}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(operation, inputs, [output], name=output, **attributes))
        return output

    def weight(self, name: str, shape: Sequence[int]) -> str:
        """Add a random weight. Its name determines the values, as in `random_tensors`."""
        return self._add_tensor(name, random_tensors({name: tuple(shape)}, self._seed)[name].numpy())

    def numbers(self, values: Sequence[int]) -> str:
        """Add constant integers, for example a shape or axes."""
        return self._add_tensor("numbers_" + "_".join(map(str, values)), np.array(values, np.int64))

    def _add_tensor(self, name: str, array: NDArray[Any]) -> str:
        self._tensors[name] = numpy_helper.from_array(array, name)
        return name

    def convolution(
        self,
        hidden: str,
        name: str,
        shape: Sequence[int],
        *,
        bias: bool = False,
        dilation: int = 1,
        **stride: Any,
    ) -> str:
        """Add a convolution with a weight of this shape. Padding keeps the length if the stride is 1."""
        kernel = list(shape[2:])
        pads = [dilation * (size // 2) for size in kernel]
        inputs = [hidden, self.weight(f"{name}.conv.weight", shape)]
        if bias:
            inputs.append(self.weight(f"{name}.conv.bias", shape[:1]))
        dilations = [dilation] * len(kernel)
        return self.add("Conv", *inputs, kernel_shape=kernel, pads=pads * 2, dilations=dilations, **stride)

    def normalised(self, hidden: str, name: str, channels: int) -> str:
        """Add a batch norm with the statistics that it has before training: mean 0 and variance 1."""
        learnt = [
            self.weight(f"{name}.norm.weight", [channels]),
            self.weight(f"{name}.norm.bias", [channels]),
        ]
        mean = self._add_tensor(f"{name}.norm.mean", np.zeros(channels, np.float32))
        variance = self._add_tensor(f"{name}.norm.variance", np.ones(channels, np.float32))
        return self.add("BatchNormalization", hidden, *learnt, mean, variance)

    def activated(self, hidden: str, name: str, channels: int) -> str:
        return self.add("Relu", self.normalised(hidden, name, channels))

    def serialized(self, config: CamPlusPlusConfig) -> bytes:
        kind = onnx.TensorProto.FLOAT
        graph = helper.make_graph(
            self._nodes,
            "campplus",
            [helper.make_tensor_value_info("input", kind, ["B", "T", config.bands])],
            [helper.make_tensor_value_info("output", kind, ["B", config.width])],
            list(self._tensors.values()),
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", _OPSET)])
        model.ir_version = _IR_VERSION
        return model.SerializeToString()  # type: ignore[no-any-return]


def _head(graph: _Graph, image: str, config: CamPlusPlusConfig) -> str:
    """Add the convolutional head: [B, 1, bands, T] -> [B, head_channels * bands / 8, T]."""
    channels = config.head_channels
    hidden = graph.convolution(image, "head.first", [channels, 1, 3, 3])
    hidden = graph.activated(hidden, "head.first", channels)
    for index, stride in enumerate((2, 1, 2, 1)):
        hidden = _residual(graph, hidden, f"head.{index}", channels, stride)
    hidden = graph.convolution(hidden, "head.last", [channels, channels, 3, 3], strides=[2, 1])
    hidden = graph.activated(hidden, "head.last", channels)
    return graph.add("Reshape", hidden, graph.numbers([0, channels * (config.bands // 8), -1]))


def _residual(graph: _Graph, hidden: str, name: str, channels: int, stride: int) -> str:
    """Add two convolutions beside a shortcut. `stride` is that over frequency."""
    square = [channels, channels, 3, 3]
    inner = graph.convolution(hidden, f"{name}.a", square, strides=[stride, 1])
    inner = graph.activated(inner, f"{name}.a", channels)
    inner = graph.normalised(graph.convolution(inner, f"{name}.b", square), f"{name}.b", channels)
    if stride > 1:
        short = graph.convolution(hidden, f"{name}.short", [channels, channels, 1, 1], strides=[stride, 1])
        hidden = graph.normalised(short, f"{name}.short", channels)
    return graph.add("Relu", graph.add("Add", inner, hidden))


def _blocks(graph: _Graph, hidden: str, config: CamPlusPlusConfig) -> str:
    """Add the densely connected blocks: [B, C, T] -> [B, C', T / 2]. Each layer adds channels, and each block
    halves their number at its end.
    """
    channels = config.first_channels
    width_in = config.head_channels * (config.bands // 8)
    hidden = graph.convolution(hidden, "tdnn", [channels, width_in, 5], strides=[2])
    hidden = graph.activated(hidden, "tdnn", channels)
    for block, (layers, dilation) in enumerate(zip(config.layers, config.dilations, strict=True)):
        for layer in range(layers):
            name = f"block{block}.{layer}"
            hidden = graph.add(
                "Concat",
                hidden,
                _layer(graph, hidden, name, channels=channels, dilation=dilation, config=config),
                axis=1,
            )
            channels += config.growth
        hidden = graph.activated(hidden, f"transit{block}", channels)
        hidden = graph.convolution(hidden, f"transit{block}", [channels // 2, channels, 1])
        channels //= 2
    return graph.activated(hidden, "out", channels)


def _layer(
    graph: _Graph, hidden: str, name: str, *, channels: int, dilation: int, config: CamPlusPlusConfig
) -> str:
    """Add one layer and return its output, [B, growth, T], which is concatenated to its input."""
    narrow = config.bottleneck
    hidden = graph.activated(hidden, f"{name}.in", channels)
    hidden = graph.convolution(hidden, f"{name}.in", [narrow, channels, 1])
    hidden = graph.activated(hidden, f"{name}.narrow", narrow)
    local = graph.convolution(hidden, f"{name}.local", [config.growth, narrow, 3], dilation=dilation)
    gate = graph.convolution(
        _context(graph, hidden, config), f"{name}.squeeze", [config.squeezed, narrow, 1], bias=True
    )
    gate = graph.convolution(
        graph.add("Relu", gate), f"{name}.gate", [config.growth, config.squeezed, 1], bias=True
    )
    return graph.add("Mul", local, graph.add("Sigmoid", gate))


def _context(graph: _Graph, hidden: str, config: CamPlusPlusConfig) -> str:
    """Add, for every frame, the mean of the clip and the mean of its segment: [B, C, T] -> [B, C, T]."""
    size = [config.segment]
    means = graph.add("AveragePool", hidden, kernel_shape=size, strides=size, ceil_mode=1)  # [B, C, S]
    repeated = graph.add("Unsqueeze", means, graph.numbers([3]))
    repeated = graph.add("Expand", repeated, graph.numbers([1, 1, 1, config.segment]))
    repeated = graph.add("Reshape", repeated, graph.numbers([0, 0, -1]))  # [B, C, S * segment]
    frames = graph.add("Shape", hidden, start=2, end=3)
    repeated = graph.add("Slice", repeated, graph.numbers([0]), frames, graph.numbers([2]))
    return graph.add("Add", graph.add("ReduceMean", hidden, axes=[2], keepdims=1), repeated)


def _dense(graph: _Graph, hidden: str, config: CamPlusPlusConfig) -> None:
    """Project the mean and the unbiased deviation over time: [B, C, T] -> [B, width]."""
    channels = config.first_channels
    for layers in config.layers:
        channels = (channels + layers * config.growth) // 2
    mean = graph.add("ReduceMean", hidden, axes=[2], keepdims=1)
    squares = graph.add("ReduceSumSquare", graph.add("Sub", hidden, mean), axes=[2], keepdims=1)
    frames = graph.add("Cast", graph.add("Shape", hidden, start=2, end=3), to=onnx.TensorProto.INT64)
    others = graph.add("Cast", graph.add("Sub", frames, graph.numbers([1])), to=onnx.TensorProto.FLOAT)
    deviation = graph.add("Sqrt", graph.add("Div", squares, others))
    statistics = graph.add("Concat", mean, deviation, axis=1)  # [B, 2 * C, 1]
    embedding = graph.convolution(statistics, "dense", [config.width, 2 * channels, 1])
    graph.add("Squeeze", embedding, graph.numbers([2]), output="output")
