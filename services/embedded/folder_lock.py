"""One process at a time on a folder. The lock is the folder's own, so none has to be written: it also holds
where the disk is full or read-only.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class FolderInUseError(Exception):
    """Another process has locked the folder."""


@contextmanager
def exclusive_lock(folder: Path, *, wait_seconds: float) -> Iterator[None]:
    """Hold the folder for this process. The system gives it free when the process ends, however it ends.

    Raises:
        FolderInUseError: another process still has it after `wait_seconds`. OSError.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not lock_within(descriptor, wait_seconds):
            raise FolderInUseError(f"another process uses {folder}")
        yield
    finally:
        os.close(descriptor)


def lock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file or folder for as long as it is open. Returns whether that was possible in time."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True
