"""Writes files so that each is either replaced completely or left as it was. It knows no file format."""

import contextlib
import errno
import fcntl
import io
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f]{8}\.part")
_MAX_NAME = 200
_ABANDONED_SECONDS = 60.0
"""A temporary file is younger than this while its lock has yet to be taken."""
_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
"""The errors by which file systems say that they make no hard link, or no further one."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace the content of a file in one step. Devices and pipes are written to directly. An OSError names
    `path`.
    """
    with naming(str(path)):
        if path.exists() and not path.is_file():
            path.write_bytes(data)  # /dev/null, a pipe: renaming onto it would replace the device
            return
        with replacing(path) as file:
            file.write(data)


@contextlib.contextmanager
def replacing(path: Path, *, mode: int = 0o666, only_new: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`. It is flushed to disk and replaces `path` when the block ends.

    Args:
        mode: The permissions that the file has from the beginning, less those that the umask takes away.
        only_new: Refuse to replace a file, also one that appears while the block runs.

    If the block raises, the temporary file is removed. If the process is killed, it stays: see
    `temporary_for` and `remove_abandoned`.

    Raises:
        FileExistsError: There is such a file, although `only_new` is set.
        OSError: The file cannot be written, or `path` is a folder, a device or a pipe. The error names
            `path`.
    """
    check_replaceable(path, only_new=only_new)  # before the block does its work, which may take hours
    temporary = path.with_name(f".{path.name[:_MAX_NAME]}.{secrets.token_hex(4)}.part")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with io.BufferedWriter(_Written(descriptor, str(path))) as file:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)  # ends with the process
            yield file
            file.flush()
            with naming(str(path)):
                os.fsync(file.fileno())
        _put_in_place(temporary, path, only_new=only_new)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path)  # the name of the temporary file means nothing to users
        raise


def check_replaceable(path: Path, *, only_new: bool = False) -> None:
    """Raise what `replacing` raises for what there is at `path`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "only a regular file can be replaced", str(path))
    if only_new and os.path.lexists(path):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))


def _put_in_place(temporary: Path, path: Path, *, only_new: bool) -> None:
    if not only_new:
        temporary.replace(path)
        return
    try:
        with naming(str(path)):
            os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _rename_to_new(temporary, path)
    else:
        with contextlib.suppress(OSError):  # the file is in place, and `remove_abandoned` removes the other
            temporary.unlink()


def _rename_to_new(temporary: Path, path: Path) -> None:
    """Rename a file without replacing another. An empty file takes the name first, because renaming alone
    replaces what appears meanwhile. If the process is killed in between, the empty file stays.
    """
    path.touch(exist_ok=False)
    try:
        temporary.replace(path)
    except BaseException:
        path.unlink()
        raise


class _Written(io.FileIO):
    """A new file. The error for a failed write, for example to a full disk, names the file `shown`."""

    def __init__(self, descriptor: int, shown: str) -> None:
        super().__init__(descriptor, "wb")
        self._shown = shown

    def write(self, data: Any, /) -> int:
        with naming(self._shown):
            return super().write(data)


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Name a file in the error for an operation on it."""
    try:
        yield
    except OSError as error:  # a closed pipe stays a BrokenPipeError, by its number
        raise OSError(error.errno, error.strerror, name) from error


def temporary_for(name: str) -> str | None:
    """Return the name of the file that a temporary file of `replacing` belongs to, or None if `name` is not
    the name of such a temporary file.
    """
    match = _TEMPORARY.fullmatch(name)
    return match[1] if match else None


def remove_abandoned(path: Path) -> None:
    """Remove the temporary files for `path` that killed processes left. One that is being written stays."""
    remove_abandoned_in(path.parent, lambda name: name == path.name[:_MAX_NAME])


def remove_abandoned_in(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Remove the temporary files for all files of a folder whose names `is_ours` accepts, as
    `remove_abandoned` does. Names of more than 200 characters are cut to that length.
    """
    with contextlib.suppress(OSError):  # writing a file reports what is wrong with the folder
        for other in folder.iterdir():
            name = temporary_for(other.name)
            if name is not None and is_ours(name) and _is_abandoned(other):
                other.unlink()


def _is_abandoned(temporary: Path) -> bool:
    found = temporary.lstat()
    if not stat.S_ISREG(found.st_mode) or time.time() - found.st_mtime < _ABANDONED_SECONDS:
        return False
    with temporary.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
