"""Makes tests/data/fish_speech_tiny: a tiny codec in Fish Speech's published layout, and its goldens.

Only the clips are ours. The codec and the goldens are made by the fish-speech package, Audio8's by the copy
of its codec in vLLM-Omni, and resampling is torchaudio's. Everything runs in an environment of its own.
Stand-ins replace imports that a codec does not need:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 numpy librosa soundfile einops tqdm
    reference/bin/pip install --no-deps fish-speech==0.1.0 descript-audio-codec==1.0.0 vllm-omni==0.30.0
    reference/bin/pip install --no-deps torchaudio==2.11.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_fish_speech_goldens.py

The versions it ran with are recorded in goldens.npz under `made_with`.
"""

import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import normalize

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tests.unit.extractors.parity import assert_same_codes  # noqa: E402
from tools.goldens import float64, golden, package, recorded, resampled, save  # noqa: E402

OUT = ROOT / "tests/data/fish_speech_tiny"
SEED = 6
CLIPS = {"1.0": 1.0, "3.0": 3.0, "7.31": 7.31, "12.4": 12.4}
"""Maps each clip's name to its seconds at 44.1 kHz.

Both windows are 5.9 s; 7.31 s is no multiple of a hop.
"""
RESAMPLED = {"16000": 16_000, "24000": 24_000, "48000": 48_000}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""
LATENT_STRIDE = 8
"""One of this many frames of the quantised vectors is kept."""

WIDTH, CODEBOOK_DIM, SEMANTIC, RESIDUAL, BOOKS = 64, 8, 64, 32, 9
POSITIONS, PUBLISHED_POSITIONS = (4096, 1024), (80, 48)
"""The sizes of the encoder's and the quantizer's tables: those used here, and those in the file."""
LARGEST_DECODER_TENSOR = 64
"""Tensors that encoding does not need are in the tiny file if they have at most this many values."""


def main() -> None:
    torch.set_num_threads(2)
    replace_unneeded_packages()
    torch.manual_seed(SEED)
    codec = fish_speech(PUBLISHED_POSITIONS)
    randomize(codec)
    published = codec.state_dict()
    codec = loaded(fish_speech(POSITIONS), published)
    calibrate(codec, torch.from_numpy(signals.speechlike(8.0, 44_100, seed=9)))
    # In bfloat16 the file is half as large; what is computed from it is computed in float32 all the same.
    calibrated = {key: value.bfloat16() for key, value in codec.state_dict().items() if not is_table(key)}
    published |= calibrated
    codec = loaded(fish_speech(POSITIONS), published)
    OUT.mkdir(parents=True, exist_ok=True)
    torch.save({key: value for key, value in published.items() if is_wanted(key, value)}, OUT / "codec.pth")
    arrays = {**clip_goldens(codec), **resampled_goldens(codec)}
    arrays |= audio8_goldens(published, arrays)
    compare(loaded(vllm_omni_fish_speech(), published), arrays)
    for name, found in arrays.items():
        if name.startswith("codes") and found.ndim == 2:
            print(name, found.shape, "different codes per book:", [len(np.unique(book)) for book in found.T])
    packages = ("fish-speech", "descript-audio-codec", "torch", "torchaudio", "numpy", "vllm-omni")
    save(OUT / "goldens.npz", arrays, packages, seed=SEED)


# --- the references


def replace_unneeded_packages() -> None:
    """Packages that fish-speech and descript need only for training and for the command line."""
    audiotools = module("audiotools", AudioSignal=object, STFTParams=object)
    audiotools.ml = module("audiotools.ml", BaseModel=nn.Module, Accelerator=object)
    module("hydra")
    module("omegaconf", OmegaConf=object)
    for name in ("dac", "dac.model"):
        package(name)
    module("dac.model.base", CodecMixin=type("CodecMixin", (), {"get_delay": lambda _: 0}))
    for name in ("vllm_omni", "vllm_omni.model_executor", "vllm_omni.model_executor.models"):
        package(name)
    for name in ("fish_speech", "audio8_tts"):
        package(f"vllm_omni.model_executor.models.{name}")


def module(name: str, **contents: Any) -> ModuleType:
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(contents)
    return sys.modules[name]


def fish_speech(positions: tuple[int, int]) -> nn.Module:
    library = import_module("fish_speech.models.dac.modded_dac")
    rvq = import_module("fish_speech.models.dac.rvq")
    return codec_of(library, rvq.DownsampleResidualVectorQuantize, library.DAC, positions)


def vllm_omni_fish_speech() -> nn.Module:
    library = import_module("vllm_omni.model_executor.models.fish_speech.dac_modules")
    return codec_of(library, library.DownsampleResidualVectorQuantize, library.DAC, POSITIONS)


