"""The codes are those that vLLM-Omni 0.30 and the omnivoice package compute from the same weights.

For the omnivoice package its steps are switched on. The weights are a random tiny checkpoint in the published
layout. tools/make_higgs_audio_goldens.py made it and the goldens. Codes are compared wherever rounding cannot
change them.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from services.extractor_worker.engines.higgs_audio import (
    HiggsAudioExtractor,
    HiggsAudioV3Extractor,
    OmniVoiceExtractor,
)
from services.extractor_worker.features.resample import KERNEL, KERNEL_FLOAT32, resample
from services.extractor_worker.models.higgs_audio_codec import CodecConfig, codec_layout
from services.extractor_worker.pipeline.torch_extractor import Loading, SharedModels
from services.extractor_worker.weights.loading import LocalWeights
from services.shared.audio import ReferenceAudio
from services.shared.configuration.worker import OmniVoiceSettings
from services.shared.model.packaging import package
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooShort, InvalidArtifact
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, edit_tensors, extract, golden_clip, tiny_profile
from tests.unit.extractors.higgs_audio_tiny import (
    TENSORS,
    TINY,
    codes,
    load_higgs,
    load_higgs_v3,
    load_omnivoice,
)
from tests.unit.extractors.parity import assert_parity, assert_same_codes
from tests.unit.extractors.pauses import paused
from tests.vllm_omni_readers import readers

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
    ours = codes(tiny, golden_clip(goldens, name, 24_000))[0]
    assert_same_codes(ours, goldens, f"codes_{name}", frames=1)


@pytest.mark.parametrize("rate", [16_000, 44_100])
def test_from_another_rate_they_are_too(goldens: Goldens, tiny: HiggsAudioExtractor, rate: int) -> None:
    """Most clips are not 24 kHz."""
    clip = checked(goldens, str(rate), signals.speechlike(3.01, rate), rate)
    assert_same_codes(codes(tiny, clip)[0], goldens, f"codes_{rate}", frames=1)


@pytest.mark.parametrize(
    ("source", "target"),
    [(16_000, 24_000), (22_050, 24_000), (44_100, 24_000), (48_000, 24_000), (24_000, 16_000)],
)
def test_the_kernel_is_the_one_torchaudio_builds_in_float32(
    goldens: Goldens, source: int, target: int
) -> None:
    """The kernel resamples clips to 24 kHz, and inside the model from there to 16 kHz."""
    clip = torch.from_numpy(signals.speechlike(0.1337, source, seed=1))
    name = f"resample_{source}_{target}"
    assert_parity(resample(clip, source, target, KERNEL_FLOAT32).numpy(), goldens, name)
    if source == 44_100:
        with pytest.raises(AssertionError, match="is allowed"):
            assert_parity(resample(clip, source, target, KERNEL).numpy(), goldens, name)


def test_omnivoice_has_the_same_codes(goldens: Goldens) -> None:
    """vLLM-Omni computes the same codes for both models, and so does the registry by default."""
    ours = codes(load_omnivoice(), golden_clip(goldens, "7.31", 24_000))[0]
    assert_same_codes(ours, goldens, "codes_7.31", frames=1)


def test_higgs_audio_v3_has_the_same_codes_frame_by_frame(goldens: Goldens) -> None:
    """vLLM-Omni encodes clips for v3 with v2's tokenizer, and then exchanges the two axes."""
    ours = codes(load_higgs_v3(), golden_clip(goldens, "7.31", 24_000))[0]
    assert_same_codes(ours.T, goldens, "codes_7.31", frames=1)


