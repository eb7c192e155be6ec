"""Writes files so that each is either replaced completely or left as it was. It knows no file format."""

import contextlib
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file in one step. Devices and pipes are written to directly. An OSError names
    `path`.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # /dev/null, a pipe: renaming onto it would replace the device
            return
        with replacing(path) as file:
            file.write(data)
    except OSError as error:  # the error may be about the temporary file, whose name means nothing to users
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`. It is flushed to disk and replaces `path` when the block ends.

    The file has the permissions `mode` from the beginning, less those that the umask takes away.

    If the block raises, the temporary file is removed. If the process is killed, it stays: see
    `temporary_for`.
    """
    temporary = path.with_name(f".{path.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def temporary_for(name: str) -> str | None:
    """Return the name of the file that a temporary file of `replacing` belongs to, or None if `name` is not
    the name of such a temporary file.
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None
