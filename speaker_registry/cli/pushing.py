"""The command `push`, which keeps the uploaded voices of a running TTS server equal to the registry."""

import argparse
import json
import os
from functools import partial
from typing import TYPE_CHECKING

from speaker_registry.cli.command import Command, CommandError, Output, count
from speaker_registry.cli.syncing import add_watch, document_of, interval_of, watch
from speaker_registry.pushing import SERVERS
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import RegistryClient
    from speaker_registry.pushing.speech_server import SpeechServer
    from speaker_registry.syncing.synchronization import Report

_KEY = "SPEAKER_PUSH_API_KEY"
_SLOTS, _MAX_SLOTS = 1000, 100_000
"""1000 is also what servers accept, unless they are told another number."""


def push(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    # This package loads the HTTP client, which --help and completion do without.
    from speaker_registry.pushing.pusher import Pusher  # noqa: PLC0415

    interval = interval_of(arguments)
    with _server(arguments.server) as server:
        pusher = Pusher(client, server, profile=arguments.profile, kind=arguments.kind, slots=arguments.slots)
        if arguments.watch:

            def show(report: "Report") -> None:
                document = _document(report, arguments)
                print(json.dumps(document) if arguments.json else _text(report, arguments), flush=True)

            watch(pusher.run, interval, show)
        report = pusher.run()
    return Output(_document(report, arguments), _text(report, arguments))


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


def _document(report: "Report", arguments: argparse.Namespace) -> dict[str, object]:
    return {"server": arguments.server, "profile": arguments.profile, **document_of(report)}


def _text(report: "Report", arguments: argparse.Namespace) -> str:
    there = report.count("written") + report.count("unchanged")
    head = (
        f"{there} voices for {printable(arguments.profile)} at {printable(arguments.server)}: "
        f"{report.count('written')} uploaded, {report.removed} removed"
    )
    rows = [
        (f"{one.name}@{one.version}", "an older version" if one.state == "kept" else "nothing", one.reason)
        for one in report.outcomes
        if one.reason
    ]
    return head + ("\n\n" + table(("NOT THERE", "INSTEAD", "REASON"), rows) if rows else "")


def _add_push(command: argparse.ArgumentParser) -> None:
    command.add_argument("server", metavar="URL", help="address of the TTS server, without /v1")
    command.add_argument("--profile", metavar="P", required=True, help="profile of the server's model")
    command.add_argument("--kind", choices=SERVERS, default=SERVERS[0], help="software of the server")
    command.add_argument(
        "--slots",
        metavar="N",
        type=partial(count, most=_MAX_SLOTS),
        default=_SLOTS,
        help=f"how many voices the server is given at most (default: {_SLOTS})",
    )
    add_watch(command, "keep the server current until the process is ended")


COMMANDS = (Command("push", push, "Upload the voices of a profile to a running TTS server.", _add_push),)
