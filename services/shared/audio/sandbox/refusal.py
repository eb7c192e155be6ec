"""Why a file cannot serve as reference audio, as the guarded process says it. Knows no error of the registry:
whoever asked turns these into its own.
"""

from enum import IntEnum


class Kind(IntEnum):
    """What a refusal is about, as a number that crosses the socket."""

    INVALID = 1
    UNSUPPORTED = 2
    TRUNCATED = 3
    TOO_LONG = 4


class Refused(Exception):
    """The file contradicts itself, or breaks a rule. The message is shown to whoever uploaded it."""

    kind = Kind.INVALID

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unsupported(Refused):
    """It is something else than the formats that are read."""

    kind = Kind.UNSUPPORTED


class Truncated(Refused):
    """A part of it declares more bytes than there are."""

    kind = Kind.TRUNCATED


class TooLong(Refused):
    kind = Kind.TOO_LONG
