"""Makes tests/data/dac_tiny: a tiny Descript Audio Codec for each rate, and its goldens.

Goldens are computed by the descript-audio-codec package, on weights that it has laid out; they are converted
to the published layout, with weight norm folded, for transformers, which writes the checkpoints. Encoding
needs none of the package's dependencies, so stand-ins replace them; other rates go through torchaudio's
resampler, whose compiled parts need CUDA (the rest is plain Python):

    python3.11 -m venv reference
    reference/bin/pip install torch==2.13.0 transformers==5.14.1 numpy einops tqdm
    reference/bin/pip install --no-deps descript-audio-codec==1.0.0 torchaudio==2.11.0
    rm reference/lib/python3.11/site-packages/torchaudio/lib/*.so
    reference/bin/python tools/make_dac_goldens.py

The versions it ran with are recorded in goldens.npz under `made_with`.
"""

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers import DacConfig, DacModel, logging

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.unit.extractors import signals  # noqa: E402 — a script has no package to be imported from
from tools.goldens import float64, package, recorded, resampled, save  # noqa: E402

OUT = ROOT / "tests/data/dac_tiny"
SEED = 7
MODELS = {
    "dac-16khz": (16_000, [2, 4, 5, 8], 12),
    "dac-24khz": (24_000, [2, 4, 5, 8], 32),
    "dac-44khz": (44_100, [2, 4, 8, 8], 9),
}
"""Maps each profile to its Hz, ratios and codebooks, as in conf/final of the codec's repository."""
WIDTH, BOOK_SIZE, BOOK_WIDTH = 2, 64, 4
CLIPS = {"0.64": 0.64, "1.0": 1.0, "2.37": 2.37}
"""Maps each clip's name to its seconds. 0.64 s is a whole number of frames at 16 and 24 kHz."""
RESAMPLED = {"22050": 22_050}
"""Maps the name of the clip that is resampled first, 0.51 s long, to its sample rate."""


def main() -> None:
    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    codec = codec_class()
    arrays: dict[str, np.ndarray] = {}
    for profile, (rate, ratios, books) in MODELS.items():
        model = random_codec(codec, rate, ratios, books)
        published = publish(model, OUT / profile)
        for name, (clip, exact_clip) in clips_at(rate).items():
            arrays |= golden(model, published, f"{profile}_{name}", clip, exact_clip)
    different = {
        name: [len(np.unique(book)) for book in codes] for name, codes in arrays.items() if codes.ndim == 2
    }
    print({name: (min(counts), max(counts)) for name, counts in different.items()})
    packages = ("descript-audio-codec", "transformers", "torch", "torchaudio", "numpy")
    save(OUT / "goldens.npz", arrays, packages, seed=SEED)


