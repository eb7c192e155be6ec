"""What every command of the command line is made of: its outcome, its exit code, its arguments. Knows none of
them.
"""

import argparse
import contextlib
import datetime
import sys
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

_LONGEST_SECONDS = 365 * 86_400
OK, REFUSED, USAGE, UNREACHABLE, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 130, 141


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
