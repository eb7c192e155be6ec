"""The artifact is the one qwen-tts 0.1.1 computes from the same weights.

The weights are a random tiny checkpoint in the published layout; tools/make_qwen3_tts_goldens.py made it and
the goldens. float32 codes are compared exactly, because the generator saw to it that no code won narrowly.
bfloat16 rounds where the CPU's kernels say, so it is compared exactly on the kind of CPU the goldens were
made on, and loosely elsewhere.
"""

import json
from collections.abc import Callable

import numpy as np
import pytest
import torch

from services.extractor_worker.extractor import Dtype
from services.extractor_worker.qwen3_tts import Qwen3TTSExtractor
from services.shared.audio import ReferenceAudio
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, golden_clip

Tiny = Callable[[Dtype], Qwen3TTSExtractor]
Tensors = dict[str, np.ndarray]

CLIPS = ["1.0", "3.0", "7.31", "10.0"]
RATES = [16_000, 44_100]


def extract(extractor: Qwen3TTSExtractor, *clips: ReferenceAudio) -> list[Tensors]:
    prepared = [extractor.prepare(clip) for clip in clips]
    return [extractor.finish(encoded) for encoded in extractor.encode(prepared)]


def made_on_this_kind_of_cpu(goldens: Goldens) -> bool:
    cpu = json.loads(str(goldens["made_with"]))["cpu"]
    here = torch.cpu.get_capabilities()
    return all(here.get(key) == value for key, value in cpu.items())


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def assert_bfloat16_matches(
    goldens: Goldens, ours: Tensors, embedding: np.ndarray, codes: np.ndarray
) -> None:
    if made_on_this_kind_of_cpu(goldens):
        assert np.array_equal(ours["speaker_embedding"], embedding)
        assert np.array_equal(ours["ref_code"], codes)
    else:
        assert cosine(ours["speaker_embedding"], embedding) >= 0.999
        assert (ours["ref_code"] == codes).mean() >= 0.75


