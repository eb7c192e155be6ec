"""Child processes that end together with their parent, but do not receive a Ctrl-C from its terminal."""

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
    """Start a child process in its own session. On Linux the child is killed when this process ends.

    Linux sends the parent-death signal when the *thread* that forked ends. Therefore a separate thread forks
    and waits for the child, so that this thread ends when the child ends, or together with the whole process.

    Args:
        options: Further arguments for `subprocess.Popen`.

    Raises:
        OSError: The command cannot be run.
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
    except BaseException:  # a Ctrl-C here would leave the caller without a reference to the child
        ready.wait()
        if isinstance(started[0], subprocess.Popen):
            started[0].kill()
        raise
    if isinstance(started[0], BaseException):
        raise started[0]
    return started[0]


def _die_with_parent() -> Callable[[], None] | None:
    """Return the function that runs between fork and exec and requests SIGKILL when the parent ends."""
    if sys.platform != "linux":
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def tie() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before the line above
            os._exit(1)

    return tie
