"""The command `push`, which keeps the uploaded voices of a running TTS server equal to the registry."""

import argparse
import os
from functools import partial
from typing import TYPE_CHECKING

from speaker_registry.cli.command import Command, CommandError, Output, count
from speaker_registry.cli.syncing import add_watch, carry_out, document_of, interval_of, not_there
from speaker_registry.pushing import DEFAULT_SLOTS, SERVERS
from speaker_registry.terminal import printable

if TYPE_CHECKING:
    from speaker_registry import RegistryClient
    from speaker_registry.pushing.speech_server import SpeechServer
    from speaker_registry.syncing.synchronization import Report

_KEY = "SPEAKER_PUSH_API_KEY"
_MAX_SLOTS = 100_000
"""The largest number of voices to push."""


def push(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    # This package loads the HTTP client, which --help and completion do without.
    from speaker_registry.pushing.pusher import Pusher  # noqa: PLC0415

    interval = interval_of(arguments)
    with _server(arguments.server) as server:
        pusher = Pusher(
            client,
            server,
            profile=arguments.profile,
            kind=arguments.kind,
            slots=arguments.slots,
            on_pause=arguments.on_pause,
        )
        return carry_out(pusher.run, interval, arguments, partial(_output, arguments))


def _server(url: str) -> "SpeechServer":
    from speaker_registry.pushing.speech_server import SpeechServer  # noqa: PLC0415  see `push`

    try:
        return SpeechServer(url, os.environ.get(_KEY, ""))
    except ValueError:
        # Neither is shown, because both may contain a secret.
        raise CommandError(
            "the address or the API key of the TTS server is not accepted; accepted: an address such as "
            f"https://host[:port][/path] without user, query and fragment, and in {_KEY} printable ASCII "
            "without spaces"
        ) from None


def _output(arguments: argparse.Namespace, report: "Report") -> Output:
    document = {"server": arguments.server, "profile": arguments.profile}
    there = report.count("written") + report.count("unchanged")
    head = (
        f"{there} voices for {printable(arguments.profile)} at {printable(arguments.server)}: "
        f"{report.count('written')} uploaded, {report.removed} removed"
    )
    return Output({**document, **document_of(report)}, head + not_there(report, "an older version"))


def _add_push(command: argparse.ArgumentParser) -> None:
    command.add_argument("server", metavar="URL", help="address of the TTS server, without /v1")
    command.add_argument("--profile", metavar="P", required=True, help="profile of the server's model")
    command.add_argument("--kind", choices=SERVERS, default=SERVERS[0], help="software of the server")
    command.add_argument(
        "--slots",
        metavar="N",
        type=partial(count, most=_MAX_SLOTS),
        default=DEFAULT_SLOTS,
        help=f"how many voices the server is given at most (default: {DEFAULT_SLOTS})",
    )
    add_watch(command, "keep the server current until the process is ended")


COMMANDS = (Command("push", push, "Upload the voices of a profile to a running TTS server.", [_add_push]),)
