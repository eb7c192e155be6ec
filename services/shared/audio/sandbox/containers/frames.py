"""Streams that are nothing but frames, each saying how long it is (MP3, ADTS): one after the other up to the
end. Knows no frame format.
"""

from collections.abc import Callable

from ..refusal import TooLong, Truncated
from ..sniffed import is_padding, refuse_cut_off, refuse_remainder

MAX_FRAMES = 1 << 16
"""26 minutes of MP3. Walking them takes about 50 ms."""
_MIN_FRAME_BYTES = 7
"""Fewer than these at the end may be anything: they are no frame."""

FrameBytes = Callable[[bytes, int], int]
"""How long the frame is whose header starts at a position; 0 where none does."""


def walk(
    data: bytes, start: int, end: int, frame_bytes: FrameBytes, name: str, *, says_length: bool = False
) -> list[int]:
    """Where each whole frame starts, and where the last one ends.

    Args:
        says_length: the stream tells how many frames it has, and the caller compares: a last one that is cut
        off is just left out. Without that number it is the only sign that the rest of a file is missing.

    Raises:
        Refused: something else follows the frames.
        Truncated: the last frame is cut off, or not even one is whole.
        TooLong: there are more than MAX_FRAMES.
    """
    positions = [start]
    while 0 < (size := frame_bytes(data, positions[-1])) <= end - positions[-1]:
        if len(positions) > MAX_FRAMES:
            raise TooLong(f"Reference audio too long: {name} of more than {MAX_FRAMES} frames.")
        positions.append(positions[-1] + size)
    if len(positions) == 1:
        raise Truncated(f"The file is cut off: {name} that ends within its first frame.")
    last, left = positions[-1], end - positions[-1]
    if size and not says_length:
        refuse_cut_off(f"the last frame of {name}", size, left)
    if not size and left >= _MIN_FRAME_BYTES and not is_padding(data, last, end):
        refuse_remainder(name, last, len(data))
    return positions


def is_run(data: bytes, start: int, frame_bytes: FrameBytes) -> bool:
    """Whether two frames follow each other, or there is one and no more. Chance does not do that."""
    size = frame_bytes(data, start)
    return size > 0 and (start + size >= len(data) or frame_bytes(data, start + size) > 0)
