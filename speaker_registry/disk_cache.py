"""The cache of artifacts in a directory, which several processes may share. It makes no requests.

    refs/{voice}.{target}       which digest the registry confirmed for a request, and when (JSON). It says
                                its own name, so that a file under the name of another request is found
    refs/.gone                  there while files may be left of a voice that is gone. The next process that
                                opens the directory, or removes another voice, removes them
    blobs/{digest}              the file of an artifact
    lock                        locked during each change; its text is an upper bound on the bytes used

Names in `refs` are hashes of registry, API key, namespace, voice, reference and profile. A blob is read only
through a ref of the same client, so sharing a directory gives no client access to the voices of another.

Files are written under a temporary name and renamed, and never changed afterwards. A process can be killed at
any time: the bytes are counted in `lock` before they are written, so the count is never too low, and a ref is
written before its blob, so that the blob of a voice that is gone is found. Each blob is compared with its
digest when it is read. A file that is damaged or unreadable is removed and fetched again. Symbolic links are
never followed inside the directory.
"""

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import math
import mmap
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from speaker_registry.artifact import Artifact
from speaker_registry.errors import InvalidArtifact

MAPPED_BYTES = 2 * 1024**2
"""Files from this size on are mapped into memory, smaller ones are read. Python keeps a file descriptor open
for each mapping, and thousands of small artifacts would exhaust them.
"""
FILE_OVERHEAD_BYTES = 4096
"""Disk space that a file takes besides its content: its last block and its name."""
_LOCK_TRIES, _LOCK_PAUSE_SECONDS = 40, 0.005
"""A change is skipped if the lock cannot be taken in 0.2 s: a stopped process must not stop the others."""
_CLOCKS_DIFFER_SECONDS = 1.0
"""A time that lies no further in the future is taken for now, because clocks are adjusted all the time."""
_MAX_REF_BYTES = 1024
_KEPT_SHARE = 0.9
"""A full cache is reduced to this share of its limit, so that not every write has to look at all files."""
_MAX_OVERDUE = 1000
"""Maximum number of failed removals that are remembered, at about 100 bytes each."""
_GONE = ".gone"
_BLOB_NAME = re.compile(r"[0-9a-f]{64}")
_REF_NAME = re.compile(r"[0-9a-f]{40}\.[0-9a-f]{40}")
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Ref(NamedTuple):
    """The last answer of the registry to a request."""

    digest: str
    """Digest of the file, as `sha256:…`."""
    size: int
    """Size of the file in bytes."""
    confirmed_at: float
    """Unix time in seconds at which the registry was asked."""
    boot: str
    """Id of the boot of the machine since which `uptime` counts. Empty where the machine tells none."""
    uptime: float
    """Seconds between that boot and the question. Setting the clock of the machine does not change them. The
    uptime stands still while a virtual machine is paused, so ages do not count that time.
    """

    @classmethod
    def asked(cls, digest: str, size: int, seconds_ago: float) -> Self:
        """Return the answer to a question that was asked so many seconds ago."""
        boot = _boot_id()
        uptime = _uptime() - seconds_ago if boot else 0.0
        return cls(digest, size, time.time() - seconds_ago, boot, uptime)

    def age_seconds(self) -> float:
        """Return how long ago the registry was asked. The age is infinite if it is unknown, because the time
        of the question lies in the future: the machine was restarted since, with its clock set back.
        """
        is_same_boot = self.boot != "" and self.boot == _boot_id()
        age = _uptime() - self.uptime if is_same_boot else time.time() - self.confirmed_at
        return math.inf if age < -_CLOCKS_DIFFER_SECONDS else max(age, 0.0)


class DamagedFile(OSError):
    """A file in the cache was not what was written there. It has been removed."""


