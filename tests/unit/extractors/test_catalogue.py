"""Extractors are loaded by profile name, here at full size with random weights."""

import hashlib
import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from services.extractor_worker.engines.catalogue import BUILT_IN as EXTRACTORS
from services.extractor_worker.engines.catalogue import fingerprint_of, load_extractor
from services.extractor_worker.models.mimi import CodecConfig, codec_layout
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import HubWeights, UntrainedWeights
from services.extractor_worker.weights.untrained import random_tensors
from services.shared.audio import ReferenceAudio
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.profiles import BUILT_IN, ProfileAmbiguous
from speaker_registry.artifact import check_tensors
from speaker_registry.engine import Profile
from speaker_registry.errors import ProfileUnknown, WeightsMissing
from tests.unit.extractors.conftest import extract
from tests.unit.extractors.signals import speechlike

CLIP, OTHER = (ReferenceAudio(speechlike(1.5, 44_100, seed), 44_100) for seed in (0, 4))


@dataclass(frozen=True)
class Extracted:
    """The artifacts of two voices, and of the first voice again, from one extractor of published size.

    Encoding at full size takes most of the time of these tests, so they share its results.
    """

    profile: Profile
    fingerprint: Fingerprint
    first: dict[str, np.ndarray]
    other: dict[str, np.ndarray]
    again: dict[str, np.ndarray]


@pytest.fixture(scope="module", params=sorted(EXTRACTORS))
def untrained(request: pytest.FixtureRequest) -> Extracted:
    profile = BUILT_IN[request.param]
    extractor = load_extractor(Loading(profile=profile, source=UntrainedWeights()))
    assert extractor.profile_name == profile.name
    assert extractor.fingerprint == fingerprint_of(Loading(profile=profile, source=UntrainedWeights()))
    results = [extract(extractor, clip)[0] for clip in (CLIP, OTHER, CLIP)]
    return Extracted(profile, extractor.fingerprint, *results)


def test_an_unknown_profile_names_those_there_are() -> None:
    """Operators mistype names in PROFILES."""
    with pytest.raises(ProfileUnknown, match=r"'qwen-tts'; there are .*qwen3-tts-0\.6b, qwen3-tts-1\.7b"):
        load_extractor(
            Loading(profile=replace(BUILT_IN["qwen3-tts-0.6b"], name="qwen-tts"), source=UntrainedWeights())
        )


