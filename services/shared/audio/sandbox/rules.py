"""The channels and sample rates that a file may declare.

These rules are applied on both sides of the socket, because the answers of the guarded process are verified.
"""

from .refusal import Refused
from .wire import MAX_CHANNELS

ACCEPTED = (
    "WAV (PCM of 8, 16, 24 or 32 bits, float of 32 or 64), FLAC, MP3, Ogg (Vorbis, Opus), AAC (ADTS), "
    "M4A/MP4 (AAC) and WebM/Matroska (Opus, Vorbis)"
)

SAMPLE_RATES = (
    *(8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000),
    *(44_100, 48_000, 64_000, 88_200, 96_000, 176_400, 192_000),
)
"""Accepted sample rates in Hz. They are listed because arbitrary rates without a common factor would need a
resampling kernel of gigabytes.
"""
TOLERANCE_SECONDS = 0.1
"""Accepted difference between declared and actual length. Encoders pad and round, and a larger difference
means that the file was cut off.
"""


def check_channels(channels: int) -> None:
    if not 1 <= channels <= MAX_CHANNELS:
        raise Refused(f"The audio declares {channels} channels; 1 to {MAX_CHANNELS} are accepted.")


def check_sample_rate(sample_rate: int) -> None:
    if sample_rate not in SAMPLE_RATES:
        accepted = ", ".join(map(str, SAMPLE_RATES))
        raise Refused(f"The audio declares a sample rate of {sample_rate} Hz; accepted are {accepted} Hz.")