class DiskCache:
    """A directory of artifacts, bounded by bytes. The least recently used artifacts are removed first.

    Every method raises OSError if the directory cannot be used at the moment, and `DamagedFile` if it removed
    a damaged file. Callers continue without the directory then.

    Args:
        directory: The directory. It is created with mode 0700 if it does not exist.
        max_bytes: Maximum size of all files together. Each file counts with 4,096 bytes besides its content.

    Raises:
        OSError: The directory cannot be created.
        ValueError: The directory is a file, is a symbolic link, or belongs to another user.
    """

    def __init__(self, directory: str | os.PathLike[str], max_bytes: int) -> None:
        self.directory, self.max_bytes = Path(directory), max_bytes
        self._overdue: set[str] = set()
        """Names of voices and refs that `forget` could not remove. The next change removes them first."""
        with contextlib.suppress(FileExistsError):
            self.directory.mkdir(mode=0o700, parents=True)
        found = self.directory.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise ValueError(f"the cache directory {self.directory} is not a directory of this user")
        if os.path.lexists(self.directory / "refs" / _GONE):
            with contextlib.suppress(OSError):  # the next removal tries again
                self._remove_gone(set())

    def ref(self, scope: str, voice: str, target: str) -> Ref | None:
        """Return the registry's last answer to a request, or None if there is none in the directory."""
        name = _ref_name(scope, voice, target)
        with self._folder("refs") as refs:
            ref = _read_ref(refs, name)
            if ref is not None:
                with contextlib.suppress(FileNotFoundError):  # another process may have evicted it
                    os.utime(name, dir_fd=refs, follow_symlinks=False)
            return ref

    def artifact(self, ref: Ref) -> Artifact | None:
        """Read the artifact that a ref names, or None if it was evicted. The tensors are read-only."""
        with self._folder("blobs") as blobs:
            name = _blob_name(ref.digest)
            try:
                data = _read_blob(blobs, name, ref)
                return None if data is None else Artifact.over(data, ref.digest)
            except (DamagedFile, InvalidArtifact, PermissionError) as error:
                _remove(blobs, name)
                raise DamagedFile(f"the cached file {name} was damaged: {error}") from error

    def store(self, scope: str, voice: str, target: str, ref: Ref, data: bytes | None) -> None:
        """Record the registry's answer to a request. Without `data`, nothing is recorded unless the file is
        there. The file of a former answer is removed, because the voice may have been deleted and its name
        registered again. It stays if another ref of the voice names it, such as that of a pinned version.

        A file that is larger than a tenth of the limit is not kept, because it would displace all others.
        """
        if self._overdue:
            self._remove_gone(self._overdue.copy())
        name, blob = _ref_name(scope, voice, target), _blob_name(ref.digest)
        with self._folder("refs") as refs, self._folder("blobs") as blobs, self._lock() as lock:
            before = _read_ref(refs, name)
            if before is not None and before.age_seconds() < ref.age_seconds():
                return  # another process asked later
            if before is not None and before.digest != ref.digest:
                _remove_replaced(refs, blobs, name, before.digest)
            there = _size(blobs, blob) == ref.size
            if (data is None and not there) or ref.size > self.max_bytes // 10:
                return
            new_bytes = (0 if there else ref.size + FILE_OVERHEAD_BYTES) + 2 * FILE_OVERHEAD_BYTES
            self._reserve(lock, refs, blobs, new_bytes)
            is_kept = _size(blobs, blob) == ref.size  # making room may have removed it
            if not is_kept and (data is None or there):
                return
            replaces = _size(refs, name) is not None
            _write(refs, name, json.dumps({**ref._asdict(), "request": name}).encode())
            if data is not None and not is_kept:
                _write(blobs, blob, data)  # if this fails, the ref still leads `forget` to earlier versions
            if replaces:
                _write_used(lock, _read_used(lock) - 2 * FILE_OVERHEAD_BYTES)

    def forget(self, scope: str, voice: str, target: str | None = None) -> None:
        """Remove a voice, or one artifact of it, with its files. Other clients fetch these files again. What
        cannot be removed now is tried again before the next change.
        """
        gone = _voice_name(scope, voice) if target is None else _ref_name(scope, voice, target)
        try:
            self._remove_gone(self._overdue | {gone})
        except OSError:
            if len(self._overdue) < _MAX_OVERDUE:
                self._overdue.add(gone)
            raise

    @contextlib.contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        """Open a folder of the directory, or the directory itself, which is ".". It is created if it is
        missing. A symbolic link is refused.
        """
        path = self.directory / name
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            folder = os.open(path, flags)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700, parents=True)
            folder = os.open(path, flags)
        try:
            yield folder
        finally:
            os.close(folder)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Open and lock the file `lock`. Raises `DamagedFile` if a link or a folder was in its place."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with self._folder(".") as directory:
            _size(directory, "lock")  # removes a link or an empty folder, which could never be locked
            try:
                lock = os.open("lock", flags, 0o600, dir_fd=directory)
            except PermissionError:  # so no process of this user can have locked it
                _remove(directory, "lock")
                lock = os.open("lock", flags, 0o600, dir_fd=directory)
        try:
            _undo_umask(lock)
            _acquire(lock)
            yield lock
        finally:
            try:
                # Closing would not release it if another thread has forked a process meanwhile.
                fcntl.flock(lock, fcntl.LOCK_UN)
            finally:
                os.close(lock)

    def _remove_gone(self, gone: set[str]) -> None:
        """Remove the refs with these names, or of voices with these names, and their blobs."""
        with self._folder("refs") as refs, self._folder("blobs") as blobs:
            names = [name for name in _names(refs) if not gone.isdisjoint((name, name.partition(".")[0]))]
            # The names are removed even if another process holds the lock.
            for name in names:
                if ref := _intact_ref(refs, name):
                    _remove(blobs, _blob_name(ref.digest))
                    _set_aside(refs, name)
                else:
                    _remove(refs, name)
            if _GONE in _names(refs):
                with self._lock() as lock:  # earlier versions, which no ref names any more
                    self._shrink(lock, refs, blobs, self.max_bytes)
        self._overdue.difference_update(gone)

    def _reserve(self, lock: int, refs: int, blobs: int, new_bytes: int) -> None:
        """Count bytes before they are written, and make room for them."""
        if _read_used(lock) + new_bytes > self.max_bytes:
            self._shrink(lock, refs, blobs, int(self.max_bytes * _KEPT_SHARE) - new_bytes)
        _write_used(lock, _read_used(lock) + new_bytes)

    def _shrink(self, lock: int, refs: int, blobs: int, limit: int) -> None:
        """Remove blobs that no ref names, files that killed processes left, and the least recently used
        artifacts. The lock is held, so no other process is between a ref and its blob.
        """
        users = _refs_by_blob(refs, blobs)
        sizes = {name: _size(blobs, name) or 0 for name in users}
        cost = {name: sizes[name] + FILE_OVERHEAD_BYTES * (1 + 2 * len(users[name])) for name in users}
        used = sum(cost.values())
        for name in sorted(users, key=lambda name: max(at for at, _ in users[name])):
            if used <= limit:
                break
            for _, ref in users[name]:
                _remove(refs, ref)
            _remove(blobs, name)
            used -= cost[name]
        _write_used(lock, used)