def test_two_extractors_of_one_profile_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order in which packages were installed would decide which of the two makes artifacts."""
    monkeypatch.syspath_prepend(str(tmp_path))
    for package in ("first", "second"):
        metadata = tmp_path / f"{package}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(
            f"[speaker_registry.extractors]\nmine = {package}:Extractor\n"
        )
    loading = Loading(profile=replace(BUILT_IN["ming-tts"], name="mine"), source=UntrainedWeights())
    with pytest.raises(ProfileAmbiguous, match="'mine' has several extractors: ") as refusal:
        load_extractor(loading)
    assert "first:Extractor" in refusal.value.message
    assert "second:Extractor" in refusal.value.message


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize("profile", [one for one in sorted(EXTRACTORS) if BUILT_IN[one].weights.commit])
def test_the_hub_is_asked_for_one_commit(profile: str) -> None:
    """`WEIGHTS=hub` stands for the same weights everywhere, even after newer ones are published."""
    loading = Loading(profile=BUILT_IN[profile], source=HubWeights())
    with pytest.raises(
        WeightsMissing, match=rf"{loading.profile.weights.repo} at commit [0-9a-f]{{40}} is not cached"
    ):
        load_extractor(loading)


def test_every_profile_of_ours_has_an_extractor() -> None:
    """Jobs of a profile without one would wait for ever, unless it says why nothing can be extracted."""
    assert EXTRACTORS.keys() == {one.name for one in BUILT_IN.values() if not one.not_extractable}


@pytest.mark.slow
def test_the_published_architecture_makes_what_the_profile_promises(untrained: Extracted) -> None:
    """Full size, random weights: from 44.1 kHz samples to checked tensors."""
    profile = untrained.profile
    check_tensors(untrained.first, profile.tensors, seconds=CLIP.seconds, frame_rate=profile.frame_rate)


@pytest.mark.slow
def test_untrained_voices_differ(untrained: Extracted) -> None:
    """A demo in which every voice is the same would show nothing."""
    first, other = untrained.first, untrained.other
    for name, spec in untrained.profile.tensors.items():
        if spec.dtype.startswith("F"):
            assert np.abs(first[name] - other[name]).max() > 0.01
        elif "T" in spec.shape:
            assert (first[name] != other[name]).mean() > 0.5
            codebooks = np.moveaxis(first[name], spec.shape.index("T"), -1)  # [..., T]
            codebooks = codebooks.reshape(-1, codebooks.shape[-1])
            assert all(len(np.unique(codes)) > 10 for codes in codebooks)


@pytest.mark.slow
def test_the_same_clip_twice_is_the_same_artifact(untrained: Extracted) -> None:
    """Artifacts are equal bit by bit, so that a job that runs again does not make another one."""
    first, again = untrained.first, untrained.again
    assert first.keys() == again.keys()
    assert all(np.array_equal(first[name], again[name]) for name in first)


@pytest.mark.slow
def test_untrained_weights_say_so_and_name_their_seed(untrained: Extracted) -> None:
    """Random voices must not be taken for real ones anywhere."""
    assert untrained.fingerprint.untrained
    assert untrained.fingerprint.inputs["weights"] == {"untrained": True, "seed": 0}


@pytest.mark.slow
@pytest.mark.parametrize("profile", sorted(EXTRACTORS))
def test_encoding_never_waits_for_the_device(profile: str) -> None:
    """Reading a value from a GPU waits until all work before it is done.

    The device `meta` has shapes and no values, so reading a value from it fails.
    """
    extractor = load_extractor(Loading(profile=BUILT_IN[profile], source=UntrainedWeights(), device="meta"))
    rates = (24_000, 16_000)
    prepared = [extractor.prepare(ReferenceAudio(speechlike(1.2, rate), rate)) for rate in rates]
    assert len(extractor.encode(prepared)) == len(prepared)


def test_the_fingerprint_is_known_without_drawing_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with untrained weights, too, knows soon whether it will be a candidate."""
    loading = Loading(profile=BUILT_IN["ecapa-voxceleb"], source=UntrainedWeights())
    expected = load_extractor(loading).fingerprint

    def drawn(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        assert tensor.is_meta, "a weight was drawn"
        return tensor

    monkeypatch.setattr(torch.Tensor, "uniform_", drawn)
    assert fingerprint_of(loading) == expected


def test_untrained_weights_are_the_same_in_every_process() -> None:
    """Two workers of one demo share a fingerprint, so they must share the weights."""
    program = (
        "import hashlib; from services.extractor_worker.weights.untrained import random_tensors;"
        "first, second = random_tensors({'a.conv.weight': (64, 32, 3), 'b.weight': (99, 7)}, 0).values();"
        "print(hashlib.sha256(first.numpy().tobytes() + second.numpy().tobytes()).hexdigest())"
    )
    here = random_tensors({"b.weight": (99, 7), "a.conv.weight": (64, 32, 3)}, 0)
    content = here["a.conv.weight"].numpy().tobytes() + here["b.weight"].numpy().tobytes()
    other = os.environ | {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", program], env=other, capture_output=True, check=True)
    assert run.stdout.decode().strip() == hashlib.sha256(content).hexdigest()


def test_the_published_codec_has_the_225_tensors_it_is_known_to_have() -> None:
    """Counted in the published file; the shapes are checked by loading it."""
    layout = codec_layout(CodecConfig())
    assert len(layout) == 225
    assert layout["downsample.conv.weight"] == (512, 512, 4)
    assert layout["encoder.layers.14.conv.weight"] == (512, 1024, 3)