@pytest.mark.parametrize(("name", "seconds", "rate"), [("7.31", 7.31, 24_000), ("44100", 3.01, 44_100)])
def test_of_our_codes_the_server_of_v3_makes_the_prompt_it_makes_of_the_clip(
    goldens: Goldens, name: str, seconds: float, rate: int
) -> None:
    """vLLM-Omni's own functions made these goldens, from the clip to the delayed codes."""
    delayed = readers().higgs_audio_v3_tokenizer.apply_delay_pattern
    clip = checked(goldens, name, signals.speechlike(seconds, rate), rate)
    ours = delayed(torch.from_numpy(codes(load_higgs_v3(), clip)[0])).numpy()
    certain = np.arange(8) < goldens[f"codes_{name}_certain"][:, None]  # [T, 8]
    counted = delayed(torch.from_numpy(certain.astype(np.int64))).numpy() != 0  # with all that is no code
    servers = goldens[f"delayed_{name}"]
    assert ours.shape == servers.shape == (len(certain) + 7, 8)
    assert counted.mean() >= 0.95
    assert np.array_equal(ours[counted], servers[counted])


def test_the_delay_pattern_is_the_documented_one(goldens: Goldens) -> None:
    """docs/engines.md describes it, for those who patch a server."""
    books = goldens["codes_44100"].astype(np.int64)  # [8, T]
    delayed = [
        np.pad(book, (late, 7 - late), constant_values=(1024, 1025)) for late, book in enumerate(books)
    ]
    assert np.array_equal(np.stack(delayed, axis=1), goldens["delayed_44100"])


@pytest.mark.parametrize("name", PACKAGE)
def test_with_all_steps_the_codes_are_the_packages(goldens: Goldens, name: str) -> None:
    """The steps run in this order: raise the loudness, remove silence, cut to whole frames."""
    clip = checked(goldens, name, paused(*PACKAGE[name]))
    ours = codes(load_omnivoice(**EVERYTHING), clip)[0]
    assert_same_codes(ours, goldens, f"package_trimmed_{name}", frames=1)


@pytest.mark.parametrize("name", ["quiet", "loudest"])
def test_without_trimming_they_are_the_packages_that_does_not_trim(goldens: Goldens, name: str) -> None:
    """The package's name for this is `preprocess_prompt=False`."""
    clip = checked(goldens, name, paused(*PACKAGE[name]))
    ours = codes(load_omnivoice(loudness=True, whole_frames=True), clip)[0]
    assert_same_codes(ours, goldens, f"package_untrimmed_{name}", frames=1)


def test_each_step_changes_codes(goldens: Goldens) -> None:
    """The fingerprint names each setting, so each must have an effect."""
    clip = checked(goldens, "quiet", paused("pauses", 0.2))
    plain = codes(load_omnivoice(), clip)[0]
    for setting in EVERYTHING:
        ours = codes(load_omnivoice(**{setting: True}), clip)[0]
        assert plain.shape != ours.shape or not np.array_equal(plain, ours), setting


def test_a_clip_without_sound_is_left_as_loud_as_it_is() -> None:
    """No factor makes silence louder."""
    silence = ReferenceAudio(np.zeros(24_000, np.float32), 24_000)
    louder = load_omnivoice(loudness=True).prepare(silence)
    assert torch.equal(louder.samples, torch.zeros(1, 1, 24_000))


def test_shapes_and_dtypes_are_the_profiles(goldens: Goldens, tiny: HiggsAudioExtractor) -> None:
    """The artifact file and the engine expect contiguous int64 codes with the codebooks first."""
    clip = golden_clip(goldens, "7.31", 24_000)
    encoded = tiny.encode([tiny.prepare(clip)])[0]
    tensors = tiny.finish(encoded)
    assert tensors["ref_audio_tokens"].shape == (8, 183)
    assert tensors["ref_audio_tokens"].dtype == np.int64
    assert tensors["ref_audio_tokens"].flags.c_contiguous
    assert tiny.used_seconds(encoded) is None
    check_tensors(tensors, BUILT_IN["omnivoice"].tensors, seconds=clip.seconds, frame_rate=25.0)