def _refs_by_blob(refs: int, blobs: int) -> dict[str, list[tuple[float, str]]]:
    """Map each blob to the last use and the name of the refs that lead to it. Everything else is removed."""
    there = set(_names(blobs))
    users: dict[str, list[tuple[float, str]]] = {}
    stray = {_GONE}
    for name in _names(refs):
        ref = _intact_ref(refs, name) if _REF_NAME.fullmatch(name) else None
        blob = _blob_name(ref.digest) if ref else ""
        if blob in there:
            with contextlib.suppress(FileNotFoundError):
                used_at = os.stat(name, dir_fd=refs, follow_symlinks=False).st_mtime
                users.setdefault(blob, []).append((used_at, name))
        else:
            stray.add(name)
    for name in there - users.keys():
        _remove(blobs, name)
    for name in stray:  # after the blobs: if one of them cannot be removed, `_GONE` tells the next process
        _remove(refs, name)
    return users


def _remove_replaced(refs: int, blobs: int, name: str, digest: str) -> None:
    """Remove the blob that a ref names, before the ref is replaced, unless another ref of the same voice
    names it. Refs of other voices and clients are not read, because there may be thousands.
    """
    voice = name.partition(".")[0] + "."
    others = (_intact_ref(refs, one) for one in _names(refs) if one.startswith(voice) and one != name)
    if all(ref is None or ref.digest != digest for ref in others):
        _remove(blobs, _blob_name(digest))


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def _remove(folder: int, name: str) -> None:
    """Remove a file, a link or an empty folder. Anything else is not of this cache, and stays."""
    with contextlib.suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)


