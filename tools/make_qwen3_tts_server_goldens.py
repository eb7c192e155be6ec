"""Makes tests/data/qwen3_tts_tiny/server.npz: the codes that vLLM-Omni's server computes in bfloat16.

The checkpoint is the one that tools/make_qwen3_tts_goldens.py wrote. The codec is the class in vLLM-Omni's
wheel, put together as its talker does it: built from the configuration, cast to bfloat16 as a whole, which
includes the buffer that rotary positions are computed from, and then filled with the published tensors. It
needs transformers 5, which qwen-tts does not import beside:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 transformers==5.14.1 numpy safetensors
    reference/bin/pip install --no-deps vllm-omni==0.30.0 torchaudio==2.11.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_qwen3_tts_server_goldens.py

The versions it ran with are recorded under `made_with`, with what the processor can do: that decides how
bfloat16 is rounded.
"""

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import MimiConfig

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tests.unit.extractors.parity import assert_same_codes  # noqa: E402
from tools.goldens import package, resampled, save  # noqa: E402

OUT = ROOT / "tests/data/qwen3_tts_tiny"
CODEC = "vllm_omni.model_executor.models.qwen3_tts.tokenizer_12hz"
CLIPS = {"1.0": 1.0, "3.0": 3.0, "7.31": 7.31, "10.0": 10.0, "12.4": 12.4}
"""Maps each clip's name to its seconds at 24 kHz."""
RESAMPLED = {"16000": 16_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""


def main() -> None:
    torch.set_num_threads(2)
    library = server_library()
    compare(server_codec(library, torch.float32))
    codec = server_codec(library, torch.bfloat16)
    arrays = {f"codes_{name}": codes(codec, clip) for name, clip in clips().items()}
    [frequencies] = {
        tuple(buffer.float().tolist())
        for name, buffer in codec.named_buffers()
        if name.endswith(".inv_freq") and name.startswith("encoder_transformer.")
    }
    arrays["rotary_frequencies"] = np.array(frequencies, np.float32)
    abilities = torch.cpu.get_capabilities()
    cpu = {key: abilities.get(key) for key in ("architecture", "avx2", "avx512_f", "avx512_bf16", "amx_tile")}
    packages = ("vllm-omni", "transformers", "torch", "torchaudio", "numpy")
    save(OUT / "server.npz", arrays, packages, cpu=cpu)
    print(arrays["rotary_frequencies"])
    computed = np.load(OUT / "goldens.npz")
    for name in clips():
        float32 = computed[f"codes_{name}_windowed" if name == "12.4" else f"codes_{name}"]
        print(name, "codes as in float32:", (arrays[f"codes_{name}"] == float32).mean())


def clips() -> dict[str, torch.Tensor]:
    """Return each clip as float32 [N] at 24 kHz."""
    found = {name: torch.from_numpy(signals.speechlike(seconds, 24_000)) for name, seconds in CLIPS.items()}
    for name, rate in RESAMPLED.items():
        found[name], _ = resampled(torch.from_numpy(signals.speechlike(3.01, rate)), rate, 24_000)
    return found


def server_library() -> Any:
    """Return vLLM-Omni's module of the codec, without the server around it."""
    for name in ("vllm_omni", "vllm_omni.model_executor", "vllm_omni.model_executor.models"):
        package(name)
    for name in ("common", "qwen3_tts", "qwen3_tts.tokenizer_12hz"):
        package(f"vllm_omni.model_executor.models.{name}")
    snake = ModuleType("vllm_omni.model_executor.models.common.snake_activation")
    snake.SnakeBeta = object  # type: ignore[attr-defined]  # for the decoder
    sys.modules[snake.__name__] = snake
    return importlib.import_module(f"{CODEC}.modeling_qwen3_tts_tokenizer_v2")


def server_codec(library: Any, dtype: torch.dtype) -> Any:
    config = json.loads((OUT / "speech_tokenizer/config.json").read_text())["encoder_config"]
    codec = library.Qwen3TTSTokenizerV2Encoder._from_config(MimiConfig(**config)).eval().to(dtype)
    published = load_file(OUT / "speech_tokenizer/model.safetensors")
    prefix = "encoder."
    tensors = {
        key.removeprefix(prefix): tensor for key, tensor in published.items() if key.startswith(prefix)
    }
    codec.load_state_dict(tensors, strict=True)
    return codec.to(dtype)


def compare(codec: Any) -> None:
    """Check that the codec agrees with qwen-tts in float32, and over 10 s with its window written by hand."""
    goldens = dict(np.load(OUT / "goldens.npz"))
    for name, clip in clips().items():
        assert_same_codes(
            codes(codec, clip), goldens, f"codes_{name}_windowed" if name == "12.4" else f"codes_{name}"
        )


@torch.inference_mode()
def codes(codec: Any, clip: torch.Tensor) -> np.ndarray:
    """Return the codes: uint8 [T, 16]."""
    encoded = codec.encode(clip[None, None].to(codec.dtype), return_dict=True)
    return encoded.audio_codes[0, :16].T.numpy().astype(np.uint8)


if __name__ == "__main__":
    main()
