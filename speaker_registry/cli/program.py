"""The program behind `speaker-registry`. It turns arguments into calls of `RegistryClient`, and answers into
text or JSON.

The exit codes are listed in `command.EXIT_CODES` and by `--help`. The client is only loaded when it is
needed, so that `--help` and completion are fast.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import speaker_registry
from speaker_registry.cli import (
    aliases,
    artifacts,
    campaigns,
    completion,
    contexts,
    jobs,
    keys,
    moving,
    profiles,
    pushing,
    status,
    syncing,
    voices,
)
from speaker_registry.cli.command import (
    OK,
    PIPE_CLOSED,
    PROGRAM,
    STANDARD_OUTPUT,
    CommandError,
    Output,
    Parser,
    add_commands,
    add_common,
    advice_on,
    error_document,
    exit_codes,
    message_of,
    status_of,
    warn,
    writing_output,
)
from speaker_registry.cli.progress import PauseNotices
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.terminal import discard_output, printable

if TYPE_CHECKING:
    from speaker_registry import RegistryClient

_COMMANDS = (
    *voices.COMMANDS,
    *aliases.COMMANDS,
    *artifacts.COMMANDS,
    *moving.COMMANDS,
    *syncing.COMMANDS,
    *pushing.COMMANDS,
    *jobs.COMMANDS,
    *profiles.COMMANDS,
    *campaigns.COMMANDS,
    *keys.COMMANDS,
    *contexts.COMMANDS,
    *status.COMMANDS,
    completion.COMMAND,
)


def main(argv: Sequence[str]) -> int:
    """Run one command and return its exit code. Raises `KeyboardInterrupt` at Ctrl-C."""
    words = list(argv)
    if sys.stderr is None:  # closed by the caller; `print` would write its messages to standard output
        sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  until the process ends
    for stream in (sys.stdout, sys.stderr):
        # A name with characters that the terminal's encoding lacks must not end the command.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        return _run(words)
    except SystemExit:  # after --help and --version
        return OK
    except BrokenPipeError:
        discard_output()
        return PIPE_CLOSED


def _run(words: list[str]) -> int:
    if completion.is_asked():
        completion.complete(parser())
    if not words:
        words = ["--help"]
    as_json = "--json" in words
    try:
        arguments = parser().parse_args(words)
        arguments.on_pause = PauseNotices(as_json=arguments.json)
        output = _output(arguments)
        if output is None:
            return OK
        with writing_output():
            print(json.dumps(output.document, indent=2) if as_json else output.text, flush=True)
    except BrokenPipeError:
        raise
    except (CommandError, SpeakerRegistryError, OSError) as error:
        print(_complaint(error, as_json), file=sys.stderr)
        if getattr(error, "filename", None) == STANDARD_OUTPUT:
            discard_output()
        return status_of(error)
    for warning in output.warnings:
        warn(warning, as_json=as_json)
    return output.status


def _output(arguments: argparse.Namespace) -> Output | None:
    if arguments.local:
        local: Callable[[argparse.Namespace], Output | None] = arguments.command
        return local(arguments)
    with _client(arguments) as client:
        remote: Callable[[RegistryClient, argparse.Namespace], Output | None] = arguments.command
        return remote(client, arguments)


def _client(arguments: argparse.Namespace) -> "RegistryClient":
    from speaker_registry.contexts import connection  # noqa: PLC0415  loads httpx, which --help does not need

    try:
        options = connection(arguments.url, arguments.context)
        return speaker_registry.RegistryClient(**options, on_pause=arguments.on_pause)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _complaint(error: Exception, as_json: bool) -> str:
    message, request_id = message_of(error), getattr(error, "request_id", None)
    if as_json:
        return error_document(error, message)
    lines = [f"{PROGRAM}: {printable(message)}" + (f" ({printable(request_id)})" if request_id else "")]
    advice = advice_on(error)
    return "\n".join([*lines, *filter(None, [getattr(error, "usage", ""), advice and f"hint: {advice}"])])


class _Version(argparse.Action):
    """The option `--version`. The version is only looked up if the option is given, because that takes
    time.
    """

    def __call__(self, *_: object) -> NoReturn:
        print(f"{PROGRAM} {speaker_registry.__version__}")
        raise SystemExit


def parser() -> argparse.ArgumentParser:
    root = Parser(
        prog=PROGRAM,
        description="Register voices and fetch their artifacts.",
        epilog="environment:\n"
        "  SPEAKER_REGISTRY_URL, SPEAKER_REGISTRY_API_KEY, SPEAKER_REGISTRY_NAMESPACE\n"
        "  SPEAKER_REGISTRY_CONTEXT: context to use\n"
        "  SPEAKER_REGISTRY_CONFIG: configuration file (default: ~/.config/speaker-registry/config.toml)\n"
        "  SSL_CERT_FILE: PEM file with the certificate of a private authority\n\n"
        f"{exit_codes()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.set_defaults(json=False, url=None, context=None)
    add_common(root)
    root.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    add_commands(root, _COMMANDS)
    return root
