"""Bounded reading of files below one folder. Links are never followed, and nothing outside the folder is
read.
"""

import errno
import os
import stat
from pathlib import Path, PurePosixPath

from speaker_registry.errors import InvalidRequest, PayloadTooLarge

MAX_TEXT_BYTES = 64 * 1024
"""Maximum size of a text file. The registry accepts texts of up to 8,000 characters."""


def read_inside(folder: Path, name: str, max_bytes: int, *, head_only: bool = False) -> bytes:
    """Read a regular file below a folder.

    Args:
        name: Path of the file, relative to the folder.
        head_only: Read the first `max_bytes` of a file that may be longer.

    Raises:
        InvalidRequest: The name leads out of the folder or through a link, the file is no regular file, or it
            cannot be read.
        PayloadTooLarge: The file has more than `max_bytes` bytes.
    """
    _check_path(folder, name)
    try:
        # O_NONBLOCK: opening a named pipe would otherwise wait for a writer.
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _unreadable(name, error) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # `fdopen` would refuse a folder, without its name
            raise InvalidRequest(f"{name!a} is not a regular file; accepted: regular files")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes if head_only else max_bytes + 1)
    except OSError as error:
        raise _unreadable(name, error) from None
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise PayloadTooLarge(f"{name!a} has more than {max_bytes} bytes, which is the maximum")
    return data


def read_text_inside(folder: Path, name: str) -> str:
    """Read a UTF-8 text of at most 64 KiB, without blanks around it. Raises as `read_inside`."""
    try:
        return read_inside(folder, name, MAX_TEXT_BYTES).decode("utf-8-sig").strip()
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name!a} is not UTF-8 text") from None


def _check_path(folder: Path, name: str) -> None:
    path = PurePosixPath(name)
    if not _is_possible_file_name(name):
        raise InvalidRequest(
            f"{name[:80]!a} cannot be the name of a file; accepted: Unicode text without U+0000"
        )
    if not name:
        raise InvalidRequest(
            f"the path of the file is empty; accepted: the path of a file in {str(folder)!a}"
        )
    if path.is_absolute() or ".." in path.parts:
        raise InvalidRequest(
            f"the path {name!a} leads out of {str(folder)!a}; accepted: relative paths without '..'"
        )
    inside = [folder / part for part in [*path.parents, path] if str(part) != "."]
    try:
        leads_through_link = any(part.is_symlink() for part in inside)
    except OSError as error:
        raise _unreadable(name, error) from None
    if leads_through_link:
        raise InvalidRequest(f"{name!a} is a symbolic link or leads through one; accepted: regular files")


def _is_possible_file_name(name: str) -> bool:
    try:
        return b"\0" not in os.fsencode(name)
    except UnicodeEncodeError:
        return False


def _unreadable(name: str, error: OSError) -> InvalidRequest:
    if error.errno == errno.ELOOP:
        return InvalidRequest(f"{name!a} is a symbolic link; accepted: regular files")
    return InvalidRequest(f"{name!a} cannot be read: {error.strerror}")
