"""MP3: MPEG audio layer III frames, the first of which may be a table of contents (Xing, Info)."""

from dataclasses import dataclass
from functools import partial

from .. import rules
from ..refusal import Refused, Truncated
from ..sniffed import Sniffed
from . import frames

# ISO 11172-3 2.4.2.3 and ISO 13818-3 2.4.2.3. kbit/s by index; free format (0) is not accepted.
_KBITS_1 = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0)
_KBITS_2 = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0)
_RATES = (44100, 48000, 32000)
_SHIFT = {3: 0, 2: 1, 0: 2}
"""Maps the version bits of MPEG 1, 2 and 2.5 to the number of times that the sample rate is halved."""
_LAYER_III = 1

_FRAMES_FLAG = 1
_SAME_STREAM = 0xFFFE0C00
"""Mask of the header bits that are constant in a stream: sync, version, layer and sample rate."""
_CONTENTS_KBITS = 64
"""Bit rate of the table of contents that is written here. The frame has at least 192 bytes at every sample
rate, and the table needs 48.
"""


@dataclass(frozen=True, slots=True)
class Header:
    bits: int

    @property
    def valid(self) -> bool:
        return (
            self.bits >> 21 == 0x7FF
            and self.bits >> 19 & 3 != 1
            and self.bits >> 17 & 3 == _LAYER_III
            and self.bits >> 10 & 3 != 3
            and self.kbits > 0
        )

    @property
    def mpeg1(self) -> bool:
        return self.bits >> 19 & 3 == 3

    @property
    def mono(self) -> bool:
        return self.bits >> 6 & 3 == 3

    @property
    def kbits(self) -> int:
        return (_KBITS_1 if self.mpeg1 else _KBITS_2)[self.bits >> 12 & 15]

    @property
    def sample_rate(self) -> int:
        return _RATES[self.bits >> 10 & 3] >> _SHIFT[self.bits >> 19 & 3]

    @property
    def samples(self) -> int:
        return 1152 if self.mpeg1 else 576

    @property
    def frame_bytes(self) -> int:
        return self.samples * 125 * self.kbits // self.sample_rate + (self.bits >> 9 & 1)

    @property
    def contents_offset(self) -> int:
        """Offset of a table of contents in its frame, after the header and the empty side information."""
        if self.mpeg1:
            return 4 + (17 if self.mono else 32)
        return 4 + (9 if self.mono else 17)


def starts_at(data: bytes, start: int) -> bool:
    return frames.is_run(data, start, _frame_bytes)


def parse(data: bytes, start: int, end: int) -> Sniffed:
    first = _header(data, start)
    contents = start + first.contents_offset
    has_contents = data[contents : contents + 4] in (b"Xing", b"Info")
    declared = _declared_frames(data, contents) if has_contents else 0
    positions = frames.walk(
        data, start, end, partial(_frame_bytes, like=first), "an MP3 stream", says_length=declared > 0
    )
    count = len(positions) - 1 - has_contents
    if declared:
        _check_count(declared, count, first)
        header = data[start : positions[1]]
    else:
        header = _contents(first, count)
    audio = memoryview(data)[positions[has_contents] : positions[-1]]
    return Sniffed(container="mp3", codec="mp3", payload=(header, audio))


def _header(data: bytes, position: int) -> Header:
    return Header(int.from_bytes(data[position : position + 4], "big"))


def _frame_bytes(data: bytes, position: int, like: Header | None = None) -> int:
    header = _header(data, position)
    if not header.valid or (like and (header.bits ^ like.bits) & _SAME_STREAM):
        return 0
    return header.frame_bytes


def _declared_frames(data: bytes, contents: int) -> int:
    flags = int.from_bytes(data[contents + 4 : contents + 8], "big")
    return int.from_bytes(data[contents + 8 : contents + 12], "big") if flags & _FRAMES_FLAG else 0


def _check_count(declared: int, count: int, first: Header) -> None:
    """Compare the declared number of frames with the file. Some encoders count the table of contents as a
    frame.
    """
    seconds = first.samples / first.sample_rate
    if (declared - count) * seconds > rules.TOLERANCE_SECONDS:
        raise Truncated(
            f"The MP3 is cut off: its header declares {declared} frames ({declared * seconds:.1f}s), "
            f"{count} ({count * seconds:.1f}s) are there. Upload the whole file."
        )
    if declared < count - 1:
        raise Refused(
            f"The MP3 declares {declared} frames and holds {count}: several files one after the other? "
            "Save the clip again as one."
        )


def _contents(first: Header, count: int) -> bytes:
    """Build a frame that declares how many frames follow. Without it libmpg123 guesses the length from the
    first frame's bit rate, and libsndfile stops there, which can be after a tenth of a file with variable bit
    rate.
    """
    kbits = (_KBITS_1 if first.mpeg1 else _KBITS_2).index(_CONTENTS_KBITS)
    header = Header(first.bits & ~0xF200 | 0x10000 | kbits << 12)  # neither padded nor protected
    contents = b"Xing" + _FRAMES_FLAG.to_bytes(4, "big") + count.to_bytes(4, "big")
    frame = header.bits.to_bytes(4, "big").ljust(header.contents_offset, b"\0") + contents
    return frame.ljust(header.frame_bytes, b"\0")
