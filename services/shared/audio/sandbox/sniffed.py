"""The result of checking a file's structure before any library reads it, and the refusals that containers
share.
"""

import math
from dataclasses import dataclass
from typing import NoReturn

from .refusal import Refused, Truncated, Unsupported
from .rules import ACCEPTED
from .wire import Accepted

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Sniffed:
    """A file in an accepted container, with its structure checked from the first to the last byte."""

    container: str
    codec: str = ""
    """Name of the codec. Empty if only the demuxer can tell."""
    payload: tuple[Bytes, ...]
    """The parts that the decoder gets, in order: only the audio, without tags, pictures and the like."""
    reader: str = "sndfile"
    """Library that reads the file: `sndfile`, or the name of a libav demuxer."""
    codecs: tuple[str, ...] = ()
    """The only codecs that libav may open, by its names."""
    declared_seconds: float = math.nan
    """Length that the container declares. NaN if the demuxer should read it instead."""

    @property
    def data(self) -> bytes:
        """The whole payload."""
        return b"".join(self.payload)

    @property
    def accepted(self) -> Accepted:
        """The part of the result that is sent to the parent process."""
        return Accepted(self.container, self.codec, self.declared_seconds)


def refuse(found: str) -> NoReturn:
    """Raise Unsupported. `found` names what the file is, as a noun phrase."""
    raise Unsupported(f"Unsupported audio: this is {found}. Accepted: {ACCEPTED}.")


def refuse_cut_off(what: str, declared: int, found: int) -> NoReturn:
    """Raise Truncated for a part of the file (`what`) that declares more bytes than there are."""
    raise Truncated(
        f"The file is cut off or its header is wrong: {what} declares {declared} bytes, {found} are there. "
        "Upload the whole file."
    )


def refuse_remainder(container: str, position: int, size: int) -> NoReturn:
    """Raise Refused for bytes that belong to no part of the container, such as an archive at its end."""
    raise Refused(
        f"From byte {position} of {size} on, this is not {container}: it is damaged, or followed by "
        "something else. Save the clip again and upload only that."
    )


def is_padding(data: bytes, position: int, end: int | None = None) -> bool:
    """Return True if only zeros follow `position`. Some encoders write such padding."""
    return not any(data[position : position + 8]) and not data[position:end].strip(b"\0")
