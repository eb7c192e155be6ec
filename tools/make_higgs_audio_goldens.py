"""Makes tests/data/higgs_audio_tiny: a tiny checkpoint in the published layout of Higgs Audio's tokenizer,
and its goldens for OmniVoice, Higgs-Audio v2 and v3.

Only the clips are ours. The weights and codes are made by transformers' class the way vLLM-Omni 0.30 uses it
(torchaudio's functional resampling, then `encode`, nothing else), and by the omnivoice package, which
prepares clips first. The delayed codes of Higgs-Audio v3 are made by vLLM-Omni's own functions. torchaudio's
compiled parts need CUDA; the rest of it is plain Python:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 transformers==5.14.1 numpy soundfile librosa pydub
    reference/bin/pip install --no-deps omnivoice==0.2.1 torchaudio==2.11.0 vllm-omni==0.30.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_higgs_audio_goldens.py

The versions it ran with are recorded in goldens.npz under `made_with`.
"""

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from math import gcd
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torchaudio
import torchaudio.functional.functional as kernels
from omnivoice.models.omnivoice import OmniVoice
from omnivoice.utils.audio import remove_silence
from safetensors.torch import load_file, save_file
from transformers import HiggsAudioV2TokenizerConfig, HiggsAudioV2TokenizerModel, logging
from transformers.models.higgs_audio_v2_tokenizer import modeling_higgs_audio_v2_tokenizer as modeling

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import pauses, signals  # noqa: E402 — a script has no package to be imported from
from tools.goldens import float64, golden, package, recorded, replaced, save  # noqa: E402

