"""FLAC: a STREAMINFO block, other metadata, then audio frames (RFC 9639). The decoder gets only STREAMINFO
and the frames.
"""

import math

from .. import rules
from ..refusal import Refused, Truncated
from ..sniffed import Sniffed, refuse_cut_off

MAX_BLOCKS = 128
_STREAMINFO_BYTES = 34
_SECOND_STREAM = (b"fLaC\x00\x00\x00\x22", b"fLaC\x80\x00\x00\x22")
"""Beginnings of a second FLAC stream, with the header of its STREAMINFO. These eight bytes do not occur
by chance.
"""


def parse(data: bytes, start: int, end: int) -> Sniffed:
    info = data[start + 8 : start + 8 + _STREAMINFO_BYTES]
    if len(info) < _STREAMINFO_BYTES:
        refuse_cut_off("the FLAC's first block", _STREAMINFO_BYTES, len(info))
    if data[start + 4] & 0x7F or int.from_bytes(data[start + 5 : start + 8], "big") != _STREAMINFO_BYTES:
        raise Refused("The FLAC does not begin with its stream information.")
    audio = _after_metadata(data, start + 4)
    _check_audio(data, audio)
    packed = int.from_bytes(info[10:18], "big")  # 20 bits rate, 3 channels − 1, 5 bits − 1, 36 total frames
    sample_rate, total = packed >> 44, packed & (1 << 36) - 1
    rules.check_sample_rate(sample_rate)
    return Sniffed(
        container="flac",
        codec="flac",
        payload=(_header(info), memoryview(data)[audio:end]),
        declared_seconds=total / sample_rate if total else math.nan,
    )


def _after_metadata(data: bytes, position: int) -> int:
    for _ in range(MAX_BLOCKS):
        size = int.from_bytes(data[position + 1 : position + 4], "big")
        if position + 4 + size > len(data):
            refuse_cut_off("a FLAC metadata block", size, max(0, len(data) - position - 4))
        last = data[position] & 0x80
        position += 4 + size
        if last:
            return position
    raise Refused(f"The FLAC has more than {MAX_BLOCKS} metadata blocks.")


def _check_audio(data: bytes, audio: int) -> None:
    if len(data) - audio < 2:
        raise Truncated("The FLAC ends before its first audio frame.")
    if data[audio] != 0xFF or data[audio + 1] & 0xFE != 0xF8:
        raise Refused("The FLAC's metadata is not followed by an audio frame.")
    if any(data.find(mark, audio) > 0 for mark in _SECOND_STREAM):
        raise Refused("The file holds several FLAC streams one after the other; one is accepted.")


def _header(info: bytes) -> bytes:
    """Build a header without a length, so that the decoder reads to the end of the file. It would otherwise
    stop at the declared length, and missing or additional audio would go unnoticed.
    """
    return b"fLaC\x80\x00\x00\x22" + info[:13] + bytes([info[13] & 0xF0]) + bytes(4) + info[18:]
