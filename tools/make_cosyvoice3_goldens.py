"""Makes tests/data/cosyvoice3_tiny: a tiny checkpoint in CosyVoice3's layout, and its goldens.

Ming-TTS shares half of the checkpoint. Tokens are computed by s3tokenizer, which reads the tiny graph with
its own reader; features, mel and embeddings by vLLM-Omni's functions for the two models, taken from their
files (the package itself needs vLLM); resampling is torchaudio's and scipy's. torchaudio's compiled parts
need CUDA, and the rest of it is plain Python:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 numpy scipy onnx onnxruntime einops tqdm
    reference/bin/pip install pydantic-settings pyyaml huggingface-hub safetensors
    reference/bin/pip install --no-deps s3tokenizer==0.3.0 torchaudio==2.11.0 vllm-omni==0.30.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_cosyvoice3_goldens.py

The versions it ran with are recorded in goldens.npz under `made_with`.
"""

import importlib.util
import sys
from importlib.metadata import distribution
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import s3tokenizer
import torch
import torchaudio
from onnx import helper, numpy_helper
from s3tokenizer import model_v3
from s3tokenizer.model_v2 import FSQCodebook
from s3tokenizer.model_v3 import ModelConfigV3, S3TokenizerV3
from scipy.signal import resample_poly
from torchaudio.compliance import kaldi

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from services.extractor_worker.models.campplus_untrained import CamPlusPlusConfig, untrained_campplus  # noqa: E402
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tests.unit.extractors.campplus_oracle import Oracle  # noqa: E402
from tools.goldens import float64, golden, recorded, replaced, save, some_frames  # noqa: E402

