"""Runs `python -m services.extractor_worker`.

Without a command it is a worker process. `download` fetches the weights that a worker needs, `healthy` tells
whether the worker on this machine sends heartbeats, and `convert-voice` converts a published voice embedding.
"""

import argparse
import sys
from pathlib import Path

from services.extractor_worker.jobs import beat_file
from services.extractor_worker.weights import download
from services.shared.model.ending import end_on_signals, end_process


def main(words: list[str]) -> int:
    """Run the command that the words name, or else a worker. Returns the exit status."""
    if words[:1] == ["download"]:
        return download.main(words[1:], f"{_program()} download")
    if words == ["healthy"]:
        return beat_file.main()
    if words[:1] == ["convert-voice"]:
        # The module brings numpy, which the other commands do not need.
        from services.extractor_worker.engines import voice_embedding  # noqa: PLC0415

        return voice_embedding.main(words[1:], f"{_program()} convert-voice")
    if words:
        try:
            _parser().parse_args(words)
        except SystemExit as end:  # after --help, and for wrong arguments
            return int(end.code or 0)
    # Until the worker can take jobs there is nothing to finish, and loading may take minutes.
    end_on_signals()
    # This comes before the slow import, during which health checks would find an earlier process's heartbeat.
    beat_file.remove_stale()
    # The module brings torch, which takes seconds to import and which no command needs.
    from services.extractor_worker.worker import work  # noqa: PLC0415

    return work()


def _parser() -> argparse.ArgumentParser:
    """Build the parser that prints the help and refuses unknown arguments.

    The commands are recognised without it, because health checks are frequent and its imports are slow.
    """
    # These modules bring Redis and RQ.
    from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED  # noqa: PLC0415
    from services.extractor_worker.process import EXIT_NOTHING_TO_SERVE  # noqa: PLC0415

    parser = argparse.ArgumentParser(
        prog=_program(),
        description="Without a command: take extraction jobs from the queue until told to stop. Environment "
        "variables configure it (SPEAKER_WORKER_*, SPEAKER_EXTRACTOR_*, SPEAKER_STORE_*, SPEAKER_REDIS_URL "
        "and others): docs/settings.md lists them.",
        epilog="exit codes:\n"
        "    0  told to stop, and stopped\n"
        f"    {EXIT_NOTHING_TO_SERVE}  settings or models are wrong; healthy: the worker sends no "
        "heartbeats; convert-voice: the file is refused\n"
        "    2  wrong usage\n"
        f"   {EXIT_UNFINISHED}  ended with jobs unfinished, which other workers take over: start it again",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    healthy = (
        "Report by the exit code whether the worker on this machine is alive (SPEAKER_WORKER_BEAT_FILE)."
    )
    commands.add_parser("healthy", help=healthy, description=healthy)
    commands.add_parser("download", help="Fetch the weights of profiles beforehand, see download --help.")
    commands.add_parser(
        "convert-voice", help="Convert a published voice embedding (.pt), see convert-voice --help."
    )
    return parser


def _program() -> str:
    called = Path(sys.argv[0]).name
    return "python -m services.extractor_worker" if called == "__main__.py" else called


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except SystemExit as ending:  # raised by a worker that leaves jobs unfinished, and after usage messages
        status = int(ending.code or 0)
    # With torch loaded, an ordinary end takes seconds, and nothing is left that has to be closed.
    end_process(status)
