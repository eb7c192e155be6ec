"""The embedding is the one SpeechBrain 1.1.2 computes from the same weights.

The weights are a random tiny checkpoint in the published layout; tools/make_ecapa_voxceleb_goldens.py made it
and the goldens.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.extractor_worker.engines import ecapa_voxceleb
from services.extractor_worker.engines.ecapa_voxceleb import PUBLISHED, EcapaVoxCelebExtractor
from services.extractor_worker.features.speechbrain_fbank import FbankSettings, mel_bank
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights, UntrainedWeights
from services.extractor_worker.weights.modules import layout_of
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort, WeightsInvalid, WeightsMissing
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, edit_pickle, golden_clip, tiny_profile
from tests.unit.extractors.parity import assert_parity

Tensors = dict[str, torch.Tensor]

FILE = "embedding_model.ckpt"
TINY = Path(__file__).parents[2] / "data/ecapa_voxceleb_tiny"
WIDTH = 24
ARCHITECTURE = dataclasses.replace(
    PUBLISHED,
    enc_dim=WIDTH,
    enc_channels=(32, 32, 32, 32, 96),
    enc_attention_channels=16,
    enc_se_channels=16,
)
CLIPS = ["0.04", "1.0", "3.0", "7.313", "12.4"]
RATES = [24_000, 44_100]


def load(folder: Path = TINY, **changes: Any) -> EcapaVoxCelebExtractor:
    spec = BUILT_IN["ecapa-voxceleb"].tensors["speaker_embedding"]
    narrow = {"speaker_embedding": spec.model_copy(update={"shape": (WIDTH,)})}
    loading = {"profile": tiny_profile("ecapa-voxceleb", tensors=narrow), "source": LocalWeights(folder)}
    return EcapaVoxCelebExtractor(Loading(**{**loading, **changes}), ARCHITECTURE)


@pytest.fixture(scope="module")
def extractor() -> EcapaVoxCelebExtractor:
    return load()


def embeddings(extractor: EcapaVoxCelebExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    encoded = extractor.encode([extractor.prepare(clip) for clip in clips])
    return [extractor.finish(one)["speaker_embedding"] for one in encoded]


def refused(folder: Path, message: str) -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder)


@pytest.mark.parametrize("name", CLIPS)
def test_the_bands_are_speechbrains(goldens: Goldens, extractor: EcapaVoxCelebExtractor, name: str) -> None:
    """The encoder hears nothing else: decibels, cut at 80 below the loudest, their mean taken off.

    They are compared as amplitudes, because a band of little sound magnifies rounding errors in decibels.
    """
    bands = extractor.prepare(golden_clip(goldens, name, 16_000))[0].numpy()
    assert bands.shape == (1 + round(float(name) * 16_000) // 160, 80)
    sampled = np.concatenate([bands[:-4:16], bands[-4:]])
    assert_parity(sampled, goldens, f"bands_{name}", lambda decibels: 10 ** (decibels / 20))


@pytest.mark.parametrize("name", CLIPS)
def test_the_embedding_is_speechbrains(
    goldens: Goldens, extractor: EcapaVoxCelebExtractor, name: str
) -> None:
    """Embeddings of both are compared with each other by whoever already has some."""
    ours = embeddings(extractor, golden_clip(goldens, name, 16_000))[0]
    assert_parity(ours, goldens, f"embedding_{name}")


@pytest.mark.parametrize("rate", RATES)
def test_another_rate_goes_through_torchaudios_kernel(
    goldens: Goldens, extractor: EcapaVoxCelebExtractor, rate: int
) -> None:
    """Most clips are not 16 kHz."""
    ours = embeddings(extractor, golden_clip(goldens, str(rate), rate))[0]
    assert_parity(ours, goldens, f"embedding_{rate}")


def test_the_goldens_tell_clips_apart(goldens: Goldens) -> None:
    """Goldens that were all alike would show nothing."""
    found = [goldens[f"embedding_{name}"] for name in CLIPS]
    deviation = max(float(goldens[f"embedding_{name}_deviation"]) for name in CLIPS)
    assert min(np.abs(a - b).max() for i, a in enumerate(found) for b in found[:i]) > 1000 * deviation


def test_it_is_what_the_profile_promises(goldens: Goldens, extractor: EcapaVoxCelebExtractor) -> None:
    """float32, contiguous, and as long as it comes: whoever wants a unit vector divides."""
    tensors = extractor.finish(extractor.encode([extractor.prepare(golden_clip(goldens, "3.0", 16_000))])[0])
    spec = BUILT_IN["ecapa-voxceleb"].tensors["speaker_embedding"].model_copy(update={"shape": (WIDTH,)})
    check_tensors(tensors, {"speaker_embedding": spec})
    assert tensors["speaker_embedding"].flags.c_contiguous
    assert abs(np.linalg.norm(tensors["speaker_embedding"]) - 1) > 0.1


def test_a_clip_among_others_is_the_clip_alone(goldens: Goldens, extractor: EcapaVoxCelebExtractor) -> None:
    """Whoever uploads at the same moment must not change my voice."""
    clips = [golden_clip(goldens, name, 16_000) for name in CLIPS]
    for clip, ours in zip(clips, embeddings(extractor, *clips), strict=True):
        assert np.array_equal(ours, embeddings(extractor, clip)[0])


def test_the_number_of_threads_hardly_matters(goldens: Goldens, extractor: EcapaVoxCelebExtractor) -> None:
    """Workers have different numbers of cores, and one fingerprint."""
    clip = golden_clip(goldens, "3.0", 16_000)
    torch.set_num_threads(1)
    one = embeddings(extractor, clip)[0]
    torch.set_num_threads(2)
    assert np.abs(one - embeddings(extractor, clip)[0]).max() <= 2e-6


def test_silence_has_an_embedding(extractor: EcapaVoxCelebExtractor) -> None:
    """Nothing is louder than the floor, and no band deviates from its mean."""
    silence = ReferenceAudio(np.zeros(16_000, dtype=np.float32), 16_000)
    assert np.isfinite(embeddings(extractor, silence)[0]).all()


@pytest.mark.parametrize("samples", [1, 639])
def test_a_clip_too_short_to_reflect_is_refused(extractor: EcapaVoxCelebExtractor, samples: int) -> None:
    """Five frames, 640 samples (a golden is that long): fewer, and torch would fail within the encoder."""
    with pytest.raises(AudioTooShort, match=r"at least 0\.040 s"):
        extractor.prepare(ReferenceAudio(signals.speechlike(1.0, 16_000)[:samples], 16_000))


def test_the_bank_is_a_triangle_per_band() -> None:
    """Each of height 1, around a centre that no other has."""
    bank = mel_bank(FbankSettings())
    assert bank.shape == (201, 80)
    assert bool((bank >= 0).all())
    assert 0.75 < float(bank[:, 40:].max(dim=0).values.min()) <= 1.0
    centres = bank[:, 40:].argmax(dim=0)
    assert bool((centres.diff() > 0).all())


# --- the weights


def test_the_published_file_has_the_231_tensors_it_is_known_to_have() -> None:
    """Counted in a state dict of SpeechBrain's own class."""
    layout = layout_of(lambda: ecapa_voxceleb.SpeakerEncoder(PUBLISHED, torch.nn.BatchNorm1d))
    names = {ecapa_voxceleb._published_name(key): shape for key, shape in layout.items()}
    assert len(names) == 231
    assert names["fc.conv.weight"] == (192, 6144, 1)
    assert names["asp_bn.norm.running_var"] == (6144,)
    assert names["blocks.3.res2net_block.blocks.6.conv.conv.weight"] == (128, 128, 3)
    assert names["blocks.1.tdnn1.norm.norm.num_batches_tracked"] == ()


