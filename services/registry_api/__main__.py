"""`python -m services.registry_api`: serve the API, or carry out the command that the arguments name.

Each command is imported only when it runs, so that a scheduled `sweep` or a `new-key` does not load the web
server.
"""

import argparse
import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from services.registry_api.commands.exit_statuses import DONE, INTERRUPTED, NOT_NOW, WRONG_SETTINGS
from services.shared.model.ending import end_on_signals


def main(arguments: Sequence[str]) -> int:
    """Return the exit status of the command. Wrong arguments give 2, `--help` gives 0, and Ctrl-C gives 130,
    also while a command is still being imported. Ctrl-C and SIGTERM end the server with 0.
    """
    try:
        given = _parser().parse_args(arguments)
    except SystemExit as end:  # after --help, and for wrong arguments
        return int(end.code or 0)
    try:
        return _run(given)
    except KeyboardInterrupt:
        return INTERRUPTED


def _run(given: argparse.Namespace) -> int:
    match given.command:
        case "new-key":
            from services.registry_api.commands import new_key  # noqa: PLC0415 - see the module's docstring

            return new_key.run(given.out)
        case "sweep":
            from services.registry_api.commands import sweep  # noqa: PLC0415 - see the module's docstring

            return sweep.run()
        case "adopt-bucket":
            from services.registry_api.commands import adopt_bucket  # noqa: PLC0415 - as above

            return adopt_bucket.run()
        case "try-store":
            from services.registry_api.commands import try_store  # noqa: PLC0415 - as above

            return try_store.run()
        case _:
            # Until the server runs there is nothing to finish, and the start may wait minutes for the bucket.
            end_on_signals()
            gc.set_threshold(0)  # imports leave no garbage; `serve` sets thresholds before it serves
            from services.registry_api.commands import serve  # noqa: PLC0415 - as above

            return serve.run()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m services.registry_api",
        description="Serve the registry's API. docs/settings.md lists the environment variables.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    explanation = "Make an API key with all rights, which can make other keys."
    new_key = commands.add_parser("new-key", help=explanation, description=explanation, allow_abbrev=False)
    new_key.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="write it to a new file that only its owner can read; without it, the key is printed",
    )
    commands.add_parser(
        "sweep",
        help="Request a sweep of all voices now.",
        description="Request a sweep from the running API processes: one of them repairs every voice and "
        "deletes what can no longer be reached. The command returns without waiting for the sweep.",
        epilog="It reads SPEAKER_REDIS_URL, and SPEAKER_REDIS_PASSWORD if that is set. While Redis does not "
        f"answer, it tries again for 300 s. Exit status: {DONE} requested, {WRONG_SETTINGS} wrong settings, "
        f"{NOT_NOW} Redis did not answer in time.",
        allow_abbrev=False,
    )
    commands.add_parser(
        "adopt-bucket",
        help="Make a copy of a bucket a registry of its own.",
        description="Make a copy of a bucket a registry of its own. Run it once, before the first API "
        "process or worker starts on the copy. Stop processes that run on the bucket first, because they "
        "keep its former identity until they are restarted.",
        epilog="It reads the settings SPEAKER_STORE_*, as those processes do. Exit status: "
        f"{DONE} adopted, {WRONG_SETTINGS} wrong settings or no access to the bucket.",
        allow_abbrev=False,
    )
    commands.add_parser(
        "try-store",
        help="Test whether a bucket or folder has everything that the registry needs.",
        description="Test whether a bucket or folder has everything that the registry needs, and print what "
        "was found. The command deletes everything that it stores, except the object `.sentinel`.",
        epilog="It reads the settings SPEAKER_STORE_*, as the API does. Exit status: "
        f"{DONE} the store is fit, {WRONG_SETTINGS} the store is unfit, or the settings are wrong, "
        f"{NOT_NOW} the store did not answer.",
        allow_abbrev=False,
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
