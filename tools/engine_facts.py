"""Writes into each page of `docs/engines/` the facts that the code has about that engine: tensors, weights,
batches, ways into the engine, how exactness is proven, and licences.

.venv/bin/python -m tools.engine_facts

The rest of each page, above these sections, is written by hand.
"""

import importlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from services.extractor_worker.engines import catalogue
from services.extractor_worker.pipeline.proof import LIMITS, Limits
from services.shared.model.profiles import BUILT_IN
from speaker_registry.engine import Dtype, Profile, TensorSpec
from speaker_registry.syncing.custom_voices import CustomVoices
from speaker_registry.syncing.samples import SpeakerSamples
from speaker_registry.vllm_omni.slots import CACHING_MODEL_TYPES

ROOT = Path(__file__).parents[1]
_FOLDER = ROOT / "docs" / "engines"
_BEGIN, _END = "<!-- facts: made by tools/engine_facts.py -->\n", "<!-- end of facts -->"


@dataclass(frozen=True, slots=True)
class Page:
    """What one page is about, and what proves it."""

    profiles: tuple[str, ...]
    checkpoint: str = ""
    """The folder of the small checkpoint in `tests/data`, or nothing if no worker makes the artifact."""
    tests: str = ""
    """The file in `tests/unit/extractors` that compares our encoder with the references."""
    references: tuple[str, ...] = ()
    """The packages whose results the checkpoint's goldens are."""


_HIGGS = ("higgs_audio_tiny", "test_higgs_audio.py")
_FISH = ("fish_speech_tiny", "test_fish_speech.py", ("fish-speech", "vllm-omni"))
PAGES: Mapping[str, Page] = {
    "qwen3-tts": Page(
        ("qwen3-tts-0.6b", "qwen3-tts-1.7b"),
        "qwen3_tts_tiny",
        "test_qwen3_tts_parity.py",
        ("qwen-tts", "transformers"),
    ),
    "fish-speech": Page(("fish-speech-s2-pro",), *_FISH),
    "audio8": Page(("audio8",), *_FISH),
    "cosyvoice3": Page(
        ("cosyvoice3-0.5b",),
        "cosyvoice3_tiny",
        "test_cosyvoice3.py",
        ("s3tokenizer", "onnxruntime", "vllm-omni"),
    ),
    "voxcpm2": Page(("voxcpm2",), "voxcpm2_tiny", "test_voxcpm2.py", ("voxcpm",)),
    "ming-tts": Page(("ming-tts",), "cosyvoice3_tiny", "test_ming_tts.py", ("onnxruntime", "torchaudio")),
    "omnivoice": Page(("omnivoice",), *_HIGGS, ("transformers", "omnivoice", "pydub")),
    "higgs-audio": Page(("higgs-audio-v2", "higgs-audio-v3"), *_HIGGS, ("transformers", "vllm-omni")),
    "voxtral": Page(("voxtral",)),
    "ecapa-voxceleb": Page(
        ("ecapa-voxceleb",), "ecapa_voxceleb_tiny", "test_ecapa_voxceleb.py", ("speechbrain",)
    ),
    "dac": Page(
        ("dac-16khz", "dac-24khz", "dac-44khz"),
        "dac_tiny",
        "test_dac.py",
        ("descript-audio-codec", "transformers"),
    ),
    "speechtokenizer": Page(
        ("speechtokenizer",), "speech_tokenizer_tiny", "test_speech_tokenizer.py", ("speechtokenizer",)
    ),
}
"""The name of each page -> what it is about."""
_GUIDE = "../vllm-omni.md"
_WAYS: Mapping[str, frozenset[str]] = {
    f"[the plugin]({_GUIDE}#a-server-that-follows-the-registry) fills its cache": CACHING_MODEL_TYPES,
    f"[a folder of ready artifacts]({_GUIDE}#a-folder-of-ready-artifacts)": CustomVoices.model_types,
    f"[a folder of clips]({_GUIDE}#a-folder-of-clips), which it encodes": SpeakerSamples.model_types,
}
"""Ways of a voice into a server -> the model types for which vLLM-Omni 0.30 has them."""


def facts_on(text: str) -> str:
    """Return what a page holds between its marks."""
    return text.partition(_BEGIN)[2].partition(_END)[0]


def facts(page: Page) -> str:
    """Return the sections about a page's profiles, as Markdown."""
    profiles = [BUILT_IN[name] for name in page.profiles]
    sections = [_artifact_section(profiles), _requirements_section(profiles), _ways_section(profiles[0])]
    if page.checkpoint:
        sections.append(_proof_section(page, profiles))
    return "\n".join(line for section in [*sections, _licence_section(profiles)] for line in section)


def _artifact_section(profiles: Sequence[Profile]) -> Iterator[str]:
    yield "## What an artifact holds\n"
    rows = [
        (f"`{profile.name}`", f"`{name}`", spec.dtype, _shape(spec), _values(spec), _presence(spec))
        for profile in profiles
        for name, spec in profile.tensors.items()
    ]
    yield from _table(("profile", "tensor", "type", "shape", "values", "present"), rows)
    for profile in profiles:
        if profile.frame_rate:
            yield f"T of `{profile.name}` is the number of frames, {profile.frame_rate:.5g} a second.\n"


