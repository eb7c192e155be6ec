"""Nothing that is not fit to extract from gets through, and whoever uploaded it learns why."""

import io
import random
from contextlib import suppress

import numpy as np
import pytest
import soundfile

from services.shared.audio import AudioDecoder
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import AudioTooLong, AudioTooShort, InvalidAudio, PayloadTooLarge
from tests.unit.audio import clips
from tests.unit.audio.bad_clips import BAD, ODD, BadClip, OddClip
from tests.unit.audio.test_sniff import SEEDS, damaged

INTERNALS = ("Errno", "Error", "BytesIO", "sndfile", "avcodec", "libav", "Traceback", "/usr", "/home", "\\x")
"""Words that only a library's own message, a path or bytes of the file would bring in."""


@pytest.mark.parametrize("clip", BAD, ids=str)
def test_a_bad_clip_is_refused_with_the_error_that_fits(decoder: AudioDecoder, clip: BadClip):
    """The class decides what a client does next, the message what a person does."""
    with pytest.raises(InvalidAudio) as caught:
        decoder.decode(clip.build())
    assert type(caught.value) is clip.error, caught.value.message
    assert clip.says in caught.value.message
    assert not any(word in caught.value.message for word in INTERNALS)
    assert len(caught.value.message) < 400


@pytest.mark.parametrize("clip", ODD, ids=str)
def test_an_odd_clip_is_accepted_when_all_of_its_audio_is_there(decoder: AudioDecoder, clip: OddClip):
    """Recorders and taggers in the wild write such files; refusing them would help nobody."""
    assert decoder.decode(clip.build()).audio.seconds == pytest.approx(clip.seconds, abs=1e-6)


def test_a_file_above_the_size_limit_is_refused_before_anything_looks_at_it():
    """The message is vLLM-Omni's, word for word."""
    decoder = AudioDecoder(UploadLimits(max_bytes=1024**2))  # never started: nothing is decoded
    with pytest.raises(
        PayloadTooLarge, match=r"^File size exceeds maximum limit of 1MB\. Got 1048577 bytes\.$"
    ):
        decoder.decode(bytes(1024**2 + 1))


@pytest.mark.parametrize(("frames", "said"), [(7999, "0.9s"), (240001, "30.1s")])
def test_one_sample_beyond_a_limit_is_refused_and_not_called_the_limit_itself(
    decoder: AudioDecoder, frames: int, said: str
):
    """ "Too short (1.0s), at least 1s" would read as a bug in the registry."""
    with pytest.raises((AudioTooShort, AudioTooLong)) as caught:
        decoder.decode(clips.wav(frames / 8000, 8000))
    assert f"({said})" in caught.value.message


def test_metadata_never_reaches_the_decoding_library(decoder: AudioDecoder):
    """Comment, picture and cue parsers are where decoders break. Ours are given the audio alone: a file whose
    metadata the library itself refuses is decoded.
    """
    picture = b"\x06\x00\x00\x08" + b"\xff" * 8
    flac = clips.flac()
    broken = flac[:42] + picture + flac[42:]
    with pytest.raises(soundfile.LibsndfileError):
        soundfile.read(io.BytesIO(broken))
    assert decoder.decode(broken).audio.seconds == 2.0


@pytest.mark.parametrize("name", SEEDS)
def test_damage_ends_in_samples_or_in_a_reason(decoder: AudioDecoder, name: str):
    """The API gives one of two answers, whatever a library makes of bytes that are almost right."""
    chance = random.Random(name)
    for _ in range(12):
        with suppress(InvalidAudio):
            audio = decoder.decode(damaged(SEEDS[name], chance)).audio
            assert 1.0 <= audio.seconds <= 30.0
            assert np.isfinite(audio.samples).all()


def test_a_clip_after_a_bad_one_is_decoded(decoder: AudioDecoder):
    """One person's broken file is nobody else's problem."""
    for clip in BAD[::10]:
        with pytest.raises(InvalidAudio):
            decoder.decode(clip.build())
        assert decoder.decode(clips.wav()).audio.seconds == 2.0
