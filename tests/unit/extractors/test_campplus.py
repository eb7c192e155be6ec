"""The speaker encoder CAM++ as a graph: unfit graphs, threads, and random weights."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper
from torch import Tensor

from services.extractor_worker.features.kaldi_fbank import FbankSettings, fbank
from services.extractor_worker.models.campplus import MIN_SAMPLES, CamPlusPlus
from services.extractor_worker.models.campplus_untrained import CamPlusPlusConfig, untrained_campplus
from speaker_registry.errors import WeightsInvalid
from tests.unit.extractors.campplus_oracle import Oracle
from tests.unit.extractors.cosyvoice3_tiny import TINY, load_ming
from tests.unit.extractors.parity import HALF_STEP_FLOAT32, assert_near
from tests.unit.extractors.signals import speechlike

SMALL = CamPlusPlusConfig(
    head_channels=4, first_channels=8, growth=4, bottleneck=8, squeezed=4, layers=(2, 1, 1), segment=10
)


def voice(seconds: float, seed: int = 0) -> Tensor:
    return torch.from_numpy(speechlike(seconds, 16_000, seed))


def graph(
    shape: tuple[int | str, ...] = ("B", "T", 80), width: int = 192, value: float = 1.0, kind: int = 1
) -> bytes:
    """The mean over time, times a matrix."""
    weight = numpy_helper.from_array(np.full((shape[-1], width), value, np.float32), "weight")
    nodes = [
        helper.make_node("Cast", ["input"], ["float"], to=onnx.TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "weight"], ["output"]),
    ]
    inputs = [helper.make_tensor_value_info("input", kind, shape)]
    outputs = [helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["B", "width"])]
    model = helper.make_model(
        helper.make_graph(nodes, "small", inputs, outputs, [weight]),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return model.SerializeToString()


def test_a_graph_of_the_right_shape_is_taken() -> None:
    """Each graph of the next test differs from this one in a single respect."""
    assert CamPlusPlus(graph()).embed(np.ones((5, 80), np.float32)).shape == (192,)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (graph(width=512), "gives 512 values, 192 are expected"),
        (graph(shape=("B", "T", 40)), r"takes tensor\(float\) \['B', 'T', 40\]"),
        (graph(shape=("B", 80)), r"tensor\(float\) \[B, T, 80\] is expected"),
        (graph(kind=onnx.TensorProto.DOUBLE), r"takes tensor\(double\)"),
        (graph(shape=(1, 200, 80)), r"does not take features of shape \[1, 4, 80\]"),
        (graph(value=3e38), "gives values that are not finite"),
        (b"no graph", "damaged, cut short or not an ONNX graph"),
    ],
)
def test_a_graph_of_another_shape_is_refused(model: bytes, message: str) -> None:
    """A speaker encoder of another engine, often under the same name."""
    with pytest.raises(WeightsInvalid, match=rf"campplus\.onnx .*{message}"):
        CamPlusPlus(model)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_is_refused_by_file_and_name(value: float) -> None:
    """The features that a graph is tried with may not show such a weight."""
    with pytest.raises(WeightsInvalid, match=r"campplus\.onnx: weight has 15360 of 15360 values that"):
        CamPlusPlus(graph(value=value))


def test_quantised_weights_are_refused_by_file_and_name() -> None:
    """They make other embeddings than the published ones do."""
    model = onnx.load_model_from_string(graph())
    [weight] = model.graph.initializer
    weight.CopyFrom(numpy_helper.from_array(np.ones((80, 192), np.int8), "weight"))
    model.graph.node[-1].input[1] = "numbers"
    model.graph.node.insert(0, helper.make_node("Cast", ["weight"], ["numbers"], to=onnx.TensorProto.FLOAT))
    with pytest.raises(WeightsInvalid, match=r"campplus\.onnx: weight is of type INT8; accepted are FLOAT, "):
        CamPlusPlus(model.SerializeToString())


def test_two_outputs_are_refused() -> None:
    """It cannot be known which of the two outputs is the embedding."""
    model = onnx.load_model_from_string(graph())
    model.graph.output.append(helper.make_tensor_value_info("mean", onnx.TensorProto.FLOAT, ["B", 80]))
    with pytest.raises(WeightsInvalid, match="has 1 inputs and 2 outputs, one each is expected"):
        CamPlusPlus(model.SerializeToString())


def test_a_constant_in_another_file_is_refused() -> None:
    """Tensors may be attributes of a node, too."""
    model = onnx.load_model_from_string(graph())
    constant = numpy_helper.from_array(np.zeros(192, np.float32), "constant")
    onnx.external_data_helper.set_external_data(constant, "outside.bin")
    constant.ClearField("raw_data")
    model.graph.node.append(helper.make_node("Constant", [], ["unused"], value=constant))
    with pytest.raises(WeightsInvalid, match=r"keeps the tensor 'constant' in another file, 'outside\.bin'"):
        CamPlusPlus(model.SerializeToString())


def test_the_cpu_runs_it_whatever_onnxruntime_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU's kernels make other embeddings. vLLM-Omni runs this model on the CPU, too."""
    asked = []

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]  # onnxruntime has no types
        def __init__(self, *model: Any, providers: list[Any]) -> None:
            asked.extend(providers)
            super().__init__(*model, providers=["CPUExecutionProvider"])

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    load_ming(device="cuda:1")
    assert asked == ["CPUExecutionProvider"]