def codec_of(library: Any, quantizer: Any, codec: Any, positions: tuple[int, int]) -> nn.Module:
    """Build the codec as the packages' own configuration does, but tiny."""
    shared = {"n_local_heads": -1, "rope_base": 10_000, "norm_eps": 1e-5, "channels_first": True}
    encoder = partial(library.ModelArgs, block_size=positions[0], head_dim=64, **shared)
    attention = {"n_layer": 2, "n_head": 2, "dim": WIDTH, "intermediate_size": 96, "head_dim": 32}
    around = library.ModelArgs(block_size=positions[1], **attention, **shared)
    transformer = partial(
        library.WindowLimitedTransformer, causal=True, window_size=128, input_dim=WIDTH, config=around
    )
    quantized = quantizer(
        input_dim=WIDTH,
        n_codebooks=BOOKS,
        codebook_size=RESIDUAL,
        codebook_dim=CODEBOOK_DIM,
        downsample_factor=[2, 2],
        post_module=transformer(),
        pre_module=transformer(),
        semantic_codebook_size=SEMANTIC,
    )
    return codec(
        encoder_dim=4,
        encoder_rates=[2, 4, 8, 8],
        decoder_dim=16,
        decoder_rates=[8, 8, 4, 2],
        quantizer=quantized,
        sample_rate=44_100,
        causal=True,
        encoder_transformer_layers=[0, 0, 0, 1],
        decoder_transformer_layers=[0, 0, 0, 0],
        transformer_general_config=encoder,
    ).eval()


def audio8(published: dict[str, torch.Tensor]) -> nn.Module:
    """Build the encoding parts of Audio8's codec as its own code does, but tiny."""
    parts = import_module("vllm_omni.model_executor.models.audio8_tts.codec")
    widths = (8, 16, 32, 64)
    stages = [
        parts.ArkttsEncoderBlock(*each) for each in zip(widths, (2, 4, 8, 8), (0, 0, 0, 1), strict=True)
    ]
    first, last = (
        parts._causal_wn_conv(1, 4, kernel_size=7),
        parts._causal_wn_conv(WIDTH, WIDTH, kernel_size=3),
    )
    encoder = nn.Module()
    encoder.block = nn.Sequential(first, *stages, parts.ArkttsSnake1d(WIDTH), last)
    shape = {"n_layer": 2, "n_head": 2, "dim": WIDTH, "intermediate_size": 96, "head_dim": 32}
    transformer = parts.ArkttsCodecTransformerConfig(**shape)
    quantizer = nn.Module()
    quantizer.downsample = nn.Sequential(*[downsample(parts) for _ in range(2)])
    quantizer.pre_module = parts.ArkttsCodecWindowTransformer(transformer, WIDTH, window_size=128)
    quantizer.semantic_quantizer = parts.ArkttsResidualQuantizer(WIDTH, 1, SEMANTIC, CODEBOOK_DIM)
    quantizer.quantizer = parts.ArkttsResidualQuantizer(WIDTH, BOOKS, RESIDUAL, CODEBOOK_DIM)
    codec = nn.Module()
    codec.encoder, codec.quantizer = encoder, quantizer
    kept = {key: value for key, value in published.items() if key in codec.state_dict()}
    codec.load_state_dict(kept, strict=True)
    return codec.eval()


def downsample(parts: Any) -> nn.Module:
    strided = parts.ArkttsCausalConv1d(WIDTH, WIDTH, kernel_size=2, stride=2)
    return nn.Sequential(strided, parts.ArkttsConvNeXtBlock(WIDTH))


# --- the checkpoint


def is_table(key: str) -> bool:
    return key.endswith(("freqs_cis", "causal_mask"))


def is_wanted(key: str, value: torch.Tensor) -> bool:
    needless = key.startswith(("decoder.", "quantizer.post_module.", "quantizer.upsample."))
    return is_table(key) or not needless or value.numel() <= LARGEST_DECODER_TENSOR


def loaded(codec: nn.Module, published: dict[str, torch.Tensor]) -> nn.Module:
    """Build the codec with tables of its own size."""
    own = {key: value for key, value in codec.state_dict().items() if is_table(key)}
    codec.load_state_dict(published | own, strict=True)
    return codec.eval()


@torch.no_grad()
def randomize(codec: nn.Module) -> None:
    """Randomize trivial values: tiny layer scales, lengths equal to their direction's, and biases of 0."""
    for name, weight in codec.named_parameters():
        if name.endswith("gamma"):
            weight.uniform_(0.3, 0.7)
        elif name.endswith(("alpha", "norm.weight", "original0", "weight_g")):
            weight.mul_(torch.empty_like(weight).uniform_(0.6, 1.4))
        elif name.endswith("bias"):
            weight.uniform_(-0.1, 0.1)
        elif name.endswith(("wqkv.weight", "pwconv1.weight", "downsample.0.0.conv.weight")):
            weight.mul_(3)  # or attention would be even, and its window and positions would not show
        if name.startswith("encoder") and name.endswith("original0"):
            weight.mul_(1.6)  # otherwise a stage would hardly depend on the one before


