"""Qwen3-TTS' tiny checkpoint with its goldens, and helpers for the tests of all extractors."""

import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file

from services.extractor_worker.engines.qwen3_tts import Qwen3TTSExtractor
from services.extractor_worker.pipeline.torch_extractor import Loading, TorchExtractor
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.engine import Dtype, Profile, PublishedWeights
from tests.unit.extractors import signals

TINY = Path(__file__).parents[2] / "data/qwen3_tts_tiny"
TINY_WIDTH = 64

DEVICE = os.environ.get("EXTRACTOR_TEST_DEVICE", "cpu")
"""The device of every extractor whose test names none. `make test-gpu` sets it."""
Loading.__init__.__kwdefaults__["device"] = DEVICE

Goldens = Mapping[str, np.ndarray]


def tiny_profile(like: str, name: str = "tiny", repo: str = "example/tiny", **fields: Any) -> Profile:
    """Return a built-in profile for a tiny checkpoint, without a commit and with files of any content.

    `fields` replaces fields of the built-in profile.
    """
    profile = BUILT_IN[like]
    published = profile.weights
    weights = PublishedWeights(
        repo=repo, licence=published.licence, files=dict.fromkeys(published.files), notes=published.notes
    )
    return replace(profile, name=name, weights=weights, **fields)


def load_tiny(
    folder: Path = TINY, dtype: Dtype = "float32", width: int = TINY_WIDTH, **loading: Any
) -> Qwen3TTSExtractor:
    tensors = BUILT_IN["qwen3-tts-0.6b"].tensors
    narrow = {"speaker_embedding": tensors["speaker_embedding"].model_copy(update={"shape": (width,)})}
    profile = tiny_profile("qwen3-tts-0.6b", "qwen3-tts-tiny", tensors={**tensors, **narrow})
    loading = {"profile": profile, "source": LocalWeights(folder), "dtype": dtype, **loading}
    return Qwen3TTSExtractor(Loading(**loading))


@functools.cache
def read_goldens(folder: Path) -> Goldens:
    """Read what the reference computed with the checkpoint in this folder, by name."""
    with np.load(folder / "goldens.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def goldens(request: pytest.FixtureRequest) -> Goldens:
    """Return the goldens of the checkpoint in the test module's `TINY`.

    The default is Qwen3-TTS' checkpoint.
    """
    return read_goldens(_tiny_of(request))


def golden_clip(goldens: Goldens, name: str, rate: int, other_rates_seconds: float = 3.01) -> ReferenceAudio:
    """The clip that a golden was made from.

    Args:
        name: its seconds; or its rate, where that is another than the encoder's own.
        rate: its samples a second.
        other_rates_seconds: how long those are that are named by their rate.
    """
    samples = signals.speechlike(other_rates_seconds if name == str(rate) else float(name), rate)
    assert signals.digest(samples) == str(goldens[f"sha256_{name}"]), "this machine makes another clip"
    return ReferenceAudio(samples, rate)


@pytest.fixture(scope="session")
def tiny() -> Callable[[Dtype], Qwen3TTSExtractor]:
    """Return a function that loads the tiny checkpoint in a dtype, once for each."""
    return functools.cache(lambda dtype: load_tiny(dtype=dtype))


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return the folder of a copy of the module's tiny checkpoint, which a test may change."""
    return shutil.copytree(_tiny_of(request), tmp_path / "checkpoint")


def _tiny_of(request: pytest.FixtureRequest) -> Path:
    return getattr(request.module, "TINY", TINY)


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests cache out of the real home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the hub's cache in this process, which cannot reach the hub."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "cache"


def edit_json(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_tensors(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = {key: tensor.clone() for key, tensor in load_file(path).items()}
    change(tensors)
    path.unlink()  # the copy may share the original's inode
    save_file(tensors, path)


def edit_pickle(path: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    """Change the tensors of a pickle, which may be wrapped in a `state_dict`.

    If `change` returns a dictionary, that dictionary is saved instead.
    """
    content = torch.load(path, weights_only=True)
    changed = change(content.get("state_dict", content))
    path.unlink()  # the copy may share the original's inode
    torch.save(changed if isinstance(changed, dict) else content, path)


def extract(extractor: TorchExtractor[Any, Any], *clips: ReferenceAudio) -> list[dict[str, np.ndarray]]:
    """Run the three steps, with all clips encoded by one call."""
    prepared = [extractor.prepare(clip) for clip in clips]
    return [extractor.finish(encoded) for encoded in extractor.encode(prepared)]
