"""Uses a local folder as a store. Acknowledged objects survive a power cut, and deleted objects stay deleted.

Objects appear whole or not at all, under a name whose folders are durable too. Files that other programs put
into the folder are listed as well, under any name. This module knows no settings.
"""

import errno
import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

from services.shared.bucket.store import Skips, TooLarge

TEMPORARY = ".tmp"
"""The folder for temporary files. It lies beside the objects, so that a rename out of it stays on one file
system.
"""

READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)
"""The errors of writes to a disk or a folder that can only be read."""

_Accepts = Callable[[Path], bool]
"""A function that examines the file that a move would replace, and returns whether to move."""


def etag_of(data: bytes) -> str:
    """Return the ETag of a file's content, which is a digest of it, because folders store no ETags."""
    return hashlib.sha256(data).hexdigest()


class DurableFolder:
    """A store's objects in a local folder. Files are readable by their owner only."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._temporary = root / TEMPORARY
        _make(self._temporary)

    def put(self, key: str, data: bytes) -> None:
        self._put(key, data, accepts=lambda _: True)

    def swap(self, key: str, data: bytes, etag: str | None) -> bool:
        """Put an object if the file under this key has this ETag. None means that there must be no such file.

        Returns whether it was put. Of several calls with one ETag, in any processes, one puts its object.
        """
        return self._put(key, data, accepts=lambda _: self._present_etag(key) == etag)

    def _present_etag(self, key: str) -> str | None:
        with suppress(FileNotFoundError):
            return self.etag(key)
        return None

    def etag(self, key: str) -> str:
        """Return the ETag of a file, which may be larger than the memory. Raises the errors of `read`."""
        try:
            with (self._root / key).open("rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()
        except (IsADirectoryError, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, "no such object") from None

    def _put(self, key: str, data: bytes, *, accepts: _Accepts) -> bool:
        temporary, target = self._temporary / uuid4().hex, self._root / key
        try:
            _write(temporary, data)
            moved = self._move(temporary, target, accepts)
        finally:
            temporary.unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # both the file and its folder were deleted meanwhile
            sync_folder(target.parent)
        return moved

    def _move(self, temporary: Path, target: Path, accepts: _Accepts) -> bool:
        """Move a file into its folder. A missing folder is made first, durably, with all folders above it.

        Returns whether the file was moved: nothing is moved if `accepts` returns False. It is called under
        the lock.
        """
        with self._locked():
            if not accepts(target):
                return False
            os.utime(temporary)  # the time of the move dates a file, and so the order of two files
            missing = _missing(target.parent)
            try:
                for folder in missing:
                    folder.mkdir(mode=0o700)
                temporary.replace(target)
                return True
            finally:
                # All folders are synced at the end: the file system then writes its journal only once.
                for folder in missing:
                    if folder.parent.is_dir():
                        sync_folder(folder.parent)

    def read(self, key: str, most: int = sys.maxsize) -> bytes:
        """Return the whole object.

        Raises:
            TooLarge: it has more bytes than `most`.
            FileNotFoundError: there is no such file, or a folder has that name.
            OSError: the file cannot be read as a whole.
        """
        try:
            descriptor = os.open(f"{self._root}/{key}", os.O_RDONLY)  # twice as fast as `open`
            try:
                size = os.fstat(descriptor).st_size
                if size > most:
                    raise TooLarge(size, self.etag(key))
                data = os.read(descriptor, size + 1)
            finally:
                os.close(descriptor)
        except (IsADirectoryError, NotADirectoryError):
            raise FileNotFoundError(errno.ENOENT, "no such object") from None
        if len(data) != size:  # for example, a backup is being restored over it
            raise OSError(errno.EIO, f"{len(data)} of {size} bytes came")
        return data

    def files(self, prefix: str, skips: Skips) -> Iterator[tuple[str, os.stat_result]]:
        """Iterate over the files under a prefix, in no order. Each item is a key and the file's status.

        Links to folders are followed. Only a link that leads to a folder above it counts as a file.

        Args:
            skips: says whether a key is left out. The key of a folder ends with `/`.
        """
        return _walk(str(self._root / prefix), prefix, skips)

    def folders(self, prefix: str) -> Iterator[str]:
        """Iterate over the names of the folders under a prefix, in no order. They are read from the disk as
        the iterator advances. Links are followed as in `files`.
        """
        return (entry.name for entry in _entries(self._root / prefix) if _is_folder(entry))

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, and the folders that become empty, because their names may contain names of
        people.
        """
        parents = set()
        for key in keys:
            target = self._root / key
            with suppress(FileNotFoundError, NotADirectoryError):
                target.unlink()
            parents.add(target.parent)
        for parent in parents:
            self._sync_without_empty(parent)

    def sweep(self, older_than: timedelta) -> int:
        """Remove the files that interrupted writes left behind, and return their number.

        `older_than` must be longer than any write takes.
        """
        removed, oldest = 0, (self.now() - older_than).timestamp()
        for file in self._temporary.iterdir():
            with suppress(FileNotFoundError):  # its write ended just now
                if file.stat().st_mtime < oldest:
                    file.unlink()
                    removed += 1
        for folder, subfolders, files in os.walk(self._root, topdown=False):
            if not subfolders and not files and Path(folder) != self._temporary:
                self._sync_without_empty(Path(folder))
        return removed

    def now(self) -> datetime:
        """Return the time of the clock that dates the files of this folder. With a wrong local clock, files
        would otherwise look old.

        On a read-only disk this is the local time, because nothing can be deleted there anyway.
        """
        try:
            os.utime(self._root)
        except OSError as error:
            if error.errno not in READ_ONLY:
                raise
            return datetime.now(UTC)
        return datetime.fromtimestamp(self._root.stat().st_mtime, UTC)

    def check(self) -> None:
        """Raise OSError if the folder is missing, for example because a volume was unmounted and only its
        mount point is left.

        A folder on a read-only disk passes this check, because its objects can be read.
        """
        if not self.is_there():
            raise OSError(errno.EACCES, "the folder is missing or not readable")

    def is_there(self) -> bool:
        return os.access(self._temporary, os.R_OK | os.X_OK)

    def _sync_without_empty(self, folder: Path) -> None:
        while True:
            folder = self._without_empty(folder)
            with suppress(FileNotFoundError):  # another delete has just removed the same folder
                sync_folder(folder)
                return

    def _without_empty(self, folder: Path) -> Path:
        """Remove a folder and the folders above it while they are empty. Returns the first folder that
        stays.
        """
        with self._locked():
            while folder != self._root:
                try:
                    folder.rmdir()
                except (FileNotFoundError, NotADirectoryError):
                    pass
                except OSError:
                    break
                folder = folder.parent
        return folder

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the lock under which folders are created and removed, across threads and processes.

        Folders are made durable under this lock too. So a folder that exists is durable, and a writer need
        not sync every folder above it.
        """
        root = os.open(self._root, os.O_RDONLY)
        try:
            fcntl.flock(root, fcntl.LOCK_EX)
            yield
        finally:
            fcntl.flock(root, fcntl.LOCK_UN)  # closing does not unlock it while a forked process holds a copy
            os.close(root)


def _write(file: Path, data: bytes) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _entries(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    # A missing folder was deleted a moment ago.
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from entries


def _walk(folder: str, prefix: str, skips: Skips) -> Iterator[tuple[str, os.stat_result]]:
    waiting = [(folder, prefix)]  # one generator for each folder would take a tenth longer
    while waiting:
        folder, prefix = waiting.pop()
        for entry in _entries(folder):
            key = f"{prefix}{entry.name}"
            if _is_folder(entry):
                if not skips(f"{key}/"):
                    waiting.append((entry.path, f"{key}/"))
            elif not skips(key):
                with suppress(FileNotFoundError):
                    yield key, entry.stat(follow_symlinks=False)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (entry.is_dir() and not _leads_to_ancestor(entry))


def _leads_to_ancestor(link: os.DirEntry[str]) -> bool:
    """Return whether a link leads to a folder above it. Following such a link would never end."""
    with suppress(FileNotFoundError):
        return any(folder.samefile(link) for folder in Path(link.path).parents)
    return True  # the link, or its target, has just been deleted


def _make(folder: Path) -> None:
    """Make a folder and those above it, durably."""
    for missing in _missing(folder):
        missing.mkdir(mode=0o700, exist_ok=True)
        sync_folder(missing.parent)


def _missing(folder: Path) -> list[Path]:
    """Return the folders that are missing, of a folder and its parents, outermost first."""
    return [] if folder.is_dir() else [*_missing(folder.parent), folder]


def sync_folder(folder: Path) -> None:
    """Sync the folder's entries to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
