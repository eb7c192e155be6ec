"""Tests of what a profile says of its tensors, and of what is refused for it, whoever made it."""

import numpy as np
import pytest

from services.shared.model.profiles import BUILT_IN
from speaker_registry.artifact import check_tensors
from speaker_registry.errors import InvalidArtifact

Tensors = dict[str, np.ndarray]


def check(profile: str, tensors: Tensors, seconds: float | None = None) -> None:
    facts = BUILT_IN[profile]
    check_tensors(tensors, facts.tensors, seconds=seconds, frame_rate=facts.frame_rate)


def cosyvoice3(tokens: int = 100, mel_frames: int = 200, said: int = 100) -> Tensors:
    return {
        "speech_token": np.zeros((1, tokens), np.int32),
        "speech_token_len": np.array([said], np.int32),
        "speech_feat": np.zeros((1, mel_frames, 80), np.float32),
        "embedding": np.zeros((1, 192), np.float32),
    }


def voxcpm2(reference: int = 25, continuation: int = 25) -> Tensors:
    return {
        "ref_audio_feat": np.zeros((reference, 4, 64), np.float32),
        "audio_feat": np.zeros((continuation, 4, 64), np.float32),
    }


def test_tensors_of_one_clip_are_accepted():
    check("cosyvoice3-0.5b", cosyvoice3(), seconds=4.0)
    check("cosyvoice3-0.5b", cosyvoice3(99, 198, 99), seconds=4.0)
    check("voxcpm2", voxcpm2(), seconds=4.0)


@pytest.mark.parametrize("seconds", [4.0, None])
@pytest.mark.parametrize(
    ("profile", "tensors", "says"),
    [
        (
            "cosyvoice3-0.5b",
            cosyvoice3(99, 202, 99),
            "'speech_feat' has 101, 'speech_token' has 99",
        ),
        ("cosyvoice3-0.5b", cosyvoice3(100, 199), "'speech_feat' has 99.5, 'speech_token' has 100"),
        ("voxcpm2", voxcpm2(25, 26), "'audio_feat' has 26, 'ref_audio_feat' has 25"),
    ],
)
def test_tensors_that_differ_in_length_are_refused(
    profile: str, tensors: Tensors, says: str, seconds: float | None
):
    """Each is within a frame of the clip, but an engine that reads them side by side would fail, or not."""
    with pytest.raises(InvalidArtifact, match=f"differ in their number of frames: {says}"):
        check(profile, tensors, seconds)


def test_a_length_that_is_not_the_tensors_is_refused():
    """The engine would read past the end."""
    with pytest.raises(InvalidArtifact, match=r"'speech_token_len' is \[5000\], but there are 100 frames"):
        check("cosyvoice3-0.5b", cosyvoice3(said=5000), seconds=4.0)


@pytest.mark.parametrize("shape", [(1, 1), (147, 1024), (0, 3072), (3072,)])
def test_a_voice_that_the_language_model_cannot_take_is_refused(shape: tuple[int, ...]):
    """Voxtral's embedding goes straight between those of its tokens."""
    with pytest.raises(InvalidArtifact, match=r"the profile requires \['L', 3072\]"):
        check("voxtral", {"voice_embedding": np.zeros(shape, np.float32)})
    check("voxtral", {"voice_embedding": np.zeros((147, 3072), np.float32)})
