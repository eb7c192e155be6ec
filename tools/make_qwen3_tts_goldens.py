"""Makes tests/data/qwen3_tts_tiny: a tiny checkpoint in Qwen3-TTS' published layout, and its goldens.

tools/make_qwen3_tts_server_goldens.py, which is run afterwards, makes the codes in bfloat16.

Only the clips are ours. The weights and goldens are made by the classes of the qwen-tts package, and
resampling goldens by torchaudio. qwen-tts does not import beside transformers 5, so it needs an environment
of its own; torchaudio's compiled parts need CUDA, and the rest of it is plain Python:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 transformers==4.57.3 numpy librosa soundfile accelerate einops
    reference/bin/pip install onnxruntime
    reference/bin/pip install --no-deps qwen-tts==0.1.1 torchaudio==2.11.0 sox
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_qwen3_tts_goldens.py

The versions it ran with are recorded in goldens.npz under `made_with`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSSpeakerEncoderConfig
from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSSpeakerEncoder, mel_spectrogram
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Encoder
from qwen_tts.inference.qwen3_tts_tokenizer import Qwen3TTSTokenizer
from safetensors.torch import load_file, save_file
from transformers import MimiConfig, logging
from transformers.models.mimi import modeling_mimi

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tools.goldens import float64, golden, recorded, replaced, resampled, save, some_frames  # noqa: E402

OUT = ROOT / "tests/data/qwen3_tts_tiny"
SEED = 18
CLIPS = {"1.0": 1.0, "3.0": 3.0, "7.31": 7.31, "10.0": 10.0}
"""Maps each clip's name to its seconds at 24 kHz. 7.31 s is no multiple of a hop, 10 s is the window."""
LONG = {"12.4": 12.4}
RESAMPLED = {"16000": 16_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""
BOOKS = 16
"""The number of codebooks that are kept of the 32 that qwen-tts computes."""
RATE_PAIRS = (
    (16_000, 24_000),
    (22_050, 24_000),
    (44_100, 24_000),
    (48_000, 24_000),
    (48_000, 16_000),
    (24_000, 16_000),
)

SPEAKER_ENCODER = {
    "enc_dim": 64,
    "sample_rate": 24_000,
    "enc_channels": [64, 64, 64, 64, 192],
    "enc_attention_channels": 16,
    "enc_se_channels": 16,
}
# On processors with AMX, oneDNN (torch 2.13) convolves bfloat16 wrongly from 16 channels into 32 with kernel
# 12 and stride 6. It has special code for strided convolutions of fewer than 32 channels, which takes blocks
# of 16 output channels in pairs if their number is even. One convolution here uses it, with three blocks.
CODEC_ENCODER = {
    "_frame_rate": 12.5,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "audio_channels": 1,
    "codebook_dim": 16,
    "codebook_size": 64,
    "compress": 2,
    "dilation_growth_rate": 2,
    "dtype": "float32",
    "head_dim": 16,
    "hidden_act": "gelu",
    "hidden_size": 32,
    "initializer_range": 0.02,
    "intermediate_size": 64,
    "kernel_size": 7,
    "last_kernel_size": 3,
    "layer_scale_initial_scale": 0.01,
    "max_position_embeddings": 8000,
    "norm_eps": 1e-05,
    "num_attention_heads": 2,
    "num_filters": 18,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "num_quantizers": 32,
    "num_residual_layers": 1,
    "num_semantic_quantizers": 1,
    "pad_mode": "constant",
    "residual_kernel_size": 3,
    "rope_theta": 10000.0,
    "sampling_rate": 24_000,
    "sliding_window": 250,
    "trim_right_ratio": 1.0,
    "upsample_groups": 32,
    "upsampling_ratios": [8, 10, 12],
    "use_cache": False,
    "use_causal_conv": True,
    "use_conv_shortcut": False,
    "use_streaming": False,
    "vector_quantization_hidden_dimension": 16,
}
CODEC_DECODER = {
    "codebook_dim": 32,
    "codebook_size": 64,
    "decoder_dim": 48,
    "head_dim": 16,
    "hidden_size": 64,
    "intermediate_size": 64,
    "latent_dim": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "num_quantizers": 16,
    "num_semantic_quantizers": 1,
    "semantic_codebook_size": 4096,
    "upsample_rates": [8, 5, 4, 3],
    "upsampling_ratios": [2, 2],
    "vector_quantization_hidden_dimension": 32,
}


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    logging.set_verbosity_error()  # or it lists the decoder, which is not there, key by key
    write_speaker_encoder()
    write_codec()
    arrays = {**clip_goldens(), **resampled_goldens(), **resampler_goldens()}
    print({name: len(np.unique(array)) for name, array in arrays.items() if name.startswith("codes")})
    packages = ("qwen-tts", "transformers", "torch", "torchaudio", "numpy", "librosa", "safetensors")
    save(OUT / "goldens.npz", arrays, packages, seed=SEED)


# --- the checkpoint


def write_speaker_encoder() -> None:
    encoder = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**SPEAKER_ENCODER))
    tensors = {f"speaker_encoder.{key}": as_published(value) for key, value in encoder.state_dict().items()}
    # The published file is mostly the talker: a loader must take its own keys and leave these.
    tensors["talker.model.norm.weight"] = torch.ones(8, dtype=torch.bfloat16)
    (OUT / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    save_file(tensors, OUT / "model.safetensors", metadata={"format": "pt"})
    write_json(
        "config.json",
        {
            "architectures": ["Qwen3TTSForConditionalGeneration"],
            "model_type": "qwen3_tts",
            "speaker_encoder_config": SPEAKER_ENCODER,
            "talker_config": {"hidden_size": SPEAKER_ENCODER["enc_dim"]},
            "tokenizer_type": "qwen3_tts_tokenizer_12hz",
            "tts_model_size": "0b6",
            "tts_model_type": "base",
        },
    )


def as_published(weight: torch.Tensor) -> torch.Tensor:
    return weight.detach().to(torch.bfloat16).contiguous()


def write_codec() -> None:
    encoder = Qwen3TTSTokenizerV2Encoder._from_config(MimiConfig(**CODEC_ENCODER)).eval()
    scale_transformer_up(encoder)
    calibrate(encoder, signals.speechlike(8.0, 24_000, seed=9))
    tensors = {
        f"encoder.{key}": value.detach().float().contiguous() for key, value in encoder.state_dict().items()
    }
    tensors["decoder.pre_conv.conv.weight"] = torch.zeros(64, 32, 3)  # the published file has the decoder too
    save_file(tensors, OUT / "speech_tokenizer/model.safetensors", metadata={"format": "pt"})
    write_json(
        "speech_tokenizer/config.json",
        {
            "architectures": ["Qwen3TTSTokenizerV2Model"],
            "decode_upsample_rate": 1920,
            "decoder_config": CODEC_DECODER,
            "encode_downsample_rate": 1920,
            "encoder_config": CODEC_ENCODER,
            "encoder_valid_num_quantizers": 16,
            "input_sample_rate": 24_000,
            "model_type": "qwen3_tts_tokenizer_12hz",
            "output_sample_rate": 24_000,
        },
    )
    write_json(
        "speech_tokenizer/preprocessor_config.json",
        {
            "chunk_length_s": None,
            "feature_extractor_type": "EncodecFeatureExtractor",
            "feature_size": 1,
            "overlap": None,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": True,
            "sampling_rate": 24_000,
        },
    )


@torch.no_grad()
def scale_transformer_up(encoder: Qwen3TTSTokenizerV2Encoder) -> None:
    """Scale the transformer up.

    As initialised, it adds almost nothing and attends evenly, so results would not depend on the window.
    """
    for layer in encoder.encoder_transformer.layers:
        layer.self_attn_layer_scale.scale.fill_(0.5)
        layer.mlp_layer_scale.scale.fill_(0.5)
        for name, weight in layer.named_parameters():
            if name.endswith("_proj.weight"):
                weight.mul_(10)


@torch.no_grad()
def calibrate(encoder: Qwen3TTSTokenizerV2Encoder, clip: np.ndarray) -> None:
    """Spread each codebook over its residual, so that no single entry is the nearest everywhere."""
    hidden = encoder.encoder(torch.from_numpy(clip)[None, None])  # [1, D, 25 Hz]
    hidden = encoder.encoder_transformer(hidden.transpose(1, 2))[0].transpose(1, 2)
    latents = encoder.downsample(hidden)  # [1, D, 12.5 Hz]
    quantizer = encoder.quantizer
    for stage in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
        residual = stage.input_proj(latents)
        for layer in stage.layers:
            book, rows = layer.codebook, residual[0].T  # [T, C]
            usage = torch.rand(book.cluster_usage.shape) * 5 + 0.5
            centres = rows.mean(0) + rows.std(0) * torch.randn(book.embed_sum.shape)
            book.cluster_usage.copy_(usage)
            book.embed_sum.copy_(centres * usage[:, None])
            residual = residual - layer.decode(layer.encode(residual))


def write_json(name: str, content: object) -> None:
    (OUT / name).write_text(json.dumps(content, indent=1) + "\n")


# --- the goldens


def clip_goldens() -> dict[str, np.ndarray]:
    """Return embedding, codes and some mel frames of every clip. All of them would be large."""
    arrays: dict[str, np.ndarray] = {}
    for name, seconds in {**CLIPS, **LONG}.items():
        clip = torch.from_numpy(signals.speechlike(seconds, 24_000))
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip.numpy()))
        exact, computed = exactly(mel, clip), mel(clip)
        arrays |= golden(f"mel_{name}", some_frames(exact.numpy()), some_frames(computed.numpy()), np.exp)
        arrays |= artifact(name, clip, clip)
    for name, seconds in LONG.items():
        clip = torch.from_numpy(signals.speechlike(seconds, 24_000))
        with window_applied():
            arrays |= codes(f"codes_{name}_windowed", clip, clip)
    return arrays


