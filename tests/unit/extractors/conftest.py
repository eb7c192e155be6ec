"""The tiny checkpoint, its goldens, and extractors loaded from it once per process."""

import functools
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from services.extractor_worker.engines.qwen3_tts import Qwen3TTSExtractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.engine import Dtype, Profile, PublishedWeights
from tests.unit.extractors import signals

TINY = Path(__file__).parents[2] / "data/qwen3_tts_tiny"
TINY_WIDTH = 64

Goldens = Mapping[str, np.ndarray]
Loader = Callable[..., Qwen3TTSExtractor]


def tiny_profile(like: str, name: str = "tiny", repo: str = "example/tiny", **facts: Any) -> Profile:
    """A built-in profile for a tiny checkpoint: no commit, and files of any content.

    Args:
        facts: what differs, e.g. `tensors`.
    """
    profile = BUILT_IN[like]
    published = profile.weights
    weights = PublishedWeights(
        repo=repo, licence=published.licence, files=dict.fromkeys(published.files), notes=published.notes
    )
    return replace(profile, name=name, weights=weights, **facts)


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
    """What the reference made with the checkpoint in the folder, by name."""
    with np.load(folder / "goldens.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def goldens(request: pytest.FixtureRequest) -> Goldens:
    """Of the checkpoint that the module's `TINY` names; of Qwen3-TTS' where it names none."""
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
    """The extractor of the tiny checkpoint in a dtype."""
    return functools.cache(lambda dtype: load_tiny(dtype=dtype))


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A copy of the module's tiny checkpoint to spoil."""
    return shutil.copytree(_tiny_of(request), tmp_path / "checkpoint")


def _tiny_of(request: pytest.FixtureRequest) -> Path:
    return getattr(request.module, "TINY", TINY)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    with torch_threads(2):
        yield


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where converted pickles are kept: those of tests are no business of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


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
    """Save the tensors that `change` returns; if it returns none, those it was given and changed."""
    tensors = torch.load(path, weights_only=True)
    changed = change(tensors)
    torch.save(changed if isinstance(changed, dict) else tensors, path)
