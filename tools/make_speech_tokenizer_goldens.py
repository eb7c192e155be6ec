"""Makes tests/data/speech_tokenizer_tiny: a tiny checkpoint in SpeechTokenizer's layout, and its goldens.

Only the clips are ours. The weights and goldens are made by the classes of the speechtokenizer package, and
another rate is resampled by torchaudio, as the package's README does. The package requires torchaudio, whose
compiled parts need CUDA (the rest of it is plain Python), and imports its trainer, which is kept out:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 numpy einops
    reference/bin/pip install --no-deps speechtokenizer==1.0.1 torchaudio==2.11.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_speech_tokenizer_goldens.py

With `--published-size <folder>` it makes the same at the published size, there. The versions it ran with are
recorded in goldens.npz under `made_with`.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torchaudio

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tools.goldens import float64, recorded, save  # noqa: E402

OUT = ROOT / "tests/data/speech_tokenizer_tiny"
FOLDER = "speechtokenizer_hubert_avg"
SEED = 5
SAMPLE_RATE = 16_000
CLIPS = {"0.0600625": 0.060_062_5, "1.003": 1.003, "3.0": 3.0, "7.313": 7.313, "12.413": 12.413}
"""Maps each clip's name to its seconds.

The first is the shortest possible; only 3 s is a multiple of the hop.
"""
RESAMPLED = {"24000": 24_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""

PUBLISHED = {
    "activation": "ELU",
    "bidirectional": True,
    "codebook_size": 1024,
    "dilation_base": 2,
    "dimension": 1024,
    "lstm_layers": 2,
    "n_filters": 64,
    "n_q": 8,
    "n_residual_layers": 1,
    "residual_kernel_size": 3,
    "sample_rate": SAMPLE_RATE,
    "semantic_dimension": 768,
    "strides": [8, 5, 4, 2],
}
TINY = PUBLISHED | {"codebook_size": 64, "dimension": 16, "n_filters": 2, "semantic_dimension": 12}
TRAINING = {"batch_size": 6, "learning_rate": 1e-4, "segment_size": 48_000}
"""Settings of the training, which published configurations contain, too."""


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--published-size", type=Path)
    folder = arguments.parse_args().published_size
    out, config = (folder, PUBLISHED) if folder else (OUT, TINY)
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    write_checkpoint(out / FOLDER, config | TRAINING)
    model = package().model.SpeechTokenizer.load_from_checkpoint(
        str(out / FOLDER / "config.json"), str(out / FOLDER / "SpeechTokenizer.pt")
    )
    arrays = {**clip_goldens(model.eval()), **resampled_goldens(model)}
    print(
        {
            name: [len(set(book)) for book in codes.tolist()]
            for name, codes in arrays.items()
            if codes.ndim == 2
        }
    )
    save(out / "goldens.npz", arrays, ("speechtokenizer", "torch", "torchaudio", "numpy"), seed=SEED)


def package() -> ModuleType:
    """Import speechtokenizer without its trainer and the packages that only the trainer needs."""
    if "speechtokenizer" not in sys.modules:
        spec = importlib.util.find_spec("speechtokenizer")
        sys.modules["speechtokenizer"] = importlib.util.module_from_spec(spec)  # its __init__ does not run
        importlib.import_module("speechtokenizer.model")
    return sys.modules["speechtokenizer"]


# --- the checkpoint


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model = package().model.SpeechTokenizer(config).eval()
    rescale_weights(model)
    calibrate(model, signals.speechlike(8.0, SAMPLE_RATE, seed=9))
    torch.save(model.state_dict(), folder / "SpeechTokenizer.pt")


@torch.no_grad()
def rescale_weights(model: torch.nn.Module) -> None:
    """Rescale weights.

    As initialised, biases outweigh the clip, the LSTM hardly remembers, and weight norm does nothing.
    """
    for name, parameter in model.encoder.named_parameters():
        if name.endswith("weight_g"):
            parameter.uniform_(1.0, 2.0)
        elif name.endswith(".bias"):
            parameter.mul_(0.1)
        elif ".lstm.weight" in name:
            parameter.mul_(2.5)


@torch.no_grad()
def calibrate(model: torch.nn.Module, clip: np.ndarray) -> None:
    """Spread each codebook over its residual, so that no single entry is the nearest everywhere."""
    residual = model.encoder(torch.from_numpy(clip)[None, None])  # [1, D, T]
    for layer in model.quantizer.vq.layers:
        book, rows = layer._codebook, residual[0].T  # [T, D]
        book.embed.copy_(rows.mean(0) + rows.std(0) * torch.randn(book.embed.shape))
        book.cluster_size.uniform_(1.0, 9.0)
        book.embed_avg.copy_(book.embed * book.cluster_size[:, None])
        book.inited.fill_(1.0)
        residual = residual - layer.decode(layer.encode(residual))


# --- the goldens


def clip_goldens(model: torch.nn.Module) -> dict[str, np.ndarray]:
    arrays: dict[str, np.ndarray] = {}
    for name, seconds in CLIPS.items():
        clip = torch.from_numpy(signals.speechlike(seconds, SAMPLE_RATE))
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip.numpy()))
        arrays |= golden_codes(model, name, clip, clip.double())
    return arrays


def resampled_goldens(model: torch.nn.Module) -> dict[str, np.ndarray]:
    """Return the codes of clips that torchaudio resamples from another rate."""
    arrays: dict[str, np.ndarray] = {}
    for name, rate in RESAMPLED.items():
        source = torch.from_numpy(signals.speechlike(3.01, rate))
        arrays[f"sha256_{name}"] = np.array(signals.digest(source.numpy()))
        resampled = torchaudio.functional.resample(source, rate, SAMPLE_RATE)
        exact = torchaudio.functional.resample(source.double(), rate, SAMPLE_RATE)
        arrays |= golden_codes(model, name, resampled, exact)
    return arrays


def golden_codes(
    model: torch.nn.Module, name: str, clip: torch.Tensor, exact_clip: torch.Tensor
) -> dict[str, np.ndarray]:
    """Return the codes, uint16 [8, T], and the number of certain codes of each frame."""
    codebook = package().quantization.core_vq.EuclideanCodebook
    with recorded(codebook, "quantize", distances) as computed:
        found = codes(model, clip)
    with recorded(codebook, "quantize", distances) as exact, float64():
        codes(model.double(), exact_clip)
    model.float()
    return {f"codes_{name}": found, f"codes_{name}_certain": computed.certain(exact)}


def distances(book: Any, latents: torch.Tensor) -> list[torch.Tensor]:
    """Return squared distances by the package's own formula."""
    squares = latents.pow(2).sum(1, keepdim=True) + book.embed.pow(2).sum(1)
    return [squares - 2 * latents @ book.embed.t()]


@torch.inference_mode()
def codes(model: torch.nn.Module, samples: torch.Tensor) -> np.ndarray:
    """Return the codes: uint16 [8, T]."""
    return model.encode(samples[None, None])[:, 0].numpy().astype(np.uint16)


if __name__ == "__main__":
    main()