OUT = ROOT / "tests/data/higgs_audio_tiny"
TOKENIZER = OUT / "audio_tokenizer"
SEED = 12
CLIPS = {"1.0": 1.0, "3.0": 3.0, "7.31": 7.31, "12.4": 12.4}
"""Maps each clip's name to its seconds at 24 kHz. 7.31 s is no multiple of a frame."""
RESAMPLED = {"16000": 16_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""
DELAYED = {"7.31": (7.31, 24_000), "44100": (3.01, 44_100)}
"""Maps the names of clips whose delayed codes for v3 are kept as well to their seconds and sample rates."""
RATE_PAIRS = ((16_000, 24_000), (22_050, 24_000), (44_100, 24_000), (48_000, 24_000), (24_000, 16_000))
AS_THE_PACKAGE = {
    "quiet": ("pauses", 0.2),
    "loud": ("quiet ends", 1.0),
    "even": ("no pause", 1.0),
    "loudest": ("pauses", 4.0),
}
"""Maps the name of each clip that the omnivoice package prepares to its plan and gain."""
DECODER = ("acoustic_decoder.", "decoder_semantic.", "fc1.")
"""Tensors left out of the file to keep it small. Of the decoder only fc2 stays, which loaders must ignore."""

CONFIG: dict[str, Any] = {
    "acoustic_model_config": {
        "model_type": "dac",
        "encoder_hidden_size": 2,
        "decoder_hidden_size": 32,
        "hidden_size": 16,
        "downsampling_ratios": [8, 5, 4, 2, 3],
        "upsampling_ratios": [8, 5, 4, 2, 3],
    },
    "semantic_model_config": {
        "model_type": "hubert",
        "mask_time_prob": 0.0,
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "conv_dim": [8] * 7,
        "num_conv_pos_embeddings": 16,
        "num_conv_pos_embedding_groups": 2,
    },
    "target_bandwidths": [0.15, 1.2],
    "sample_rate": 24_000,
    "codebook_size": 64,
    "codebook_dim": 8,
}


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    logging.set_verbosity_error()  # or it lists the decoder, which is not there, key by key
    write_checkpoint()
    tokenizer = HiggsAudioV2TokenizerModel.from_pretrained(TOKENIZER).eval()
    arrays = {**clip_goldens(tokenizer), **resampled_goldens(tokenizer), **package_goldens(tokenizer)}
    arrays |= {**delayed_goldens(tokenizer), **resampler_goldens(), **silence_goldens()}
    codes = {name: array for name, array in arrays.items() if array.ndim == 2 and array.dtype == np.uint8}
    print({name: (array.shape, [len(np.unique(book)) for book in array]) for name, array in codes.items()})
    packages = ("omnivoice", "pydub", "transformers", "torch", "torchaudio", "numpy", "safetensors")
    save(OUT / "goldens.npz", arrays, (*packages, "vllm-omni"), seed=SEED)


# --- the checkpoint


def write_checkpoint() -> None:
    model = HiggsAudioV2TokenizerModel(HiggsAudioV2TokenizerConfig(**CONFIG)).eval()
    scale_weights_up(model)
    calibrate(model, signals.speechlike(8.0, 24_000, seed=9))
    TOKENIZER.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(TOKENIZER)
    whole = load_file(TOKENIZER / "model.safetensors")
    tensors = {key: value for key, value in whole.items() if not key.startswith(DECODER)}
    save_file(tensors, TOKENIZER / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def scale_weights_up(model: Any) -> None:
    """Scale weights up.

    As initialised, the acoustic encoder is nearly silent, and HuBERT's layers add almost nothing.
    """
    for name, weight in model.acoustic_encoder.named_parameters():
        if name.endswith("alpha"):
            weight.uniform_(0.5, 2.0)
        elif name.endswith("weight"):
            weight.mul_(0.9 / weight.norm(dim=(1, 2), keepdim=True).mean())
        else:
            weight.uniform_(-0.1, 0.1)
    for name, weight in model.semantic_model.encoder.layers.named_parameters():
        if name.endswith("weight") and "norm" not in name:
            weight.normal_(std=1.5 / weight.shape[1] ** 0.5)


@torch.no_grad()
def calibrate(model: Any, clip: np.ndarray) -> None:
    """Spread each codebook over its residual, so that no single entry is the nearest everywhere."""
    samples = torch.from_numpy(clip)[None, None]
    semantic = model.encoder_semantic(model._extract_semantic_features(samples).transpose(1, 2))
    acoustic = model.acoustic_encoder(torch.nn.functional.pad(samples, (model.pad, model.pad)))
    acoustic = acoustic[..., : semantic.shape[-1]]
    last = model.acoustic_encoder.conv2
    last.weight.mul_(semantic.std() / acoustic.std())
    acoustic = model.acoustic_encoder(torch.nn.functional.pad(samples, (model.pad, model.pad)))
    both = torch.cat([acoustic[..., : semantic.shape[-1]], semantic], dim=1).transpose(1, 2)
    model.fc.weight.normal_(std=model.fc.in_features**-0.5)
    residual = model.fc(both).transpose(1, 2)  # [1, D, T]
    for quantizer in model.quantizer.quantizers:
        for projection in (quantizer.project_in, quantizer.project_out):
            projection.weight.normal_(std=projection.in_features**-0.5)
        rows = quantizer.project_in(residual.transpose(1, 2))[0]  # [T, C]
        book = quantizer.codebook
        book.embed.copy_(rows.mean(0) + rows.std(0) * torch.randn_like(book.embed))
        book.embed_avg.copy_(book.embed)
        book.cluster_size.fill_(1.0)
        residual = residual - quantizer.decode(quantizer.encode(residual))


# --- the goldens


def clip_goldens(tokenizer: Any) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, seconds in CLIPS.items():
        clip = torch.from_numpy(signals.speechlike(seconds, 24_000))
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip.numpy()))
        arrays |= golden_codes(tokenizer, f"codes_{name}", partial(server_codes, clip, 24_000))
    return arrays


def resampled_goldens(tokenizer: Any) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, rate in RESAMPLED.items():
        source = torch.from_numpy(signals.speechlike(3.01, rate))
        arrays[f"sha256_{name}"] = np.array(signals.digest(source.numpy()))
        arrays |= golden_codes(tokenizer, f"codes_{name}", partial(server_codes, source, rate))
    return arrays


def golden_codes(tokenizer: Any, name: str, compute: Callable[[Any], torch.Tensor]) -> dict[str, np.ndarray]:
    """Return the codes, uint8 [8, T], and the number of certain codes of each frame.

    `compute` takes the tokenizer and returns codes, computed in the tokenizer's dtype.
    """
    book = modeling.HiggsAudioV2TokenizerEuclideanCodebook
    with torch.inference_mode(), recorded(book, "quantize", distances) as computed:
        found = compute(tokenizer)
    with (
        torch.no_grad(),
        recorded(book, "quantize", distances) as exact,
        replaced(torchaudio.functional, "resample", resampled_exactly),
        float64(),
    ):
        compute(tokenizer.double())
    tokenizer.float()
    return {name: found.numpy().astype(np.uint8), f"{name}_certain": computed.certain(exact)}


def distances(book: Any, hidden_states: torch.Tensor) -> list[torch.Tensor]:
    """Return squared distances by transformers' own formula."""
    squares = hidden_states.pow(2).sum(1, keepdim=True) + book.embed.pow(2).sum(1)
    return [squares - 2 * hidden_states @ book.embed.t()]


