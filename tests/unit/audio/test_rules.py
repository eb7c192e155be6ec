"""The rules a decoded clip has to pass, at their edges, and the limits an operator may set."""

import math
from dataclasses import replace

import pytest
from pydantic import ValidationError

from services.shared.audio.judge import judge
from services.shared.audio.sandbox.wire import Measurements, Status
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import AudioTooLong, AudioTooShort, AudioTruncated, InvalidAudio

LIMITS = UploadLimits()
FINE = Measurements(
    status=Status.DECODED, finished=True, channels=2, sample_rate=24000, frames=48000, peak=0.5, rms=0.1
)


def seconds(number: float) -> Measurements:
    return replace(FINE, frames=round(number * FINE.sample_rate))


@pytest.mark.parametrize(
    "measured",
    [
        FINE,
        replace(FINE, channels=8),
        replace(FINE, sample_rate=8000),
        replace(FINE, sample_rate=192000, frames=192000),
        replace(FINE, peak=8.0),
        replace(FINE, rms=0.001),
        replace(FINE, clipped=0.2),
        seconds(1.0),
        seconds(30.0),
    ],
)
def test_a_clip_at_the_edge_of_a_rule_passes(measured: Measurements):
    """The figures in the documentation are the accepted ones."""
    judge(measured, math.nan, LIMITS)


@pytest.mark.parametrize(
    ("measured", "error", "says"),
    [
        (replace(FINE, channels=0), InvalidAudio, "0 channels"),
        (replace(FINE, channels=9), InvalidAudio, "9 channels"),
        (replace(FINE, sample_rate=7999), InvalidAudio, "7999 Hz"),
        (replace(FINE, sample_rate=192001), InvalidAudio, "192001 Hz"),
        (replace(FINE, sample_rate=23999), InvalidAudio, "23999 Hz"),
        (replace(FINE, peak=8.01), InvalidAudio, "peaks at 8.01"),
        (replace(FINE, peak=math.nan), InvalidAudio, "sample 0 (at 0.000s) is nan"),
        (replace(FINE, peak=-math.inf, not_finite_at=60), InvalidAudio, "sample 60 (at 0.003s) is -inf"),
        (replace(FINE, rms=0.000999), InvalidAudio, "silent"),
        (replace(FINE, rms=0.0), InvalidAudio, "silent"),
        (replace(FINE, clipped=0.201), InvalidAudio, "clipped"),
        (replace(FINE, frames=0), AudioTooShort, "(0.0s)"),
        (replace(FINE, frames=23999), AudioTooShort, "(0.9s)"),
        (replace(FINE, frames=720001), AudioTooLong, "(more than 30s)"),
    ],
)
def test_a_clip_just_beyond_it_does_not(measured: Measurements, error: type[InvalidAudio], says: str):
    """The clip is refused, and the message names the value that was wrong."""
    with pytest.raises(InvalidAudio) as caught:
        judge(measured, math.nan, LIMITS)
    assert type(caught.value) is error
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("declared", "said"),
    [(31.2, "31.2s"), (3600.0, "3600.0s"), (2e6, "more than 30s"), (5.0, "more than 30s")],
)
def test_a_clip_that_is_too_long_is_said_to_be_as_long_as_it_declares_if_that_can_be_true(
    declared: float, said: str
):
    """Decoding stops at the limit, so only the header knows the rest; it may also lie."""
    with pytest.raises(AudioTooLong) as caught:
        judge(seconds(30.1), declared, LIMITS)
    assert caught.value.message == (
        f"Reference audio too long ({said}). Maximum 30s supported — use a shorter clip."
    )


def test_a_clip_may_miss_a_tenth_of_a_second_and_no_more():
    """Encoders round; a broken upload misses more, and half a sentence is a bad reference."""
    judge(FINE, 2.1, LIMITS)
    with pytest.raises(AudioTruncated, match=r"declares 2\.1s, 2\.0s could be read"):
        judge(FINE, 2.101, LIMITS)


def test_a_clip_may_hold_more_than_it_declares():
    """Nothing is missing from it."""
    judge(FINE, 1.0, LIMITS)


def test_the_sentences_name_the_limits_that_are_set():
    """An operator who sets 3 to 12.5 s must not have users told of 1 to 30."""
    limits = UploadLimits(min_seconds=3, max_seconds=12.5)
    with pytest.raises(AudioTooShort, match=r"At least 3s of clear speech is required\.$"):
        judge(FINE, math.nan, limits)
    with pytest.raises(AudioTooLong, match=r"Maximum 12\.5s supported"):
        judge(seconds(12.6), math.nan, limits)


ANSWER = replace(FINE, samples=FINE.frames)


@pytest.mark.parametrize(
    "measured",
    [
        ANSWER,
        replace(ANSWER, declared_seconds=2.0),
        replace(ANSWER, finished=False, samples=0),
        Measurements(status=Status.FAILED),
        Measurements(status=Status.WRONG_CODEC, codec="alac"),
    ],
)
def test_what_a_decoding_process_can_have_measured_is_believed(measured: Measurements):
    """All its honest answers."""
    assert measured.credible(30.0)


@pytest.mark.parametrize(
    "measured",
    [
        replace(ANSWER, samples=47999),
        replace(ANSWER, finished=False),
        replace(ANSWER, status=Status.FAILED),
        replace(ANSWER, channels=0),
        replace(ANSWER, channels=9),
        replace(ANSWER, sample_rate=7999),
        replace(ANSWER, sample_rate=1_000_000),
        replace(ANSWER, frames=720_001, samples=720_001),
        replace(ANSWER, clipped=-0.1),
        replace(ANSWER, clipped=1.1),
        replace(ANSWER, clipped=math.nan),
        replace(ANSWER, rms=-0.1),
        replace(ANSWER, rms=math.inf),
        replace(ANSWER, rms=math.nan),
        replace(ANSWER, declared_seconds=-1.0),
        replace(ANSWER, declared_seconds=1e300),
    ],
)
def test_what_it_cannot_have_measured_is_not(measured: Measurements):
    """A clip may have taken it over. What it says decides how much memory is reserved, and what is stored."""
    assert not measured.credible(30.0)


def test_limits_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    """Containers are configured by nothing else."""
    monkeypatch.setenv("SPEAKER_UPLOAD_MAX_SECONDS", "12.5")
    assert UploadLimits().max_seconds == 12.5


def test_limits_that_accept_no_length_are_refused_at_start():
    """Found at the first upload otherwise, by a user."""
    with pytest.raises(ValidationError, match=r"MIN_SECONDS is 5, .* SPEAKER_UPLOAD_MAX_SECONDS, 4"):
        UploadLimits(min_seconds=5, max_seconds=4)
