"""Streams that consist only of frames, each of which declares its length (MP3, ADTS)."""

from collections.abc import Callable

from ..refusal import TooLong, Truncated
from ..sniffed import is_padding, refuse_cut_off, refuse_remainder

MAX_FRAMES = 1 << 16
"""Maximum number of frames, which is 26 minutes of MP3. Walking them takes about 50 ms."""
_MIN_FRAME_BYTES = 7
"""Fewer bytes than this at the end are ignored, because they cannot be a frame."""

FrameBytes = Callable[[bytes, int], int]
"""Function that returns the length of the frame at a position, or 0 if there is no frame header."""


def walk(
    data: bytes, start: int, end: int, frame_bytes: FrameBytes, name: str, *, says_length: bool = False
) -> list[int]:
    """Return the start of each whole frame, and the end of the last one.

    Args:
        says_length: The stream declares its number of frames, which the caller compares. In that case a
            truncated last frame is left out. Otherwise it is an error, because it is the only sign that audio
            is missing.

    Raises:
        Refused: Something else follows the frames.
        Truncated: The last frame is cut off, or there is no whole frame.
        TooLong: There are more than MAX_FRAMES.
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
    """Return True if two frames follow each other, or if one frame fills the rest. This does not occur by
    chance.
    """
    size = frame_bytes(data, start)
    return size > 0 and (start + size >= len(data) or frame_bytes(data, start + size) > 0)
