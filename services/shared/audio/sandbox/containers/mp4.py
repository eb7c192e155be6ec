"""MP4 and M4A: boxes (ISO 14496-12). Only the outermost boxes are checked here, and the demuxer reads the
rest.
"""

from ..lookalikes import name_of
from ..refusal import Refused, Truncated
from ..sniffed import Sniffed, is_padding, refuse, refuse_cut_off, refuse_remainder

MAX_BOXES = 10_000
"""Maximum number of boxes. A recorder that writes fragments adds two boxes for each, several times a
second.
"""

_IMAGES = {b"avif", b"avis", b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"crx ", b"jxl "}
_AUDIO_ONLY = {b"M4A ", b"M4B ", b"M4P "}


def parse(data: bytes) -> Sniffed:
    brand = data[8:12]
    if brand in _IMAGES:
        refuse("an image (HEIF or AVIF)")
    if brand == b"qt  ":
        refuse(name_of(data))
    boxes = _boxes(data)
    if not {b"moov", b"mdat"} <= boxes:
        raise Truncated(
            "The MP4 is cut off: it lacks its index (moov) or its audio (mdat). Upload the whole file."
        )
    return Sniffed(
        container="m4a" if brand in _AUDIO_ONLY else "mp4",
        payload=(data,),
        reader="mp4",
        codecs=("aac",),
    )


def _boxes(data: bytes) -> set[bytes]:
    """Return the types of the outermost boxes. Every byte must belong to one of them."""
    types: set[bytes] = set()
    position = 0
    for _ in range(MAX_BOXES):
        if is_padding(data, position):
            return types
        kind, size = _box(data, position)
        if size < 8 or not all(0x20 <= byte < 0x7F for byte in kind):
            refuse_remainder("an MP4 box", position, len(data))
        if position + size > len(data):
            refuse_cut_off("an MP4 box", size, len(data) - position)
        if kind == b"ftyp" and position:
            raise Refused("The file holds several MP4s one after the other; one is accepted.")
        types.add(kind)
        position += size
    raise Refused(f"The MP4 has more than {MAX_BOXES} boxes.")


def _box(data: bytes, position: int) -> tuple[bytes, int]:
    size = int.from_bytes(data[position : position + 4], "big")
    kind = data[position + 4 : position + 8]
    if size == 1:
        size = int.from_bytes(data[position + 8 : position + 16], "big")
    elif size == 0:  # up to the end of the file
        size = len(data) - position
    return kind, size
