"""The embedding is the one that SpeechBrain 1.1.2 computes from the same weights.

The weights are a random tiny checkpoint in the published layout. tools/make_ecapa_voxceleb_goldens.py made it
and the goldens.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from services.extractor_worker.engines import ecapa_voxceleb
from services.extractor_worker.engines.ecapa_voxceleb import PUBLISHED, EcapaVoxCelebExtractor
from services.extractor_worker.features.speechbrain_fbank import FbankSettings, mel_bank
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights
from services.extractor_worker.weights.modules import layout_of
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, extract, golden_clip, tiny_profile
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
    return [tensors["speaker_embedding"] for tensors in extract(extractor, *clips)]


@pytest.mark.parametrize("name", CLIPS)
def test_the_bands_are_speechbrains(goldens: Goldens, extractor: EcapaVoxCelebExtractor, name: str) -> None:
    """The encoder's only input is decibels, at most 80 below the loudest, with their mean subtracted.

    The bands are compared as amplitudes, because decibels magnify the rounding errors of quiet bands.
    """
    bands = extractor.prepare(golden_clip(goldens, name, 16_000))[0].numpy()
    assert bands.shape == (1 + round(float(name) * 16_000) // 160, 80)
    sampled = np.concatenate([bands[:-4:16], bands[-4:]])
    assert_parity(sampled, goldens, f"bands_{name}", lambda decibels: 10 ** (decibels / 20))


@pytest.mark.parametrize("name", CLIPS)
def test_the_embedding_is_speechbrains(
    goldens: Goldens, extractor: EcapaVoxCelebExtractor, name: str
) -> None:
    """Users compare new embeddings with those that SpeechBrain has computed for them."""
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
    """Goldens that are all alike would show nothing."""
    found = [goldens[f"embedding_{name}"] for name in CLIPS]
    deviation = max(float(goldens[f"embedding_{name}_deviation"]) for name in CLIPS)
    assert min(np.abs(a - b).max() for i, a in enumerate(found) for b in found[:i]) > 1000 * deviation


def test_it_is_what_the_profile_promises(goldens: Goldens, extractor: EcapaVoxCelebExtractor) -> None:
    """The embedding is contiguous and is not normalised."""
    tensors = extractor.finish(extractor.encode([extractor.prepare(golden_clip(goldens, "3.0", 16_000))])[0])
    spec = BUILT_IN["ecapa-voxceleb"].tensors["speaker_embedding"].model_copy(update={"shape": (WIDTH,)})
    check_tensors(tensors, {"speaker_embedding": spec})
    assert tensors["speaker_embedding"].flags.c_contiguous
    assert abs(np.linalg.norm(tensors["speaker_embedding"]) - 1) > 0.1


def test_the_number_of_threads_hardly_matters(goldens: Goldens, extractor: EcapaVoxCelebExtractor) -> None:
    """Workers with different numbers of cores have the same fingerprint."""
    clip = golden_clip(goldens, "3.0", 16_000)
    torch.set_num_threads(1)
    one = embeddings(extractor, clip)[0]
    torch.set_num_threads(2)
    assert np.abs(one - embeddings(extractor, clip)[0]).max() <= 2e-6


def test_silence_has_an_embedding(extractor: EcapaVoxCelebExtractor) -> None:
    """A silent clip has no band above the floor, and no band that deviates from its mean."""
    silence = ReferenceAudio(np.zeros(16_000, dtype=np.float32), 16_000)
    assert np.isfinite(embeddings(extractor, silence)[0]).all()


@pytest.mark.parametrize("samples", [1, 639])
def test_a_clip_too_short_to_reflect_is_refused(extractor: EcapaVoxCelebExtractor, samples: int) -> None:
    """A clip needs 640 samples, five frames, or torch would fail in the encoder. One golden is that long."""
    with pytest.raises(AudioTooShort, match=r"at least 0\.040 s"):
        extractor.prepare(ReferenceAudio(signals.speechlike(1.0, 16_000)[:samples], 16_000))


def test_the_bank_is_a_triangle_per_band() -> None:
    """Each triangle has height 1 and a centre of its own."""
    bank = mel_bank(FbankSettings())
    assert bank.shape == (201, 80)
    assert bool((bank >= 0).all())
    assert 0.75 < float(bank[:, 40:].max(dim=0).values.min()) <= 1.0
    centres = bank[:, 40:].argmax(dim=0)
    assert bool((centres.diff() > 0).all())


# --- the weights


def test_the_published_file_has_the_231_tensors_it_is_known_to_have() -> None:
    """The tensors were counted in a state dict of SpeechBrain's own class."""
    layout = layout_of(lambda: ecapa_voxceleb.SpeakerEncoder(PUBLISHED, torch.nn.BatchNorm1d))
    names = {ecapa_voxceleb._published_name(key): shape for key, shape in layout.items()}
    assert len(names) == 231
    assert names["fc.conv.weight"] == (192, 6144, 1)
    assert names["asp_bn.norm.running_var"] == (6144,)
    assert names["blocks.3.res2net_block.blocks.6.conv.conv.weight"] == (128, 128, 3)
    assert names["blocks.1.tdnn1.norm.norm.num_batches_tracked"] == ()


# --- the fingerprint


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(FbankSettings)])
def test_every_number_of_the_front_end_counts(
    monkeypatch: pytest.MonkeyPatch, extractor: EcapaVoxCelebExtractor, field: str
) -> None:
    """Another hop, floor or range makes other bands."""
    settings = FbankSettings()
    changed = dataclasses.replace(settings, **{field: getattr(settings, field) * 2 + 1})
    monkeypatch.setattr(ecapa_voxceleb, "FbankSettings", lambda **_: changed)
    assert load().fingerprint.digest != extractor.fingerprint.digest


def test_dilations_count(monkeypatch: pytest.MonkeyPatch, extractor: EcapaVoxCelebExtractor) -> None:
    """Dilations do not show in the shape of a weight."""
    wider = dataclasses.replace(ARCHITECTURE, enc_dilations=(1, 2, 3, 5, 1))
    monkeypatch.setitem(globals(), "ARCHITECTURE", wider)
    assert load().fingerprint.digest != extractor.fingerprint.digest
