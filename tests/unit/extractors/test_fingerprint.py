"""Whatever changes the artifact changes the fingerprint, and nothing else does."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from services.extractor_worker.engines import qwen3_tts
from services.extractor_worker.engines.qwen3_tts import Qwen3TTSExtractor
from services.extractor_worker.features.mel import MelSettings
from services.extractor_worker.pipeline import torch_extractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import HubWeights, LocalWeights, UntrainedWeights
from services.shared.model.fingerprint import Fingerprint
from speaker_registry.artifact import TensorSpec
from tests.unit.extractors.conftest import TINY, TINY_WIDTH, edit_json, edit_tensors, tiny_profile

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CODEC_CONFIG = "speech_tokenizer/config.json"


def fingerprint(
    folder: Path = TINY, name: str = "tiny", repo: str = "example/tiny", **loading: Any
) -> Fingerprint:
    embedding = TensorSpec(dtype="F32", shape=(TINY_WIDTH,))
    profile = tiny_profile("qwen3-tts-0.6b", name, repo, tensors={"speaker_embedding": embedding})
    loading = {"source": LocalWeights(folder), **loading}
    return Qwen3TTSExtractor(Loading(profile=profile, **loading)).fingerprint


def test_the_same_extractor_has_the_same_fingerprint(copy: Path) -> None:
    """Two workers with the same files, in different folders, agree."""
    assert fingerprint(copy) == fingerprint()
    assert fingerprint().digest == fingerprint(copy).digest
    assert fingerprint().digest.startswith("sha256:")


def test_it_survives_a_trip_through_a_manifest() -> None:
    """The facts are stored as JSON, and somebody will compute the digest again."""
    original = fingerprint()
    stored = Fingerprint(json.loads(json.dumps(original.facts)))
    assert stored == original
    assert stored.digest == original.digest


def test_the_profile_counts() -> None:
    """Equal files may be served under two names."""
    assert fingerprint(name="another").digest != fingerprint().digest


@pytest.mark.parametrize("file", ["model.safetensors", "speech_tokenizer/model.safetensors"])
def test_every_weight_file_counts(copy: Path, file: str) -> None:
    """One value of one tensor."""

    def nudge(tensors: dict[str, torch.Tensor]) -> None:
        key = sorted(tensors)[0]
        tensors[key] = tensors[key] + 1

    edit_tensors(copy / file, nudge)
    assert fingerprint(copy).digest != fingerprint().digest


def test_repository_and_revision_count(tmp_path: Path) -> None:
    """An artifact says where its weights are from."""
    found = []
    for repo, commit in (("example/a", COMMIT), ("example/b", COMMIT), ("example/a", "f" * 40)):
        shutil.copytree(TINY, tmp_path / f"models--{repo.replace('/', '--')}" / "snapshots" / commit)
        source = HubWeights(commit, local_files_only=True, cache=tmp_path)
        found.append(fingerprint(source=source, repo=repo))
    assert found[0].facts["weights"]["repo"] == "example/a"
    assert found[0].facts["weights"]["revision"] == COMMIT
    assert len({one.digest for one in [*found, fingerprint()]}) == 4


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("encoder_config", "sliding_window", 125),
        ("encoder_config", "rope_theta", 20_000.0),
        ("encoder_config", "hidden_act", "relu"),
        ("encoder_config", "norm_eps", 1e-6),
    ],
)
def test_the_codecs_configuration_counts(copy: Path, part: str, field: str, value: object) -> None:
    """It changes the codes without changing a weight."""
    edit_json(copy / CODEC_CONFIG, lambda config: config[part].update({field: value}))
    assert fingerprint(copy).digest != fingerprint().digest


def test_the_speaker_encoders_configuration_counts(copy: Path) -> None:
    """Dilations are no part of a weight's shape."""

    def widen(config: dict[str, Any]) -> None:
        config["speaker_encoder_config"]["enc_dilations"] = [1, 2, 3, 5, 1]

    edit_json(copy / "config.json", widen)
    assert fingerprint(copy).digest != fingerprint().digest


def test_configuration_that_does_not_matter_does_not_count(copy: Path) -> None:
    """An edited comment must not throw away every artifact."""
    edit_json(copy / "config.json", lambda config: config.update(talker_config={"hidden_size": 99}))
    edit_json(copy / CODEC_CONFIG, lambda config: config["encoder_config"].update(use_cache=True))
    assert fingerprint(copy).digest == fingerprint().digest


def test_the_dtype_counts() -> None:
    """bfloat16 changes codes."""
    assert fingerprint(dtype="bfloat16").digest != fingerprint().digest


@pytest.mark.parametrize(
    ("where", "constant", "value"),
    [
        (Qwen3TTSExtractor, "code_version", 99),
        (torch_extractor, "KERNEL", "soxr-hq"),
        (qwen3_tts, "_CODEBOOKS", 15),
    ],
)
def test_what_the_code_decides_counts(
    monkeypatch: pytest.MonkeyPatch, where: object, constant: str, value: object
) -> None:
    """Our own version, the resampler, how many books."""
    before = fingerprint(source=UntrainedWeights()).digest
    monkeypatch.setattr(where, constant, value)
    assert fingerprint(source=UntrainedWeights()).digest != before


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(MelSettings)])
def test_every_number_of_the_front_end_counts(monkeypatch: pytest.MonkeyPatch, field: str) -> None:
    """Another hop, floor or band is another spectrogram."""
    before = fingerprint().digest
    settings = MelSettings()
    changed = dataclasses.replace(settings, **{field: getattr(settings, field) * 2 + 1})
    monkeypatch.setattr(qwen3_tts, "_mel_settings", lambda _: changed)
    assert fingerprint().digest != before


def test_untrained_weights_say_so_and_name_their_seed() -> None:
    """No surface may take such a voice for a real one."""
    first, second = fingerprint(source=UntrainedWeights()), fingerprint(source=UntrainedWeights(seed=1))
    assert first.untrained
    assert not fingerprint().untrained
    assert first.facts["weights"] == {"untrained": True, "seed": 0}
    assert first.digest != second.digest


def test_the_window_is_part_of_it() -> None:
    """Whoever compares with a server that ignores it must be able to see why codes differ after 10 s."""
    codec = fingerprint().facts["codec"]
    assert (codec["sliding_window"], codec["sliding_window_applied"]) == (250, True)


def test_custom_weights_count_and_published_ones_do_not_say_that_they_are_published(copy: Path) -> None:
    """Otherwise this release would make all artifacts of the one before stale."""
    custom, published = fingerprint(source=LocalWeights(copy, custom=True)), fingerprint(copy)
    assert (custom.custom_weights, published.custom_weights) == (True, False)
    assert custom.digest != published.digest
    assert "custom" not in published.facts["weights"]


@pytest.mark.parametrize("facts", [{}, {"weights": None}, {"weights": {"custom": "no"}}, {"weights": []}])
def test_facts_from_outside_that_say_nothing_of_weights_are_not_custom(facts: dict[str, Any]) -> None:
    """An artifact that somebody brings may say anything there."""
    assert not Fingerprint(facts).custom_weights
