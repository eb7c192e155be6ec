"""A lock that lets only one registry use a bucket in a folder. A folder itself is locked, so no lock file is
needed, and the lock also works if the disk is full or read-only.
"""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from services.shared.bucket.durable_folder import TEMPORARY


class FolderInUseError(Exception):
    """Another process has locked the folder."""


@contextmanager
def exclusive_lock(bucket: Path, *, wait_seconds: float) -> Iterator[None]:
    """Lock the folder of a bucket, under whichever path, for this process. The system releases the lock when
    the process ends in any way.

    Raises:
        FolderInUseError: Another process still holds the lock after `wait_seconds`.
        OSError: The folder cannot be opened.
    """
    folder = bucket / TEMPORARY  # every process locks the bucket's own folder while it creates folders in it
    folder.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not lock_within(descriptor, wait_seconds):
            raise FolderInUseError(f"another process is using {bucket}")
        yield
    finally:
        os.close(descriptor)


def lock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file or folder until it is closed. Returns False if that was not possible in time."""
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
