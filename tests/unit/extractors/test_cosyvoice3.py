"""The artifact is the one vLLM-Omni computes for CosyVoice3 from the same weights.

The weights are a random tiny checkpoint in the published layout; tools/make_cosyvoice3_goldens.py made it and
the goldens with s3tokenizer and vLLM-Omni's own functions. Tokens are compared wherever rounding cannot
change them.
"""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from services.extractor_worker.engines import cosyvoice3
from services.extractor_worker.features.kaldi_fbank import FbankSettings
from services.extractor_worker.features.mel import MelSettings, WhisperMelSettings
from services.extractor_worker.models.s3_tokenizer import S3Config, codes_of, s3_layout
from services.extractor_worker.pipeline.torch_extractor import SharedModels
from services.extractor_worker.weights.loading import UntrainedWeights
from services.shared.audio import ReferenceAudio
from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import AudioTooLong, AudioTooShort
from tests.unit.extractors import signals
from tests.unit.extractors.conftest import Goldens, extract
from tests.unit.extractors.cosyvoice3_tiny import (
    CLIPS,
    RATES,
    TINY,
    clip_of,
    cosyvoice,
    golden_clip,
    load_cosyvoice,
    load_ming,
)
from tests.unit.extractors.parity import assert_parity, assert_same_codes


def sampled(feat: np.ndarray) -> np.ndarray:
    """The frames that the goldens have."""
    return np.concatenate([feat[:-4:16], feat[-4:]])


@pytest.mark.parametrize("name", [*CLIPS, *RATES])
def test_the_tokens_are_s3tokenizers(goldens: Goldens, name: str) -> None:
    """Every token counts, because the language model continues the tokens."""
    tokens = extract(cosyvoice(), golden_clip(name))[0]["speech_token"]
    assert_same_codes(tokens, goldens, f"tokens_{name}", frames=1)


@pytest.mark.parametrize("name", [*CLIPS, *RATES])
def test_the_mel_is_vllm_omnis(goldens: Goldens, name: str) -> None:
    """The spectrogram has natural logarithms. Their arguments are compared."""
    feat = extract(cosyvoice(), golden_clip(name))[0]["speech_feat"]
    assert_parity(sampled(feat[0]), goldens, f"feat_{name}", np.exp)


@pytest.mark.parametrize("name", [*CLIPS, *RATES])
def test_the_embedding_is_vllm_omnis(goldens: Goldens, name: str) -> None:
    """Clips of every rate are resampled to 24 kHz first."""
    embedding = extract(cosyvoice(), golden_clip(name))[0]["embedding"]
    assert_parity(embedding[0], goldens, f"embedding_{name}")


def test_the_goldens_vary(goldens: Goldens) -> None:
    """Goldens that hardly vary would let any result pass."""
    assert len(np.unique(goldens["tokens_12.4"])) > 100
    assert np.abs(goldens["embedding_3.0"] - goldens["embedding_12.4"]).max() > 1e-2
    assert np.abs(goldens["embedding_44100"] - goldens["ming_44100"]).max() > 5e-5  # 24 kHz on the way shows


@pytest.mark.parametrize("samples", [1320, 1439, 1440, 1920, 24_000, 24_480, 47_999, 48_001])
def test_tokens_and_mel_are_cut_to_what_both_have(samples: int) -> None:
    """The flow decoder wants two mel frames for every token, and neither more nor fewer."""
    tensors = extract(cosyvoice(), clip_of(samples))[0]
    tokens = int(tensors["speech_token_len"][0])
    assert tokens == min(samples // 960, codes_of(-(-samples * 2 // 3) // 160))
    assert tensors["speech_token"].shape == (1, tokens)
    assert tensors["speech_feat"].shape == (1, 2 * tokens, 80)


def test_seven_seconds_and_a_third_are_182_tokens() -> None:
    """The tokenizer gives 183 codes. There are only 365 mel frames, so one code lacks its second frame."""
    assert codes_of(731) == 183
    assert extract(cosyvoice(), golden_clip("7.31"))[0]["speech_token_len"].tolist() == [182]


def test_what_comes_out_is_what_the_profile_promises() -> None:
    """Dtypes, shapes, ranges and the number of frames are checked."""
    clip, profile = golden_clip("44100"), BUILT_IN["cosyvoice3-0.5b"]
    tensors = extract(cosyvoice(), clip)[0]
    check_tensors(tensors, profile.tensors, seconds=clip.seconds, frame_rate=profile.frame_rate)
    assert all(tensor.flags.c_contiguous for tensor in tensors.values())


def test_the_number_of_threads_hardly_matters(goldens: Goldens) -> None:
    """Workers have different numbers of cores, and one fingerprint."""
    clip = golden_clip("7.31")
    torch.set_num_threads(1)
    one = extract(cosyvoice(), clip)[0]
    torch.set_num_threads(2)
    two = extract(cosyvoice(), clip)[0]
    assert np.array_equal(one["speech_token"], two["speech_token"])
    for feat in (one["speech_feat"], two["speech_feat"]):
        assert_parity(sampled(feat[0]), goldens, "feat_7.31", np.exp)
    assert np.array_equal(one["embedding"], two["embedding"])  # it is on one thread in any case


@pytest.mark.parametrize("samples", [0, 1, 720, 1319])
def test_a_clip_too_short_for_the_speaker_encoder_is_refused(samples: int) -> None:
    """A clip of fewer than 1320 samples has fewer than four feature frames, whose deviation over time may
    have no denominator.
    """
    with pytest.raises(AudioTooShort, match=r"the encoder needs at least 0\.055 s"):
        cosyvoice().prepare(clip_of(samples))


def test_the_shortest_clip_goes_through() -> None:
    """The limit is exactly that of the encoder."""
    tensors = extract(cosyvoice(), clip_of(1320))[0]
    assert tensors["speech_token"].shape == (1, 1)
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())