def test_those_of_higgs_audio_v3_are_too(goldens: Goldens) -> None:
    """Its profile has the frames first, and needs no transcript."""
    clip, profile = golden_clip(goldens, "7.31", 24_000), BUILT_IN["higgs-audio-v3"]
    [tensors] = extract(load_higgs_v3(), clip)
    assert tensors["ref_audio_tokens"].shape == (183, 8)
    assert tensors["ref_audio_tokens"].dtype == np.int64
    assert tensors["ref_audio_tokens"].flags.c_contiguous
    assert not profile.ref_text_required
    check_tensors(tensors, profile.tensors, seconds=clip.seconds, frame_rate=profile.frame_rate)
    for other in ("omnivoice", "higgs-audio-v2"):
        with pytest.raises(InvalidArtifact):
            check_tensors(tensors, BUILT_IN[other].tensors, seconds=clip.seconds, frame_rate=25.0)


@pytest.mark.parametrize("samples", [119, 1_078, 1_079, 24_000, 24_118, 24_119])
def test_so_many_frames_as_the_engine_counts(tiny: HiggsAudioExtractor, samples: int) -> None:
    """A frame needs 119 samples. The number of frames follows from the clip's length."""
    clip = ReferenceAudio(signals.speechlike(2.0, 24_000)[:samples], 24_000)
    ours = codes(tiny, clip)[0]
    assert ours.shape == (8, (samples + 841) // 960)
    check_tensors(
        {"ref_audio_tokens": ours},
        BUILT_IN["higgs-audio-v2"].tensors,
        seconds=clip.seconds,
        frame_rate=25.0,
    )


def test_the_number_of_threads_does_not_matter(goldens: Goldens, tiny: HiggsAudioExtractor) -> None:
    """Workers with different numbers of cores have the same fingerprint."""
    clip = golden_clip(goldens, "3.0", 24_000)
    torch.set_num_threads(1)
    assert_same_codes(codes(tiny, clip)[0], goldens, "codes_3.0", frames=1)


def test_the_example_goes_through_all_three_steps(tiny: HiggsAudioExtractor) -> None:
    """The warm-up must use the resampler and the encoder, and trimming must leave some of the example."""
    assert codes(tiny, tiny.example())[0].shape == (8, 25)
    assert codes(load_omnivoice(**EVERYTHING), tiny.example())[0].shape == (8, 25)


# --- clips that are too short


@pytest.mark.parametrize("samples", [0, 1, 118])
def test_a_clip_too_short_for_a_frame_is_refused(tiny: HiggsAudioExtractor, samples: int) -> None:
    """Without this check torch would fail in the middle of the encoder."""
    clip = ReferenceAudio(signals.speechlike(1.0, 24_000)[:samples], 24_000)
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.005 s"):
        tiny.prepare(clip)


@pytest.mark.parametrize("gain", [0.0, 0.001])
def test_a_clip_of_silence_is_refused_where_silence_is_cut_out(gain: float) -> None:
    """The registry refuses the clip itself and gives the reason."""
    clip = ReferenceAudio(paused("all silent") * np.float32(gain), 24_000)
    with pytest.raises(AudioTooShort, match=r"of the clip's 1\.351 s only 0\.000 s are more than silence"):
        load_omnivoice(trim=True).prepare(clip)


def test_a_clip_of_less_than_a_frame_is_refused_where_frames_must_be_whole() -> None:
    """Cutting to whole frames would leave nothing of the clip."""
    clip = ReferenceAudio(signals.speechlike(1.0, 24_000)[:959], 24_000)
    with pytest.raises(AudioTooShort):
        load_omnivoice(whole_frames=True).prepare(clip)
    assert codes(load_omnivoice(), clip)[0].shape == (8, 1)


# --- what was cut out


def test_the_used_seconds_of_a_trimmed_clip_are_reported(goldens: Goldens) -> None:
    """The artifact would be refused for being too short if these seconds were not reported."""
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
        id="v",
        created_at=1,
        source="upload",
        ref_text=None,
        consent=None,
    )
    profile = BUILT_IN["omnivoice"]
    maker = {"fingerprint": "sha256:" + "0" * 64, "object_id": "a"}
    with pytest.raises(InvalidArtifact, match="frames, but the clip has"):
        package(version, profile, tensors, **maker)
    data, _ = package(version, profile, tensors, used_seconds=used, **maker)
    assert data


