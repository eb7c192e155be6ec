"""The parts that all commands of the command line share: output, exit codes, confirmation and arguments."""

import argparse
import contextlib
import datetime
import json
import math
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, TypeVar

from speaker_registry.atomic_files import naming
from speaker_registry.cli import INTERRUPTED
from speaker_registry.errors import (
    ArtifactFailed,
    ArtifactNotReady,
    InvalidApiKey,
    NotFound,
    PermissionDenied,
    RateLimited,
    SpeakerRegistryError,
    Unavailable,
    VoiceDamaged,
)
from speaker_registry.terminal import highlighted

Item = TypeVar("Item")
PROGRAM = "speaker-registry"
STANDARD_OUTPUT = "standard output"
"""Its name in messages, in the place of the name of a file."""
UNTRAINED = "made with untrained weights (random numbers), so the voice is useless"
_LONGEST_SECONDS = 365 * 86_400
_LATEST_MOMENT = 10**12
OK, REFUSED, USAGE, UNREACHABLE, DENIED, NOT_FOUND, FAILED, ATTENTION, NOT_READY = range(9)
PIPE_CLOSED = 141
EXIT_CODES = {
    OK: "done",
    REFUSED: "the registry refused the request, or a file cannot be used",
    USAGE: "wrong usage",
    UNREACHABLE: "the registry cannot be reached or cannot answer now",
    DENIED: "an API key is missing, or lacks a permission",
    NOT_FOUND: "there is no such voice, version, profile, job or key",
    FAILED: "an extraction failed or was canceled",
    ATTENTION: "status found a problem that needs attention",
    NOT_READY: "an artifact was not ready within the given time",
    INTERRUPTED: "interrupted",
    PIPE_CLOSED: "the reader of the output has closed it",
}
"""Meaning of each exit code, for the help. 4 and 8 have the same meaning as for `gh`."""


HINTS = {
    "voice_exists": "`speaker-registry show NAME` shows the voice that has this name",
    "embedding_dim_mismatch": "`speaker-registry put NAME@REF FILE --profile P` uploads an embedding for one "
    "profile, as a safetensors file, to a voice that was registered with a clip",
    "artifact_not_found": "`speaker-registry extract NAME@REF --profile P` extracts it",
    "artifact_stale": "`speaker-registry extract NAME@REF --profile P` extracts a new one",
    "artifact_failed": "`speaker-registry extract NAME@REF --profile P --force` extracts it again",
    "artifact_not_ready": "`speaker-registry wait NAME@REF --profile P --timeout SECONDS` waits for it",
    "artifact_schema": "`speaker-registry put NAME@REF FILE --profile P --fingerprint SHA256` gives the "
    "fingerprint of a file that has no manifest",
    "encoder_unknown": "`speaker-registry profiles show PROFILE` lists the fingerprints that can be promoted",
    "encoder_unserved": "`speaker-registry profiles promote PROFILE FINGERPRINT --force` promotes it "
    "although no worker has it",
    "invalid_api_key": "`speaker-registry login` checks an API key and keeps it; the environment variable "
    "SPEAKER_REGISTRY_API_KEY gives one, too",
}
"""Hints by error code. A hint names the command for what the registry's message advises over HTTP."""


