"""Which container a file is, by its content alone: neither its name nor its declared type is believed. Each
container's own file checks the rest.

No library has seen a byte until this has passed. It runs in the guarded process as well, because it reads
bytes that nobody vouches for.
"""

from .containers import adts, flac, id3, mp3, mp4, ogg, wav, webm
from .lookalikes import name_of
from .refusal import Refused
from .rules import ACCEPTED
from .sniffed import Sniffed, refuse


def sniff(data: bytes) -> Sniffed:
    """Check the structure of an uploaded file.

    Raises:
        Unsupported: it is something else, and the message says what it looks like.
        Truncated: a part of it declares more bytes than there are.
        Refused: it contradicts itself, or something else is attached to it.
    """
    if not data:
        raise Refused(f"The audio file is empty (0 bytes). Accepted: {ACCEPTED}.")
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return wav.parse(data)
    if data[:4] == b"OggS":
        return ogg.parse(data)
    if data[4:8] == b"ftyp":
        return mp4.parse(data)
    if data[:4] == b"\x1aE\xdf\xa3":
        return webm.parse(data)
    return _sniff_tagged(data)


def _sniff_tagged(data: bytes) -> Sniffed:
    """The containers that have tags around them in the wild."""
    start, end = id3.span(data)
    if data[start : start + 4] == b"fLaC":
        return flac.parse(data, start, end)
    if adts.starts_at(data, start):
        return adts.parse(data, start, end)
    if mp3.starts_at(data, start):
        return mp3.parse(data, start, end)
    found = name_of(data[start:])
    return refuse(f"an ID3 tag followed by {found}" if start else found)