@torch.no_grad()
def calibrate(codec: nn.Module, clip: torch.Tensor) -> None:
    """Spread each codebook over its residual, so that no single entry is the nearest everywhere."""
    residual = latents(codec, clip)
    quantizer = codec.quantizer
    for book in [*quantizer.semantic_quantizer.quantizers, *quantizer.quantizer.quantizers]:
        projected = book.in_proj(residual)  # [1, D, T]
        book.in_proj.bias.sub_(projected.mean(dim=(0, 2)))
        centred = book.in_proj(residual)
        size = centred.std(dim=(0, 2))
        book.codebook.weight.copy_(torch.randn(book.codebook.weight.shape) * size)
        book.out_proj.weight_g.mul_(0.3)
        residual = residual - book(residual)[0]


# --- the goldens


def clip_goldens(codec: nn.Module) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, seconds in CLIPS.items():
        clip = torch.from_numpy(signals.speechlike(seconds, 44_100))
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip.numpy()))
        computed = latents(codec, clip)
        with float64():
            exact = latents(codec.double(), clip.double())
        codec.float()
        kept = [one[0, :, ::LATENT_STRIDE].T.contiguous().numpy() for one in (exact, computed)]
        arrays |= golden(f"latents_{name}", *kept)
        arrays |= golden_codes(codec, f"codes_{name}", clip, clip.double())
    return arrays


def resampled_goldens(codec: nn.Module) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, rate in RESAMPLED.items():
        source = torch.from_numpy(signals.speechlike(3.01, rate))
        arrays[f"sha256_{name}"] = np.array(signals.digest(source.numpy()))
        arrays |= golden_codes(codec, f"codes_{name}", *resampled(source, rate, 44_100))
    return arrays


@torch.inference_mode()
def audio8_goldens(
    published: dict[str, torch.Tensor], arrays: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the codes of Audio8's code with the same weights.

    Clips are padded to whole frames here, because Audio8's parts do not pad them. The codes are as certain as
    fish-speech's and must equal those wherever those are certain.
    """
    codec, found = audio8(published), {}
    for name, seconds in CLIPS.items():
        clip = torch.from_numpy(signals.speechlike(seconds, 44_100))
        residual = codec.quantizer.downsample(codec.encoder.block(whole_frames(clip)))
        residual = codec.quantizer.pre_module(residual)
        semantic, first = codec.quantizer.semantic_quantizer(residual)
        _, others = codec.quantizer.quantizer(residual - semantic)
        codes = torch.cat([first, others], dim=1)[0].T.numpy().astype(np.uint8)
        found[f"audio8_codes_{name}"] = codes
        found[f"audio8_codes_{name}_certain"] = arrays[f"codes_{name}_certain"]
        assert_same_codes(codes, arrays, f"codes_{name}")
    return found


def compare(codec: nn.Module, arrays: dict[str, np.ndarray]) -> None:
    """Check that the engine's own copy of the codec agrees with the original package."""
    for name, seconds in CLIPS.items():
        clip = torch.from_numpy(signals.speechlike(seconds, 44_100))
        assert_same_codes(codes(codec, clip), arrays, f"codes_{name}")


def golden_codes(
    codec: nn.Module, name: str, clip: torch.Tensor, exact_clip: torch.Tensor
) -> dict[str, np.ndarray]:
    """Return the codes, uint8 [T, 10], and the number of certain codes of each frame."""
    quantizer = import_module("dac.nn.quantize").VectorQuantize
    with recorded(quantizer, "decode_latents", distances) as computed:
        found = codes(codec, clip)
    with recorded(quantizer, "decode_latents", distances) as exact, float64():
        codes(codec.double(), exact_clip)
    codec.float()
    return {name: found, f"{name}_certain": computed.certain(exact)}


def distances(book: Any, found: torch.Tensor) -> list[torch.Tensor]:
    """Return squared distances on the unit sphere by the package's own formula."""
    rows, entries = normalize(found[0].T), normalize(book.codebook.weight)
    squares = rows.pow(2).sum(1, keepdim=True) + entries.pow(2).sum(1)
    return [squares - 2 * rows @ entries.T]


@torch.inference_mode()
def codes(codec: nn.Module, clip: torch.Tensor) -> np.ndarray:
    """Return the codes: uint8 [T, 10]. Tiny codebooks have at most 64 entries."""
    found, lengths = codec.encode(clip[None, None], torch.tensor([len(clip)]))
    assert lengths.tolist() == [found.shape[-1]]
    return found[0].T.numpy().astype(np.uint8)


@torch.no_grad()
def latents(codec: nn.Module, clip: torch.Tensor) -> torch.Tensor:
    """Return the vectors that are quantised: [1, 64, T]."""
    hidden = codec.encoder(whole_frames(clip))
    return codec.quantizer.pre_module(codec.quantizer.downsample(hidden))


def whole_frames(clip: torch.Tensor) -> torch.Tensor:
    return functional.pad(clip, (0, -len(clip) % 2048))[None, None]


if __name__ == "__main__":
    main()
