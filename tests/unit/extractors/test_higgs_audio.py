"""The codes are the ones that vLLM-Omni 0.30 and, with its steps switched on, the omnivoice package compute
from the same weights.

The weights are a random tiny checkpoint in the published layout; tools/make_higgs_audio_goldens.py made it
and the goldens. Codes are compared wherever rounding cannot change them.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from services.extractor_worker.engines.higgs_audio import HiggsAudioExtractor, OmniVoiceExtractor
from services.extractor_worker.features.resample import KERNEL, KERNEL_FLOAT32, resample
from services.extractor_worker.models.higgs_audio_codec import CodecConfig, codec_layout
from services.extractor_worker.pipeline.torch_extractor import Loading, SharedModels
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.configuration.settings import OmniVoiceSettings
from services.shared.model.packaging import package
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort, InvalidArtifact
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, golden_clip, tiny_profile
from tests.unit.extractors.higgs_audio_tiny import (
    TENSORS,
    TINY,
    extract,
    load_higgs,
    load_omnivoice,
)
from tests.unit.extractors.parity import assert_parity, assert_same_codes
from tests.unit.extractors.pauses import paused

CLIPS = ["1.0", "3.0", "7.31", "12.4"]
PACKAGE = {
    "quiet": ("pauses", 0.2),
    "loud": ("quiet ends", 1.0),
    "even": ("no pause", 1.0),
    "loudest": ("pauses", 4.0),
}
EVERYTHING = {"loudness": True, "trim": True, "whole_frames": True}


@pytest.fixture(scope="module")
def tiny() -> HiggsAudioExtractor:
    return load_higgs()


def checked(goldens: Goldens, name: str, samples: np.ndarray, rate: int = 24_000) -> ReferenceAudio:
    assert signals.digest(samples) == str(goldens[f"sha256_{name}"]), "this machine makes another clip"
    return ReferenceAudio(samples, rate)


@pytest.mark.parametrize("name", CLIPS)
def test_the_codes_are_the_servers(goldens: Goldens, tiny: HiggsAudioExtractor, name: str) -> None:
    """A voice registered here must sound as if the engine had cloned it itself."""
    ours = extract(tiny, golden_clip(goldens, name, 24_000))[0]
    assert_same_codes(ours, goldens, f"codes_{name}", frames=1)


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_from_another_rate_they_are_too(goldens: Goldens, tiny: HiggsAudioExtractor, rate: int) -> None:
    """Most clips are not 24 kHz."""
    clip = checked(goldens, str(rate), signals.speechlike(3.01, rate), rate)
    assert_same_codes(extract(tiny, clip)[0], goldens, f"codes_{rate}", frames=1)


@pytest.mark.parametrize(
    ("source", "target"),
    [(16_000, 24_000), (22_050, 24_000), (44_100, 24_000), (48_000, 24_000), (24_000, 16_000)],
)
def test_the_kernel_is_the_one_torchaudio_builds_in_float32(
    goldens: Goldens, source: int, target: int
) -> None:
    """On the way to 24 kHz, and inside the model from there to 16 kHz."""
    clip = torch.from_numpy(signals.speechlike(0.1337, source, seed=1))
    name = f"resample_{source}_{target}"
    assert_parity(resample(clip, source, target, KERNEL_FLOAT32).numpy(), goldens, name)
    if source == 44_100:
        with pytest.raises(AssertionError, match="is allowed"):
            assert_parity(resample(clip, source, target, KERNEL).numpy(), goldens, name)


def test_omnivoice_has_the_same_codes(goldens: Goldens) -> None:
    """As long as nobody asks for more: vLLM-Omni does the same for both."""
    ours = extract(load_omnivoice(), golden_clip(goldens, "7.31", 24_000))[0]
    assert_same_codes(ours, goldens, "codes_7.31", frames=1)


@pytest.mark.parametrize("name", PACKAGE)
def test_with_all_steps_the_codes_are_the_packages(goldens: Goldens, name: str) -> None:
    """Louder, without silence, cut to whole frames: in this order."""
    clip = checked(goldens, name, paused(*PACKAGE[name]))
    ours = extract(load_omnivoice(**EVERYTHING), clip)[0]
    assert_same_codes(ours, goldens, f"package_trimmed_{name}", frames=1)


@pytest.mark.parametrize("name", PACKAGE)
def test_without_trimming_they_are_the_packages_that_does_not_trim(goldens: Goldens, name: str) -> None:
    """What it calls `preprocess_prompt=False`."""
    clip = checked(goldens, name, paused(*PACKAGE[name]))
    ours = extract(load_omnivoice(loudness=True, whole_frames=True), clip)[0]
    assert_same_codes(ours, goldens, f"package_untrimmed_{name}", frames=1)


@pytest.mark.parametrize("setting", EVERYTHING)
def test_each_step_changes_codes(goldens: Goldens, setting: str) -> None:
    """A setting that does nothing would be a lie in the fingerprint."""
    clip = checked(goldens, "quiet", paused("pauses", 0.2))
    plain, ours = (extract(load_omnivoice(**steps), clip)[0] for steps in ({}, {setting: True}))
    assert plain.shape != ours.shape or not np.array_equal(plain, ours)


def test_a_clip_without_sound_is_left_as_loud_as_it_is() -> None:
    """There is no factor that would help."""
    silence = ReferenceAudio(np.zeros(24_000, np.float32), 24_000)
    louder = load_omnivoice(loudness=True).prepare(silence)
    assert torch.equal(louder.samples, torch.zeros(1, 1, 24_000))


def test_shapes_and_dtypes_are_the_profiles(goldens: Goldens, tiny: HiggsAudioExtractor) -> None:
    """Codebooks first, int64, contiguous: what the artifact file and the engine expect."""
    clip = golden_clip(goldens, "7.31", 24_000)
    encoded = tiny.encode([tiny.prepare(clip)])[0]
    tensors = tiny.finish(encoded)
    assert tensors["ref_audio_tokens"].shape == (8, 183)
    assert tensors["ref_audio_tokens"].dtype == np.int64
    assert tensors["ref_audio_tokens"].flags.c_contiguous
    assert tiny.used_seconds(encoded) is None
    check_tensors(tensors, BUILT_IN["omnivoice"].tensors, seconds=clip.seconds, frame_rate=25.0)


@pytest.mark.parametrize("samples", [119, 1_078, 1_079, 24_000, 24_118, 24_119])
def test_so_many_frames_as_the_engine_counts(tiny: HiggsAudioExtractor, samples: int) -> None:
    """A frame begins with its 119th sample: never one more or less than the clip's length says."""
    clip = ReferenceAudio(signals.speechlike(2.0, 24_000)[:samples], 24_000)
    codes = extract(tiny, clip)[0]
    assert codes.shape == (8, (samples + 841) // 960)
    check_tensors(
        {"ref_audio_tokens": codes},
        BUILT_IN["higgs-audio-v2"].tensors,
        seconds=clip.seconds,
        frame_rate=25.0,
    )


def test_a_clip_among_others_is_the_clip_alone(goldens: Goldens, tiny: HiggsAudioExtractor) -> None:
    """Whoever uploads at the same moment must not change my voice; clips of one length least of all."""
    clips = [golden_clip(goldens, name, 24_000) for name in CLIPS]
    clips += [ReferenceAudio(signals.speechlike(3.0, 24_000, seed), 24_000) for seed in (1, 2)]
    assert tiny.batch_seconds == 0
    for clip, ours in zip(clips, extract(tiny, *clips), strict=True):
        assert np.array_equal(ours, extract(tiny, clip)[0])


def test_the_dtype_that_others_compute_in_changes_nothing(goldens: Goldens) -> None:
    """Servers load this model in float32, whatever theirs runs in."""
    extractor, clip = load_higgs(dtype="bfloat16"), golden_clip(goldens, "1.0", 24_000)
    assert np.array_equal(extract(extractor, clip)[0], extract(load_higgs(), clip)[0])
    assert extractor.fingerprint == load_higgs().fingerprint


def test_the_number_of_threads_does_not_matter(goldens: Goldens, tiny: HiggsAudioExtractor) -> None:
    """Workers have different numbers of cores, and one fingerprint."""
    clip = golden_clip(goldens, "3.0", 24_000)
    torch.set_num_threads(1)
    assert_same_codes(extract(tiny, clip)[0], goldens, "codes_3.0", frames=1)


def test_the_example_goes_through_all_three_steps(tiny: HiggsAudioExtractor) -> None:
    """The warm-up must touch the resampler and the encoder; trimmed, there must be something left."""
    assert extract(tiny, tiny.example())[0].shape == (8, 75)
    assert extract(load_omnivoice(**EVERYTHING), tiny.example())[0].shape == (8, 75)


# --- clips that are too short


@pytest.mark.parametrize("samples", [0, 1, 118])
def test_a_clip_too_short_for_a_frame_is_refused(tiny: HiggsAudioExtractor, samples: int) -> None:
    """torch would fail in the middle of the encoder."""
    clip = ReferenceAudio(signals.speechlike(1.0, 24_000)[:samples], 24_000)
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.005 s"):
        tiny.prepare(clip)


@pytest.mark.parametrize("gain", [0.0, 0.001])
def test_a_clip_of_silence_is_refused_where_silence_is_cut_out(gain: float) -> None:
    """By us, and with a word about why."""
    clip = ReferenceAudio(paused("all silent") * np.float32(gain), 24_000)
    with pytest.raises(AudioTooShort, match=r"of the clip's 1\.351 s only 0\.000 s are more than silence"):
        load_omnivoice(trim=True).prepare(clip)


def test_a_clip_of_less_than_a_frame_is_refused_where_frames_must_be_whole() -> None:
    """Nothing would be left of it."""
    clip = ReferenceAudio(signals.speechlike(1.0, 24_000)[:959], 24_000)
    with pytest.raises(AudioTooShort):
        load_omnivoice(whole_frames=True).prepare(clip)
    assert extract(load_omnivoice(), clip)[0].shape == (8, 1)


# --- what was cut out


def test_what_was_used_of_a_trimmed_clip_is_told(goldens: Goldens) -> None:
    """Else its artifact would be refused for being too short."""
    clip = checked(goldens, "loud", paused("quiet ends", 1.0))
    extractor = load_omnivoice(trim=True)
    encoded = extractor.encode([extractor.prepare(clip)])[0]
    tensors, used = extractor.finish(encoded), extractor.used_seconds(encoded)
    assert used is not None
    assert 2.3 < used < 2.5 < clip.seconds
    version: Any = SimpleNamespace(
        clip=SimpleNamespace(seconds=clip.seconds, sha256="0" * 64),
        name="a",
        number=1,
        vuid="v",
        created_at=1,
        source="upload",
        ref_text=None,
        consent=None,
    )
    profile = BUILT_IN["omnivoice"]
    maker = {"fingerprint": "sha256:" + "0" * 64, "attempt": "a"}
    with pytest.raises(InvalidArtifact, match="frames, the clip has"):
        package(version, profile, tensors, **maker)
    data, _ = package(version, profile, tensors, used_seconds=used, **maker)
    assert data


# --- the fingerprint


def test_both_engines_share_one_loaded_model() -> None:
    """800 MB of weights that are the same."""
    shared_models = SharedModels()
    sources = {"source": LocalWeights(TINY), "shared_models": shared_models}
    one = HiggsAudioExtractor(Loading(profile=tiny_profile("higgs-audio-v2"), **sources))
    other = OmniVoiceExtractor(Loading(profile=tiny_profile("omnivoice"), **sources), OmniVoiceSettings())
    assert one._codec is other._codec


@pytest.mark.parametrize("setting", EVERYTHING)
def test_every_step_counts(setting: str) -> None:
    """Whoever switches it on gets other artifacts."""
    plain, changed = load_omnivoice().fingerprint, load_omnivoice(**{setting: True}).fingerprint
    assert plain.digest != changed.digest


def test_every_number_of_the_steps_is_in_it() -> None:
    """And none of a step that is not taken."""
    facts = load_omnivoice(**EVERYTHING).fingerprint.facts
    assert (facts["loudness"], facts["multiple_of"]) == (0.1, 960)
    assert facts["silence"] == {
        "silent_decibels": -50.0,
        "longest_pause": 200,
        "step": 10,
        "kept_before": 100,
        "kept_after": 200,
    }
    facts = load_omnivoice().fingerprint.facts
    assert (facts["loudness"], facts["multiple_of"], facts["silence"]) == (None, 1, None)


def test_the_kernel_is_in_it() -> None:
    """Other engines' clips go through another."""
    assert load_higgs().fingerprint.facts["resampler"] == "sinc-hann-w6-r0.99-f32"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue gives an extractor no more than what is to be loaded."""
    loading = Loading(profile=tiny_profile("omnivoice", "omnivoice-tiny"), source=LocalWeights(TINY))
    monkeypatch.setenv("SPEAKER_OMNIVOICE_TRIM", "true")
    assert OmniVoiceExtractor(loading).fingerprint == load_omnivoice(trim=True).fingerprint


# --- the model


def test_the_published_tokenizer_has_the_tensors_it_is_known_to_have() -> None:
    """163.6 million numbers, of 201 million with the decoder."""
    layout = codec_layout(CodecConfig())
    assert sum(int(np.prod(shape)) for shape in layout.values()) == 163_596_232
    config = CodecConfig()
    assert (config.codebooks, config.samples_per_frame, config.min_samples) == (8, 960, 119)
    assert layout["quantizer.quantizers.7.codebook.embed"] == (1024, 64)


def test_the_decoder_is_not_loaded(tiny: HiggsAudioExtractor) -> None:
    """A fifth of the weights that nobody here needs."""
    keys = tiny._codec.model.state_dict().keys()
    assert not [key for key in keys if "decoder" in key or key.startswith(("fc1", "fc2"))]
    with safe_open(TINY / TENSORS, framework="np") as file:
        assert {*keys} == {*file.keys()} - {"fc2.weight", "fc2.bias"}
