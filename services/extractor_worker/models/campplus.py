"""The speaker encoder CAM++ (arXiv 2303.00332) as TTS models publish it: an ONNX graph, run by onnxruntime.

Several engines publish the model, often as the very same file, so each file is loaded once. The model runs on
the CPU even if the rest of an engine runs on a GPU, as in vLLM-Omni: the kernels of a GPU make other
embeddings. (For CosyVoice3, vLLM-Omni prefers TensorRT where that is installed.)
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from torch import Tensor

from services.extractor_worker.device.libraries import library_versions
from services.extractor_worker.features.kaldi_fbank import FbankSettings, fbank
from services.extractor_worker.models.campplus_untrained import untrained_campplus
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.file_digest import sha256_of_file
from services.extractor_worker.weights.loading import Checkpoint
from services.extractor_worker.weights.onnx_graph import parsed_graph, read_graph, refuse_unfit_weights
from speaker_registry.errors import WeightsInvalid

CAMPPLUS_FILE = "campplus.onnx"
WIDTH = 192
FBANK = FbankSettings()
MIN_FRAMES = 4
"""The fewest feature frames of a clip, 55 ms. The deviation over time is computed from half as many frames
and needs two. TTS servers on a GPU have the same minimum.
"""
MIN_SAMPLES = FBANK.samples_for(MIN_FRAMES)
_THREADS = 1
"""The threads that run one clip, as in TTS servers. Several clips run at once, each on its own thread."""

Features = NDArray[np.float32]
Embedding = NDArray[np.float32]


class CamPlusPlus:
    """A loaded encoder, on the CPU. Several threads may use it at once.

    Args:
        model: the content of the graph's file.
        optimised: let onnxruntime rewrite the graph and choose faster layouts, as TTS servers do.

    Raises:
        WeightsInvalid: the file is not a whole ONNX graph, the graph has another shape, or its weights are
            quantised or not finite.
    """

    def __init__(self, model: bytes, *, optimised: bool = True) -> None:
        graph = parsed_graph(model, CAMPPLUS_FILE).graph
        try:
            # Bytes, not a path: onnxruntime would follow a path to whatever other files the graph names.
            self._session = onnxruntime.InferenceSession(
                model, _options(optimised=optimised), providers=["CPUExecutionProvider"]
            )
            self._input = self._session.get_inputs()[0].name
        except Exception as error:  # onnxruntime's exceptions have no class of their own in common
            raise WeightsInvalid(f"{CAMPPLUS_FILE} is not an ONNX graph that onnxruntime can run") from error
        refuse_unfit_weights(graph, CAMPPLUS_FILE)
        self._check()

    def __call__(self, samples: Tensor) -> Embedding:
        """Embed a clip.

        Args:
            samples: float32 [N] at `FBANK.sample_rate`, N >= `MIN_SAMPLES`.

        Returns:
            float32 [192], not normalised.
        """
        return self.embed(fbank(samples, FBANK).numpy())

    def embed(self, features: Features) -> Embedding:
        """Embed features: float32 [T, 80], T >= `MIN_FRAMES`, to float32 [192], not normalised."""
        outputs = self._session.run(None, {self._input: features[None]})
        return np.asarray(outputs[0], dtype=np.float32).reshape(-1)

    def _check(self) -> None:
        """Run the graph on two lengths, because the shapes that a graph declares may be symbols."""
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if len(inputs) != 1 or len(outputs) != 1:
            raise WeightsInvalid(
                f"{CAMPPLUS_FILE} has {len(inputs)} inputs and {len(outputs)} outputs, one each is expected"
            )
        kind, shape = inputs[0].type, inputs[0].shape
        if (
            kind != "tensor(float)"
            or len(shape) != 3
            or (isinstance(shape[2], int) and shape[2] != FBANK.bands)
        ):
            raise WeightsInvalid(
                f"{CAMPPLUS_FILE} takes {kind} {shape}, tensor(float) [B, T, {FBANK.bands}] is expected"
            )
        for frames in (MIN_FRAMES, 3 * MIN_FRAMES):  # of any length, not only of the one it was traced with
            self._check_embedding(
                np.linspace(-1, 1, frames * FBANK.bands, dtype=np.float32).reshape(frames, -1)
            )

    def _check_embedding(self, features: Features) -> None:
        try:
            embedding = self.embed(features)
        except Exception as error:
            raise WeightsInvalid(
                f"{CAMPPLUS_FILE} does not take features of shape [1, {len(features)}, {FBANK.bands}]"
            ) from error
        if embedding.shape != (WIDTH,):
            raise WeightsInvalid(f"{CAMPPLUS_FILE} gives {embedding.size} values, {WIDTH} are expected")
        if not np.isfinite(embedding).all():
            raise WeightsInvalid(f"{CAMPPLUS_FILE} gives values that are not finite")


def load_campplus(loading: Loading, checkpoint: Checkpoint | None) -> CamPlusPlus:
    """Load the checkpoint's model, once for each file. Without a checkpoint, load one with random weights."""
    optimised = not loading.trusted
    if checkpoint is None:
        seed = loading.seed or 0
        return loading.shared_models.get(
            ("campplus", "untrained", seed),
            lambda: CamPlusPlus(untrained_campplus(seed), optimised=optimised),
        )
    path = checkpoint.folder / CAMPPLUS_FILE
    return loading.shared_models.get(
        ("campplus", sha256_of_file(path)),
        lambda: CamPlusPlus(read_graph(path, CAMPPLUS_FILE), optimised=optimised),
    )


def campplus_inputs() -> Mapping[str, Any]:
    """Return the fingerprint inputs of CAM++ besides its weights."""
    return {
        "fbank": asdict(FBANK),
        "width": WIDTH,
        "normalised": False,
        "libraries": library_versions("onnxruntime"),
    }


def _options(*, optimised: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.inter_op_num_threads = _THREADS, 1
    options.enable_mem_pattern = False  # would keep a plan for every length of clip it ever saw
    options.log_severity_level = 3  # errors only: standard error is for logs
    return options