def clips_at(rate: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Return each clip in float32 and in float64."""
    clips = {name: torch.from_numpy(signals.speechlike(seconds, rate)) for name, seconds in CLIPS.items()}
    found = {name: (clip, clip.double()) for name, clip in clips.items()}
    for name, source in RESAMPLED.items():
        found[name] = resampled(torch.from_numpy(signals.speechlike(0.51, source)), source, rate)
    return found


def codec_class() -> Any:
    """Return `dac.model.dac.DAC` without the imports of `dac/__init__.py`."""
    tools, ml = ModuleType("audiotools"), ModuleType("audiotools.ml")
    tools.AudioSignal = tools.STFTParams = object
    tools.ml, ml.BaseModel = ml, torch.nn.Module
    sys.modules |= {"audiotools": tools, "audiotools.ml": ml}
    for name in ("dac", "dac.model"):
        package(name)
    from dac.model.dac import DAC  # noqa: PLC0415 — not before the packages are in place

    return DAC


@torch.no_grad()
def random_codec(codec: Any, rate: int, ratios: list[int], books: int) -> Any:
    model = codec(
        encoder_dim=WIDTH,
        encoder_rates=ratios,
        decoder_dim=2 ** len(ratios),
        decoder_rates=ratios[::-1],
        n_codebooks=books,
        codebook_size=BOOK_SIZE,
        codebook_dim=BOOK_WIDTH,
        sample_rate=rate,
    ).eval()
    for name, weight in model.encoder.named_parameters():
        if name.endswith(("alpha", "weight_g")):  # as initialised, alphas are all 1 and signals fade away
            weight.mul_(torch.rand(weight.shape) * 1.5 + 0.75)
        elif name.endswith("bias"):
            weight.uniform_(-0.1, 0.1)
    calibrate(model, torch.from_numpy(signals.speechlike(4.0, rate, seed=9)))
    return model


def calibrate(model: Any, clip: torch.Tensor) -> None:
    """Spread each codebook over its residual, so that no single entry is the nearest everywhere."""
    residual = model.encoder(padded(model, clip))  # [1, D, T]
    for book in model.quantizer.quantizers:
        latents = book.in_proj(residual)  # [1, C, T]
        rows = latents[0].T
        spread = rows.mean(0) + 1.5 * rows.std(0) * torch.randn(BOOK_SIZE, BOOK_WIDTH)
        book.codebook.weight.copy_(spread)
        book.out_proj.weight_g.mul_(residual.std() / book(residual)[0].std())
        residual = residual - book(residual)[0]


def padded(model: Any, clip: torch.Tensor) -> torch.Tensor:
    return model.preprocess(clip[None, None], model.sample_rate)


def golden(
    model: Any, published: DacModel, name: str, clip: torch.Tensor, exact_clip: torch.Tensor
) -> dict[str, np.ndarray]:
    """Return the codes, uint8 [K, T], and the number of certain codes of each frame.

    The codec itself and transformers must agree on the codes.
    """
    book = type(model.quantizer.quantizers[0])
    with torch.inference_mode(), recorded(book, "decode_latents", distances) as computed:
        samples = padded(model, clip)
        codes, theirs = model.encode(samples)[1], published.encode(samples).audio_codes
    if not torch.equal(codes, theirs):
        sys.exit(f"transformers finds other codes: {(codes == theirs).float().mean():.5f} are the same")
    with torch.no_grad(), recorded(book, "decode_latents", distances) as exact, float64():
        model.double().encode(padded(model, exact_clip))
    model.float()
    return {name: codes[0].numpy().astype(np.uint8), f"{name}_certain": computed.certain(exact)}


def distances(book: Any, latents: torch.Tensor) -> list[torch.Tensor]:
    """Return squared distances on the unit sphere by the package's own formula."""
    rows, entries = functional.normalize(latents[0].T), functional.normalize(book.codebook.weight)
    squares = rows.pow(2).sum(1, keepdim=True) + entries.pow(2).sum(1)
    return [squares - 2 * rows @ entries.T]


# --- the published layout


@torch.no_grad()
def publish(model: Any, folder: Path) -> DacModel:
    config = DacConfig(
        encoder_hidden_size=WIDTH,
        downsampling_ratios=model.encoder_rates,
        decoder_hidden_size=2 ** len(model.encoder_rates),
        n_codebooks=model.n_codebooks,
        codebook_size=BOOK_SIZE,
        codebook_dim=BOOK_WIDTH,
        sampling_rate=model.sample_rate,
    )
    published = DacModel(config).eval()
    report = published.load_state_dict(converted(model), strict=False)
    assert not report.unexpected_keys
    assert all(key.startswith("decoder.") for key in report.missing_keys)  # stays as it was drawn
    published.save_pretrained(folder)
    return published


def converted(model: Any) -> dict[str, torch.Tensor]:
    tensors = {}
    for key, tensor in model.state_dict().items():
        if key.startswith("decoder.") or key.endswith("weight_v"):
            continue
        name, value = key, tensor
        if key.endswith("weight_g"):
            name = key.removesuffix("_g")
            value = torch._weight_norm(model.state_dict()[f"{name}_v"], tensor, 0)
        tensors[renamed(name, len(model.encoder_rates))] = value
    return tensors


def renamed(key: str, stages: int) -> str:
    parts = ("snake1", "conv1", "snake2", "conv2")
    if unit := re.fullmatch(r"encoder\.block\.(\d+)\.block\.(\d)\.block\.(\d)\.(\w+)", key):
        stage, place, part, tensor = unit.groups()
        return f"encoder.block.{int(stage) - 1}.res_unit{int(place) + 1}.{parts[int(part)]}.{tensor}"
    if end := re.fullmatch(r"encoder\.block\.(\d+)\.block\.(\d)\.(\w+)", key):
        stage, part, tensor = end.groups()
        return f"encoder.block.{int(stage) - 1}.{parts[int(part) - 3]}.{tensor}"
    if outer := re.fullmatch(r"encoder\.block\.(\d+)\.(\w+)", key):
        names = {0: "conv1", stages + 1: "snake1", stages + 2: "conv2"}
        return f"encoder.{names[int(outer[1])]}.{outer[2]}"
    return key


if __name__ == "__main__":
    main()
