"""The codes are those that fish-speech 0.1.0, and for Audio8 vLLM-Omni, compute from the same weights.

The weights are a random tiny checkpoint in the published layout. tools/make_fish_speech_goldens.py made it
and the goldens. Codes are compared wherever rounding cannot change them.
"""

import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch

from services.extractor_worker.device.precision import exact_float32
from services.extractor_worker.engines.fish_speech import Audio8Extractor, FishSpeechExtractor, _groups
from services.extractor_worker.models.fish_dac import CodecConfig, CodecEncoder, published_name
from services.extractor_worker.models.weight_norm import published_layout
from services.extractor_worker.weights.loading import UntrainedWeights
from services.extractor_worker.weights.modules import layout_of
from services.shared.audio import ReferenceAudio
from services.shared.model.fingerprint import Fingerprint
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooLong, AudioTooShort
from tests.unit.extractors import fish_speech_tiny
from tests.unit.extractors.conftest import Goldens, golden_clip
from tests.unit.extractors.fish_speech_tiny import (
    ARCHITECTURE,
    TinyAudio8,
    TinyFishSpeech,
    clip_of,
    codes,
    load,
    profile,
    with_codec,
)
from tests.unit.extractors.parity import HALF_STEP_FLOAT32, assert_parity, assert_same_codes
from tests.unit.extractors.signals import speechlike

TINY = fish_speech_tiny.TINY
CLIPS = ["1.0", "3.0", "7.31", "12.4"]
RATES = [16_000, 24_000, 48_000]
WINDOW_FRAMES = 128
"""The length of both windows in frames of codes."""
LATENT_STRIDE = 8


@pytest.fixture(scope="module")
def extractor() -> FishSpeechExtractor:
    return load()


@torch.inference_mode()
def latents(extractor: FishSpeechExtractor, clip: ReferenceAudio) -> np.ndarray:
    """Return the vectors that are quantised: [T, 64]."""
    encoder = extractor._encoder
    with exact_float32(extractor.device):
        hidden = encoder.encoder(extractor.on_device(extractor.prepare(clip).samples[None, None]))
        return encoder.quantizer.pre_module(encoder.quantizer.downsample(hidden))[0].T.cpu().numpy()


# --- parity


@pytest.mark.parametrize("name", CLIPS)
def test_the_codes_are_fish_speechs(goldens: Goldens, extractor: FishSpeechExtractor, name: str) -> None:
    """A voice registered here must sound as if the engine had cloned it itself."""
    ours = codes(extractor, golden_clip(goldens, name, 44_100))[0]
    assert_same_codes(ours, goldens, f"codes_{name}")


@pytest.mark.parametrize("name", CLIPS)
def test_what_is_quantized_is_fish_speechs(
    goldens: Goldens, extractor: FishSpeechExtractor, name: str
) -> None:
    """Small codebooks hide errors that the larger ones of the published size would show."""
    ours = latents(extractor, golden_clip(goldens, name, 44_100))[::LATENT_STRIDE]
    assert_parity(ours, goldens, f"latents_{name}")


@pytest.mark.parametrize("name", CLIPS)
def test_audio8s_codes_are_audio8s(goldens: Goldens, name: str) -> None:
    """Audio8 has the same encoder, except for the last bit of a codebook entry."""
    ours = codes(load(kind=TinyAudio8), golden_clip(goldens, name, 44_100))[0]
    assert_same_codes(ours, goldens, f"audio8_codes_{name}")


@pytest.mark.parametrize("rate", RATES)
def test_another_rate_goes_through_torchaudios_kernel(
    goldens: Goldens, extractor: FishSpeechExtractor, rate: int
) -> None:
    """Most clips are not 44.1 kHz."""
    ours = codes(extractor, golden_clip(goldens, str(rate), rate))[0]
    assert_same_codes(ours, goldens, f"codes_{rate}")


def test_the_goldens_have_many_codes(goldens: Goldens) -> None:
    """Equality with the goldens would mean nothing if all codes were the same."""
    assert all(len(np.unique(book)) > 20 for book in goldens["codes_12.4"].T)


