"""AAC as a bare stream: ADTS frames (ISO 13818-7 6.2)."""

from functools import partial

from ..sniffed import Sniffed
from . import frames

_SAME_STREAM = 0xFFFEFDC0
"""Mask of the bits in the first four bytes that are constant in a stream: sync, version, layer, profile, rate
and channels.
"""
_RATES = (96000, 88200, 64000, 48000, 44100, 32000, 24000, 22050, 16000, 12000, 11025, 8000, 7350)
_FRAME_SAMPLES = 1024
_HEADER_BYTES = 7


def starts_at(data: bytes, start: int) -> bool:
    return frames.is_run(data, start, _frame_bytes)


def parse(data: bytes, start: int, end: int) -> Sniffed:
    first = _header(data, start)
    positions = frames.walk(data, start, end, partial(_frame_bytes, like=first), "an AAC stream")
    return Sniffed(
        container="aac",
        payload=(memoryview(data)[start : positions[-1]],),
        reader="aac",
        codecs=("aac",),
        declared_seconds=(len(positions) - 1) * _FRAME_SAMPLES / _RATES[first >> 10 & 15],
    )


def _header(data: bytes, position: int) -> int:
    return int.from_bytes(data[position : position + 4], "big")


def _frame_bytes(data: bytes, position: int, like: int | None = None) -> int:
    header = _header(data, position)
    if header >> 16 & 0xFFF6 != 0xFFF0 or header >> 10 & 15 >= len(_RATES):
        return 0
    if like is not None and (header ^ like) & _SAME_STREAM:
        return 0
    length = data[position + 3 : position + 6]
    if len(length) < 3:  # the file ends here, and a header alone would be longer
        return _HEADER_BYTES
    return int.from_bytes(length, "big") >> 5 & 0x1FFF
