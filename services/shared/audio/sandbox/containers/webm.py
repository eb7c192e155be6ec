"""WebM and Matroska: an EBML header, then one segment (RFC 8794, RFC 9559). The demuxer reads the rest."""

from ..refusal import Truncated
from ..sniffed import Sniffed, is_padding, refuse, refuse_cut_off, refuse_remainder

_DOC_TYPE = 0x4282
_SEGMENT = 0x18538067
_DOC_TYPES = (b"webm", b"matroska")
_MAX_HEADER_BYTES = 4096


def parse(data: bytes) -> Sniffed:
    _, start, size = _element(data, 0)
    end = start + (size or 0)
    if end > len(data):
        refuse_cut_off("the WebM's header", end, len(data))
    if end > _MAX_HEADER_BYTES or _doc_type(data, start, end) not in _DOC_TYPES:
        refuse("an EBML document that is neither WebM nor Matroska")
    _check_segment(data, end)
    return Sniffed(
        container="webm",
        payload=(data,),
        reader="matroska",
        codecs=("opus", "vorbis"),
    )


def _check_segment(data: bytes, position: int) -> None:
    """Check that one segment reaches to the end of the file. A live recorder declares its size as unknown."""
    kind, start, size = _element(data, position)
    if kind != _SEGMENT:
        raise Truncated("The WebM is cut off: nothing follows its header. Upload the whole file.")
    if size is None:
        return
    if start + size > len(data):
        refuse_cut_off("the WebM's segment", size, len(data) - start)
    if not is_padding(data, start + size):
        refuse_remainder("a WebM segment", start + size, len(data))


def _doc_type(data: bytes, position: int, end: int) -> bytes:
    while position < end:
        kind, start, size = _element(data, position)
        position = start + (size or 0)
        if kind == _DOC_TYPE:
            return data[start:position].rstrip(b"\0")
    return b""


def _element(data: bytes, position: int) -> tuple[int, int, int | None]:
    """Return an element's id, the start of its body, and the size of the body. The size is None if it is
    declared as unknown.
    """
    first = data[position] if position < len(data) else 0
    id_bytes = _width(first)
    kind = int.from_bytes(data[position : position + id_bytes], "big")
    position += id_bytes
    first = data[position] if position < len(data) else 0
    size_bytes = _width(first)
    mask = (1 << 7 * size_bytes) - 1
    size = int.from_bytes(data[position : position + size_bytes], "big") & mask
    return kind, position + size_bytes, None if size == mask else size


def _width(first: int) -> int:
    """Return the width of a variable-size integer, which its leading zero bits tell."""
    return 9 - first.bit_length() if first else 8
