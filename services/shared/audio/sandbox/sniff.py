"""Detection of the container of a file by its content. The file's name and declared type are ignored.

The module of each container checks the rest of the structure. No library gets a byte before these checks have
passed. They run in the guarded process too, because they read untrusted bytes.
"""

from .containers import adts, flac, id3, mp3, mp4, ogg, wav, webm
from .lookalikes import name_of
from .refusal import Refused
from .rules import ACCEPTED
from .sniffed import Sniffed, refuse


def sniff(data: bytes) -> Sniffed:
    """Check the structure of an uploaded file.

    Raises:
        Unsupported: The format is not accepted. The message says what the file looks like.
        Truncated: A part of the file declares more bytes than there are.
        Refused: The file contradicts itself, or something else is attached to it.
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
    """Check the structure of containers that may have ID3 or APE tags around them."""
    start, end = id3.span(data)
    if data[start : start + 4] == b"fLaC":
        return flac.parse(data, start, end)
    if adts.starts_at(data, start):
        return adts.parse(data, start, end)
    if mp3.starts_at(data, start):
        return mp3.parse(data, start, end)
    found = name_of(data[start:])
    return refuse(f"an ID3 tag followed by {found}" if start else found)
