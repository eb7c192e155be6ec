"""A folder with one safetensors file per voice, and possibly an index file that names them. It knows no
format of their content.

A marker records what the folder was made for, so that nothing is ever written to a folder of others. New
files are written first, and then the index is replaced. A file whose voice has a newer one stays for a while,
because a server that is starting may have read the former index. A file whose voice is gone is removed at
once, and the index forgets it before anything is written. A damaged file that was replaced is removed, too.
"""

import contextlib
import errno
import fcntl
import hashlib
import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speaker_registry.atomic_files import temporary_for, write_atomically
from speaker_registry.errors import DigestMismatch, InvalidRequest, SpeakerRegistryError
from speaker_registry.fetching import MAX_FILE_BYTES
from speaker_registry.moving.plain_files import read_inside

MARKER = ".speaker-registry-sync.json"
KEPT_SECONDS = 600.0
"""A file stays this long after its voice got a newer one: longer than a server takes to load voices."""
_MAX_MARKER_BYTES = 16 * 1024**2
_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_MAX_LOCK_SECONDS, _LOCK_PAUSE_SECONDS = 60.0, 0.05
_FILE = re.compile(r"([0-9a-f]{32})-([0-9]{12})-([0-9a-f]{64})\.safetensors")
_IGNORED_NAMES = {"lost+found"}
"""A new volume contains this folder."""


class Purpose(BaseModel):
    """The voices that a folder is for. A folder is never used for another purpose."""

    model_config = ConfigDict(frozen=True)

    registry: str
    """Address of the registry."""
    registry_id: str
    """Identity of the registry, which another one at the same address does not have."""
    namespace: str
    profile: str
    format: str


class _Marker(BaseModel):
    purpose: Purpose
    superseded: dict[str, float] = Field(default_factory=dict)
    """Maps each file whose voice has a newer one to the Unix time (seconds) at which that was noticed."""


class FileName(NamedTuple):
    """The name of a file. Files of one voice sort by age, and vLLM-Omni lets the last one count."""

    voice: str
    """Hash of the id of the voice, 32 hexadecimal digits."""
    created_at: int
    """Creation time of the version in Unix seconds."""
    sha256: str
    """SHA-256 of the file, 64 hexadecimal digits."""

    def __str__(self) -> str:
        return f"{self.voice}-{self.created_at:012d}-{self.sha256}.safetensors"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        match = _FILE.fullmatch(text)
        return cls(match[1], int(match[2]), match[3]) if match else None


def hash_of(voice_id: str) -> str:
    """Return the part of a file's name that stands for a voice. A name that is deleted and registered again
    gets another result.
    """
    return hashlib.sha256(voice_id.encode()).hexdigest()[:32]


def check_creation_time(created_at: int) -> None:
    """Raise `InvalidRequest` if the name of a file cannot tell this time. The next sync would take the file
    for one of others.
    """
    if not 0 <= created_at < 10**12:
        raise InvalidRequest(
            f"a version was created at {str(created_at)[:40]}; accepted: Unix seconds of up to 12 digits"
        )