def test_threads_do_not_disturb_each_other() -> None:
    """Clips are prepared several at a time."""
    encoder = CamPlusPlus((TINY / "campplus.onnx").read_bytes())
    clips = [voice(1.0 + seed / 7, seed) for seed in range(8)]
    alone = [encoder(clip) for clip in clips]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(encoder, clips * 3))
    assert all(np.array_equal(one, alone[index % 8]) for index, one in enumerate(together))


def test_the_shortest_clip_has_four_frames() -> None:
    settings = FbankSettings()
    assert MIN_SAMPLES == 880
    assert fbank(voice(1.0)[:880], settings).shape == (4, 80)
    assert fbank(voice(1.0)[:879], settings).shape == (3, 80)


def test_silence_is_the_floor_in_every_band() -> None:
    """An infinity here would make the whole embedding NaN."""
    features = fbank(torch.zeros(1600), FbankSettings(mean_subtracted=False))
    assert torch.allclose(features, torch.tensor(np.log(2.0**-23), dtype=torch.float32))


def test_the_random_one_has_the_published_size() -> None:
    """The published graph has 6.85 million weights and is about as large a file."""
    model = onnx.load_model_from_string(untrained_campplus(0))
    onnx.checker.check_model(model)
    learnt = [one for one in model.graph.initializer if one.name.endswith((".weight", ".bias"))]
    assert sum(int(np.prod(one.dims)) for one in learnt) == 6_848_544
    assert 27e6 < model.ByteSize() < 29e6


@pytest.mark.parametrize("frames", [4, 40, 57, 200])
def test_the_random_one_computes_what_cam_plus_plus_does(frames: int) -> None:
    """Written down a second time, in torch; lengths on both sides of whole segments. It may be a few times as
    far from that in float64 as the same in float32 is.
    """
    model = untrained_campplus(3, SMALL)
    features = torch.from_numpy(np.random.default_rng(0).normal(size=(frames, 80)).astype(np.float32))
    weights = {
        one.name: torch.tensor(numpy_helper.to_array(one))
        for one in onnx.load_model_from_string(model).graph.initializer
    }
    exact = Oracle({name: one.double() for name, one in weights.items()}, SMALL)(features.double())
    deviation = float((Oracle(weights, SMALL)(features) - exact).abs().max())
    ours = CamPlusPlus(model).embed(features.numpy()).astype(np.float64)
    assert_near(ours, exact.numpy(), deviation, HALF_STEP_FLOAT32)


def test_another_seed_is_another_encoder() -> None:
    assert untrained_campplus(1, SMALL) != untrained_campplus(0, SMALL) == untrained_campplus(0, SMALL)
