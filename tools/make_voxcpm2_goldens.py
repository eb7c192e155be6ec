"""Makes tests/data/voxcpm2_tiny: a tiny audio VAE in VoxCPM2's published layout, and its goldens.

The weights and goldens are made by the classes of the voxcpm package: a clip goes as a WAV file through the
method that encodes references there. The package imports a web server and a training stack, so only the
modules needed are imported; other rates go through torchaudio's resampler, whose compiled parts need CUDA
(the rest is plain Python):

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 transformers==5.14.1 numpy librosa soundfile einops pydantic tqdm
    reference/bin/pip install --no-deps voxcpm==2.0.3 torchaudio==2.11.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_voxcpm2_goldens.py

The versions it ran with are recorded in goldens.npz under `made_with`.
"""

import json
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import soundfile
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tools.goldens import float64, golden, package, replaced, resampled, save, some_frames  # noqa: E402

OUT = ROOT / "tests/data/voxcpm2_tiny"
SEED = 4
RATE = 16_000
PATCH_FRAMES = 4
CLIPS = {"0.16": 0.16, "1.0": 1.0, "7.31": 7.31, "10.4": 10.4}
"""Maps each clip's name to its seconds at 16 kHz. The first and last are whole patches, 7.31 s is not."""
RESAMPLED = {"24000": 24_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 1.01 s each, to their sample rates."""

CONFIG = {
    "architecture": "voxcpm2",
    "lm_config": {"hidden_size": 2048, "num_hidden_layers": 28},
    "patch_size": PATCH_FRAMES,
    "feat_dim": 64,
    "audio_vae_config": {
        "encoder_dim": 4,
        "encoder_rates": [2, 5, 8, 8],
        "latent_dim": 64,
        "decoder_dim": 64,
        "decoder_rates": [8, 6, 5, 2, 2, 2],
        "sample_rate": RATE,
        "out_sample_rate": 48_000,
        "sr_bin_boundaries": [20_000, 30_000, 40_000],
    },
    "dtype": "bfloat16",
}


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    engine = only_the_model()
    write_checkpoint(engine)
    vae = load_checkpoint(engine)
    arrays: dict[str, np.ndarray] = {}
    for name, seconds in CLIPS.items():
        clip = signals.speechlike(seconds, RATE)
        arrays |= goldens(engine, vae, name, clip, clip)
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip))
    for name, rate in RESAMPLED.items():
        source = torch.from_numpy(signals.speechlike(1.01, rate))
        arrays |= goldens(engine, vae, name, *(one.numpy() for one in resampled(source, rate, RATE)))
        arrays[f"sha256_{name}"] = np.array(signals.digest(source.numpy()))
    print({name: (value.shape, float(value.std())) for name, value in arrays.items() if value.ndim})
    packages = ("voxcpm", "transformers", "torch", "torchaudio", "numpy", "librosa", "soundfile")
    save(OUT / "goldens.npz", arrays, packages, seed=SEED)


def only_the_model() -> ModuleType:
    """Return `voxcpm.model.voxcpm2` without the imports of `voxcpm/__init__.py`."""
    package("voxcpm")
    from voxcpm.model import voxcpm2  # noqa: PLC0415 — not before the package is in place

    return voxcpm2


@torch.no_grad()
def write_checkpoint(engine: ModuleType) -> None:
    vae = engine.AudioVAEV2(engine.AudioVAEConfigV2(**CONFIG["audio_vae_config"]))
    for name, weight in vae.encoder.named_parameters():
        if name.endswith(("alpha", "weight_g")):  # as initialised, alphas are all 1 and signals fade away
            weight.mul_(torch.rand(weight.shape) * 1.5 + 0.75)
    tensors = {key: value for key, value in vae.state_dict().items() if key.startswith("encoder.")}
    tensors["decoder.model.0.bias"] = vae.state_dict()[
        "decoder.model.0.bias"
    ]  # the published file has all of it
    OUT.mkdir(parents=True, exist_ok=True)
    torch.save({"state_dict": tensors}, OUT / "audiovae.pth")
    (OUT / "config.json").write_text(json.dumps(CONFIG, indent=1) + "\n")


def load_checkpoint(engine: ModuleType) -> Any:
    vae = engine.AudioVAEV2(engine.AudioVAEConfigV2(**CONFIG["audio_vae_config"]))
    tensors = torch.load(OUT / "audiovae.pth", weights_only=True)["state_dict"]
    report = vae.load_state_dict(tensors, strict=False)
    assert not report.unexpected_keys
    assert all(key.startswith("decoder.") for key in report.missing_keys)
    return vae.float().eval()


def goldens(
    engine: ModuleType, vae: Any, name: str, clip: np.ndarray, exact_clip: np.ndarray
) -> dict[str, np.ndarray]:
    """Return some patches of both tensors, [P, 4, 64], of a clip at 16 kHz."""
    computed = latents(engine, vae, clip)
    with float64():
        exact = latents(engine, vae.double(), exact_clip.astype(np.float64))
    vae.float()
    arrays: dict[str, np.ndarray] = {}
    for tensor, value in exact.items():
        arrays |= golden(f"{tensor}_{name}", some_frames(value), some_frames(computed[tensor]))
    return arrays


def latents(engine: ModuleType, vae: Any, clip: np.ndarray) -> dict[str, np.ndarray]:
    """Return both tensors of the engine for a clip at 16 kHz, [P, 4, 64] each, in the clip's dtype."""
    model = SimpleNamespace(
        audio_vae=vae,
        patch_size=PATCH_FRAMES,
        chunk_size=vae.chunk_size,
        _encode_sample_rate=vae.sample_rate,
        device="cpu",
    )

    def load(path: str, *, sr: int, **_: Any) -> tuple[np.ndarray, int]:
        """Read a file like librosa at the file's own rate, but in float64, too."""
        return soundfile.read(path, dtype=clip.dtype.name)[0], sr

    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        path = Path(folder) / "clip.wav"
        soundfile.write(path, clip, RATE, subtype="DOUBLE")
        with replaced(engine.librosa, "load", load):
            return {
                tensor: engine.VoxCPM2Model._encode_wav(model, str(path), padding_mode=side)
                .contiguous()
                .numpy()
                for tensor, side in (("ref_audio_feat", "right"), ("audio_feat", "left"))
            }


if __name__ == "__main__":
    main()