def test_longer_than_one_window_is_refused() -> None:
    """s3tokenizer would cut a longer clip into overlapping windows. No TTS server here does that."""
    with pytest.raises(AudioTooLong, match="at most 30 s"):
        cosyvoice().prepare(ReferenceAudio(np.zeros(720_001, np.float32), 24_000))


def test_thirty_seconds_are_one_window() -> None:
    """The registry accepts 30 seconds by default."""
    samples = np.tile(signals.speechlike(1.0, 24_000), 30)
    assert extract(cosyvoice(), ReferenceAudio(samples, 24_000))[0]["speech_token"].shape == (1, 750)


def test_the_published_tokenizer_has_the_tensors_it_is_known_to_have() -> None:
    """The published graph has 198 tensors with 242 million values."""
    layout = s3_layout(S3Config())
    assert len(layout) == 198
    assert sum(int(np.prod(shape)) for shape in layout.values()) == 242_009_608


# --- what the fingerprint says


def digest(**loading: object) -> str:
    return load_cosyvoice(**loading).fingerprint.digest


@pytest.mark.parametrize(
    ("where", "settings"),
    [("_MEL", cosyvoice3._MEL), ("_TOKEN_MEL", WhisperMelSettings())],
    ids=["mel", "token_mel"],
)
def test_every_number_of_the_front_ends_counts(
    monkeypatch: pytest.MonkeyPatch, where: str, settings: MelSettings | WhisperMelSettings
) -> None:
    """Another hop, floor or band makes another artifact."""
    digests = {digest()}
    for field in dataclasses.fields(settings):
        changed = dataclasses.replace(settings, **{field.name: getattr(settings, field.name) * 2 + 1})
        monkeypatch.setattr(cosyvoice3, where, changed)
        digests.add(digest())
    assert len(digests) == 1 + len(dataclasses.fields(settings))


@pytest.mark.parametrize(("constant", "value"), [("_UP", 1), ("_MEL_FRAMES_PER_TOKEN", 3)])
def test_what_the_code_decides_changes_the_fingerprint(
    monkeypatch: pytest.MonkeyPatch, constant: str, value: object
) -> None:
    """The resampler of the tokens, and the mel frames of each token."""
    before = digest(source=UntrainedWeights())
    monkeypatch.setattr(cosyvoice3, constant, value)
    assert digest(source=UntrainedWeights()) != before


def test_the_speaker_encoders_features_count() -> None:
    """The fingerprint has every setting that Kaldi's features have."""
    features = cosyvoice().fingerprint.inputs["speaker_encoder"]["fbank"]
    assert features.keys() == {field.name for field in dataclasses.fields(FbankSettings)}


def test_files_tokenizer_and_seed_count() -> None:
    """The fingerprint has the files and the tokenizer's size, and tells random weights by their seed."""
    inputs = cosyvoice().fingerprint.inputs
    assert inputs["weights"]["files"].keys() == {"speech_tokenizer_v3.onnx", "campplus.onnx"}
    assert inputs["tokenizer"]["layers"] == 2
    assert load_cosyvoice(source=UntrainedWeights()).fingerprint.untrained
    digests = {digest(), digest(source=UntrainedWeights()), digest(source=UntrainedWeights(seed=1))}
    assert len(digests) == 3
    assert digest(dtype="bfloat16") == digest()


def test_profiles_with_the_same_file_share_the_speaker_encoder(tmp_path: Path) -> None:
    """CosyVoice3 and Ming-TTS publish the same CAM++, and one process may serve both."""
    shared_models = SharedModels()
    first, second = (
        load_cosyvoice(shared_models=shared_models),
        load_ming(shutil.copytree(TINY, tmp_path / "ming"), shared_models=shared_models),
    )
    assert first._speaker_encoder is second._speaker_encoder
    assert load_ming()._speaker_encoder is not first._speaker_encoder
    assert load_cosyvoice(shared_models=shared_models)._tokenizer is first._tokenizer
    assert (
        load_cosyvoice(shared_models=shared_models, source=UntrainedWeights())._tokenizer
        is not first._tokenizer
    )
