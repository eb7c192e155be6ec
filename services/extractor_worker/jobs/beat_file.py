"""A file that says when a worker last beat, for whoever restarts workers that do not: `healthy` reads it.

It is written whether Redis answers or not: a worker started anew would have to wait for it as well, and load
its models again first. Knows neither Redis nor jobs.
"""

import sys
import time
from pathlib import Path

import structlog
from pydantic import ValidationError

from services.shared.configuration.explanation import explain
from services.shared.configuration.settings import WorkerSettings

log = structlog.get_logger(__name__)

HEALTHY, NOT_HEALTHY = 0, 1


def write_beat(file: Path | None) -> None:
    """Say that we live now. None: nobody asks. A file that cannot be written stops no worker."""
    if file is None:
        return
    # The clock that nobody can set; it is the same for all processes of a machine.
    written = file.with_name(f"{file.name}.new")
    try:
        written.write_text(f"{time.monotonic()}\n")
        written.replace(file)  # whoever reads sees the old beat or the new one
    except OSError as error:
        log.warning("beat_file.failed", error=str(error))


def forget() -> None:
    """A new process has not beaten yet, whatever the one before it left: taken for started, it would be given
    no time to load its models.
    """
    try:
        file = WorkerSettings().beat_file
        if file is not None:
            file.unlink(missing_ok=True)
    except ValidationError:
        return  # who reads them next says what is wrong
    except OSError as error:
        log.warning("beat_file.failed", error=str(error))


def complaint(file: Path | None, max_seconds: float) -> str | None:
    """What is wrong with the worker that writes to it, or None."""
    if file is None:
        return "SPEAKER_WORKER_BEAT_FILE is not set: the worker writes no beats"
    try:
        age = time.monotonic() - float(file.read_text())
    except FileNotFoundError:
        return f"{file} is not there: the worker has not begun, or has ended"
    except (OSError, ValueError) as error:
        return f"{file} cannot be read: {error}"
    if not 0 <= age <= max_seconds:
        return f"the last beat in {file} is {age:.0f} s old, and {max_seconds} s is the most"
    return None


def main() -> int:
    """`healthy`: returns the exit status, and says on stderr what is wrong."""
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        print(explain(error), file=sys.stderr)
        return NOT_HEALTHY
    # As long as that its jobs stay its own: after that others have them.
    fault = complaint(settings.beat_file, settings.lease_seconds)
    if fault:
        print(fault, file=sys.stderr)
    return NOT_HEALTHY if fault else HEALTHY