@pytest.mark.parametrize("name", [*CLIPS, "12.4"])
def test_the_mel_spectrogram_is_qwen_ttss(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """Everything the speaker encoder hears."""
    mel = tiny("float32").prepare(golden_clip(goldens, name, 24_000)).mel[0].numpy()
    sampled = np.concatenate([mel[:-4:16], mel[-4:]])
    assert np.abs(sampled - goldens[f"mel_{name}"]).max() <= 2e-6


@pytest.mark.parametrize("name", CLIPS)
def test_the_artifact_is_qwen_ttss_in_float32(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """A voice registered here must sound as if the engine had cloned it itself."""
    ours = extract(tiny("float32"), golden_clip(goldens, name, 24_000))[0]
    assert np.abs(ours["speaker_embedding"] - goldens[f"embedding_float32_{name}"]).max() <= 2e-6
    assert np.array_equal(ours["ref_code"], goldens[f"codes_float32_{name}"])


@pytest.mark.parametrize("name", CLIPS)
def test_the_artifact_is_qwen_ttss_in_bfloat16(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """What a server running in bfloat16 would have computed."""
    ours = extract(tiny("bfloat16"), golden_clip(goldens, name, 24_000))[0]
    embedding, codes = goldens[f"embedding_bfloat16_{name}"], goldens[f"codes_bfloat16_{name}"]
    assert_bfloat16_matches(goldens, ours, embedding, codes)


@pytest.mark.parametrize("rate", RATES)
def test_another_rate_goes_through_torchaudios_kernel(goldens: Goldens, tiny: Tiny, rate: int) -> None:
    """Most clips are not 24 kHz, and another resampler changes one code in fourteen."""
    clip = golden_clip(goldens, str(rate), rate)
    ours = extract(tiny("float32"), clip)[0]
    assert np.abs(ours["speaker_embedding"] - goldens[f"embedding_float32_{rate}"]).max() <= 2e-6
    assert np.array_equal(ours["ref_code"], goldens[f"codes_float32_{rate}"])
    embedding, codes = goldens[f"embedding_bfloat16_{rate}"], goldens[f"codes_bfloat16_{rate}"]
    assert_bfloat16_matches(goldens, extract(tiny("bfloat16"), clip)[0], embedding, codes)


def test_over_ten_seconds_the_codecs_sliding_window_holds(goldens: Goldens, tiny: Tiny) -> None:
    """What a server's transformers 5 applies and qwen-tts' own 4.57 does not.

    The golden is qwen-tts' codec with its causal mask replaced by one written out by hand. So it shows that
    the window is where and as wide as we believe; that servers apply it rests on their use of transformers 5.
    """
    ours = extract(tiny("float32"), golden_clip(goldens, "12.4", 24_000))[0]
    assert np.abs(ours["speaker_embedding"] - goldens["embedding_float32_12.4"]).max() <= 2e-6
    assert np.array_equal(ours["ref_code"], goldens["codes_float32_12.4_windowed"])
    unlike_without = (ours["ref_code"] != goldens["codes_float32_12.4"]).any(axis=1)
    assert unlike_without[125:].any()
    assert not unlike_without[:125].any()


def test_over_ten_seconds_in_bfloat16(goldens: Goldens, tiny: Tiny) -> None:
    """The window again, in the other dtype."""
    ours = extract(tiny("bfloat16"), golden_clip(goldens, "12.4", 24_000))[0]
    embedding, codes = goldens["embedding_bfloat16_12.4"], goldens["codes_bfloat16_12.4_windowed"]
    assert_bfloat16_matches(goldens, ours, embedding, codes)


def test_shapes_and_dtypes_are_the_profiles(goldens: Goldens, tiny: Tiny) -> None:
    """Frames first, int32, float32, contiguous: what the artifact file and the engine expect."""
    ours = extract(tiny("bfloat16"), golden_clip(goldens, "7.31", 24_000))[0]
    assert ours.keys() == {"speaker_embedding", "ref_code"}
    assert ours["speaker_embedding"].shape == (64,)
    assert ours["speaker_embedding"].dtype == np.float32
    assert ours["ref_code"].shape == (92, 16)
    assert ours["ref_code"].dtype == np.int32
    assert all(tensor.flags.c_contiguous for tensor in ours.values())


@pytest.mark.parametrize("samples", [1919, 1920, 1921, 48_000, 48_001])
def test_a_frame_of_codes_for_every_80_ms_begun(tiny: Tiny, samples: int) -> None:
    """ceil(N / 1920): the engine counts the prompt's length this way."""
    clip = ReferenceAudio(signals.speechlike(3.0, 24_000)[:samples], 24_000)
    assert len(extract(tiny("float32"), clip)[0]["ref_code"]) == -(-samples // 1920)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 3e-6), ("bfloat16", 1.6e-2)])
def test_a_clip_among_others_is_the_clip_alone(
    goldens: Goldens, tiny: Tiny, dtype: Dtype, tolerance: float
) -> None:
    """Whoever uploads at the same moment must not change my voice: the shortest clip beside the longest."""
    clips = [golden_clip(goldens, name, 24_000) for name in CLIPS]
    clips.append(ReferenceAudio(signals.speechlike(0.054, 24_000), 24_000))
    together = extract(tiny(dtype), *clips)
    for clip, ours in zip(clips, together, strict=True):
        alone = extract(tiny(dtype), clip)[0]
        assert np.abs(ours["speaker_embedding"] - alone["speaker_embedding"]).max() <= tolerance
        assert np.array_equal(ours["ref_code"], alone["ref_code"])


@pytest.mark.parametrize("name", ["3.0", "7.31"])
def test_the_number_of_threads_hardly_matters(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """Workers have different numbers of cores, and one fingerprint."""
    clip = golden_clip(goldens, name, 24_000)
    torch.set_num_threads(1)
    one = extract(tiny("float32"), clip)[0]
    torch.set_num_threads(2)
    two = extract(tiny("float32"), clip)[0]
    assert np.abs(one["speaker_embedding"] - two["speaker_embedding"]).max() <= 5e-7
    assert np.array_equal(one["ref_code"], two["ref_code"])


def test_the_example_goes_through_all_three_steps(tiny: Tiny) -> None:
    """The warm-up must touch the resampler, the front end and both encoders."""
    extractor = tiny("float32")
    example = extractor.example()
    assert example.sample_rate != 24_000
    assert len(extract(extractor, example)[0]["ref_code"]) == 38