@pytest.mark.parametrize("window", [{"encoder_window": 4096}, {"pre_window": 1024}])
def test_the_windows_are_where_the_goldens_have_them(goldens: Goldens, window: dict[str, int]) -> None:
    """A wider window changes only the codes after the window, so both windows show in the goldens."""
    ours = codes(load(kind=with_codec(**window)), golden_clip(goldens, "12.4", 44_100))[0]
    certain = np.arange(ours.shape[1]) < goldens["codes_12.4_certain"][:, None]
    changed = ((ours != goldens["codes_12.4"]) & certain).any(axis=1)
    assert not changed[:WINDOW_FRAMES].any()
    assert changed[WINDOW_FRAMES:].any()


def test_positions_are_rounded_to_bfloat16(
    goldens: Goldens, extractor: FishSpeechExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was trained with this rounding. Exact positions would give other latents."""

    def exact(positions: int, head_dim: int, base: float) -> torch.Tensor:
        angles = torch.arange(positions)[:, None] / base ** (torch.arange(0, head_dim, 2) / head_dim)
        return torch.stack([angles.cos(), angles.sin()], dim=-1)

    transformer = extractor._encoder.quantizer.pre_module
    table = exact(4096, 32, 10_000.0)
    assert (transformer._rope_table(torch.device("cpu")) - table).abs().max() < 4e-3
    monkeypatch.setattr(transformer, "_rope_table", table.to)
    ours = latents(extractor, golden_clip(goldens, "3.0", 44_100))[::LATENT_STRIDE]
    assert np.abs(ours - goldens["latents_3.0"]).max() > 20 * goldens["latents_3.0_deviation"]


@pytest.mark.parametrize("kind", [TinyFishSpeech, TinyAudio8])
def test_fish_speech_rounds_an_entry_as_training_does(
    goldens: Goldens, kind: type[FishSpeechExtractor]
) -> None:
    """Fish Speech subtracts the latent from an entry and adds it again. Audio8 does not.

    In float32 the result is not quite the entry. Each of the two operations rounds by half a step of its
    result, which is at most as large as entry and latent together.
    """
    extractor = load(kind=kind)
    book = extractor._encoder.quantizer.quantizer.quantizers[0]
    hidden = extractor.on_device(torch.from_numpy(goldens["latents_3.0"]).T[None])
    indices, entries = book.nearest(hidden)
    exact = book.codebook.weight[indices].transpose(1, 2)
    largest = exact.abs().max() + book.in_proj(hidden).abs().max()
    assert (entries - exact).abs().max() <= 2 * HALF_STEP_FLOAT32 * largest
    assert torch.equal(entries, exact) == (kind is TinyAudio8)


def test_the_number_of_threads_hardly_matters(goldens: Goldens, extractor: FishSpeechExtractor) -> None:
    """Workers with different numbers of cores have the same fingerprint."""
    torch.set_num_threads(1)
    ours = codes(extractor, golden_clip(goldens, "7.31", 44_100))[0]
    assert_same_codes(ours, goldens, "codes_7.31")


# --- shapes


def test_shapes_and_dtypes_are_the_profiles(goldens: Goldens, extractor: FishSpeechExtractor) -> None:
    """Frames come first, and each codebook has its own size."""
    clip = golden_clip(goldens, "7.31", 44_100)
    tensors = extractor.finish(extractor.encode([extractor.prepare(clip)])[0])
    expected = profile()
    check_tensors(tensors, expected.tensors, seconds=clip.seconds, frame_rate=expected.frame_rate)
    assert tensors["ref_codes_fq"].shape == (158, 10)
    assert tensors["ref_codes_fq"].flags.c_contiguous


@pytest.mark.parametrize("samples", [1, 2047, 2048, 2049, 44_100])
def test_a_frame_for_every_2048_samples_begun(extractor: FishSpeechExtractor, samples: int) -> None:
    """There are ceil(N / 2048) frames, as the engine counts a prompt's length.

    One sample is enough for a frame.
    """
    assert len(codes(extractor, clip_of(samples))[0]) == -(-samples // 2048)


def test_an_empty_clip_is_too_short(extractor: FishSpeechExtractor) -> None:
    """A convolution would crash without this check."""
    with pytest.raises(AudioTooShort):
        extractor.prepare(clip_of(0))


def test_a_clip_longer_than_the_engines_positions_is_refused() -> None:
    """The engine itself would fail with a longer clip. The longest clip that fits is encoded."""
    extractor = load(kind=with_codec(max_frames=10))
    assert len(codes(extractor, clip_of(20_480))[0]) == 10
    with pytest.raises(AudioTooLong, match=r"the clip is 0\.5 s, the encoder takes at most 0\.5 s"):
        extractor.prepare(clip_of(20_481))


def test_the_example_goes_through_all_three_steps(extractor: FishSpeechExtractor) -> None:
    """The warm-up must touch the resampler and the encoder."""
    example = extractor.example()
    assert example.sample_rate != 44_100
    assert codes(extractor, example)[0].shape == (22, 10)


# --- batches


def test_a_batch_changes_no_code_that_rounding_cannot_change(goldens: Goldens) -> None:
    """Sums in a batch are made in another order. Each clip must still get its own codes."""
    extractor = load()
    extractor.batch_seconds = 30.0
    names = ("7.31", "1.0", "3.0")
    clips = [golden_clip(goldens, name, 44_100) for name in names]
    together = codes(extractor, *clips, clip_of(1), clip_of(2048, seed=2), clip_of(50_000, seed=3))
    assert [len(ours) for ours in together[3:]] == [1, 1, 25]
    for name, ours in zip(names, together, strict=False):
        assert_same_codes(ours, goldens, f"codes_{name}")


@pytest.mark.parametrize("kind", [TinyFishSpeech, TinyAudio8])
def test_on_a_cpu_clips_are_encoded_one_by_one(kind: type[FishSpeechExtractor]) -> None:
    """A batch would move the latents by 4e-6, and would not be faster on a CPU."""
    extractor = load(kind=kind)
    assert extractor.batch_seconds == 0
    batches: list[int] = []
    extractor._encoder.register_forward_pre_hook(lambda _, inputs: batches.append(len(inputs[0])))
    codes(extractor, *[clip_of(20_000, seed=seed) for seed in range(3)])
    assert batches == [1, 1, 1]


def test_zeros_behind_a_clip_change_none_of_its_frames(extractor: FishSpeechExtractor) -> None:
    """Nothing in the encoder looks ahead, so clips can be padded in a batch, even with loud noise."""
    samples = extractor.on_device(extractor.prepare(clip_of(44_100)).samples[None, None])
    frames = samples.shape[-1] // 2048
    with torch.inference_mode():
        alone = extractor._encoder(samples)
        for tail in (torch.zeros(1, 1, 40 * 2048), torch.rand(1, 1, 40 * 2048) - 0.5):
            padded = torch.cat([samples, extractor.on_device(tail)], dim=-1)
            assert torch.equal(extractor._encoder(padded)[..., :frames], alone)


def test_a_batch_is_bounded_by_its_padded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of a batch grows with its padded length: 70 MB for each second at full size."""
    extractor = load()
    monkeypatch.setattr(extractor, "batch_seconds", 3.1)
    batches: list[tuple[int, ...]] = []
    extractor._encoder.register_forward_pre_hook(lambda _, inputs: batches.append(tuple(inputs[0].shape)))
    clips = [clip_of(samples) for samples in (132_300, 30_000, 60_000, 20_000, 44_100)]
    together = codes(extractor, *clips)
    assert batches == [(3, 1, 22 * 2048), (1, 1, 30 * 2048), (1, 1, 65 * 2048)]
    assert [len(one) for one in together] == [65, 15, 30, 10, 22]


@pytest.mark.parametrize(
    ("frames", "groups"),
    [
        ([], []),
        ([99], [[0]]),
        ([5, 5], [[0, 1]]),
        ([5, 6], [[0], [1]]),
        ([9, 1, 2, 1], [[1, 3, 2], [0]]),
        ([2, 2, 2, 2, 2, 2], [[0, 1, 2, 3, 4], [5]]),
    ],
)
def test_clips_of_similar_lengths_go_together(frames: list[int], groups: list[list[int]]) -> None:
    """A group has at most ten padded frames, or one clip."""
    assert list(_groups(frames, 10)) == groups


# --- what the fingerprint says


def test_profile_and_weights_count() -> None:
    """Two names for equal files, and random weights of two seeds, give four fingerprints."""
    found = [
        load().fingerprint,
        load(profile=profile("another")).fingerprint,
        load(source=UntrainedWeights()).fingerprint,
        load(source=UntrainedWeights(seed=1)).fingerprint,
    ]
    assert [one.untrained for one in found] == [False, False, True, True]
    assert len({one.digest for one in found}) == 4


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(CodecConfig)])
def test_every_number_of_the_architecture_counts(field: str) -> None:
    """Most of these numbers change the codes without changing the shape of a weight."""
    architecture = CodecConfig(**ARCHITECTURE)
    assert load().fingerprint.inputs["codec"][field] == pytest.approx(
        json.loads(json.dumps(getattr(architecture, field)))
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [("rope_base", 20_000.0), ("norm_eps", 1e-6), ("pre_window", 64), ("straight_through", False)],
)
def test_another_number_is_another_fingerprint(field: str, value: object) -> None:
    assert load(kind=with_codec(**{field: value})).fingerprint.digest != load().fingerprint.digest


