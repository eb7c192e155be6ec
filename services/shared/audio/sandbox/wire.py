"""What the decoding process and the process that asked it say to each other: fixed headers followed by plain
bytes. A request is the file as it was uploaded. The first answer says whether its container is accepted, the
second what was measured while decoding it.

Nothing is pickled, and whoever reads an answer checks it. Knows nothing of audio libraries.
"""

import math
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from .refusal import Refused, TooLong, Truncated, Unsupported

HELLO = b"!"
"""The child's first byte; with it comes a pidfd of the child, which can be killed without ever hitting
another process.
"""

READY = b"+"
"""The zygote has imported everything."""

UNFILTERED = b"-"
"""The zygote forks no child: a seccomp filter is required, and there can be none."""

MAX_CHANNELS = 8
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 192_000
"""What is mixed down at all. Of anything else only these numbers are answered."""

PLAUSIBLE_SECONDS = 1e9
"""libsndfile says 2**63 − 1 frames where a header does not tell."""

MIME_TYPES = {
    "wav": "audio/wav",
    "flac": "audio/flac",
    "mp3": "audio/mpeg",
    "ogg": "audio/ogg",
    "aac": "audio/aac",
    "m4a": "audio/mp4",
    "mp4": "audio/mp4",
    "webm": "audio/webm",
}
"""By container: all that are accepted."""
MAX_MESSAGE_BYTES = 1024
"""Of a refusal."""

_REQUEST = struct.Struct("<dQ")
_VERDICT = struct.Struct("<4sB8s32sdH")
_ANSWER = struct.Struct("<4sBBHIQQdQddd32s")
_MAGIC = b"pcm1"
_VERDICT_MAGIC = b"snf1"
_ACCEPTED = 0
_NOT_FILTERED = 255
"""In the place of a refusal's kind."""


class Malformed(Exception):
    """The other side sent something that is no answer."""


class NotFiltered(Exception):
    """The other side reads no file: a seccomp filter is required, and it could install none."""


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
    """A file as it was uploaded, and how long a clip may be."""

    max_seconds: float
    data: bytes

    @property
    def header(self) -> bytes:
        """What is sent before the file."""
        return _REQUEST.pack(self.max_seconds, len(self.data))

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        max_seconds, size = _REQUEST.unpack(receive(connection, _REQUEST.size))
        return cls(max_seconds, bytes(receive(connection, size)))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The file is of a container that is read, and its structure is sound. The first answer to a request."""

    container: str
    codec: str
    """Empty where only the demuxer can tell."""
    declared_seconds: float
    """By the container's own words; not a number where they are better read by its demuxer."""

    @property
    def label(self) -> str:
        """The container's name in a sentence."""
        return {"ogg": "Ogg", "webm": "WebM"}.get(self.container, self.container.upper())

    @property
    def mime_type(self) -> str:
        return MIME_TYPES[self.container]

    def pack(self) -> bytes:
        container, codec = self.container.encode(), self.codec.encode()
        return _VERDICT.pack(_VERDICT_MAGIC, _ACCEPTED, container, codec, self.declared_seconds, 0)


def pack_refusal(refused: Refused) -> bytes:
    """The only answer to a file that is not accepted."""
    message = refused.message.encode()[:MAX_MESSAGE_BYTES]
    return _VERDICT.pack(_VERDICT_MAGIC, refused.kind, b"", b"", math.nan, len(message)) + message


def pack_not_filtered() -> bytes:
    """The only answer to any file of a child that lacks the filter it must have."""
    return _VERDICT.pack(_VERDICT_MAGIC, _NOT_FILTERED, b"", b"", math.nan, 0)


def receive_verdict(connection: socket.socket, deadline: float) -> Accepted:
    """Read the first answer.

    Raises:
        Refused: as the guarded process says it. The file may have taken that over, so the message is bounded
            and printable; it is shown to nobody but whoever uploaded the file. NotFiltered; Malformed; what
            `receive` raises.
    """
    verdict = _VERDICT.unpack(receive(connection, _VERDICT.size, deadline))
    magic, kind, container, codec, declared_seconds, size = verdict
    if magic != _VERDICT_MAGIC or size > MAX_MESSAGE_BYTES:
        raise Malformed
    if kind == _NOT_FILTERED:
        raise NotFiltered
    if kind != _ACCEPTED:
        raise _refusal(kind, bytes(receive(connection, size, deadline)))
    accepted = Accepted(_text(container), _text(codec), declared_seconds)
    if accepted.container not in MIME_TYPES or not _is_length(declared_seconds):
        raise Malformed
    return accepted


def _refusal(kind: int, message: bytes) -> Refused:
    try:
        text = message.decode()
    except UnicodeDecodeError:
        raise Malformed from None
    if kind not in _REFUSALS or not text.isprintable():
        raise Malformed
    return _REFUSALS[kind](text)


_REFUSALS = {int(cls.kind): cls for cls in (Refused, Unsupported, Truncated, TooLong)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
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
            and _is_length(self.declared_seconds)
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


def _is_length(seconds: float) -> bool:
    """Or not a number: not known."""
    return math.isnan(seconds) or 0 <= seconds <= PLAUSIBLE_SECONDS


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