OUT = ROOT / "tests/data/cosyvoice3_tiny"
TOKENIZER, CAMPPLUS = OUT / "speech_tokenizer_v3.onnx", OUT / "campplus.onnx"
SEED = 7
CLIPS = {"1.0": 1.0, "3.0": 3.0, "7.31": 7.31, "12.4": 12.4}
"""Maps each clip's name to its seconds at 24 kHz. 7.31 s is no multiple of any hop."""
RESAMPLED = {"16000": 16_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""
DIGITS = 8
LEVELS = torch.tensor([-1.0, 0.0, 1.0])
"""Each token is eight digits, each rounded to one of these."""
TOKENIZER_CONFIG = ModelConfigV3(n_audio_state=64, n_audio_head=1, n_audio_layer=2)
CAMPPLUS_CONFIG = CamPlusPlusConfig(
    head_channels=8, first_channels=16, growth=8, bottleneck=16, squeezed=8, layers=(2, 3, 2)
)
MEL = {"n_fft": 1920, "num_mels": 80, "sampling_rate": 24_000, "hop_size": 480, "win_size": 1920}
MEL |= {"fmin": 0, "fmax": None}
"""vLLM-Omni's configuration of CosyVoice3."""


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    OUT.mkdir(parents=True, exist_ok=True)
    write_tokenizer()
    CAMPPLUS.write_bytes(untrained_campplus(SEED, CAMPPLUS_CONFIG))
    arrays = goldens()
    print({name: len(np.unique(codes)) for name, codes in arrays.items() if name.startswith("tokens")})
    packages = ("s3tokenizer", "vllm-omni", "torch", "torchaudio", "scipy", "numpy", "onnx", "onnxruntime")
    save(OUT / "goldens.npz", arrays, packages, seed=SEED)


# --- the tokenizer's checkpoint


def write_tokenizer() -> None:
    model = S3TokenizerV3("speech_tokenizer_v3", TOKENIZER_CONFIG).eval()
    randomize(model)
    calibrate(model, signals.speechlike(8.0, 16_000, seed=9))
    onnx.save(as_published(model), TOKENIZER)


@torch.no_grad()
def randomize(model: S3TokenizerV3) -> None:
    """Randomize biases and norms. Their initial values hardly change a result, even if they were not read."""
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            weight.normal_(1.0 if name.endswith("ln.weight") else 0.0, 0.2)
        elif ".query" in name or ".key" in name:
            weight.mul_(3)  # or all places are attended to alike


@torch.no_grad()
def calibrate(model: S3TokenizerV3, clip: np.ndarray) -> None:
    """Spread each digit over its three levels."""
    hidden, _ = model.encoder(*s3tokenizer.padding([s3tokenizer.log_mel_spectrogram(torch.from_numpy(clip))]))
    last = model.quantizer._codebook.project_down
    projected = last(hidden)[0]  # [T, 8]
    scale = 0.8 / projected.std(dim=0)
    last.bias.copy_((last.bias - projected.mean(dim=0)) * scale)
    last.weight.mul_(scale[:, None])


def as_published(model: S3TokenizerV3) -> onnx.ModelProto:
    """Return a graph with the nodes that hold weights, with the names and inputs of torch's exporter."""
    graph = Graph()
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    for name in ("conv1", "conv2"):
        weight, bias = (state[f"encoder.{name}.{kind}"] for kind in ("weight", "bias"))
        graph.node(
            "Conv",
            f"/{name}/Conv",
            ["x", graph.add_tensor(f"onnx::Conv_{name}", weight), graph.add_tensor(f"{name}.bias", bias)],
        )
    for block in range(TOKENIZER_CONFIG.n_audio_layer):
        graph.block(
            f"blocks.{block}", {key: value for key, value in state.items() if f".blocks.{block}." in key}
        )
    last = {kind: state[f"quantizer._codebook.project_down.{kind}"] for kind in ("weight", "bias")}
    graph.linear(
        "quantizer/project_in", last["weight"], graph.add_tensor("quantizer.project_in.bias", last["bias"])
    )
    return graph.model()


class Graph:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def add_tensor(self, name: str, array: np.ndarray) -> str:
        self.tensors.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def add_unnamed(self, operation: str, array: np.ndarray) -> str:
        """Add a tensor under a name like those that exporters invent for tensors that they have changed."""
        return self.add_tensor(f"onnx::{operation}_{1000 + len(self.tensors)}", array)

    def node(self, operation: str, name: str, inputs: list[str]) -> None:
        self.nodes.append(helper.make_node(operation, inputs, [f"{name}_output_0"], name=name))

    def linear(self, name: str, weight: np.ndarray, bias: str | None) -> None:
        self.node("MatMul", f"/{name}/MatMul", ["x", self.add_unnamed("MatMul", weight.T)])
        if bias is not None:
            self.node("Add", f"/{name}/Add", [bias, f"/{name}/MatMul_output_0"])

    def block(self, name: str, state: dict[str, np.ndarray]) -> None:
        state = {key.split(f"{name}.")[1]: value for key, value in state.items()}
        for norm in ("attn_ln", "mlp_ln"):
            place = f"/{name}/{norm}"
            epsilon = numpy_helper.from_array(np.array(1e-5, np.float32))
            self.nodes.append(
                helper.make_node(
                    "Constant", [], [f"{place}/epsilon"], name=f"{place}/Constant", value=epsilon
                )
            )
            self.node("Add", f"{place}/Add", ["x", f"{place}/epsilon"])
            self.node(
                "Mul",
                f"{place}/Mul",
                ["x", self.add_tensor(f"{name}.{norm}.weight", state[f"{norm}.weight"])],
            )
            self.node(
                "Add",
                f"{place}/Add_1",
                [f"{place}/Mul_output_0", self.add_tensor(f"{name}.{norm}.bias", state[f"{norm}.bias"])],
            )
        for part in ("attn.query", "attn.key", "attn.value", "attn.out", "mlp.0", "mlp.2"):
            inner = part.replace("attn.", "attn/").replace("mlp.", "mlp/mlp.")
            bias = state.get(f"{part}.bias")
            self.linear(
                f"{name}/{inner}",
                state[f"{part}.weight"],
                None if bias is None else self.add_unnamed("Add", bias),
            )
        memory = self.add_tensor(f"{name}.attn.fsmn_block.weight", state["attn.fsmn_block.weight"])
        self.node("Conv", f"/{name}/attn/fsmn_block/Conv", ["x", memory])

    def model(self) -> onnx.ModelProto:
        kind = onnx.TensorProto.FLOAT
        inputs = [helper.make_tensor_value_info("x", kind, None)]
        outputs = [helper.make_tensor_value_info(self.nodes[-1].output[0], kind, None)]
        graph = helper.make_graph(self.nodes, "speech_tokenizer", inputs, outputs, self.tensors)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)


# --- the goldens


