"""Codes are those that the Descript Audio Codec itself finds with the same weights, and transformers too.

The weights are a random tiny codec for each rate, in the published layout; tools/make_dac_goldens.py made
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
from services.extractor_worker.pipeline import torch_extractor
from services.extractor_worker.pipeline.torch_extractor import Loading
from services.extractor_worker.weights.loading import LocalWeights, UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.engine import Profile
from speaker_registry.errors import AudioTooShort, WeightsInvalid, WeightsMissing
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, edit_json, edit_tensors, tiny_profile
from tests.unit.extractors.parity import assert_same_codes

TINY = Path(__file__).parents[2] / "data/dac_tiny"
CLIPS = {"0.64": 0.64, "1.0": 1.0, "2.37": 2.37}
CONFIG, TENSORS = "config.json", "model.safetensors"
HOPS = {"dac-16khz": 320, "dac-24khz": 320, "dac-44khz": 512}
BOOKS = {"dac-16khz": 12, "dac-24khz": 32, "dac-44khz": 9}
PROFILES = sorted(HOPS)

every_profile = pytest.mark.parametrize("profile", PROFILES)


def narrow(profile: str, name: str = "tiny") -> Profile:
    """With the 64 codes a book of the tiny checkpoints."""
    codes = BUILT_IN[profile].tensors["codes"].model_copy(update={"maximum": 63})
    return tiny_profile(profile, name, tensors={"codes": codes})


def load(
    profile: str = "dac-16khz", folder: Path | None = None, name: str = "tiny", **loading: Any
) -> DacExtractor:
    loading = {"profile": narrow(profile, name), "source": LocalWeights(folder or TINY / profile), **loading}
    return DacExtractor(Loading(**loading))


tiny = functools.cache(load)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tiny checkpoint at 16 kHz to spoil."""
    return shutil.copytree(TINY / "dac-16khz", tmp_path / "checkpoint")


def clip_at(rate: int, seconds: float) -> ReferenceAudio:
    return ReferenceAudio(signals.speechlike(seconds, rate), rate)


def extract(extractor: DacExtractor, *clips: ReferenceAudio) -> list[np.ndarray]:
    prepared = [extractor.prepare(clip) for clip in clips]
    return [extractor.finish(encoded)["codes"] for encoded in extractor.encode(prepared)]


@every_profile
@pytest.mark.parametrize("name", CLIPS)
def test_the_codes_are_descripts(goldens: Goldens, profile: str, name: str) -> None:
    """In every book."""
    rate = BUILT_IN[profile].sample_rate
    ours = extract(tiny(profile), clip_at(rate, CLIPS[name]))[0]
    assert_same_codes(ours, goldens, f"{profile}_{name}", frames=1)
    assert all(len(np.unique(book)) > 10 for book in ours)


@every_profile
def test_another_rate_goes_through_our_resampler(goldens: Goldens, profile: str) -> None:
    """Few clips have the codec's own rate."""
    ours = extract(tiny(profile), clip_at(22_050, 0.51))[0]
    assert_same_codes(ours, goldens, f"{profile}_22050", frames=1)


@every_profile
def test_the_codes_are_those_of_transformers(goldens: Goldens, profile: str) -> None:
    """Whichever version is installed reads the whole folder by itself, and agrees with the goldens."""
    rate, hop = BUILT_IN[profile].sample_rate, HOPS[profile]
    clip = clip_at(rate, 2.37)
    samples = np.pad(clip.samples, (0, -len(clip.samples) % hop))
    model = DacModel.from_pretrained(TINY / profile)
    with torch.inference_mode():
        codes = model.encode(torch.from_numpy(samples)[None, None]).audio_codes[0]
    assert_same_codes(codes.numpy(), goldens, f"{profile}_2.37", frames=1)


