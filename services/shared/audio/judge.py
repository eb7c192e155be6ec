"""The rules a clip has to pass, and every sentence that says which one it failed. Pure; knows no file format
and no library. The sentences about length are vLLM-Omni's, word for word.
"""

import math

from services.shared.audio.sandbox.wire import MAX_CHANNELS, Facts
from services.shared.settings import UploadLimits
from speaker_registry.errors import AudioTooLong, AudioTooShort, AudioTruncated, InvalidAudio

MAX_PEAK = 8.0
"""Of full scale 1.0. Lossy codecs overshoot a little; beyond this the file is damaged or not audio."""
MIN_RMS_DBFS = -60.0
MAX_CLIPPED = 0.2
SAMPLE_RATES = (
    *(8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000),
    *(44_100, 48_000, 64_000, 88_200, 96_000, 176_400, 192_000),
)
"""Hz. A list, not a range: two rates with no common factor need a resampling kernel of gigabytes."""
TOLERANCE_SECONDS = 0.1
"""Encoders pad and round; what is missing beyond this was cut off."""
SANE_SECONDS = 24 * 3600.0
"""A longer declared length is more likely a lie than worth repeating."""


def judge(facts: Facts, declared_seconds: float, limits: UploadLimits) -> None:
    """Raise InvalidAudio, or the subclass that fits, unless the clip can serve as reference audio.

    Args:
        declared_seconds: the length by the container's own words, not a number where it has none.
    """
    check_channels(facts.channels)
    check_sample_rate(facts.sample_rate)
    _check_peak(facts)
    _check_length(facts.frames, facts.sample_rate, declared_seconds, limits)
    _check_level(facts.rms, facts.clipped)


def check_channels(channels: int) -> None:
    if not 1 <= channels <= MAX_CHANNELS:
        raise InvalidAudio(f"The audio declares {channels} channels; 1 to {MAX_CHANNELS} are accepted.")


def check_sample_rate(sample_rate: int) -> None:
    if sample_rate not in SAMPLE_RATES:
        accepted = ", ".join(map(str, SAMPLE_RATES))
        raise InvalidAudio(
            f"The audio declares a sample rate of {sample_rate} Hz; accepted are {accepted} Hz."
        )


def check_complete(found_seconds: float, declared_seconds: float) -> None:
    if found_seconds < declared_seconds - TOLERANCE_SECONDS:
        raise AudioTruncated(
            f"The audio is damaged or cut off: its header declares {declared_seconds:.1f}s, "
            f"{found_seconds:.1f}s could be read. Upload the whole file."
        )


def _check_peak(facts: Facts) -> None:
    if not math.isfinite(facts.peak):
        at = facts.not_finite_at
        raise InvalidAudio(
            f"The audio is not finite: sample {at} (at {at / facts.sample_rate:.3f}s) is {facts.peak:g}; "
            "finite samples are accepted."
        )
    if facts.peak > MAX_PEAK:
        raise InvalidAudio(
            f"The audio peaks at {facts.peak:.3g} × full scale; up to {MAX_PEAK:g} × is accepted."
        )


def _check_length(frames: int, sample_rate: int, declared_seconds: float, limits: UploadLimits) -> None:
    seconds = frames / sample_rate
    if seconds > limits.max_seconds:
        known = seconds <= declared_seconds <= SANE_SECONDS
        found = f"{_up(declared_seconds):.1f}s" if known else f"more than {limits.max_seconds:g}s"
        raise AudioTooLong(
            f"Reference audio too long ({found}). "
            f"Maximum {limits.max_seconds:g}s supported — use a shorter clip."
        )
    check_complete(seconds, declared_seconds)
    if seconds < limits.min_seconds:
        raise AudioTooShort(
            f"Reference audio too short ({_down(seconds):.1f}s). "
            f"At least {limits.min_seconds:g}s of clear speech is required."
        )


def _up(seconds: float) -> float:
    """To tenths, so that 30.01 s is not called 30.0 s, which would be accepted."""
    return math.ceil(round(seconds * 10, 6)) / 10


def _down(seconds: float) -> float:
    """To tenths, so that 0.96 s is not called 1.0 s, which would be accepted."""
    return math.floor(round(seconds * 10, 6)) / 10


def _check_level(rms: float, clipped: float) -> None:
    level = 20 * math.log10(rms) if rms > 0 else -math.inf
    if level < MIN_RMS_DBFS:
        found = f"its level is {level:.0f} dBFS" if level > -math.inf else "all samples are alike"
        raise InvalidAudio(f"The audio is silent: {found}, at least {MIN_RMS_DBFS:.0f} dBFS is required.")
    if clipped > MAX_CLIPPED:
        raise InvalidAudio(
            f"The audio is clipped: {clipped:.0%} of its samples are at full scale, "
            f"up to {MAX_CLIPPED:.0%} are accepted. Record it again at a lower level."
        )
