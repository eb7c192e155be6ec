"""`python -m services.extractor_worker`: a worker process; with `download …`, the weights for one; with
`healthy`, whether one beats.
"""

import logging
import os
import sys
from pathlib import Path

from services.extractor_worker import beat_file, download

USAGE = 2


def main(words: list[str]) -> int:
    """Returns the exit status."""
    if words[:1] == ["download"]:
        return download.main(words[1:], f"{_program()} download")
    if words == ["healthy"]:
        return beat_file.main()
    if words:
        print(f"usage: {_program()} [healthy | download --help]", file=sys.stderr)
        return USAGE
    # Before the following, in which a health check would find the beat of the process before us.
    beat_file.forget()
    # It brings torch, which takes seconds and is not needed for the above.
    from services.extractor_worker.worker import work  # noqa: PLC0415

    return work()


def _program() -> str:
    called = Path(sys.argv[0]).name
    return "python -m services.extractor_worker" if called == "__main__.py" else called


def leave(status: int) -> None:
    """End the process without taking the interpreter apart: with torch in it that takes seconds, and nothing
    is left that has to be closed.
    """
    logging.shutdown()
    sys.stdout.flush()
    os._exit(status)


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except SystemExit as ending:  # of the worker, when it had to leave jobs unfinished; or of a usage message
        status = int(ending.code or 0)
    leave(status)
