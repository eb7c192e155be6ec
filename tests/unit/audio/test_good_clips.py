"""Every accepted container and codec comes out as what went in."""

import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from services.shared.audio import AudioDecoder
from tests.unit.audio import clips
from tests.unit.audio.clips import GOOD, GoodClip

EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "clips").glob("*.flac"))


def loudest_hertz(samples: NDArray[np.float32], sample_rate: int) -> float:
    spectrum = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(spectrum.argmax() * sample_rate / len(samples))


@pytest.mark.parametrize("clip", GOOD, ids=str)
def test_a_clip_is_named_by_what_is_in_it(decoder: AudioDecoder, clip: GoodClip):
    """The stored type, rate and channel count come from here: the uploader's word is not asked."""
    decoded = decoder.decode(clip.build())
    assert (decoded.container, decoded.codec, decoded.mime_type) == (
        clip.container,
        clip.codec,
        clip.mime_type,
    )
    assert (decoded.audio.sample_rate, decoded.channels) == (clip.sample_rate, clip.channels)


@pytest.mark.parametrize("clip", GOOD, ids=str)
def test_a_clip_keeps_its_length_pitch_and_level(decoder: AudioDecoder, clip: GoodClip):
    """A wrong rate or scale would give a different voice, and nothing after this point would notice."""
    audio = decoder.decode(clip.build()).audio
    level = np.mean([0.9**index for index in range(clip.channels)]) * clips.AMPLITUDE / np.sqrt(2)
    assert audio.samples.dtype == np.float32
    assert audio.samples.ndim == 1
    assert audio.seconds == pytest.approx(2.0, abs=0.07)
    assert loudest_hertz(audio.samples, audio.sample_rate) == pytest.approx(clips.HERTZ, abs=1.0)
    assert audio.samples[2000:-2000].std() == pytest.approx(level, rel=0.03)


@pytest.mark.parametrize("clip", [clip for clip in GOOD if clip.exact], ids=str)
def test_the_samples_are_those_that_soundfile_reads(decoder: AudioDecoder, clip: GoodClip):
    """Engines read clips with soundfile: an artifact can only equal theirs if the samples do, to the last
    bit.
    """
    expected, _ = soundfile.read(io.BytesIO(clip.build()), dtype="float32", always_2d=True)
    assert np.array_equal(decoder.decode(clip.build()).audio.samples, expected.mean(axis=1, dtype=np.float32))


@pytest.mark.parametrize("clip", [clip for clip in GOOD if not clip.exact and clip.says_delay], ids=str)
def test_libav_gives_the_tone_back_where_it_was(decoder: AudioDecoder, clip: GoodClip):
    """Encoders put silence in front. A container says how much, and it must not end up in the clip."""
    audio = decoder.decode(clip.build()).audio
    tone = clips.tone(2.0, clip.sample_rate)[:, 0]
    inner = slice(2048, 24000)
    assert np.abs(audio.samples[inner] - tone[inner]).max() < 0.03


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_example_clips_are_accepted(decoder: AudioDecoder, path: Path):
    """They are what a newcomer uploads first."""
    assert EXAMPLES
    assert decoder.decode(path.read_bytes()).container == "flac"


def test_eight_channels_at_the_highest_rate_for_the_longest_time_fit_in_memory(decoder: AudioDecoder):
    """The most that the limits allow: it must neither crash the decoder nor be refused."""
    file = io.BytesIO()
    square = np.repeat(
        np.tile(np.array([3000, -3000], np.int16), 300), 9600
    )  # 30 s at 10 Hz: compresses well
    with soundfile.SoundFile(file, "w", 192000, 8, "PCM_16", format="FLAC", compression_level=0) as output:
        for block in np.split(square, 30):
            output.write(np.repeat(block[:, None], 8, axis=1))
    decoded = decoder.decode(file.getvalue())
    assert (decoded.channels, decoded.audio.seconds) == (8, 30.0)


@pytest.mark.parametrize("seconds", [1.0, 30.0])
@pytest.mark.parametrize("sample_rate", [8000, 44100])
def test_a_clip_of_exactly_the_shortest_or_longest_length_is_accepted(
    decoder: AudioDecoder, seconds: float, sample_rate: int
):
    """People cut clips to the limits that they were told."""
    assert decoder.decode(clips.wav(seconds, sample_rate)).audio.seconds == seconds
