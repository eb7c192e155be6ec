"""The artifact is the one that VoxCPM2 computes from the same weights.

The weights are a random tiny audio VAE in the published layout. tools/make_voxcpm2_goldens.py made it and the
goldens with the voxcpm package.
"""

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.extractor_worker.engines.voxcpm2 import VoxCPM2Extractor
from services.extractor_worker.models.audio_vae import AudioVaeConfig
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights, UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort
from tests.unit.extractors import conftest, signals
from tests.unit.extractors.conftest import Goldens, extract, tiny_profile
from tests.unit.extractors.parity import assert_parity

TINY = Path(__file__).parents[2] / "data/voxcpm2_tiny"
CLIPS = ["0.16", "1.0", "7.31", "10.4"]
RATES = ["24000", "44100"]
TENSORS = ["ref_audio_feat", "audio_feat"]
PATCH = 2560

Tensors = dict[str, np.ndarray]


def load(folder: Path = TINY, **loading: Any) -> VoxCPM2Extractor:
    loading = {"profile": tiny_profile("voxcpm2"), "source": LocalWeights(folder), **loading}
    return VoxCPM2Extractor(Loading(**loading))


@functools.cache
def tiny() -> VoxCPM2Extractor:
    return load()


def golden_clip(goldens: Goldens, name: str) -> ReferenceAudio:
    return conftest.golden_clip(goldens, name, int(name) if name in RATES else 16_000, 1.01)


def clip_of(samples: int) -> ReferenceAudio:
    return ReferenceAudio(signals.speechlike(3.0, 16_000)[:samples], 16_000)


def assert_latents(ours: Tensors, goldens: Goldens, name: str) -> None:
    for tensor in TENSORS:
        patches = ours[tensor]
        assert_parity(np.concatenate([patches[:-4:16], patches[-4:]]), goldens, f"{tensor}_{name}")


@pytest.mark.parametrize("name", [*CLIPS, *RATES])
def test_the_latents_are_voxcpm2s(goldens: Goldens, name: str) -> None:
    """A voice registered here must sound as if the engine had cloned it itself."""
    assert_latents(extract(tiny(), golden_clip(goldens, name))[0], goldens, name)


def test_a_batch_moves_latents_within_rounding(goldens: Goldens) -> None:
    """Other clips of a batch only change the order of sums.

    Shorter clips share a batch with longer ones and are padded with zeros. Latents stay as near the exact
    ones as the reference's.
    """
    names = ["1.0", "10.4", "0.16", "7.31"]
    together = extract(tiny(), *(golden_clip(goldens, name) for name in names))
    assert [len(ours["audio_feat"]) for ours in together] == [7, 65, 1, 46]
    for name, ours in zip(names, together, strict=True):
        assert_latents(ours, goldens, name)


def test_a_cpu_encodes_clips_one_by_one() -> None:
    """A clip must give the same latents to the last bit on a CPU, whatever other clips are uploaded."""
    assert tiny().batch_seconds == 0


def test_where_zeros_are_makes_the_two_tensors(goldens: Goldens) -> None:
    """A clip of whole patches needs no zeros, so both tensors are equal. Otherwise every patch differs."""
    whole, broken = extract(tiny(), golden_clip(goldens, "10.4"), golden_clip(goldens, "7.31"))
    assert np.array_equal(whole["ref_audio_feat"], whole["audio_feat"])
    apart = np.abs(broken["ref_audio_feat"] - broken["audio_feat"]).max(axis=(1, 2))
    assert apart.min() > 0.1


@pytest.mark.parametrize("samples", [1, PATCH - 1, PATCH, PATCH + 1, 10 * PATCH, 10 * PATCH + 1])
def test_a_patch_for_every_160_ms_begun(samples: int) -> None:
    """There are ceil(N / 2560) patches, as the engine counts a prompt's length.

    One sample is enough for one.
    """
    clip = clip_of(samples)
    tensors = extract(tiny(), clip)[0]
    profile = BUILT_IN["voxcpm2"]
    check_tensors(tensors, profile.tensors, seconds=clip.seconds, frame_rate=profile.frame_rate)
    assert len(tensors["ref_audio_feat"]) == len(tensors["audio_feat"]) == -(-samples // PATCH)


def test_nothing_is_too_short(goldens: Goldens) -> None:
    """Only an empty clip has no patch."""
    with pytest.raises(AudioTooShort, match=r"the clip is 0\.000 s"):
        tiny().prepare(clip_of(0))


def test_shapes_and_dtypes_are_the_profiles() -> None:
    """Patches come first, in contiguous float32, even where bfloat16 is asked for."""
    tensors = extract(load(dtype="bfloat16"), clip_of(40_000))[0]
    assert list(tensors) == TENSORS
    for tensor in tensors.values():
        assert (tensor.shape, tensor.dtype) == ((16, 4, 64), np.float32)
        assert tensor.flags.c_contiguous


def test_the_number_of_threads_hardly_matters(goldens: Goldens) -> None:
    """Workers with different numbers of cores have the same fingerprint."""
    torch.set_num_threads(1)
    assert_latents(extract(tiny(), golden_clip(goldens, "1.0"))[0], goldens, "1.0")


@pytest.mark.parametrize(
    ("field", "value"),
    [("encoder_rates", (5, 2, 8, 8)), ("encoder_dim", 16), ("depthwise", False), ("latent_dim", 32)],
)
def test_the_vaes_configuration_counts(monkeypatch: pytest.MonkeyPatch, field: str, value: object) -> None:
    """The order of rates does not show in the size of any weight."""
    small = AudioVaeConfig(encoder_dim=4)
    monkeypatch.setattr("services.extractor_worker.engines.voxcpm2.AudioVaeConfig", lambda: small)
    before = load(source=UntrainedWeights()).fingerprint
    changed = AudioVaeConfig(**asdict(small) | {field: value})
    monkeypatch.setattr("services.extractor_worker.engines.voxcpm2.AudioVaeConfig", lambda: changed)
    assert load(source=UntrainedWeights()).fingerprint.digest != before.digest


def test_profile_patches_and_padding_count() -> None:
    """The fingerprint must show why two artifacts differ."""
    inputs = tiny().fingerprint.inputs
    assert inputs["patch_frames"] == 4
    assert inputs["zeros"] == {"ref_audio_feat": "after", "audio_feat": "before"}
    assert load(profile=tiny_profile("voxcpm2", "another")).fingerprint.digest != tiny().fingerprint.digest
