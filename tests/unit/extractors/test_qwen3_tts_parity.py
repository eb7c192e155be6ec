"""The artifact is the one that qwen-tts 0.1.1 computes from the same weights, and vLLM-Omni 0.30 in bfloat16.

The weights are a random tiny checkpoint in the published layout; tools/make_qwen3_tts_goldens.py made it and
the goldens, and tools/make_qwen3_tts_server_goldens.py those in bfloat16. `parity` compares what is float32.

bfloat16 keeps eight bits, and which of them a sum loses depends on the processor, even among those with the
same instructions. So its codes are compared by how many of them bfloat16 changes: ours may change few more
than the server's does.
"""

from collections.abc import Callable

import numpy as np
import pytest

from services.extractor_worker.engines.qwen3_tts import Qwen3TTSExtractor
from services.shared.audio import ReferenceAudio
from speaker_registry.engine import Dtype
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import TINY, Goldens, extract, golden_clip
from tests.unit.extractors.parity import (
    HALF_STEP_BFLOAT16,
    HALF_STEP_FLOAT32,
    assert_near,
    assert_parity,
    assert_same_codes,
)

Tiny = Callable[[Dtype], Qwen3TTSExtractor]
Tensors = dict[str, np.ndarray]

CLIPS = ["1.0", "3.0", "7.31", "10.0"]
RATES = ["16000", "44100"]
EVERY_CLIP = [*CLIPS, "12.4", *RATES]


@pytest.fixture(scope="module")
def server() -> Goldens:
    """Return the codes that vLLM-Omni's codec computes in bfloat16."""
    with np.load(TINY / "server.npz") as file:
        return dict(file)


def clip_of(goldens: Goldens, name: str) -> ReferenceAudio:
    return golden_clip(goldens, name, int(name) if name in RATES else 24_000)


def codes_in_float32(goldens: Goldens, name: str) -> np.ndarray:
    """Return the codes in float32, with the window that servers apply: [T, 16]."""
    return goldens["codes_12.4_windowed" if name == "12.4" else f"codes_{name}"]