class SyncedFolder:
    """A folder that belongs to one purpose.

    Args:
        index: Name of the index file, or None if the format has none.
        clock: Replaces `time.time`, for tests.
    """

    def __init__(
        self, path: Path, purpose: Purpose, index: str | None, clock: Callable[[], float] = time.time
    ) -> None:
        self._path, self._purpose, self._index, self._clock = path, purpose, index, clock
        self._present: dict[str, set[FileName]] = {}
        """The files by voice."""
        self._superseded: dict[str, float] = {}
        """See `_Marker.superseded`."""
        self._verified: dict[FileName, tuple[int, int, int]] = {}
        """Maps files whose bytes were found to match their name to inode, size and time of the last change.
        """

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Check the folder, create it if it does not exist, and keep other syncs out until the block ends.

        Raises:
            InvalidRequest: The folder has files of others, or was made for another purpose, and nothing was
                touched. Or another sync has held its lock for a minute.
            OSError: The folder cannot be written to.
        """
        self._check()
        self._path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._lock(descriptor)
            marker = self._check()
            if marker is None:
                self._put_marker({})
            self._superseded = marker.superseded if marker else {}
            self._present = {}
            for name in filter(None, map(FileName.parse, self._names())):
                self._present.setdefault(name.voice, set()).add(name)
            yield
        finally:
            os.close(descriptor)  # this also releases the lock

    def intact(self, voice: str, created_at: int, sha256: str | None) -> FileName | None:
        """Return the file of a version whose bytes match its name, or None if there is none.

        Args:
            voice: See `hash_of`.
            sha256: SHA-256 of the file, if it is known in advance.
        """
        for name in sorted(self._present.get(voice, ())):
            if name.created_at == created_at and sha256 in {None, name.sha256} and self._is_intact(name):
                return name
        return None

    def newest_first(self, voice: str) -> Iterator[FileName]:
        """Yield the intact files of a voice that were not replaced."""
        for name in sorted(self._present.get(voice, ()), reverse=True):
            if str(name) not in self._superseded and self._is_intact(name):
                yield name

    def read(self, name: FileName) -> bytes:
        """Read a file. Raises `DigestMismatch` if its bytes do not match its name."""
        data = read_inside(self._path, str(name), MAX_FILE_BYTES)
        if hashlib.sha256(data).hexdigest() != name.sha256:
            raise DigestMismatch(f"the bytes of {str(name)!a} do not match its name")
        return data

    def remove_others(
        self,
        voices: Collection[str],
        without_removed: Callable[[bytes, Callable[[str], bool]], bytes | None],
    ) -> int:
        """Remove the files of all voices but these, and what the index says of them. This works on a full
        disk too. Returns the number of removed files.

        Args:
            without_removed: Returns an index without the files for which a function returns False.
        """
        removed = self._remove(name for name in self._files() if name.voice not in voices)
        for temporary in filter(temporary_for, self._names()):  # left by processes that were killed
            (self._path / temporary).unlink(missing_ok=True)
        if self._index is not None and (self._path / self._index).exists():
            former = (self._path / self._index).read_bytes()
            index = without_removed(former, lambda name: (self._path / name).exists())
            if index is not None:
                self._shrink(self._index, index)
        return removed

    def _shrink(self, name: str, data: bytes) -> None:
        """Write a file that has become smaller. If there is no room for a copy, it is overwritten: a server
        that starts in this moment may not be able to read it, but nothing of deleted voices stays.
        """
        try:
            self._put(name, data)
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            with (self._path / name).open("r+b") as file:
                file.write(data)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())

    def add(self, voice: str, created_at: int, data: bytes) -> FileName:
        """Write a file and read it back.

        Raises:
            DigestMismatch: The file reads back with other bytes.
            InvalidRequest: The name of the file cannot tell the creation time.
            OSError: The file cannot be written.
        """
        check_creation_time(created_at)
        name = FileName(voice, created_at, hashlib.sha256(data).hexdigest())
        self._put(str(name), data)
        self._present.setdefault(voice, set()).add(name)
        return name

    def publish(self, wanted: Collection[FileName], index: bytes | None) -> int:
        """Replace the index, and remove files that no longer belong in the folder. Returns the number of
        removed files.

        Args:
            wanted: The files that belong in the folder. They must exist.
            index: The index, if the format has one.
        """
        if index is not None:
            assert self._index is not None, "the format has an index"
            self._put(self._index, index)
        self._superseded = self._still_kept(wanted)
        self._put_marker(self._superseded)
        return self._remove(
            name for name in self._files() if name not in wanted and str(name) not in self._superseded
        )

    def _still_kept(self, wanted: Collection[FileName]) -> dict[str, float]:
        """Return the replaced files that still stay, and the Unix time of their replacement.

        Only intact files whose voice has a newer one may stay. Otherwise a server could take them for the
        voice: of two files of one version it takes the one whose name sorts last, also if that is damaged.
        """
        newest = {name.voice: name.created_at for name in wanted}
        now = self._clock()
        kept = {
            # A time in the future means that the clock has stepped back. The file then stays from now on.
            str(name): min(self._superseded.get(str(name), now), now)
            for name in self._files()
            if name not in wanted and name.created_at <= newest.get(name.voice, -1) and self._is_intact(name)
        }
        return {name: at for name, at in kept.items() if now - at < KEPT_SECONDS}

    def _check(self) -> _Marker | None:
        """Check that the folder may be written to. Returns the marker, or None if there is none yet."""
        if not self._path.exists():
            return None
        if not self._path.is_dir():
            raise InvalidRequest(f"{str(self._path)!a} is not a folder; accepted: a folder")
        claimed = (self._path / MARKER).exists()
        foreign = sorted(name for name in self._names() if not self._is_ours(name, claimed=claimed))
        if foreign:
            if marker := self._readable_marker():
                self._check_purpose(marker)  # an index of another format is a foreign file, and this says why
            raise InvalidRequest(
                f"{str(self._path)!a} has files that are not from a sync, such as {foreign[0]!a}; "
                "accepted: an empty folder, or one that a sync made"
            )
        if not claimed:
            return None
        marker = self._marker()
        self._check_purpose(marker)
        return marker

    def _is_ours(self, name: str, *, claimed: bool) -> bool:
        if name in _IGNORED_NAMES:
            return True
        if (self._path / name).is_symlink() or not (self._path / name).is_file():
            return False
        whole = temporary_for(name) or name
        return whole == MARKER or (claimed and (whole == self._index or FileName.parse(whole) is not None))

    def _check_purpose(self, marker: _Marker) -> None:
        for field, wanted in self._purpose.model_dump().items():
            found = getattr(marker.purpose, field)
            if found != wanted:
                raise InvalidRequest(
                    f"{str(self._path)!a} was made for the {field} {found!a}, not for {wanted!a}; "
                    "accepted: an empty folder, or one that was made for the same"
                )

    def _marker(self) -> _Marker:
        try:
            return _Marker.model_validate_json(read_inside(self._path, MARKER, _MAX_MARKER_BYTES))
        except ValidationError:
            raise InvalidRequest(
                f"{str(self._path / MARKER)!a} is not a marker that this version writes. Empty the folder to "
                "start over"
            ) from None

    def _readable_marker(self) -> _Marker | None:
        with contextlib.suppress(SpeakerRegistryError):
            return self._marker()
        return None

    def _put_marker(self, superseded: dict[str, float]) -> None:
        marker = _Marker(purpose=self._purpose, superseded=superseded)
        self._put(MARKER, marker.model_dump_json().encode())

    def _lock(self, descriptor: int) -> None:
        deadline = time.monotonic() + _MAX_LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise InvalidRequest(
                        f"another sync has held the lock on {str(self._path)!a} for {_MAX_LOCK_SECONDS:.0f} s"
                    ) from None
                time.sleep(_LOCK_PAUSE_SECONDS)

    def _put(self, name: str, data: bytes) -> None:
        """Write a file unless it has these bytes already, and read it back."""
        if self._holds(name, data):
            return
        write_atomically(self._path / name, data)
        if not self._holds(name, data):
            raise DigestMismatch(f"{str(self._path / name)!a} reads back with other bytes than were written")

    def _holds(self, name: str, data: bytes) -> bool:
        try:
            return read_inside(self._path, name, len(data)) == data
        except SpeakerRegistryError:
            return False

    def _is_intact(self, name: FileName) -> bool:
        """Return whether a file has the bytes that its name says. An unchanged file is read only once."""
        with contextlib.suppress(OSError, SpeakerRegistryError):
            found = (self._path / str(name)).lstat()
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if self._verified.get(name) != stamp:
                self.read(name)
                self._verified[name] = stamp
            return True
        return False

    def _remove(self, names: Iterable[FileName]) -> int:
        """Remove files. Returns their number."""
        gone = list(names)
        for name in gone:
            (self._path / str(name)).unlink(missing_ok=True)
            self._present[name.voice].discard(name)
            self._verified.pop(name, None)
        return len(gone)

    def _names(self) -> list[str]:
        return sorted(entry.name for entry in self._path.iterdir())

    def _files(self) -> Iterator[FileName]:
        return itertools.chain.from_iterable(self._present.values())