def _set_aside(refs: int, name: str) -> None:
    """Remove a ref, and remember in the directory that blobs may be left. A full disk allows renaming."""
    with contextlib.suppress(FileNotFoundError):
        os.rename(name, _GONE, src_dir_fd=refs, dst_dir_fd=refs)


@functools.cache
def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:  # not on macOS
        return ""


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def _voice_name(scope: str, voice: str) -> str:
    return hashlib.sha256(f"{scope}\0{voice}".encode()).hexdigest()[:40]


def _ref_name(scope: str, voice: str, target: str) -> str:
    return f"{_voice_name(scope, voice)}.{hashlib.sha256(target.encode()).hexdigest()[:40]}"


def _blob_name(digest: str) -> str:
    return digest.removeprefix("sha256:")


def _read_ref(refs: int, name: str) -> Ref | None:
    """Read a ref, or None if there is none. A damaged or unreadable one is removed, as is one that was
    written for another request: the digest of the file that it leads to would be right, and the voice wrong.
    """
    if _size(refs, name) is None:
        return None
    try:
        with os.fdopen(os.open(name, _READ, dir_fd=refs), "rb") as file:
            text = file.read(_MAX_REF_BYTES + 1)
    except FileNotFoundError:
        return None
    except PermissionError:
        text = b""
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
        found = json.loads(text)
        at, uptime = float(found["confirmed_at"]), float(found["uptime"])
        ref = Ref(str(found["digest"]), int(found["size"]), at, str(found["boot"]), uptime)
        is_whole = _BLOB_NAME.fullmatch(_blob_name(ref.digest)) and ref.size > 0
        if found["request"] == name and is_whole and math.isfinite(at + uptime):
            return ref
    _set_aside(refs, name)
    raise DamagedFile(f"the cached file {name} was damaged")


def _intact_ref(refs: int, name: str) -> Ref | None:
    try:
        return _read_ref(refs, name)
    except OSError:
        return None


def _read_blob(blobs: int, name: str, ref: Ref) -> bytes | mmap.mmap | None:
    if _size(blobs, name) is None:
        return None
    try:
        descriptor = os.open(name, _READ, dir_fd=blobs)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != ref.size:
            raise DamagedFile(f"it has {found.st_size} bytes, and {ref.size} were written")
        data: bytes | mmap.mmap
        if ref.size >= MAPPED_BYTES:
            data = mmap.mmap(file.fileno(), ref.size, access=mmap.ACCESS_READ)
        else:
            data = file.read(ref.size + 1)
    if "sha256:" + hashlib.sha256(data).hexdigest() != ref.digest:
        raise DamagedFile("its bytes do not match its digest")
    return data


def _write(folder: int, name: str, data: bytes) -> None:
    """Write a file under a temporary name and rename it. A torn file is found when it is read."""
    temporary = f".{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(temporary, _CREATE, 0o600, dir_fd=folder), "wb") as file:
            _undo_umask(file.fileno())
            file.write(data)
        os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _remove(folder, temporary)  # on a full disk, each fetch would otherwise leave one more
        raise


def _undo_umask(file: int) -> None:
    """Let the owner use a file that a umask took from them. Some file systems can set no modes at all."""
    if os.fstat(file).st_mode & 0o600 != 0o600:
        os.fchmod(file, 0o600)


def _size(folder: int, name: str) -> int | None:
    """Return the size of a file, or None if there is none.

    Raises:
        DamagedFile: There was a link or a folder in its place. A link or an empty folder is removed.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    _remove(folder, name)
    raise DamagedFile("it was not a regular file")


def _acquire(lock: int) -> None:
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            time.sleep(_LOCK_PAUSE_SECONDS)
    raise OSError(errno.EAGAIN, "another process holds the lock of the cache directory")


def _read_used(lock: int) -> int:
    """Return the upper bound on the bytes used. A text that cannot be read stands for a full cache."""
    text = os.pread(lock, 32, 0)
    return int(text) if re.fullmatch(rb"\d{20}", text) else 2**62


def _write_used(lock: int, used: int) -> None:
    os.pwrite(lock, b"%020d" % max(0, used), 0)  # always 20 digits, because _read_used accepts nothing else
    os.ftruncate(lock, 20)  # another program may have made the file longer