@pytest.mark.parametrize("name", [*CLIPS, "12.4"])
def test_the_mel_spectrogram_is_qwen_ttss(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """The mel spectrogram is all that the speaker encoder gets."""
    mel = tiny("float32").prepare(clip_of(goldens, name)).mel[0].numpy()
    assert_parity(np.concatenate([mel[:-4:16], mel[-4:]]), goldens, f"mel_{name}", np.exp)


@pytest.mark.parametrize("name", CLIPS)
def test_the_artifact_is_qwen_ttss_in_float32(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """A voice registered here must sound as if the engine had cloned it itself."""
    ours = extract(tiny("float32"), clip_of(goldens, name))[0]
    assert_parity(ours["speaker_embedding"], goldens, f"embedding_{name}")
    assert_same_codes(ours["ref_code"], goldens, f"codes_{name}")


@pytest.mark.parametrize("name", RATES)
def test_another_rate_goes_through_torchaudios_kernel(goldens: Goldens, tiny: Tiny, name: str) -> None:
    """Most clips are not 24 kHz, and another resampler changes one code in fourteen."""
    ours = extract(tiny("float32"), clip_of(goldens, name))[0]
    assert_parity(ours["speaker_embedding"], goldens, f"embedding_{name}")
    assert_same_codes(ours["ref_code"], goldens, f"codes_{name}")


def test_over_ten_seconds_the_codecs_sliding_window_holds(goldens: Goldens, tiny: Tiny) -> None:
    """qwen-tts' own transformers 4.57 ignores the window, the transformers 5 of servers applies it.

    The golden is qwen-tts' codec with its causal mask replaced by one written out by hand; vLLM-Omni's codec
    was found to agree with it.
    """
    ours = extract(tiny("float32"), clip_of(goldens, "12.4"))[0]
    assert_parity(ours["speaker_embedding"], goldens, "embedding_12.4")
    assert_same_codes(ours["ref_code"], goldens, "codes_12.4_windowed")
    unlike_without = (ours["ref_code"] != goldens["codes_12.4"]).any(axis=1)
    assert unlike_without[125:].any()
    assert not unlike_without[:125].any()


# --- bfloat16


@pytest.fixture(scope="module")
def in_bfloat16(goldens: Goldens, tiny: Tiny) -> dict[str, Tensors]:
    """Return what every clip is encoded to in bfloat16."""
    return {name: extract(tiny("bfloat16"), clip_of(goldens, name))[0] for name in EVERY_CLIP}


@pytest.mark.parametrize("name", EVERY_CLIP)
def test_the_embedding_in_bfloat16_is_as_exact_as_qwen_ttss(
    goldens: Goldens, in_bfloat16: dict[str, Tensors], name: str
) -> None:
    """Servers compute it in bfloat16."""
    ours = in_bfloat16[name]["speaker_embedding"]
    exact = goldens[f"embedding_{name}"]
    deviation = float(np.abs(goldens[f"embedding_bfloat16_{name}"] - exact).max())
    assert_near(ours, exact, deviation, HALF_STEP_BFLOAT16)


def test_bfloat16_changes_few_more_codes_than_it_does_in_the_server(
    goldens: Goldens, server: Goldens, in_bfloat16: dict[str, Tensors]
) -> None:
    """The share of changed codes is about the same on every processor.

    Each code that differs from the one in float32 is a rounding error that tipped a decision. It also tips
    the following decisions of the frame, so only the 560 frames are independent. Two correct computations
    have the same probability p, about 0.28, of changing a code. Their shares differ by no more than four
    standard deviations, 4 * sqrt(2 * p * (1 - p) / 560) = 0.11. A wrong convolution changes nearly all codes.
    """
    changed, in_server, frames = [], [], 0
    for name in EVERY_CLIP:
        exact = codes_in_float32(goldens, name)
        changed.append(in_bfloat16[name]["ref_code"] != exact)
        in_server.append(server[f"codes_{name}"] != exact)
        frames += len(exact)
    ours, theirs = float(np.concatenate(changed).mean()), float(np.concatenate(in_server).mean())
    assert abs(ours - theirs) <= 4 * np.sqrt(2 * theirs * (1 - theirs) / frames)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_frequencies_of_rotary_positions_are_the_servers(
    server: Goldens, tiny: Tiny, dtype: Dtype
) -> None:
    """vLLM-Omni casts its whole codec, and so rounds them; a loader that casts weights only does not.

    This holds on every processor. In float32 they are what they are computed to be, by a power and a
    division, each of which may be a few half steps off.
    """
    expected = server["rotary_frequencies"]
    if dtype == "float32":
        expected = 10_000.0 ** (-np.arange(8) / 8)
    buffers = tiny(dtype)._codec.model.named_buffers()
    found = [buffer.float().cpu().numpy() for name, buffer in buffers if name.endswith(".inv_freq")]
    assert found
    for frequencies in found:
        np.testing.assert_allclose(frequencies, expected, rtol=8 * HALF_STEP_FLOAT32)


def test_rounded_frequencies_are_in_the_fingerprint_of_bfloat16_alone(tiny: Tiny) -> None:
    """An earlier release did not round the frequencies in bfloat16. float32 artifacts have not changed."""
    assert tiny("bfloat16").fingerprint.inputs["codec"]["rotary_frequencies"] == "bfloat16"
    assert "rotary_frequencies" not in tiny("float32").fingerprint.inputs["codec"]


# --- shapes


def test_shapes_and_dtypes_are_the_profiles(goldens: Goldens, tiny: Tiny) -> None:
    """The artifact file and the engine expect contiguous tensors, and codes with the frames first."""
    ours = extract(tiny("bfloat16"), golden_clip(goldens, "7.31", 24_000))[0]
    assert ours.keys() == {"speaker_embedding", "ref_code"}
    assert ours["speaker_embedding"].shape == (64,)
    assert ours["speaker_embedding"].dtype == np.float32
    assert ours["ref_code"].shape == (92, 16)
    assert ours["ref_code"].dtype == np.int32
    assert all(tensor.flags.c_contiguous for tensor in ours.values())


@pytest.mark.parametrize("samples", [1919, 1920, 1921, 48_000, 48_001])
def test_a_frame_of_codes_for_every_80_ms_begun(tiny: Tiny, samples: int) -> None:
    """There are ceil(N / 1920) frames, as the engine counts a prompt's length."""
    clip = ReferenceAudio(signals.speechlike(3.0, 24_000)[:samples], 24_000)
    assert len(extract(tiny("float32"), clip)[0]["ref_code"]) == -(-samples // 1920)


# --- batches


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_batch_changes_no_code_and_moves_the_embedding_within_rounding(
    goldens: Goldens, tiny: Tiny, dtype: Dtype
) -> None:
    """Other clips only change the order of the embedding's sums.

    It stays as near the exact one as the reference's.
    """
    names = CLIPS
    clips = [clip_of(goldens, name) for name in names]
    together = extract(tiny(dtype), *clips, ReferenceAudio(signals.speechlike(0.054, 24_000), 24_000))
    for name, clip, ours in zip(names, clips, together, strict=False):
        assert np.array_equal(ours["ref_code"], extract(tiny(dtype), clip)[0]["ref_code"])
        if dtype == "float32":
            assert_parity(ours["speaker_embedding"], goldens, f"embedding_{name}")
            continue
        exact = goldens[f"embedding_{name}"]
        deviation = float(np.abs(goldens[f"embedding_bfloat16_{name}"] - exact).max())
        assert_near(ours["speaker_embedding"], exact, deviation, HALF_STEP_BFLOAT16)
