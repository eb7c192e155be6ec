"""The rules that a decoded clip must pass, and the messages for clips that fail one.

This module is pure and knows no file format. The messages about length are those of vLLM-Omni, word for word.
"""

import math

from services.shared.audio.sandbox.refusal import Kind, Refused
from services.shared.audio.sandbox.rules import ACCEPTED, TOLERANCE_SECONDS, check_channels, check_sample_rate
from services.shared.audio.sandbox.wire import Measurements
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import (
    AudioTooLong,
    AudioTooShort,
    AudioTruncated,
    InvalidAudio,
    UnsupportedAudio,
)

MAX_PEAK = 8.0
"""Largest accepted sample value, where full scale is 1.0. Lossy codecs overshoot a little. A file that
exceeds this is damaged or no audio.
"""
MIN_RMS_DBFS = -60.0
MAX_CLIPPED = 0.2
SANE_SECONDS = 24 * 3600.0
"""A declared length above this is most likely false, so it is not repeated in a message."""


def judge(measured: Measurements, declared_seconds: float, limits: UploadLimits) -> None:
    """Raise InvalidAudio, or the subclass that fits, unless the clip can serve as reference audio.

    Args:
        declared_seconds: The length that the container declares. NaN if it declares none.
    """
    try:
        check_channels(measured.channels)
        check_sample_rate(measured.sample_rate)
    except Refused as refused:
        raise error_of(refused) from None
    _check_peak(measured)
    _check_length(measured.frames, measured.sample_rate, declared_seconds, limits)
    _check_level(measured.rms, measured.clipped)


def unsupported(found: str) -> UnsupportedAudio:
    """Return the error for a file that is not accepted. `found` names what it is, as a noun phrase."""
    return UnsupportedAudio(f"Unsupported audio: this is {found}. Accepted: {ACCEPTED}.")


def error_of(refused: Refused) -> InvalidAudio:
    """Convert a refusal of the guarded process to an error of the registry."""
    return _ERRORS[refused.kind](refused.message)


_ERRORS = {
    Kind.INVALID: InvalidAudio,
    Kind.UNSUPPORTED: UnsupportedAudio,
    Kind.TRUNCATED: AudioTruncated,
    Kind.TOO_LONG: AudioTooLong,
}


def check_complete(found_seconds: float, declared_seconds: float) -> None:
    """Raise AudioTruncated if less audio could be read than the header declares."""
    if found_seconds < declared_seconds - TOLERANCE_SECONDS:
        raise AudioTruncated(
            f"The audio is damaged or cut off: its header declares {declared_seconds:.1f}s, "
            f"{found_seconds:.1f}s could be read. Upload the whole file."
        )


def _check_peak(measured: Measurements) -> None:
    if not math.isfinite(measured.peak):
        at, rate = measured.not_finite_at, measured.sample_rate
        raise InvalidAudio(
            f"The audio is not finite: sample {at} (at {at / rate:.3f}s) is {measured.peak:g}; "
            "finite samples are accepted."
        )
    if measured.peak > MAX_PEAK:
        raise InvalidAudio(
            f"The audio peaks at {measured.peak:.3g} × full scale; up to {MAX_PEAK:g} × is accepted."
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
    """Round up to tenths, so that 30.01 s is not shown as 30.0 s, which would be accepted."""
    return math.ceil(round(seconds * 10, 6)) / 10


def _down(seconds: float) -> float:
    """Round down to tenths, so that 0.96 s is not shown as 1.0 s, which would be accepted."""
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