class CommandError(Exception):
    """A command cannot be executed, for a reason that does not come from the registry."""

    def __init__(self, message: str, *, status: int = USAGE, usage: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.usage = usage


class Command(NamedTuple):
    """A command with its arguments, or a group of commands."""

    name: str
    run: Callable[..., "Output | None"] | None
    """Function that is called with a client and the arguments. A group of commands has none."""
    explanation: str
    arguments: Sequence[Callable[[argparse.ArgumentParser], object]] = ()
    """Functions that each add one or more arguments, in their order."""
    commands: Sequence["Command"] = ()
    """The commands of a group."""
    local: bool = False
    """True if the function is called with the arguments alone, because it makes its own client or none."""
    takes_registry: bool = True
    """True if the command takes the options that choose a registry."""


class Output(NamedTuple):
    """The output of a command, as a JSON document for programs and as text for people."""

    document: object
    text: str
    status: int = OK
    """The exit code. A command for many voices prints what it did and also fails if some were refused."""
    warnings: Sequence[str] = ()
    """Remarks that must not be overlooked, which are printed to standard error."""


def about_weights(voices: Iterable["MaybeUntrained"]) -> list[str]:
    """Return a warning if a voice is made with untrained weights, and nothing otherwise."""
    return [UNTRAINED] if any(voice.untrained for voice in voices) else []


class MaybeUntrained(Protocol):
    """An answer that says whether its artifacts are made with untrained weights."""

    @property
    def untrained(self) -> bool: ...


def warn(text: str, *, as_json: bool) -> None:
    """Print a warning to standard error, as a line of JSON or in colour if that is a terminal."""
    document = json.dumps({"warning": {"message": text}})
    print(document if as_json else highlighted(f"{PROGRAM}: {text}", sys.stderr), file=sys.stderr)


def writing_output() -> contextlib.AbstractContextManager[None]:
    """Name standard output in the error for a failed write, for example to a full disk."""
    return naming(STANDARD_OUTPUT)


def status_of(error: Exception) -> int:
    """Return the exit code for the error that ended a command."""
    if isinstance(error, CommandError):
        return error.status
    if isinstance(error, VoiceDamaged):  # the registry was reached, and a retry does not help
        return REFUSED
    kinds: dict[type[Exception] | tuple[type[Exception], ...], int] = {
        (Unavailable, RateLimited): UNREACHABLE,
        (InvalidApiKey, PermissionDenied): DENIED,
        NotFound: NOT_FOUND,
        ArtifactFailed: FAILED,
        ArtifactNotReady: NOT_READY,
    }
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), REFUSED)


