"""What the decoding process and the process that asked it say to each other: two fixed headers, each followed
by plain bytes. Nothing is pickled, and whoever reads an answer checks it. Knows nothing of audio libraries.
"""

import math
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

HELLO = b"!"
"""The child's first byte; with it comes a pidfd of the child, which can be killed without ever hitting
another process.
"""

READY = b"+"
"""The zygote has imported everything."""

MAX_CHANNELS = 8
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 192_000
"""What is mixed down at all. Of anything else only these numbers are answered."""

PLAUSIBLE_SECONDS = 1e9
"""libsndfile says 2**63 − 1 frames where a header does not tell."""

_REQUEST = struct.Struct("<16s32sdQ")
_ANSWER = struct.Struct("<4sBBHIQQdQddd32s")
_MAGIC = b"pcm1"


class Malformed(Exception):
    """The other side sent something that is no answer."""


class Status(IntEnum):
    DECODED = 1
    FAILED = 2
    """The library gave up part-way, or at once."""
    WRONG_CODEC = 3
    NO_AUDIO_STREAM = 4
    SEVERAL_AUDIO_STREAMS = 5
    VIDEO_STREAM = 6


@dataclass(frozen=True, slots=True)
class Request:
    """reader: `sndfile`, or the name of the libav demuxer. codecs: the only ones that may be opened, by
    libav's names.
    """

    reader: str
    codecs: tuple[str, ...]
    max_seconds: float
    data: bytes = b""

    def header(self, size: int) -> bytes:
        """The header of a request whose clip is `size` bytes long."""
        return _REQUEST.pack(self.reader.encode(), ",".join(self.codecs).encode(), self.max_seconds, size)

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        header = receive(connection, _REQUEST.size)
        reader, codecs, max_seconds, size = _REQUEST.unpack(header)
        data = bytes(receive(connection, size))
        return cls(_text(reader), tuple(_text(codecs).split(",")), max_seconds, data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was measured while decoding: numbers only, the sentences about them are written elsewhere."""

    status: Status
    finished: bool = False
    """False when decoding stopped early: too long, not finite, or beyond what is accepted anyway."""
    channels: int = 0
    sample_rate: int = 0
    frames: int = 0
    """Counted, per channel."""
    samples: int = 0
    """How many float32 of the mono mix follow: `frames` when finished, else none."""
    peak: float = 0.0
    """Over all channels; the first sample that is not finite, if there is one."""
    not_finite_at: int = 0
    """Where that one is: frames before it."""
    clipped: float = 0.0
    """The share of samples, over all channels, that are at full scale."""
    rms: float = 0.0
    """Of the mono mix without its constant part."""
    declared_seconds: float = math.nan
    """By the container; not a number if it says nothing."""
    codec: str = ""
    """By libav's name; empty from libsndfile."""

    @property
    def readable(self) -> bool:
        """Whether we mix such a clip down."""
        return 1 <= self.channels <= MAX_CHANNELS and MIN_SAMPLE_RATE <= self.sample_rate <= MAX_SAMPLE_RATE

    def credible(self, max_seconds: float) -> bool:
        """Whether this can have been measured. The clip may have taken over the process that says so."""
        return (
            self.samples == (self.frames if self.finished else 0)
            and ((self.readable and self.status is Status.DECODED) or not self.finished)
            and self.samples <= max_seconds * self.sample_rate
            and 0 <= self.clipped <= 1
            and 0 <= self.rms < math.inf
            and (math.isnan(self.declared_seconds) or 0 <= self.declared_seconds <= PLAUSIBLE_SECONDS)
        )

    def pack(self) -> bytes:
        return _ANSWER.pack(
            _MAGIC,
            self.status,
            self.finished,
            self.channels,
            self.sample_rate,
            self.frames,
            self.samples,
            self.peak,
            self.not_finite_at,
            self.clipped,
            self.rms,
            self.declared_seconds,
            self.codec.encode(),
        )

    @classmethod
    def receive(cls, connection: socket.socket, deadline: float) -> Self:
        """Read a header. Raises Malformed, and what `receive` raises."""
        magic, status, finished, *numbers, codec = _ANSWER.unpack(receive(connection, _ANSWER.size, deadline))
        if magic != _MAGIC or status not in _STATUSES or finished not in (0, 1):
            raise Malformed
        return cls(
            status=Status(status),
            finished=bool(finished),
            codec=_text(codec),
            **dict(zip(_NUMBERS, numbers, strict=True)),
        )


_STATUSES = frozenset(int(status) for status in Status)
_NUMBERS = (
    *("channels", "sample_rate", "frames", "samples", "peak", "not_finite_at"),
    *("clipped", "rms", "declared_seconds"),
)


def receive(connection: socket.socket, size: int, deadline: float = math.inf) -> bytearray:
    """Exactly `size` bytes, however slowly they drip in.

    Raises:
        TimeoutError: at `deadline`, on `time.monotonic`.
        EOFError: the other side is gone.
    """
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        wait_until(connection, deadline)
        received = connection.recv_into(rest)
        if not received:
            raise EOFError
        rest = rest[received:]
    return data


def wait_until(connection: socket.socket, deadline: float) -> None:
    """Let the next call on `connection` take until `deadline`, not longer."""
    if deadline == math.inf:
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _text(field: bytes) -> str:
    """A NUL-padded name. Raises Malformed unless it is one that libav could have given."""
    text = field.rstrip(b"\0").decode("ascii", "replace")
    if not all(character.isalnum() or character in "_,-" for character in text) or not text.isascii():
        raise Malformed
    return text
