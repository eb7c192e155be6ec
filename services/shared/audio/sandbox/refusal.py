"""The reasons for which the guarded process refuses a file. The parent process converts them to errors of
the registry.
"""

from enum import IntEnum


class Kind(IntEnum):
    """The kind of a refusal, as a number that is sent over the socket."""

    INVALID = 1
    UNSUPPORTED = 2
    TRUNCATED = 3
    TOO_LONG = 4


class Refused(Exception):
    """The file contradicts itself, or breaks a rule. The message is shown to the uploader."""

    kind = Kind.INVALID

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Unsupported(Refused):
    """The file has a format that is not accepted."""

    kind = Kind.UNSUPPORTED


class Truncated(Refused):
    """A part of the file declares more bytes than there are."""

    kind = Kind.TRUNCATED


class TooLong(Refused):
    """The clip is longer than accepted."""

    kind = Kind.TOO_LONG