@every_profile
def test_a_frame_for_every_hop_begun(profile: str) -> None:
    """One sample is enough for one."""
    hop, facts = HOPS[profile], narrow(profile)
    clip = clip_at(facts.sample_rate, 1.0)
    for samples in (1, hop - 1, hop, hop + 1, 20 * hop, 20 * hop + 1):
        cut = replace(clip, samples=clip.samples[:samples])
        codes = extract(tiny(profile), cut)[0]
        assert codes.shape == (BOOKS[profile], -(-samples // hop))
        assert codes.dtype == np.int64
        assert codes.flags.c_contiguous
        check_tensors({"codes": codes}, facts.tensors, seconds=cut.seconds, frame_rate=facts.frame_rate)


def test_nothing_is_too_short() -> None:
    """Of an empty clip there is no frame."""
    with pytest.raises(AudioTooShort, match=r"the clip is 0\.000 s"):
        tiny().prepare(ReferenceAudio(np.zeros(0, np.float32), 16_000))


def test_a_clip_among_others_is_the_clip_alone() -> None:
    """They are encoded one by one: the encoder would hear the silence after a shorter one."""
    clips = [clip_at(16_000, seconds) for seconds in (1.0, 0.35, 1.61)]
    assert DacExtractor.batch_seconds == 0
    for clip, ours in zip(clips, extract(tiny(), *clips), strict=True):
        assert np.array_equal(ours, extract(tiny(), clip)[0])


def test_the_number_of_threads_does_not_matter() -> None:
    """Workers have different numbers of cores, and one fingerprint."""
    clip = clip_at(16_000, 1.0)
    torch.set_num_threads(1)
    one = extract(tiny(), clip)[0]
    torch.set_num_threads(2)
    assert np.array_equal(extract(tiny(), clip)[0], one)


def test_the_decoder_is_not_loaded() -> None:
    """It is most of the published file. What stands in its place is nothing."""
    tensors = tiny()._model.state_dict()
    assert not any(tensor.any() for key, tensor in tensors.items() if key.startswith("decoder."))


# --- the fingerprint


def test_the_fingerprint_has_the_architecture_and_says_float32() -> None:
    """Whoever compares two artifacts must see what made them differ."""
    facts = load(dtype="bfloat16").fingerprint.facts
    assert facts["dtype"] == "float32"
    assert facts["zeros"] == "after"
    assert facts["codec"] == {
        "encoder_hidden_size": 2,
        "downsampling_ratios": [2, 4, 5, 8],
        "n_codebooks": 12,
        "codebook_size": 64,
        "codebook_dim": 4,
        "sampling_rate": 16_000,
    }


@pytest.mark.parametrize(
    ("where", "constant", "value"),
    [(DacExtractor, "code_version", 99), (torch_extractor, "KERNEL", "soxr-hq")],
)
def test_what_the_code_decides_counts(
    monkeypatch: pytest.MonkeyPatch, where: object, constant: str, value: object
) -> None:
    """Our own version, the resampler."""
    before = tiny().fingerprint.digest
    monkeypatch.setattr(where, constant, value)
    assert load().fingerprint.digest != before


def test_profile_weights_and_the_order_of_ratios_count(copy: Path) -> None:
    """And a copy elsewhere is the same."""
    assert load(folder=copy).fingerprint.digest == tiny().fingerprint.digest
    found = [tiny(), tiny("dac-24khz"), load(name="another")]
    edit_tensors(copy / TENSORS, lambda tensors: tensors["decoder.conv2.bias"].add_(1))
    found.append(load(folder=copy))
    found += [load(source=UntrainedWeights(seed)) for seed in (0, 1)]
    assert len({one.fingerprint.digest for one in found}) == len(found)
    assert [one.fingerprint.untrained for one in found] == 4 * [False] + 2 * [True]


def test_configuration_that_does_not_matter_does_not_count(copy: Path) -> None:
    """The decoder's part, training's, and a hop that is not the ratios'."""
    changes = {
        "decoder_hidden_size": 32,
        "quantizer_dropout": 0.5,
        "hop_length": 512,
        "upsampling_ratios": [2],
    }
    edit_json(copy / CONFIG, lambda config: config.update(changes))
    extractor = load(folder=copy)
    assert extractor.fingerprint.digest == tiny().fingerprint.digest
    clip = clip_at(16_000, 0.5)
    assert np.array_equal(extract(extractor, clip)[0], extract(tiny(), clip)[0])


# --- wrong weights


def refused(folder: Path, message: str, profile: str = "dac-16khz") -> None:
    with pytest.raises(WeightsInvalid, match=re.escape(message)):
        load(profile, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "encodec"}, "config.json: model_type is 'encodec', 'dac' is expected"),
        ({"sampling_rate": 24_000}, "sampling_rate is 24000, 16000 is expected"),
        ({"n_codebooks": 9}, "n_codebooks is 9, 12 is expected"),
        ({"n_codebooks": None}, "n_codebooks is 9, 12 is expected"),
        ({"codebook_size": 1024}, "codebook_size is 1024, 64 is expected"),
        (
            {"downsampling_ratios": [2, 4, 8, 8]},
            "downsampling_ratios make 512 samples a frame, 320 are expected",
        ),
        ({"downsampling_ratios": "2458"}, "downsampling_ratios is '2458', tuple is expected"),
        (
            {"downsampling_ratios": [8, 5, 4, 2]},
            "has wrong shapes (expected in brackets): encoder.block.0.conv1.weight [4, 2, 4] ([4, 2, 16])",
        ),
        ({"codebook_dim": 8}, "quantizer.quantizers.0.codebook.weight [64, 4] ([64, 8])"),
    ],
)
def test_the_configuration_of_another_model_is_refused(
    copy: Path, change: dict[str, Any], message: str
) -> None:
    """Named by field."""
    edit_json(copy / CONFIG, lambda config: config.update(change))
    refused(copy, message)


