"""What every command of the command line is made of: its outcome, its exit code, its arguments. Knows none of
them.
"""

import argparse
import contextlib
import datetime
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from speaker_registry.errors import (
    ArtifactFailed,
    ArtifactNotReady,
    InvalidApiKey,
    NotFound,
    PermissionDenied,
    Unavailable,
    VoiceDamaged,
)

_LONGEST_SECONDS = 365 * 86_400
OK, REFUSED, USAGE, UNREACHABLE, DENIED, NOT_FOUND, FAILED, NOT_READY = 0, 1, 2, 3, 4, 5, 6, 8
INTERRUPTED, PIPE_CLOSED = 130, 141
EXIT_CODES = {
    OK: "done",
    REFUSED: "the registry, or a file, says no",
    USAGE: "wrong usage",
    UNREACHABLE: "no registry can be reached, or it cannot answer now",
    DENIED: "an API key is needed, or another one",
    NOT_FOUND: "there is no such voice, version, profile, job or key",
    FAILED: "an artifact could not be extracted, or its job was canceled",
    NOT_READY: "an artifact is not ready in the time given",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "whoever read the output has gone",
}
"""What the help says of them. 4 and 8 mean the same for `gh`."""


HINTS = {
    "voice_exists": "`speaker-registry delete NAME` deletes it, so that it can be registered again",
    "embedding_dim_mismatch": "`speaker-registry put NAME@REF FILE --profile P` brings an embedding for one "
    "profile, in a safetensors file, to a voice that was registered with a clip",
    "artifact_not_found": "`speaker-registry extract NAME@REF --profile P` has it made",
    "artifact_stale": "`speaker-registry extract NAME@REF --profile P` has a new one made",
    "artifact_failed": "`speaker-registry extract NAME@REF --profile P --force` tries it again",
    "artifact_not_ready": "`speaker-registry wait NAME@REF --timeout SECONDS` waits for it",
    "artifact_schema": "`speaker-registry put NAME@REF FILE --profile P --fingerprint SHA256` says what made "
    "a file that does not say it itself",
    "invalid_api_key": "the environment variable SPEAKER_REGISTRY_API_KEY gives the key",
}
"""What the command line has for what a message of the registry advises to do by HTTP, by the error's code."""


class CommandError(Exception):
    """A command cannot be carried out as it stands, whatever the registry says."""

    def __init__(self, message: str, *, status: int = USAGE, usage: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.usage = usage


class Output(NamedTuple):
    """What a command has to say, once for programs and once for people."""

    document: object
    text: str


def status_of(error: Exception) -> int:
    """The exit code of what ended a command."""
    if isinstance(error, CommandError):
        return error.status
    if isinstance(error, VoiceDamaged):  # the registry could be reached, and asking again is no use
        return REFUSED
    kinds: dict[type[Exception] | tuple[type[Exception], ...], int] = {
        Unavailable: UNREACHABLE,
        (InvalidApiKey, PermissionDenied): DENIED,
        NotFound: NOT_FOUND,
        ArtifactFailed: FAILED,
        ArtifactNotReady: NOT_READY,
    }
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), REFUSED)


def exit_codes() -> str:
    """The table of exit codes for the help."""
    lines = [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["exit codes:", *lines])


def confirm(command: str, question: str) -> None:
    """Raises `CommandError` unless somebody says yes."""
    if not sys.stdin.isatty():
        raise CommandError(f"{command} asks first; where nobody can answer, say --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError("nothing was done", status=REFUSED)


def when(unix_seconds: float) -> str:
    return datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def list_document(items: Iterable[Any]) -> dict[str, object]:
    return {"object": "list", "data": [item.model_dump(mode="json") for item in items]}


class Parser(argparse.ArgumentParser):
    """Raises instead of printing: with `--json` a wrong command line is a JSON error too."""

    def __init__(self, **options: Any) -> None:
        # Scripts that use abbreviations break with the next option, and `--js` would not be seen by `_run`.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise CommandError(message, usage=self.format_usage().strip())


def add_common(target: argparse.ArgumentParser) -> None:
    """Accepted before and after the command. What is not said after it must not undo what was said before."""
    target.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="one JSON document on stdout, errors as JSON on stderr",
    )
    target.add_argument("--url", default=argparse.SUPPRESS, help="address of the registry")


def add_limit(command: argparse.ArgumentParser) -> None:
    command.add_argument("--limit", metavar="N", type=count, help="at most so many")


def count(text: str, least: int = 1, most: int = 10**9) -> int:
    with contextlib.suppress(ValueError):
        if least <= (number := int(text)) <= most:
            return number
    raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: whole numbers from {least} to {most}")


def seconds(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 <= (given := float(text)) <= _LONGEST_SECONDS:  # what is not a number is not
            return given
    raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: seconds from 0 to {_LONGEST_SECONDS}")