def message_of(error: Exception) -> str:
    """Return the message of the error that ended a command, which is never empty."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error) or type(error).__name__


def error_document(error: Exception, message: str) -> str:
    """Return an error as it is printed with `--json`."""
    code = error.code if isinstance(error, SpeakerRegistryError) else _local_code(error)
    param, request_id = getattr(error, "param", None), getattr(error, "request_id", None)
    body = {"code": code, "message": message, "param": param, "request_id": request_id}
    return json.dumps({"error": body})


def _local_code(error: Exception) -> str:
    return "usage" if status_of(error) == USAGE else "local_error"


def advice_on(error: Exception) -> str:
    """Return what to do about an error of the registry, or nothing if its message says enough."""
    if not isinstance(error, SpeakerRegistryError):
        return ""
    when = when_to_retry(error)
    return HINTS.get(error.code) or (when and f"try again{when}")


def when_to_retry(error: SpeakerRegistryError) -> str:
    """Return ` in … s` if the registry said after how many seconds a retry may succeed, or nothing."""
    seconds = error.retry_after_seconds if error.retryable else None
    return f" in {math.ceil(seconds)} s" if seconds else ""


def exit_codes() -> str:
    """Return the table of exit codes for the help."""
    lines = [f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items()]
    return "\n".join(["exit codes:", *lines])


def confirm(command: str, question: str) -> None:
    """Ask for confirmation on the terminal. Raises `CommandError` unless the answer is yes."""
    if not sys.stdin.isatty():
        raise CommandError(
            f"{command} asks for confirmation, and standard input is not a terminal; pass --yes instead"
        )
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise CommandError("nothing was done", status=REFUSED)


def when(unix_seconds: float) -> str:
    """Format a time in UTC, such as `2026-01-31 12:00:00Z`."""
    return datetime.datetime.fromtimestamp(unix_seconds, datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def list_document(items: Iterable[Any], *, more: bool = False) -> dict[str, object]:
    """Return the JSON document of a list. `more` says that there are further items."""
    return {"object": "list", "data": [item.model_dump(mode="json") for item in items], "has_more": more}


def first_of(
    listing: Callable[[int | None], Iterable[Item]], arguments: argparse.Namespace
) -> tuple[list[Item], list[str]]:
    """Return the items that `--limit` and `--all` ask for, and a remark if there are more.

    Args:
        listing: returns at most that many items, and all of them for None.
    """
    if arguments.all:
        return list(listing(None)), []
    found = list(listing(arguments.limit + 1))
    more = f"there are more than these {arguments.limit}; --limit N shows N, and --all shows all"
    return found[: arguments.limit], [more] if len(found) > arguments.limit else []


class Parser(argparse.ArgumentParser):
    """An argument parser that raises instead of printing, so that `--json` also applies to usage errors."""

    def __init__(self, **options: Any) -> None:
        # Abbreviated options in scripts would break when an option is added, and `_run` would not recognise
        # `--js`.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise CommandError(message, usage=self.format_usage().strip())


def add_commands(parser: argparse.ArgumentParser, commands: Iterable[Command]) -> None:
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in commands:
        added = subparsers.add_parser(command.name, help=command.explanation, description=command.explanation)
        if command.run:
            added.set_defaults(command=command.run, local=command.local)
            add_common(added, registry=command.takes_registry)
        for add in command.arguments:
            add(added)
        if command.commands:
            add_commands(added, command.commands)


def add_common(target: argparse.ArgumentParser, *, registry: bool = True) -> None:
    """Add the options that are accepted before and after the command. If an option is not repeated
    after the command, its value from before the command is kept.

    Args:
        registry: whether to add those that choose a registry.
    """
    target.add_argument(
        "--json",
        action="store_true",
        default=argparse.SUPPRESS,
        help="print one JSON document on stdout, and errors, warnings and pauses as lines of JSON on stderr",
    )
    if not registry:
        return
    target.add_argument(
        "--url",
        default=argparse.SUPPRESS,
        help="address of the registry (default: that of the context, or SPEAKER_REGISTRY_URL)",
    )
    target.add_argument(
        "--context",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help="registry that login has kept (default: SPEAKER_REGISTRY_CONTEXT, or the current one)",
    )


def add_limit(command: argparse.ArgumentParser) -> argparse._MutuallyExclusiveGroup:
    """Add the options that say how many items to list. Returns their group, which takes one of them."""
    many = command.add_mutually_exclusive_group()
    many.add_argument(
        "--limit", metavar="N", type=count, default=50, help="maximum number of items to list (default: 50)"
    )
    many.add_argument("--all", action="store_true", help="list all items, however many there are")
    return many


def count(text: str, least: int = 1, most: int = 10**9) -> int:
    """Parse an argument that is a whole number from `least` to `most`."""
    with contextlib.suppress(ValueError):
        if least <= (number := int(text)) <= most:
            return number
    raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: whole numbers from {least} to {most}")


def seconds(text: str) -> float:
    """Parse an argument that is a number of seconds, up to a year."""
    with contextlib.suppress(ValueError):
        if 0 <= (given := float(text)) <= _LONGEST_SECONDS:  # false for NaN
            return given
    raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: seconds from 0 to {_LONGEST_SECONDS}")


def moment(text: str) -> float:
    """Parse an argument that is a time, and return it in Unix seconds. A time without a zone is local."""
    with contextlib.suppress(ValueError):
        if 0 <= (given := float(text)) <= _LATEST_MOMENT:  # false for NaN
            return given
    with contextlib.suppress(ValueError, OverflowError, OSError):
        if (given := datetime.datetime.fromisoformat(text).timestamp()) >= 0:
            return given
    raise argparse.ArgumentTypeError(
        f"{text[:80]!a}; accepted: Unix seconds from 0 to {_LATEST_MOMENT}, or a time as 2026-03-31T15:00"
    )


def argument(*names: str, **options: Any) -> Callable[[argparse.ArgumentParser], object]:
    """Return a function that adds this argument to a command."""
    return lambda command: command.add_argument(*names, **options)


add_name = argument("name", metavar="NAME")
add_profile = argument("profile", metavar="PROFILE", help="name of the profile, see profiles list")
add_fingerprint = argument(
    "fingerprint", metavar="FINGERPRINT", help="a candidate or a former fingerprint, see profiles show"
)
add_yes = argument("--yes", action="store_true", help="skip the confirmation")
add_speaker = argument("speaker", metavar="NAME[@REF]")
add_output = argument(
    "-o", "--output", metavar="FILE", required=True, help="file to write, or - for standard output"
)
add_timeout = argument(
    "--timeout",
    metavar="SECONDS",
    type=seconds,
    default=600.0,
    help="maximum time to wait (default: 600)",
)
