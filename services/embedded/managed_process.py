"""A supervised process: it is started and stopped, its output is read, and it is restarted when it ends by
itself.
"""

import logging
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

import structlog

from services.embedded.log_lines import is_access_log, level, parse, readable, reason, worth_showing
from services.embedded.spawn import spawn

log = structlog.get_logger()

ROOT = Path(__file__).parents[2]
STABLE_SECONDS = 30.0
"""A process that ran this long is restarted at once when it ends. Otherwise it is restarted after growing
pauses.
"""
LONGEST_PAUSE_SECONDS = 30.0
_MAX_LINE_BYTES = 64 * 1024
_KEPT_LINES = 20


def pause_before_restart(last_pause: float, lived: float) -> float:
    """Return the seconds to wait before a restart.

    Args:
        last_pause: Pause before the previous start, in seconds.
        lived: Seconds that the process ran after that start.
    """
    return 0.0 if lived > STABLE_SECONDS else min(max(1.0, 2 * last_pause), LONGEST_PAUSE_SECONDS)


class ManagedProcess:
    """A Python module that runs as a process. Its output is read through a pipe.

    Args:
        show: Called with each line worth showing and its log level. The call comes from another thread.
    """

    def __init__(
        self,
        name: str,
        module: str,
        environment: Mapping[str, str],
        show: Callable[[str, int], object],
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module]
        self._environment = environment
        self._show = show
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._last_error: str | None = None
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._started = self._pause = self._due = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """Exit status of the process. None while it runs, and negative if a signal ended it."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Start the process. Raises OSError if the system cannot start another process."""
        self._started, self._last_error = time.monotonic(), None
        self._last_lines.clear()
        self._process = spawn(
            self._command,
            env=self._environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read_output, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def keep_alive(self) -> None:
        """Restart the process if it has ended and the pause after that is over."""
        if self.exit_status is None:
            return
        now = time.monotonic()
        if not self._due:
            self._pause = pause_before_restart(self._pause, now - self._started)
            self._due = now + self._pause
            log.warning(f"{self.name}.ended", status=self.exit_status, starts_again_in=self._pause)
        if now >= self._due:
            self._due = 0.0
            self.start()

    @property
    def last_line(self) -> str:
        """The latest line of output that is no access log line."""
        return self._last_lines[-1] if self._last_lines else "nothing yet"

    def failure_reason(self) -> str:
        """Explain why the process has ended: its last error, or else the last lines of its output."""
        if self._reader:
            self._reader.join(1)
        return (
            self._last_error or "\n".join(self._last_lines) or f"it wrote nothing (status {self.exit_status})"
        )

    def request_stop(self) -> None:
        """Send SIGTERM, and SIGCONT so that a suspended process receives it."""
        if self._process and self.exit_status is None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)

    def stop(self, deadline: float) -> None:
        """Wait until the process has ended, and kill it at the deadline (on `time.monotonic`)."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning(f"{self.name}.killed")
        self.kill()

    def kill(self) -> None:
        """Kill the process if it still runs. No work is lost: unfinished work is found again after a
        restart.
        """
        if self._process and self._reader:
            self._process.kill()
            self._process.wait()
            self._reader.join(1)

    def _read_output(self, stream: IO[bytes]) -> None:
        """Read the output until the process closes it. A full pipe would block the process."""
        while line := stream.readline(_MAX_LINE_BYTES):
            self._handle_line(line.decode(errors="replace").rstrip())
        stream.close()

    def _handle_line(self, line: str) -> None:
        event = parse(line)
        if event is None:
            self._emit(line, logging.WARNING)
        elif worth_showing(event):
            # During a long start the API is polled all the time, and those lines would hide all others.
            self._emit(readable(self.name, event), level(event), keep=not is_access_log(event))
            if level(event) >= logging.ERROR:
                self._last_error = reason(event)

    def _emit(self, line: str, importance: int, *, keep: bool = True) -> None:
        if keep:
            self._last_lines.append(line)
        self._show(line, importance)
