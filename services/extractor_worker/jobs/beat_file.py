"""A file with the time of a worker's last heartbeat, which the health check `healthy` reads.

It is written even while Redis does not answer, because a restarted worker would have to wait for Redis as
well, and load its models first. This module knows neither Redis nor jobs.
"""

import sys
import time
from pathlib import Path

import structlog
from pydantic import ValidationError

from services.shared.configuration.explanation import explain
from services.shared.configuration.worker import WorkerSettings

log = structlog.get_logger(__name__)

HEALTHY, NOT_HEALTHY = 0, 1


def write_beat(file: Path | None) -> None:
    """Write the time of a heartbeat. None means that no file is configured. Errors are only logged."""
    if file is None:
        return
    # The monotonic clock cannot be set, and all processes of a machine share it.
    unfinished = file.with_name(f"{file.name}.new")
    try:
        unfinished.write_text(f"{time.monotonic()}\n")
        unfinished.replace(file)  # readers see the old time or the new one
    except OSError as error:
        log.warning("beat_file.failed", error=str(error))


def remove_stale() -> None:
    """Remove the file that an earlier process left behind. Health checks would take that process's heartbeat
    for one of the new process, which would then get no time to load its models.
    """
    try:
        file = WorkerSettings().beat_file
        if file is not None:
            file.unlink(missing_ok=True)
    except ValidationError:
        return  # the process reports it when it reads the settings itself
    except OSError as error:
        log.warning("beat_file.failed", error=str(error))


def problem_with(file: Path | None, max_seconds: float) -> str | None:
    """Return what is wrong with the worker that writes the file, or None if nothing is."""
    if file is None:
        return "SPEAKER_WORKER_BEAT_FILE is not set, so the worker does not write its heartbeats to a file"
    try:
        age = time.monotonic() - float(file.read_text())
    except FileNotFoundError:
        return f"{file} does not exist: the worker has not started yet, or has ended"
    except (OSError, ValueError) as error:
        return f"{file} cannot be read: {error}"
    if not 0 <= age <= max_seconds:
        return f"the last heartbeat in {file} is {age:.0f} s old; at most {max_seconds} s are allowed"
    return None


def main() -> int:
    """Run the command `healthy`: say on stderr what is wrong, and return the exit status."""
    try:
        settings = WorkerSettings()
    except ValidationError as error:
        print(explain(error), file=sys.stderr)
        return NOT_HEALTHY
    # A worker that sends no heartbeat for this time loses its jobs to other workers.
    problem = problem_with(settings.beat_file, settings.lease_seconds)
    if problem:
        print(problem, file=sys.stderr)
    return NOT_HEALTHY if problem else HEALTHY