def _shape(spec: TensorSpec) -> str:
    return f"[{', '.join(map(str, spec.shape))}]"


def _values(spec: TensorSpec) -> str:
    if spec.maximum is None:
        return "the number of frames" if spec.counts_frames else "finite"
    text = f"{spec.minimum or 0:g} to {spec.maximum:g}"
    sizes = spec.codebook_sizes
    return f"{text}; {sizes[-1] - 1} at most after the first book" if sizes else text


def _presence(spec: TensorSpec) -> str:
    if spec.needs_ref_text:
        return "if the voice has a transcript"
    return "always" if spec.required else "if the voice has a clip"


def _requirements_section(profiles: Sequence[Profile]) -> Iterator[str]:
    yield "## What it needs\n"
    if profiles[0].not_extractable:
        yield f"No worker makes it: {profiles[0].not_extractable}.\n"
        return
    rows = [
        (
            f"`{profile.name}`",
            profile.weights.repo,
            f"`{profile.weights.commit[:12]}`" if profile.weights.commit else "to be named",
            ", ".join(f"`{name}`" for name in profile.weights.files),
            f"{profile.sample_rate:,} Hz",
            "needed" if profile.ref_text_required else "optional",
        )
        for profile in profiles
    ]
    yield from _table(("profile", "repository", "commit", "files", "encoder takes", "transcript"), rows)
    yield from _computed(_extractor(profiles[0].name))


def _computed(extractor: Any) -> Iterator[str]:
    if extractor.always_float32:
        yield "The encoder computes in float32, whatever `SPEAKER_EXTRACTOR_DTYPE` says."
    else:
        yield "The encoder computes in `SPEAKER_EXTRACTOR_DTYPE`: `float32`, or `bfloat16`."
    if seconds := extractor.gpu_batch_seconds:
        yield f"On a GPU, up to {seconds:g} s of audio are encoded at once; on a CPU, one clip at a time.\n"
    else:
        yield "Clips are encoded one at a time, on a GPU as well.\n"


def _ways_section(profile: Profile) -> Iterator[str]:
    yield "## Ways into vLLM-Omni\n"
    rows = [(way, "yes" if profile.model_type in types else "no") for way, types in _WAYS.items()]
    yield from _table(("way", f"`{profile.model_type}`"), rows)


def _proof_section(page: Page, profiles: Sequence[Profile]) -> Iterator[str]:
    yield "## How that is proven\n"
    yield (
        f"`tests/unit/extractors/{page.tests}` compares the encoder with {_references(page)}, on a "
        "[small checkpoint](../../tests/data/README.md) with random weights in the published layout.\n"
    )
    dtypes: tuple[Dtype, ...] = ("float32",) if _extractor(profiles[0].name).always_float32 else tuple(LIMITS)
    kinds = {_kind(spec) for profile in profiles for spec in profile.tensors.values()}
    yield (
        "Each worker repeats a proof on its own device before it serves: it compares a fixed clip with a "
        "second copy in float32 on the CPU, and every weight bit by bit.\n"
    )
    rows = [(dtype, "; ".join(_limits(LIMITS[dtype], kinds))) for dtype in dtypes]
    yield from _table(("computed in", "the proof holds if"), rows)


def _references(page: Page) -> str:
    with np.load(ROOT / "tests" / "data" / page.checkpoint / "goldens.npz") as goldens:
        versions = json.loads(str(goldens["made_with"]))
    named = [f"{name} {versions[name]}" for name in page.references]
    return " and ".join([", ".join(named[:-1]), named[-1]] if named[1:] else named)


def _kind(spec: TensorSpec) -> str:
    if spec.dtype.startswith("I"):
        return "codes"
    return "frames" if any(isinstance(size, str) for size in spec.shape) else "embeddings"


def _limits(limits: Limits, kinds: set[str]) -> Iterator[str]:
    if "codes" in kinds:
        yield f"{limits.equal_codes:.0%} of the codes are equal"
    if "embeddings" in kinds:
        yield f"the cosine distance of embeddings is at most {limits.cosine_distance:.0e}"
    if "frames" in kinds:
        yield f"the relative error of other numbers is at most {limits.relative_error:.0e}"


def _licence_section(profiles: Sequence[Profile]) -> Iterator[str]:
    yield "## Licence of the weights\n"
    rows = [
        (f"`{profile.name}`", profile.weights.licence, profile.weights.notes or "–") for profile in profiles
    ]
    yield from _table(("profile", "licence", "to be known"), rows)


def _extractor(profile: str) -> Any:
    module, _, name = catalogue.BUILT_IN[profile].partition(":")
    return getattr(importlib.import_module(module), name)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    for cells in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(cells)} |"
    yield ""


def main() -> None:
    """Put the current facts into all pages."""
    for name, page in PAGES.items():
        path = _FOLDER / f"{name}.md"
        before, _, rest = path.read_text().partition(_BEGIN)
        path.write_text(before + _BEGIN + facts(page) + _END + rest.partition(_END)[2])


if __name__ == "__main__":
    main()
