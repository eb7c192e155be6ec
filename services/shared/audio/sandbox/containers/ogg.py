"""Ogg: pages of one stream, Vorbis or Opus (RFC 3533, RFC 7845)."""

import struct

from .. import rules
from ..refusal import Refused
from ..sniffed import Sniffed, is_padding, refuse, refuse_cut_off, refuse_remainder

MAX_PAGES = 20_000
"""Maximum number of pages. A live encoder that sends every packet of 2.5 ms as a page writes 12,000 in 30 s.
Walking these takes about 20 ms.
"""

_PAGE = struct.Struct("<4sBBqIIIB")
_FIRST = 0x02
_OTHERS = {
    b"\x7fFLAC": "FLAC",
    b"Speex   ": "Speex",
    b"\x80theora": "Theora video",
    b"fishead\x00": "a skeleton",
    b"BBCD\x00": "Dirac video",
    b"\x01video": "OGM video",
    b"OVP80": "VP8 video",
}


def parse(data: bytes) -> Sniffed:
    _check_pages(data)
    start = _PAGE.size + data[_PAGE.size - 1]
    packet = data[start : start + 32].ljust(32, b"\0")
    if packet.startswith(b"OpusHead"):
        codec, channels = "opus", packet[9]
    elif packet.startswith(b"\x01vorbis"):
        codec, channels = "vorbis", packet[11]
        rules.check_sample_rate(int.from_bytes(packet[12:16], "little"))
    else:
        names = (name for magic, name in _OTHERS.items() if packet.startswith(magic))
        refuse(f"Ogg with {next(names, 'an unknown codec')}")
    rules.check_channels(channels)
    return Sniffed(container="ogg", codec=codec, payload=(data,))


def _check_pages(data: bytes) -> None:
    """Check that every byte belongs to a page of one stream."""
    position = 0
    for number in range(MAX_PAGES):
        if position == len(data) or (number and is_padding(data, position)):
            return
        end = _page_end(data, position)
        if data[position + 5] & _FIRST and number:
            raise Refused(
                "The file holds several Ogg streams, or several files one after the other; one is accepted."
            )
        position = end
    raise Refused(f"The Ogg file has more than {MAX_PAGES} pages.")


def _page_end(data: bytes, position: int) -> int:
    left = len(data) - position
    if data[position : position + 4] != b"OggS"[:left] or data[position + 4 : position + 5] not in (
        b"",
        b"\0",
    ):
        refuse_remainder("an Ogg page", position, len(data))
    body = position + _PAGE.size + (data[position + _PAGE.size - 1] if left >= _PAGE.size else 0)
    size = body + sum(data[position + _PAGE.size : body]) - position
    if left < size:
        refuse_cut_off("an Ogg page", size, left)
    return position + size