# --- the fingerprint


def test_the_engines_share_one_loaded_model() -> None:
    """All three engines use the same 800 MB of weights."""
    shared_models = SharedModels()
    sources = {"source": LocalWeights(TINY), "shared_models": shared_models}
    v2 = HiggsAudioExtractor(Loading(profile=tiny_profile("higgs-audio-v2", "v2"), **sources))
    v3 = HiggsAudioV3Extractor(Loading(profile=tiny_profile("higgs-audio-v3", "v3"), **sources))
    loading = Loading(profile=tiny_profile("omnivoice", "omnivoice"), **sources)
    omnivoice = OmniVoiceExtractor(loading, OmniVoiceSettings())
    assert v2._codec is v3._codec is omnivoice._codec


@pytest.mark.parametrize("setting", EVERYTHING)
def test_every_step_counts(setting: str) -> None:
    """Each step makes other artifacts."""
    plain, changed = load_omnivoice().fingerprint, load_omnivoice(**{setting: True}).fingerprint
    assert plain.digest != changed.digest


def test_every_number_of_the_steps_is_in_it() -> None:
    """The fingerprint has every number of the steps that run, and none of the others."""
    inputs = load_omnivoice(**EVERYTHING).fingerprint.inputs
    assert (inputs["loudness"], inputs["multiple_of"]) == (0.1, 960)
    assert inputs["silence"] == {
        "silent_decibels": -50.0,
        "longest_pause": 200,
        "step": 10,
        "kept_before": 100,
        "kept_after": 200,
    }
    inputs = load_omnivoice().fingerprint.inputs
    assert (inputs["loudness"], inputs["multiple_of"], inputs["silence"]) == (None, 1, None)


def test_the_kernel_is_in_it() -> None:
    """Other engines resample with another kernel."""
    assert load_higgs().fingerprint.inputs["resampler"] == "sinc-hann-w6-r0.99-f32"


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue passes no settings to an extractor."""
    loading = Loading(profile=tiny_profile("omnivoice", "omnivoice-tiny"), source=LocalWeights(TINY))
    monkeypatch.setenv("SPEAKER_OMNIVOICE_TRIM", "true")
    assert OmniVoiceExtractor(loading).fingerprint == load_omnivoice(trim=True).fingerprint


# --- the model


def test_the_published_tokenizer_has_the_tensors_it_is_known_to_have() -> None:
    """The encoder has 163.6 million numbers. With the decoder there are 201 million."""
    layout = codec_layout(CodecConfig())
    assert sum(int(np.prod(shape)) for shape in layout.values()) == 163_596_232
    config = CodecConfig()
    assert (config.codebooks, config.samples_per_frame, config.min_samples) == (8, 960, 119)
    assert layout["quantizer.quantizers.7.codebook.embed"] == (1024, 64)


def test_the_decoder_is_not_loaded(tiny: HiggsAudioExtractor) -> None:
    """The decoder is a fifth of the weights and is not needed."""
    keys = tiny._codec.model.state_dict().keys()
    assert not [key for key in keys if "decoder" in key or key.startswith(("fc1", "fc2"))]
    with safe_open(TINY / TENSORS, framework="np") as file:
        assert {*keys} == {*file.keys()} - {"fc2.weight", "fc2.bias"}


@pytest.mark.parametrize(
    "key", ["semantic_model.masked_spec_embed", "acoustic_decoder.conv1.bias", "fc1.bias"]
)
def test_tensors_that_encoding_does_not_need_are_not_read(copy: Path, key: str) -> None:
    """The decoder and the training tensors of HuBERT are not needed."""
    edit_tensors(copy / TENSORS, lambda tensors: tensors.update({key: torch.zeros(2)}))
    assert load_higgs(copy).profile_name == "higgs-tiny"