def test_the_fingerprint_survives_a_trip_through_a_manifest() -> None:
    original = load().fingerprint
    assert Fingerprint(json.loads(json.dumps(original.inputs))).digest == original.digest
    assert original.inputs["padded_to_samples"] == 2048


# --- the published architecture


def test_the_published_codec_has_the_shapes_it_is_known_to_have() -> None:
    """These numbers were counted with the engines' own classes at full size."""
    layout = published_layout(layout_of(partial(CodecEncoder, CodecConfig())), published_name)
    sizes = dict.fromkeys(("encoder", "quantizer"), 0)
    for key, shape in layout.items():
        sizes[key.partition(".")[0]] += int(np.prod(shape))
    assert sizes == {"encoder": 76_851_328, "quantizer": 130_383_008}
    assert len(layout) == 321
    assert layout["encoder.block.4.block.5.layers.3.attention.wqkv.weight"] == (3072, 1024)
    assert layout["encoder.block.1.block.4.conv.parametrizations.weight.original0"] == (128, 1, 1)
    assert layout["quantizer.semantic_quantizer.quantizers.0.codebook.weight"] == (4096, 8)
    assert layout["quantizer.quantizer.quantizers.8.out_proj.weight_v"] == (1024, 8, 1)


@pytest.mark.parametrize(
    ("kind", "name"), [(FishSpeechExtractor, "fish-speech-s2-pro"), (Audio8Extractor, "audio8")]
)
def test_the_profiles_books_are_the_codecs(kind: type[FishSpeechExtractor], name: str) -> None:
    """The profile and the codec both say how many codebooks there are, and how large each is."""
    codec, expected = kind.codec, BUILT_IN[name]
    sizes = (codec.semantic_codebook_size, *codec.n_codebooks * [codec.codebook_size])
    assert expected.tensors["ref_codes_fq"].codebook_sizes == sizes
    assert expected.tensors["ref_codes_fq"].shape == ("T", codec.codebooks)
    assert expected.frame_rate == codec.sample_rate / codec.samples_per_frame
    assert expected.sample_rate == codec.sample_rate


def test_untrained_voices_differ() -> None:
    """Random weights of the tiny architecture give different voices, too."""
    extractor = load(source=UntrainedWeights())
    low, high = codes(extractor, *[ReferenceAudio(speechlike(3.0, 44_100, seed), 44_100) for seed in (0, 4)])
    assert (low != high).mean() > 0.5
