"""Streams that are nothing but frames, each saying how long it is (MP3, ADTS): one after the other up to the
end. Knows no frame format.
"""

from collections.abc import Callable

from services.shared.audio.sniffed import is_padding, refuse_remainder
from speaker_registry.errors import AudioTooLong, AudioTruncated

MAX_FRAMES = 1 << 16
"""26 minutes of MP3. Walking them takes about 50 ms."""
_MIN_BYTES = 7
"""No frame is shorter."""

FrameBytes = Callable[[bytes, int], int]
"""How long the frame is whose header starts at a position; 0 where none does."""


def walk(data: bytes, start: int, end: int, frame_bytes: FrameBytes, name: str) -> list[int]:
    """Where each whole frame starts, and where the last one ends. A last frame that is cut off is left out:
    what it held is shorter than anyone notices.

    Raises:
        InvalidAudio: something else follows the frames.
        AudioTruncated: not even one frame is whole.
        AudioTooLong: there are more than MAX_FRAMES.
    """
    positions = [start]
    while end - positions[-1] >= _MIN_BYTES and (size := frame_bytes(data, positions[-1])):
        if positions[-1] + size > end:
            break
        if len(positions) > MAX_FRAMES:
            raise AudioTooLong(f"Reference audio too long: {name} of more than {MAX_FRAMES} frames.")
        positions.append(positions[-1] + size)
    else:
        if end - positions[-1] >= _MIN_BYTES and not is_padding(data, positions[-1], end):
            refuse_remainder(name, positions[-1], len(data))
    if len(positions) == 1:
        raise AudioTruncated(f"The file is cut off: {name} that ends within its first frame.")
    return positions


def is_run(data: bytes, start: int, frame_bytes: FrameBytes) -> bool:
    """Whether two frames follow each other, or there is one and no more. Chance does not do that."""
    size = frame_bytes(data, start)
    return size > 0 and (start + size >= len(data) or frame_bytes(data, start + size) > 0)