def resampled_goldens() -> dict[str, np.ndarray]:
    """Return embedding and codes of clips that torchaudio resamples from another rate."""
    arrays: dict[str, np.ndarray] = {}
    for name, rate in RESAMPLED.items():
        source = torch.from_numpy(signals.speechlike(3.01, rate))
        arrays[f"sha256_{name}"] = np.array(signals.digest(source.numpy()))
        arrays |= artifact(name, *resampled(source, rate, 24_000))
    return arrays


def resampler_goldens() -> dict[str, np.ndarray]:
    arrays = {}
    for source, target in RATE_PAIRS:
        clip = torch.from_numpy(signals.speechlike(0.1337, source, seed=1))
        computed, exact = resampled(clip, source, target)
        arrays |= golden(f"resample_{source}_{target}", exact.numpy(), computed.numpy())
    return arrays


def artifact(name: str, clip: torch.Tensor, exact_clip: torch.Tensor) -> dict[str, np.ndarray]:
    exact, computed = exactly(embedding, exact_clip), embedding(clip)
    return {
        **golden(f"embedding_{name}", exact.numpy(), computed.numpy()),
        f"embedding_bfloat16_{name}": embedding(clip, torch.bfloat16).float().numpy(),
        **codes(f"codes_{name}", clip, exact_clip),
    }


