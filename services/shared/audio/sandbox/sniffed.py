"""What looking at a file's bytes tells before any library sees them. Knows neither the formats nor the
libraries.
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
    """A file of an accepted container, its structure checked from the first byte to the last."""

    container: str
    codec: str = ""
    """Empty where only the demuxer can tell."""
    payload: tuple[Bytes, ...]
    """What the decoder is given, in order: the audio, without tags, pictures and what else surrounded it."""
    reader: str = "sndfile"
    """`sndfile`, or the libav demuxer to use."""
    codecs: tuple[str, ...] = ()
    """The codecs that libav may open."""
    declared_seconds: float = math.nan
    """By the container's own words; not a number where they are better read by its demuxer."""

    @property
    def accepted(self) -> Accepted:
        """What of this the asking process is told."""
        return Accepted(self.container, self.codec, self.declared_seconds)


def refuse(found: str) -> NoReturn:
    """Raise Unsupported. found: what the file is, as a noun phrase."""
    raise Unsupported(f"Unsupported audio: this is {found}. Accepted: {ACCEPTED}.")


def refuse_cut_off(what: str, declared: int, found: int) -> NoReturn:
    """Raise Truncated for a part of the file (`what`) that says it has more bytes than there are."""
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
    """Whether nothing but zeros follows `position`, which some writers leave behind."""
    return not any(data[position : position + 8]) and not data[position:end].strip(b"\0")
