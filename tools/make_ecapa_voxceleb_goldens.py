"""Makes tests/data/ecapa_voxceleb_tiny: a tiny checkpoint in SpeechBrain's layout, and its goldens.

Only the clips are ours. The weights and goldens are made by the classes of SpeechBrain, and another rate is
resampled by torchaudio. SpeechBrain requires torchaudio, whose compiled parts need CUDA; the rest of it is
plain Python:

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 numpy huggingface-hub hyperpyyaml sentencepiece soundfile
    reference/bin/pip install tqdm scipy "ruamel.yaml<0.19"
    reference/bin/pip install --no-deps speechbrain==1.1.2 torchaudio==2.11.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_ecapa_voxceleb_goldens.py

With `--published-size <folder>` it makes the same at the published size, there. The versions it ran with are
recorded in goldens.npz under `made_with`.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from speechbrain.inference.classifiers import EncoderClassifier
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN
from speechbrain.processing.features import InputNormalization

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tools.goldens import float64, golden, resampled, save, some_frames  # noqa: E402

OUT = ROOT / "tests/data/ecapa_voxceleb_tiny"
SEED = 20
SAMPLE_RATE = 16_000
CLIPS = {"0.04": 0.04, "1.0": 1.0, "3.0": 3.0, "7.313": 7.313, "12.4": 12.4}
"""Maps each clip's name to its seconds.

0.04 s is the shortest possible; 7.313 s is no multiple of the hop.
"""
RESAMPLED = {"24000": 24_000, "44100": 44_100}
"""Maps the names of clips that are resampled first, 3.01 s each, to their sample rates."""

PUBLISHED = {
    "channels": [1024, 1024, 1024, 1024, 3072],
    "kernel_sizes": [5, 3, 3, 3, 1],
    "dilations": [1, 2, 3, 4, 1],
    "attention_channels": 128,
    "lin_neurons": 192,
}
TINY = PUBLISHED | {
    "channels": [32, 32, 32, 32, 96],
    "attention_channels": 16,
    "se_channels": 16,
    "lin_neurons": 24,
}


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--published-size", type=Path)
    folder = arguments.parse_args().published_size
    out, architecture = (folder, PUBLISHED) if folder else (OUT, TINY)
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    model = ECAPA_TDNN(80, **architecture).eval()
    randomize_norms(model)
    torch.save(model.state_dict(), out / "embedding_model.ckpt")
    arrays = {**clip_goldens(model), **resampled_goldens(model)}
    save(out / "goldens.npz", arrays, ("speechbrain", "torch", "torchaudio", "numpy"), seed=SEED)


def classifier(model: ECAPA_TDNN, device: str = "cpu") -> EncoderClassifier:
    """Build the classifier of hyperparams.yaml. Without `normalize`, mean_var_norm_emb is not needed."""
    modules = {
        "compute_features": Fbank(n_mels=80),
        "mean_var_norm": InputNormalization(norm_type="sentence", std_norm=False),
        "embedding_model": model,
        "classifier": torch.nn.Identity(),
    }
    return EncoderClassifier(modules, hparams={"device": device}, run_opts={"device": device})


@torch.no_grad()
def randomize_norms(model: ECAPA_TDNN) -> None:
    """Randomize batch norms. With their initial values they do nothing in evaluation."""
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.2)
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.2, 1.5)
            module.num_batches_tracked.fill_(1000)


def clip_goldens(model: ECAPA_TDNN) -> dict[str, np.ndarray]:
    """Return the embedding of every clip, and the bands of some frames. All bands would be large."""
    arrays: dict[str, np.ndarray] = {}
    for name, seconds in CLIPS.items():
        clip = torch.from_numpy(signals.speechlike(seconds, SAMPLE_RATE))
        arrays[f"sha256_{name}"] = np.array(signals.digest(clip.numpy()))
        exact, computed = both(normalised_bands, model, clip, clip)
        arrays |= golden(f"bands_{name}", some_frames(exact), some_frames(computed), amplitudes)
        arrays |= golden(f"embedding_{name}", *both(embedding, model, clip, clip))
    return arrays


def resampled_goldens(model: ECAPA_TDNN) -> dict[str, np.ndarray]:
    """Return the embeddings of clips that torchaudio resamples from another rate."""
    arrays: dict[str, np.ndarray] = {}
    for name, rate in RESAMPLED.items():
        source = torch.from_numpy(signals.speechlike(3.01, rate))
        arrays[f"sha256_{name}"] = np.array(signals.digest(source.numpy()))
        arrays |= golden(f"embedding_{name}", *both(embedding, model, *resampled(source, rate, SAMPLE_RATE)))
    return arrays


def both(
    compute: Callable[[EncoderClassifier, torch.Tensor], torch.Tensor],
    model: ECAPA_TDNN,
    clip: torch.Tensor,
    exact_clip: torch.Tensor,
) -> tuple[np.ndarray, np.ndarray]:
    """Return a result in float64, including the front end, and in float32."""
    computed = compute(classifier(model), clip).numpy()
    with float64():
        exact = compute(classifier(model.double()), exact_clip.double()).numpy()
    model.float()
    return exact, computed


def amplitudes(decibels: np.ndarray) -> np.ndarray:
    return 10 ** (decibels / 20)


@torch.inference_mode()
def normalised_bands(reference: EncoderClassifier, clip: torch.Tensor) -> torch.Tensor:
    """Return the bands that the embedding model gets: [T, 80]."""
    bands = reference.mods.compute_features(clip[None])
    return reference.mods.mean_var_norm(bands, torch.ones(1))[0]


@torch.inference_mode()
def embedding(reference: EncoderClassifier, clip: torch.Tensor) -> torch.Tensor:
    return reference.encode_batch(clip[None])[0, 0]


if __name__ == "__main__":
    main()