def goldens() -> dict[str, np.ndarray]:
    cosyvoice, ming = reference_modules()
    model = S3TokenizerV3("speech_tokenizer_v3", TOKENIZER_CONFIG).eval()
    model.init_from_onnx(str(TOKENIZER))
    session = onnxruntime.InferenceSession(str(CAMPPLUS), providers=["CPUExecutionProvider"])
    encoder = exact_encoder()
    speaker = ming.SpkembExtractor(str(CAMPPLUS))
    arrays: dict[str, np.ndarray] = {}
    for name, clip, rate in clips():
        samples, exact = resampled(clip, rate, 24_000), exactly_resampled(clip, rate, 24_000)
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip))
        tokens, certain = certain_tokens(model, samples, exact)
        mel, exact_mel = mels(cosyvoice, samples, exact)
        count = min(len(mel) // 2, len(tokens))
        mel, exact_mel = mel[: 2 * count], exact_mel[: 2 * count]
        arrays[f"tokens_{name}"] = tokens[None, :count].astype(np.uint16)
        arrays[f"tokens_{name}_certain"] = certain[:count]
        arrays |= golden(f"feat_{name}", some_frames(exact_mel), some_frames(mel), np.exp)
        embedding = cosyvoice.extract_spk_embedding((samples, 24_000), session, "cpu")[0].numpy()
        at_16 = exactly_resampled(exact, 24_000, 16_000)
        arrays |= golden(f"embedding_{name}", exact_embedding(encoder, at_16), embedding)
        direct = speaker(torch.from_numpy(resampled(clip, rate, 16_000))[None])[0].numpy()
        exact_direct = exact_embedding(encoder, exactly_resampled(clip, rate, 16_000))
        arrays |= golden(f"ming_{name}", exact_direct, direct)
    return arrays


def clips() -> list[tuple[str, np.ndarray, int]]:
    at_24 = [(name, signals.speechlike(seconds, 24_000), 24_000) for name, seconds in CLIPS.items()]
    return at_24 + [(name, signals.speechlike(3.01, rate), rate) for name, rate in RESAMPLED.items()]


def resampled(clip: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    return torchaudio.transforms.Resample(rate, wanted)(torch.from_numpy(clip)).numpy()


def exactly_resampled(clip: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    kernel = torchaudio.transforms.Resample(rate, wanted, dtype=torch.float64)
    return kernel(torch.from_numpy(clip).double()).numpy()


def mels(cosyvoice: ModuleType, samples: np.ndarray, exact: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the spectrogram [F, 80] in float32 and in float64. The module caches window and bands."""
    computed = cosyvoice.mel_spectrogram(torch.from_numpy(samples)[None], **MEL)[0].T.numpy()
    for cached in (cosyvoice._get_mel_basis, cosyvoice._get_hann_window):
        cached.cache_clear()
    with float64():
        mel = cosyvoice.mel_spectrogram(torch.from_numpy(exact)[None], **MEL)[0].T.numpy()
    for cached in (cosyvoice._get_mel_basis, cosyvoice._get_hann_window):
        cached.cache_clear()
    return computed, mel


def certain_tokens(
    model: S3TokenizerV3, samples: np.ndarray, exact: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return [T] each: the tokens, and 1 where all eight digits are far enough from another level."""
    with recorded(FSQCodebook, "encode", distances) as computed:
        tokens = tokenized(model, samples.astype(np.float32))
    filters, bias = s3tokenizer.utils._mel_filters, model_v3.mask_to_bias
    with (
        recorded(FSQCodebook, "encode", distances) as exactly,
        replaced(s3tokenizer.utils, "_mel_filters", lambda *which: filters(*which).double()),
        replaced(model_v3, "mask_to_bias", lambda mask, _: bias(mask, torch.float32).double()),
        float64(),
    ):
        tokenized(model.double(), exact)
    model.float()
    return tokens, (computed.certain(exactly) == DIGITS).astype(np.uint8)


def distances(book: Any, hidden: torch.Tensor) -> list[torch.Tensor]:
    """Return the distances of each digit from each level: [T, 3] for each digit."""
    digits = book.project_down(hidden[0]).tanh() * 0.9990000128746033  # [T, 8]
    return list((digits.T[..., None] - LEVELS.to(digits.dtype)).abs())


@torch.inference_mode()
def tokenized(model: S3TokenizerV3, samples: np.ndarray) -> np.ndarray:
    """Return the tokens [T], computed in the dtype of the samples."""
    at_16 = resample_poly(samples, 2, 3).astype(samples.dtype)
    mel, lengths = s3tokenizer.padding([s3tokenizer.log_mel_spectrogram(torch.from_numpy(at_16))])
    codes, count = model.quantize(mel, lengths)
    return codes[0, : int(count[0])].numpy()


def exact_encoder() -> Oracle:
    """Return the model with the graph's weights in float64. onnxruntime convolves in float32 only."""
    weights = {
        tensor.name: torch.tensor(numpy_helper.to_array(tensor)).double()
        for tensor in onnx.load(CAMPPLUS).graph.initializer
    }
    return Oracle(weights, CAMPPLUS_CONFIG)


def exact_embedding(encoder: Oracle, samples: np.ndarray) -> np.ndarray:
    """Embed samples at 16 kHz: float64 [192]. These are vLLM-Omni's lines without its rounding to float32."""
    with float64():
        features = kaldi.fbank(
            torch.from_numpy(samples)[None], num_mel_bins=80, dither=0, sample_frequency=16_000
        )
    features = features - features.mean(dim=0, keepdim=True)
    return encoder(features).numpy()


def reference_modules() -> tuple[ModuleType, ModuleType]:
    """Return vLLM-Omni's modules for CosyVoice3 and Ming, which need only one function of their imports."""
    audio = ModuleType("vllm_omni.utils.audio")

    def mel_filter_bank(*, sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float | None) -> torch.Tensor:
        bands = torchaudio.functional.melscale_fbanks(
            n_fft // 2 + 1, fmin, fmax or sr / 2, n_mels, sr, norm="slaney", mel_scale="slaney"
        )
        return bands.T

    audio.mel_filter_bank = mel_filter_bank  # type: ignore[attr-defined]
    for name in ("vllm_omni", "vllm_omni.utils"):
        sys.modules[name] = ModuleType(name)
    sys.modules["vllm_omni.utils.audio"] = audio
    models = Path(str(distribution("vllm-omni").locate_file("vllm_omni/model_executor/models")))
    return loaded(models / "cosyvoice3/utils.py"), loaded(models / "common/ming/spk_embedding.py")


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
