"""The codes are those of the Descript Audio Codec and of transformers with the same weights.

The weights are a random tiny codec for each rate, in the published layout. tools/make_dac_goldens.py made
them and the goldens with the descript-audio-codec package. Codes are compared wherever rounding cannot change
them.
"""

import functools
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DacModel

from services.extractor_worker.engines.dac import DacExtractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights, UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.engine import Profile
from speaker_registry.errors import AudioTooShort, WeightsInvalid
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, edit_tensors, extract, tiny_profile
from tests.unit.extractors.parity import assert_same_codes

TINY = Path(__file__).parents[2] / "data/dac_tiny"
CLIPS = {"0.64": 0.64, "1.0": 1.0, "2.37": 2.37}
CONFIG, TENSORS = "config.json", "model.safetensors"
HOPS = {"dac-16khz": 320, "dac-24khz": 320, "dac-44khz": 512}
BOOKS = {"dac-16khz": 12, "dac-24khz": 32, "dac-44khz": 9}
PROFILES = sorted(HOPS)

every_profile = pytest.mark.parametrize("profile", PROFILES)


def narrow(profile: str, name: str = "tiny") -> Profile:
    """Return a profile with 64 codes in each codebook, as in the tiny checkpoints."""
    codes = BUILT_IN[profile].tensors["codes"].model_copy(update={"maximum": 63})
    return tiny_profile(profile, name, tensors={"codes": codes})


def load(
    folder: Path | None = None, profile: str = "dac-16khz", name: str = "tiny", **loading: Any
) -> DacExtractor:
    loading = {"profile": narrow(profile, name), "source": LocalWeights(folder or TINY / profile), **loading}
    return DacExtractor(Loading(**loading))


tiny = functools.cache(load)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return the folder of a copy of the tiny checkpoint at 16 kHz, which a test may change."""
    return shutil.copytree(TINY / "dac-16khz", tmp_path / "checkpoint")


def clip_at(rate: int, seconds: float) -> ReferenceAudio:
    return ReferenceAudio(signals.speechlike(seconds, rate), rate)


def codes_of(extractor: DacExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    return [tensors["codes"] for tensors in extract(extractor, *clips)]


@every_profile
@pytest.mark.parametrize("name", CLIPS)
def test_the_codes_are_descripts(goldens: Goldens, profile: str, name: str) -> None:
    """The codes of every codebook are compared."""
    rate = BUILT_IN[profile].sample_rate
    ours = codes_of(tiny(profile=profile), clip_at(rate, CLIPS[name]))[0]
    assert_same_codes(ours, goldens, f"{profile}_{name}", frames=1)
    assert all(len(np.unique(book)) > 10 for book in ours)


@every_profile
def test_another_rate_goes_through_our_resampler(goldens: Goldens, profile: str) -> None:
    """Few clips have the codec's own sample rate."""
    ours = codes_of(tiny(profile=profile), clip_at(22_050, 0.51))[0]
    assert_same_codes(ours, goldens, f"{profile}_22050", frames=1)


@every_profile
def test_the_codes_are_those_of_transformers(goldens: Goldens, profile: str) -> None:
    """The installed version of transformers loads the whole folder by itself and agrees with the goldens."""
    rate, hop = BUILT_IN[profile].sample_rate, HOPS[profile]
    clip = clip_at(rate, 2.37)
    samples = np.pad(clip.samples, (0, -len(clip.samples) % hop))
    model = DacModel.from_pretrained(TINY / profile)
    with torch.inference_mode():
        codes = model.encode(torch.from_numpy(samples)[None, None]).audio_codes[0]
    assert_same_codes(codes.numpy(), goldens, f"{profile}_2.37", frames=1)


@every_profile
def test_a_frame_for_every_hop_begun(profile: str) -> None:
    """One sample is enough for a frame."""
    hop, expected = HOPS[profile], narrow(profile)
    clip = clip_at(expected.sample_rate, 1.0)
    for samples in (1, hop - 1, hop, hop + 1, 20 * hop, 20 * hop + 1):
        cut = replace(clip, samples=clip.samples[:samples])
        codes = codes_of(tiny(profile=profile), cut)[0]
        assert codes.shape == (BOOKS[profile], -(-samples // hop))
        assert codes.dtype == np.int64
        assert codes.flags.c_contiguous
        check_tensors({"codes": codes}, expected.tensors, seconds=cut.seconds, frame_rate=expected.frame_rate)


def test_nothing_is_too_short() -> None:
    """Only an empty clip has no frame."""
    with pytest.raises(AudioTooShort, match=r"the clip is 0\.000 s"):
        tiny().prepare(ReferenceAudio(np.zeros(0, np.float32), 16_000))


def test_the_number_of_threads_does_not_matter() -> None:
    """Workers with different numbers of cores have the same fingerprint."""
    clip = clip_at(16_000, 1.0)
    torch.set_num_threads(1)
    one = codes_of(tiny(), clip)[0]
    torch.set_num_threads(2)
    assert np.array_equal(codes_of(tiny(), clip)[0], one)


def test_the_decoder_is_not_loaded() -> None:
    """The decoder is most of the published file. It is replaced by zeros."""
    tensors = tiny()._model.state_dict()
    assert not any(tensor.any() for key, tensor in tensors.items() if key.startswith("decoder."))


# --- the fingerprint


def test_the_fingerprint_has_the_architecture_and_says_float32() -> None:
    """The fingerprint must show why two artifacts differ."""
    inputs = load(dtype="bfloat16").fingerprint.inputs
    assert inputs["dtype"] == "float32"
    assert inputs["zeros"] == "after"
    assert inputs["codec"] == {
        "encoder_hidden_size": 2,
        "downsampling_ratios": [2, 4, 5, 8],
        "n_codebooks": 12,
        "codebook_size": 64,
        "codebook_dim": 4,
        "sampling_rate": 16_000,
    }


def test_profile_weights_and_the_order_of_ratios_count(copy: Path) -> None:
    """Each of these makes another artifact."""
    found = [tiny(), tiny(profile="dac-24khz"), load(name="another")]
    edit_tensors(copy / TENSORS, lambda tensors: tensors["decoder.conv2.bias"].add_(1))
    found.append(load(folder=copy))
    found += [load(source=UntrainedWeights(seed)) for seed in (0, 1)]
    assert len({one.fingerprint.digest for one in found}) == len(found)
    assert [one.fingerprint.untrained for one in found] == 4 * [False] + 2 * [True]


# --- wrong weights


def refused(folder: Path, message: str, profile: str = "dac-16khz") -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(folder, profile)


@pytest.mark.parametrize(
    ("folder", "profile", "message"),
    [
        ("dac-24khz", "dac-16khz", "sampling_rate is 24000, 16000 is expected"),
        ("dac-16khz", "dac-24khz", "sampling_rate is 16000, 24000 is expected"),
        ("dac-24khz", "dac-44khz", "sampling_rate is 24000, 44100 is expected"),
    ],
)
def test_one_rates_model_is_not_anothers(folder: str, profile: str, message: str) -> None:
    """The encoders of the three models have the same size."""
    refused(TINY / folder, message, profile)


def test_a_book_too_many_is_named(copy: Path) -> None:
    """A configuration may be copied from another model, so the tensors must be checked, too."""
    (copy / TENSORS).unlink()
    shutil.copy(TINY / "dac-24khz" / TENSORS, copy / TENSORS)
    refused(copy, "has quantizer.quantizers.12.codebook.weight, ")
