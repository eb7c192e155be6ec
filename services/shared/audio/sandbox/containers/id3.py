"""The extent of ID3 and APE tags around a stream. Their content is never read."""

from ..sniffed import refuse_cut_off

MAX_TAGS = 8
_MAX_PADDING_BYTES = 4096
_APE_FOOTER_BYTES = 32


def span(data: bytes) -> tuple[int, int]:
    """Return the start and the end of the stream between the tags."""
    return _start(data), _end(data)


def _start(data: bytes) -> int:
    position = 0
    for _ in range(MAX_TAGS):
        header = data[position : position + 10]
        if len(header) < 10 or header[:3] != b"ID3" or max(header[6:10]) > 0x7F:
            break
        size = 10 + sum(byte << shift for byte, shift in zip(header[6:10], (21, 14, 7, 0), strict=True))
        size += 10 if header[5] & 0x10 else 0  # a footer repeats the header
        if position + size > len(data):
            refuse_cut_off("an ID3 tag", size, len(data) - position)
        position += size
    return _after_padding(data, position) if position else 0


def _after_padding(data: bytes, position: int) -> int:
    """Skip zeros after a tag. Taggers leave such space and do not count it as part of the tag."""
    head = data[position : position + _MAX_PADDING_BYTES]
    return position + len(head) - len(head.lstrip(b"\0"))


def _end(data: bytes) -> int:
    end = len(data)
    if data[-128:-125] == b"TAG":
        end -= 128
    footer = data[max(0, end - _APE_FOOTER_BYTES) : end]
    if len(footer) == _APE_FOOTER_BYTES and footer.startswith(b"APETAGEX"):
        has_header = footer[23] & 0x80
        end -= int.from_bytes(footer[12:16], "little") + (_APE_FOOTER_BYTES if has_header else 0)
    return max(0, end)