def resampled_exactly(samples: torch.Tensor, source: int, target: int) -> torch.Tensor:
    """Resample in float64 by the kernel that torchaudio builds in float32.

    A kernel with other weights would be another filter.
    """
    divisor = gcd(source, target)
    kernel, width = kernels._get_sinc_resample_kernel(source, target, divisor, dtype=torch.float32)
    return kernels._apply_sinc_resample_kernel(
        samples.double(), source, target, divisor, kernel.double(), width
    )


def server_codes(clip: torch.Tensor, rate: int, tokenizer: Any) -> torch.Tensor:
    """Return the codes of vLLM-Omni's two pipelines: [8, T]."""
    samples = clip.to(tokenizer.dtype)[None]
    if rate != 24_000:
        samples = torchaudio.functional.resample(samples, rate, 24_000)
    return tokenizer.encode(samples[None], return_dict=False)[0]


def delayed_goldens(tokenizer: Any) -> dict[str, np.ndarray]:
    """Return what vLLM-Omni puts into a prompt of Higgs-Audio v3 for a clip: uint16 [T + 7, 8]."""
    server = vllm_omni_higgs_audio_v3(tokenizer)
    arrays: dict[str, np.ndarray] = {}
    for name, (seconds, rate) in DELAYED.items():
        codes = server.encode_reference_audio(signals.speechlike(seconds, rate), rate)
        arrays[f"delayed_{name}"] = server.apply_delay_pattern(codes).numpy().astype(np.uint16)
    return arrays


def vllm_omni_higgs_audio_v3(tokenizer: Any) -> Any:
    """Return vLLM-Omni's module, which encodes clips with this tokenizer.

    The packages around it would import vLLM, so empty ones replace them.
    """
    models = "vllm_omni.model_executor.models"
    v2, v3 = f"{models}.higgs_audio_v2", f"{models}.higgs_audio_v3"
    for name in ("vllm_omni", "vllm_omni.platforms", "vllm_omni.model_executor", models, v2, v3):
        package(name)
    sys.modules["vllm_omni.platforms"].current_omni_platform = None  # type: ignore[attr-defined]
    import_module(f"{v2}.higgs_audio_v2_tokenizer")._ENCODER_CACHE = tokenizer  # type: ignore[attr-defined]
    return import_module(f"{v3}.higgs_audio_v3_tokenizer")


def package_goldens(tokenizer: Any) -> dict[str, np.ndarray]:
    """Return the omnivoice package's codes of each clip, with silence removed and without."""
    arrays: dict[str, np.ndarray] = {}
    for name, (plan, gain) in AS_THE_PACKAGE.items():
        clip = pauses.paused(plan, gain)
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip))
        for label, trimmed in (("trimmed", True), ("untrimmed", False)):
            compute = partial(package_codes, torch.from_numpy(clip), trimmed)
            arrays |= golden_codes(tokenizer, f"package_{label}_{name}", compute)
    return arrays


def package_codes(clip: torch.Tensor, trimmed: bool, tokenizer: Any) -> torch.Tensor:
    """Return the codes: [8, T].

    Clips are prepared in float32, because removing silence rounds to 16 bits anyway.
    """
    encoder = SimpleNamespace(
        device="cpu",
        dtype=tokenizer.dtype,
        config=tokenizer.config,
        encode=lambda samples, **options: tokenizer.encode(samples.to(tokenizer.dtype), **options),
    )
    holder = SimpleNamespace(audio_tokenizer=encoder, sampling_rate=24_000)
    prompt = OmniVoice.create_voice_clone_prompt(
        holder, (clip, 24_000), "A transcript.", preprocess_prompt=trimmed
    )
    return prompt.ref_audio_tokens


def silence_goldens() -> dict[str, np.ndarray]:
    """Return the number of samples that pydub keeps of each clip, and their sha256."""
    arrays: dict[str, np.ndarray] = {}
    for plan in pauses.PLANS:
        left = remove_silence(pauses.paused(plan)[None], 24_000, mid_sil=200, lead_sil=100, trail_sil=200)[0]
        arrays[f"silence_{plan}"] = np.array([str(len(left)), signals.digest(left)])
    return arrays


def resampler_goldens() -> dict[str, np.ndarray]:
    arrays = {}
    for source, target in RATE_PAIRS:
        clip = torch.from_numpy(signals.speechlike(0.1337, source, seed=1))
        exact = resampled_exactly(clip, source, target).numpy()
        computed = torchaudio.functional.resample(clip, source, target).numpy()
        arrays |= golden(f"resample_{source}_{target}", exact, computed)
    return arrays


if __name__ == "__main__":
    main()
