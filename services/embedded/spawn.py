"""Child processes that live no longer than we do, and not shorter because somebody pressed Ctrl-C in our
terminal.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1


def spawn(command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a child in a session of its own, tied to this process's life where the system can (Linux).

    Linux sends the parent-death signal when the *thread* that forked ends. So a thread of its own forks, and
    waits for
    the child: it ends when the child does, or with the whole process.

    Args:
        options: further ones of `subprocess.Popen`.

    Raises:
        OSError: the command cannot be run.
    """
    started: list[subprocess.Popen[bytes] | BaseException] = []
    ready = threading.Event()

    def run() -> None:
        try:
            process = subprocess.Popen(
                command,
                start_new_session=True,
                preexec_fn=_die_with_parent(),  # noqa: PLW1509  nothing in it allocates or locks
                **options,
            )
        except BaseException as error:  # noqa: BLE001  raised in the caller's thread
            started.append(error)
        else:
            started.append(process)
        ready.set()
        if isinstance(started[0], subprocess.Popen):
            started[0].wait()

    threading.Thread(target=run, name="child", daemon=True).start()
    try:
        ready.wait()
    except BaseException:  # Ctrl-C, just now: our caller would never know of the child
        ready.wait()
        if isinstance(started[0], subprocess.Popen):
            started[0].kill()
        raise
    if isinstance(started[0], BaseException):
        raise started[0]
    return started[0]


def _die_with_parent() -> Callable[[], None] | None:
    """For between fork and exec: SIGKILL when we are gone."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)

    return tie
