"""The protocol between the guarded process and its parent: fixed headers followed by plain bytes.

A request is the file as it was uploaded. The first answer says whether its container is accepted, and the
second has the measurements of the decoding. Nothing is pickled, and each reader of an answer verifies it.
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
"""The child's first byte. It comes with a pidfd of the child, through which the child can be killed without
the risk of killing another process.
"""

READY = b"+"
"""The zygote's first byte when it has imported everything."""

UNFILTERED = b"-"
"""The zygote's first byte when it forks no child, because a seccomp filter is required and cannot be
installed.
"""

MAX_CHANNELS = 8
MIN_SAMPLE_RATE, MAX_SAMPLE_RATE = 8_000, 192_000
"""Range of sample rates that are mixed down. For other clips, the answer holds only the rate and the
channels.
"""

PLAUSIBLE_SECONDS = 1e9
"""Lengths above this count as unknown. libsndfile reports 2**63 − 1 frames if a header has no length."""

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
"""Maps each accepted container to its MIME type."""
MAX_MESSAGE_BYTES = 1024
"""Maximum size of the message of a refusal."""

_REQUEST = struct.Struct("<dQ")
_VERDICT = struct.Struct("<4sB8s32sdH")
_ANSWER = struct.Struct("<4sBBHIQQdQddd32s")
_MAGIC = b"pcm1"
_VERDICT_MAGIC = b"snf1"
_ACCEPTED = 0
_NOT_FILTERED = 255
"""Sent instead of a refusal's kind if the required filter is missing."""


class Malformed(Exception):
    """The other side sent an invalid answer."""


class NotFiltered(Exception):
    """The other side reads no file, because it could not install the required seccomp filter."""


class Status(IntEnum):
    DECODED = 1
    FAILED = 2
    """The library failed at the start or part-way."""
    WRONG_CODEC = 3
    NO_AUDIO_STREAM = 4
    SEVERAL_AUDIO_STREAMS = 5
    VIDEO_STREAM = 6


@dataclass(frozen=True, slots=True)
class Request:
    """A file as it was uploaded, and the maximum length of a clip."""

    max_seconds: float
    data: bytes

    @property
    def header(self) -> bytes:
        """The header that is sent before the file."""
        return _REQUEST.pack(self.max_seconds, len(self.data))

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        max_seconds, size = _REQUEST.unpack(receive(connection, _REQUEST.size))
        return cls(max_seconds, bytes(receive(connection, size)))


@dataclass(frozen=True, slots=True)
class Accepted:
    """The first answer to a request: the container is accepted, and the structure of the file is valid."""

    container: str
    codec: str
    """Name of the codec. Empty if only the demuxer can tell."""
    declared_seconds: float
    """Length that the container declares. NaN if the demuxer should read it instead."""

    @property
    def label(self) -> str:
        """Name of the container for messages."""
        return {"ogg": "Ogg", "webm": "WebM"}.get(self.container, self.container.upper())

    @property
    def mime_type(self) -> str:
        return MIME_TYPES[self.container]

    def pack(self) -> bytes:
        container, codec = self.container.encode(), self.codec.encode()
        return _VERDICT.pack(_VERDICT_MAGIC, _ACCEPTED, container, codec, self.declared_seconds, 0)


def pack_refusal(refused: Refused) -> bytes:
    """Encode the only answer to a file that is not accepted."""
    message = refused.message.encode()[:MAX_MESSAGE_BYTES]
    return _VERDICT.pack(_VERDICT_MAGIC, refused.kind, b"", b"", math.nan, len(message)) + message


def pack_not_filtered() -> bytes:
    """Encode the only answer of a child that lacks the required seccomp filter."""
    return _VERDICT.pack(_VERDICT_MAGIC, _NOT_FILTERED, b"", b"", math.nan, 0)


def receive_verdict(connection: socket.socket, deadline: float) -> Accepted:
    """Read the first answer.

    Raises:
        Refused: The guarded process refused the file. The file may have taken over the process, so the
            message is bounded and printable, and it is only shown to the uploader.
        NotFiltered: The guarded process lacks the required filter.
        Malformed: The answer is invalid.
        TimeoutError, EOFError: as `receive`.
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
    """Measurements of a decoded clip. Messages about them are built by the parent process."""

    status: Status
    finished: bool = False
    """False if decoding stopped early: the clip is too long, not finite, or not accepted for another
    reason.
    """
    channels: int = 0
    sample_rate: int = 0
    frames: int = 0
    """Number of decoded samples per channel."""
    samples: int = 0
    """Number of float32 samples of the mono mix that follow: `frames` if finished, else 0."""
    peak: float = 0.0
    """Largest absolute sample of all channels, or the first sample that is not finite."""
    not_finite_at: int = 0
    """Number of frames before the first sample that is not finite."""
    clipped: float = 0.0
    """Share of the samples of all channels that are at full scale."""
    rms: float = 0.0
    """Root mean square of the mono mix, without its constant part."""
    declared_seconds: float = math.nan
    """Length in seconds that the container declares. NaN if it declares none."""
    codec: str = ""
    """Name of the codec in libav. Empty if libsndfile read the clip."""

    @property
    def readable(self) -> bool:
        """True if a clip with these channels and this rate is mixed down."""
        return 1 <= self.channels <= MAX_CHANNELS and MIN_SAMPLE_RATE <= self.sample_rate <= MAX_SAMPLE_RATE

    def credible(self, max_seconds: float) -> bool:
        """Return True if these measurements are possible. The clip may have taken over the process that
        sent them.
        """
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
        """Receive measurements. Raises Malformed, TimeoutError or EOFError."""
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
    """Return True for a plausible length, or NaN for an unknown one."""
    return math.isnan(seconds) or 0 <= seconds <= PLAUSIBLE_SECONDS


_STATUSES = frozenset(int(status) for status in Status)
_NUMBERS = (
    *("channels", "sample_rate", "frames", "samples", "peak", "not_finite_at"),
    *("clipped", "rms", "declared_seconds"),
)


def receive(connection: socket.socket, size: int, deadline: float = math.inf) -> bytearray:
    """Receive exactly `size` bytes, however slowly they arrive.

    Raises:
        TimeoutError: The deadline (on `time.monotonic`) has passed.
        EOFError: The other side has closed the connection.
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
    """Set the timeout of the connection to the time left until `deadline`. Raises TimeoutError if none is
    left.
    """
    if deadline == math.inf:
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


def _text(field: bytes) -> str:
    """Decode a NUL-padded name. Raises Malformed if libav cannot have produced it."""
    text = field.rstrip(b"\0").decode("ascii", "replace")
    if not all(character.isalnum() or character in "_,-" for character in text) or not text.isascii():
        raise Malformed
    return text