@pytest.mark.parametrize(
    "key", ["fc.conv.bias", "asp_bn.norm.running_mean", "blocks.2.tdnn2.norm.norm.weight"]
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    """Under its published name."""
    edit_pickle(copy / FILE, lambda tensors: tensors.pop(key))
    refused(copy, f"{FILE} lacks {key}")


@pytest.mark.parametrize("key", ["blocks.4.tdnn1.conv.conv.weight", "classifier.weight"])
def test_an_unexpected_key_is_named(copy: Path, key: str) -> None:
    """A larger model would otherwise lose a layer unnoticed."""
    edit_pickle(copy / FILE, lambda tensors: tensors.update({key: torch.zeros(2)}))
    refused(copy, f"{FILE} has {key}, which this architecture does not")


def test_a_missing_file_is_missing_weights(copy: Path) -> None:
    """By name, with how to get it."""
    (copy / FILE).unlink()
    with pytest.raises(WeightsMissing, match=r"embedding_model\.ckpt missing"):
        load(copy)


# --- the fingerprint


def test_the_weights_count(copy: Path, extractor: EcapaVoxCelebExtractor) -> None:
    """One value of one tensor; not where the file lies."""
    assert load(copy).fingerprint == extractor.fingerprint
    edit_pickle(copy / FILE, lambda tensors: tensors["fc.conv.bias"].add_(1))
    assert load(copy).fingerprint.digest != extractor.fingerprint.digest


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(FbankSettings)])
def test_every_number_of_the_front_end_counts(
    monkeypatch: pytest.MonkeyPatch, extractor: EcapaVoxCelebExtractor, field: str
) -> None:
    """Another hop, floor or range is another set of bands."""
    settings = FbankSettings()
    changed = dataclasses.replace(settings, **{field: getattr(settings, field) * 2 + 1})
    monkeypatch.setattr(ecapa_voxceleb, "FbankSettings", lambda **_: changed)
    assert load().fingerprint.digest != extractor.fingerprint.digest


def test_dilations_count(monkeypatch: pytest.MonkeyPatch, extractor: EcapaVoxCelebExtractor) -> None:
    """They are no part of a weight's shape."""
    wider = dataclasses.replace(ARCHITECTURE, enc_dilations=(1, 2, 3, 5, 1))
    monkeypatch.setitem(globals(), "ARCHITECTURE", wider)
    assert load().fingerprint.digest != extractor.fingerprint.digest


def test_it_computes_in_float32_whatever_is_asked_for(
    goldens: Goldens, extractor: EcapaVoxCelebExtractor
) -> None:
    """SpeechBrain does, and the same artifact must have the same fingerprint."""
    asked = load(dtype="bfloat16")
    assert asked.fingerprint == extractor.fingerprint
    clip = golden_clip(goldens, "1.0", 16_000)
    assert np.array_equal(embeddings(asked, clip)[0], embeddings(extractor, clip)[0])


def test_untrained_weights_say_so_and_name_their_seed() -> None:
    """No surface may take such a voice for a real one."""
    first, second = (load(source=UntrainedWeights(seed=seed)).fingerprint for seed in (0, 1))
    assert first.untrained
    assert not load().fingerprint.untrained
    assert first.digest != second.digest
