"""The fingerprint changes exactly when something changes that affects the artifact."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from services.extractor_worker.engines import qwen3_tts
from services.extractor_worker.engines.qwen3_tts import Qwen3TTSExtractor
from services.extractor_worker.features.mel import MelSettings
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import HubWeights, LocalWeights, UntrainedWeights
from services.shared.model.fingerprint import Fingerprint
from speaker_registry.artifact import TensorSpec
from tests.unit.extractors.conftest import TINY, TINY_WIDTH, tiny_profile

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def fingerprint(
    folder: Path = TINY, name: str = "tiny", repo: str = "example/tiny", **loading: Any
) -> Fingerprint:
    embedding = TensorSpec(dtype="F32", shape=(TINY_WIDTH,))
    profile = tiny_profile("qwen3-tts-0.6b", name, repo, tensors={"speaker_embedding": embedding})
    loading = {"source": LocalWeights(folder), **loading}
    return Qwen3TTSExtractor(Loading(profile=profile, **loading)).fingerprint


def test_it_survives_a_trip_through_a_manifest() -> None:
    """The fingerprint inputs are stored as JSON, and readers compute the digest again."""
    original = fingerprint()
    stored = Fingerprint(json.loads(json.dumps(original.inputs)))
    assert stored == original
    assert stored.digest == original.digest
    assert stored.digest.startswith("sha256:")


def test_the_profile_counts() -> None:
    """Two profiles may serve equal files."""
    assert fingerprint(name="another").digest != fingerprint().digest


def test_repository_and_revision_count(hub_cache: Path) -> None:
    """An artifact says where its weights come from."""
    found = []
    for repo, commit in (("example/a", COMMIT), ("example/b", COMMIT), ("example/a", "f" * 40)):
        shutil.copytree(TINY, hub_cache / f"models--{repo.replace('/', '--')}" / "snapshots" / commit)
        found.append(fingerprint(source=HubWeights(commit), repo=repo))
    assert found[0].inputs["weights"]["repo"] == "example/a"
    assert found[0].inputs["weights"]["revision"] == COMMIT
    assert len({one.digest for one in [*found, fingerprint()]}) == 4


def test_the_dtype_counts() -> None:
    """bfloat16 changes codes."""
    assert fingerprint(dtype="bfloat16").digest != fingerprint().digest


def test_the_number_of_codebooks_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(source=UntrainedWeights()).digest
    monkeypatch.setattr(qwen3_tts, "_CODEBOOKS", 15)
    assert fingerprint(source=UntrainedWeights()).digest != before


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(MelSettings)])
def test_every_number_of_the_front_end_counts(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """Another hop, floor or band is another spectrogram."""
    before = fingerprint().digest
    settings = MelSettings()
    changed = dataclasses.replace(settings, **{field: getattr(settings, field) * 2 + 1})
    monkeypatch.setattr(qwen3_tts, "_mel_settings", lambda _: changed)
    assert fingerprint().digest != before


def test_the_window_is_part_of_it() -> None:
    """Some servers ignore the window. The fingerprint must show why their codes differ after 10 s."""
    codec = fingerprint().inputs["codec"]
    assert (codec["sliding_window"], codec["sliding_window_applied"]) == (250, True)


def test_custom_weights_count_and_published_ones_do_not_say_that_they_are_published(copy: Path) -> None:
    """A new field in the fingerprint of published weights would make all older artifacts stale."""
    custom, published = fingerprint(source=LocalWeights(copy, custom=True)), fingerprint(copy)
    assert (custom.custom_weights, published.custom_weights) == (True, False)
    assert custom.digest != published.digest
    assert "custom" not in published.inputs["weights"]


@pytest.mark.parametrize("inputs", [{}, {"weights": None}, {"weights": {"custom": "no"}}, {"weights": []}])
def test_inputs_from_outside_that_say_nothing_of_weights_are_not_custom(inputs: dict[str, Any]) -> None:
    """An uploaded artifact may say anything there."""
    assert not Fingerprint(inputs).custom_weights
