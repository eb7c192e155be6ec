"""The command `sync`, which keeps a folder for a TTS server equal to the registry."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from speaker_registry.cli.command import (
    PROGRAM,
    Command,
    CommandError,
    Output,
    about_weights,
    error_document,
    message_of,
    seconds,
    status_of,
    warn,
)
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.syncing import FORMATS
from speaker_registry.terminal import printable, table

if TYPE_CHECKING:
    from speaker_registry import RegistryClient
    from speaker_registry.syncing.synchronization import Report

_INTERVAL_SECONDS = 30.0


def sync(client: "RegistryClient", arguments: argparse.Namespace) -> Output:
    # This package loads the HTTP client, which --help and completion do without.
    from speaker_registry.syncing.synchronization import Synchronization  # noqa: PLC0415

    interval = interval_of(arguments)
    path = Path(arguments.folder)
    synchronization = Synchronization(
        client, path, profile=arguments.profile, form=arguments.format, on_pause=arguments.on_pause
    )
    return carry_out(synchronization.run, interval, arguments, partial(_output, arguments))


def carry_out(
    run: Callable[[], "Report"],
    interval: float,
    arguments: argparse.Namespace,
    output: Callable[["Report"], Output],
) -> Output:
    """Sync once, or with `--watch` until the process is told to end.

    Args:
        run: Syncs once.
        interval: Seconds between the end of one sync and the next.
        output: Says what a sync has done. The fault of the report is added to it.
    """

    def output_of(report: "Report") -> Output:
        return _with_fault(output(report), report.fault)

    if arguments.watch:

        def show(report: "Report") -> None:
            made = output_of(report)
            print(json.dumps(made.document) if arguments.json else made.text, flush=True)
            for warning in made.warnings:
                warn(warning, as_json=arguments.json)

        _watch(run, interval, show, as_json=arguments.json)
    return output_of(run())


def _with_fault(output: Output, fault: SpeakerRegistryError | None) -> Output:
    if fault is None:
        return output
    warning = f"something was left to the next run, because of this: {fault}"
    return output._replace(status=status_of(fault), warnings=[*output.warnings, warning])


def interval_of(arguments: argparse.Namespace) -> float:
    """Return the seconds between two checks of `--watch`. Raises `CommandError` for `--interval` without
    `--watch`.
    """
    if arguments.interval is not None and not arguments.watch:
        raise CommandError("--interval is how often --watch looks; give both or neither")
    given: float | None = arguments.interval
    return _INTERVAL_SECONDS if given is None else given


def _watch(
    run: Callable[[], "Report"], interval: float, show: Callable[["Report"], object], *, as_json: bool
) -> NoReturn:
    """Sync until the process is told to end, which SIGTERM does with exit code 0."""
    from speaker_registry.syncing.watching import Watch  # noqa: PLC0415  see `sync`

    # The first process of a container ends by SIGTERM only if it handles it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())

    def complain(error: SpeakerRegistryError | OSError) -> None:
        message = f"{message_of(error)}; trying again every {interval:g} s"
        line = error_document(error, message) if as_json else f"{PROGRAM}: {printable(message)}"
        print(line, file=sys.stderr, flush=True)

    Watch(run=run, wait=partial(time.sleep, interval), on_report=show, on_error=complain).forever()


def _output(arguments: argparse.Namespace, report: "Report") -> Output:
    document = {"path": arguments.folder, "format": arguments.format, "profile": arguments.profile}
    there = sum(report.count(state) for state in ("written", "unchanged", "kept"))
    head = (
        f"{there} voices for {printable(arguments.profile)} in {printable(arguments.folder)}: "
        f"{report.count('written')} files written, {report.removed} removed"
    )
    return Output(
        {**document, **document_of(report)},
        head + not_there(report, "an older file"),
        warnings=about_weights(report.outcomes),
    )


def document_of(report: "Report") -> dict[str, object]:
    """Return a report as it is printed with `--json`."""
    return {
        **{state: report.count(state) for state in ("written", "unchanged", "kept", "missing")},
        "removed": report.removed,
        "voices": [
            {
                "name": one.name,
                "version": one.version,
                "state": one.state,
                "reason": one.reason,
                **({"untrained": True} if one.untrained else {}),
            }
            for one in report.outcomes
        ],
    }


def not_there(report: "Report", older: str) -> str:
    """Return a table of the voices that are not up to date, or nothing if all are. `older` describes what is
    there in place of the current version.
    """
    rows = [
        (f"{one.name}@{one.version}", older if one.state == "kept" else "nothing", one.reason)
        for one in report.outcomes
        if one.reason
    ]
    return "\n\n" + table(("NOT THERE", "INSTEAD", "REASON"), rows) if rows else ""


def _add_sync(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "folder", metavar="DIR", help="folder to write; it is created, and has to be empty at first"
    )
    command.add_argument("--format", choices=FORMATS, required=True, help="what the server reads")
    command.add_argument("--profile", metavar="P", required=True, help="profile of the server's model")
    add_watch(command, "keep the folder current until the process is ended")


def add_watch(command: argparse.ArgumentParser, purpose: str) -> None:
    """Add the options `--once`, `--watch` and `--interval`. `purpose` is the help for `--watch`."""
    often = command.add_mutually_exclusive_group()
    often.add_argument("--once", action="store_true", help="look once and end, which is the default")
    often.add_argument("--watch", action="store_true", help=purpose)
    command.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        help=f"how often --watch looks for changes (default: {_INTERVAL_SECONDS:g})",
    )


def _interval(text: str) -> float:
    if (given := seconds(text)) < 1:
        raise argparse.ArgumentTypeError(f"{text[:80]!a}; accepted: at least 1 second")
    return given


COMMANDS = (
    Command("sync", sync, "Write the voices of a profile to a folder for a TTS server.", [_add_sync]),
)