def exactly(compute: Callable[[torch.Tensor], torch.Tensor], clip: torch.Tensor) -> torch.Tensor:
    """Compute a result in float64, including the weights."""
    with float64():
        return compute(clip.double())


def mel(clip: torch.Tensor) -> torch.Tensor:
    """Return the spectrogram [T, 128], with the arguments of qwen-tts' `extract_speaker_embedding`."""
    settings = {"n_fft": 1024, "num_mels": 128, "sampling_rate": 24_000, "hop_size": 256, "win_size": 1024}
    return mel_spectrogram(clip[None], **settings, fmin=0, fmax=12_000)[0].T


@torch.inference_mode()
def embedding(clip: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Return the embedding [D] in `dtype`, by default the clip's. The spectrogram is in the clip's dtype."""
    dtype = dtype or clip.dtype
    prefix = "speaker_encoder."
    published = load_file(OUT / "model.safetensors")
    weights = {key.removeprefix(prefix): value for key, value in published.items() if key.startswith(prefix)}
    encoder = Qwen3TTSSpeakerEncoder(Qwen3TTSSpeakerEncoderConfig(**SPEAKER_ENCODER)).to(dtype).eval()
    encoder.load_state_dict(weights)
    return encoder(mel(clip)[None].to(dtype))[0]


def codes(name: str, clip: torch.Tensor, exact_clip: torch.Tensor) -> dict[str, np.ndarray]:
    """Return the codes, uint8 [T, 16], and the number of certain codes of each frame."""
    book = modeling_mimi.MimiEuclideanCodebook
    with recorded(book, "quantize", distances) as computed:
        found = encoded(clip)
    with recorded(book, "quantize", distances) as exact, float64():
        encoded(exact_clip.double())
    return {name: found.astype(np.uint8), f"{name}_certain": computed.certain(exact, BOOKS)}


def encoded(clip: torch.Tensor) -> np.ndarray:
    tokenizer = Qwen3TTSTokenizer.from_pretrained(str(OUT / "speech_tokenizer"), dtype=clip.dtype)
    return tokenizer.encode(clip.numpy(), sr=24_000).audio_codes[0].numpy()


def distances(book: Any, hidden_states: torch.Tensor) -> list[torch.Tensor]:
    return [torch.cdist(hidden_states.float()[None], book.embed.float()[None])[0]]


@contextmanager
def window_applied() -> Iterator[None]:
    """Run qwen-tts with the sliding window that the codec's configuration asks for.

    transformers 4.57.3 ignores the window, and later releases apply it. Here a mask written by hand applies
    it, so that the check does not depend on the mask code of transformers: position i sees j where i - window
    < j <= i.
    """

    def band(*, config: Any, input_embeds: torch.Tensor, **_: Any) -> torch.Tensor:
        place = torch.arange(input_embeds.shape[1])
        behind = place[:, None] - place[None, :]
        return ((behind >= 0) & (behind < config.sliding_window))[None, None]  # [1, 1, T, T]

    with replaced(modeling_mimi, "create_causal_mask", band):
        yield


if __name__ == "__main__":
    main()