@pytest.mark.parametrize(
    ("folder", "profile", "message"),
    [
        ("dac-24khz", "dac-16khz", "sampling_rate is 24000, 16000 is expected"),
        ("dac-16khz", "dac-24khz", "sampling_rate is 16000, 24000 is expected"),
        ("dac-24khz", "dac-44khz", "sampling_rate is 24000, 44100 is expected"),
    ],
)
def test_one_rates_model_is_not_anothers(folder: str, profile: str, message: str) -> None:
    """Their encoders have the same size."""
    refused(TINY / folder, message, profile)


def test_a_book_too_many_is_named(copy: Path) -> None:
    """Configurations get copied."""
    (copy / TENSORS).unlink()
    shutil.copy(TINY / "dac-24khz" / TENSORS, copy / TENSORS)
    refused(copy, "has quantizer.quantizers.12.codebook.weight, ")


@pytest.mark.parametrize(
    "key", ["encoder.block.3.res_unit2.snake1.alpha", "quantizer.quantizers.11.in_proj.bias"]
)
def test_a_missing_key_is_named(copy: Path, key: str) -> None:
    """transformers would fill it with random numbers and carry on."""
    edit_tensors(copy / TENSORS, lambda tensors: tensors.pop(key))
    refused(copy, f"{TENSORS} lacks {key}")


@pytest.mark.parametrize("key", ["encoder.conv1.weight_g", "encoder.block.4.conv1.bias"])
def test_an_unexpected_key_is_named(copy: Path, key: str) -> None:
    """A checkpoint whose weight norm is not folded, a larger model."""
    edit_tensors(copy / TENSORS, lambda tensors: tensors.update({key: torch.zeros(2)}))
    refused(copy, f"{TENSORS} has {key}, which this architecture does not")


@pytest.mark.parametrize("file", [CONFIG, TENSORS])
def test_a_missing_file_is_missing_weights(copy: Path, file: str) -> None:
    """By name."""
    (copy / file).unlink()
    with pytest.raises(WeightsMissing, match=rf"^tiny: {re.escape(file)} missing"):
        load(folder=copy)
