"""The object store that the registry expects: objects under keys, in a bucket or a local folder.

Both give the same guarantees: an object is durable once `put` returns, `get` returns whole objects, and
`list` is complete and includes everything that was put before. This module holds the protocol, keys and
listings. It knows neither of the two stores (`folder_store`, `bucket_store`) and nothing of speakers.

Top-level names that start with a dot belong to the store itself and are never listed.
"""

import builtins
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from speaker_registry.errors import Unavailable

Skips = Callable[[str], bool]
"""A function that says whether a listing leaves out a key. The key of a folder ends with `/`."""

_PART = r"(?!\.\.?(?:/|$))[A-Za-z0-9._-]{1,255}"
_KEY = re.compile(rf"{_PART}(?:/{_PART})*")
MAX_READ_BYTES = 4 * 1024**2
"""The size limit of an object that `read` returns. It is far above the size of anything that the registry
writes, and keeps a foreign or damaged object from filling the memory.
"""
MAX_KEY_BYTES = 1000
"""The length limit of a key. S3 allows 1024 bytes, the bucket's prefix included."""

PROBES = ".probe/"
"""The prefix of the temporary objects that the probes store."""
SENTINEL = ".sentinel"
"""An object that belongs to the store itself. If it can be read, a failure to read or delete another object
concerns that object alone.
"""
SENTINEL_DATA = b"{}"


class ObjectUnavailable(Unavailable):
    """The store answers but fails for this one object: for example, the object is archived, its disk block is
    bad, or it belongs to another owner. It must not block operations on other objects.
    """


class WritesRefused(Unavailable):
    """The store takes no writes, for example because its disk is read-only. The write was not made, and no
    retry helps until that changes.
    """


class StoreFull(WritesRefused):
    """The disk of the store is full. Nothing can be stored until there is room."""


class Moved(Exception):
    """The condition of a swap does not hold. The reason may be an earlier attempt of the same caller."""


class TooLarge(Exception):
    """An object is larger than `MAX_READ_BYTES`, so it was not read."""

    def __init__(self, size: int, etag: str) -> None:
        super().__init__(f"{size} bytes")
        self.size = size
        self.etag = etag


@dataclass(frozen=True, slots=True)
class Object:
    """A whole object as it was read, with the ETag that a swap of it needs."""

    data: bytes
    etag: str


@dataclass(frozen=True, slots=True)
class StoredObject:
    key: str
    size: int
    last_modified: datetime
    """The object's time by the store's clock."""
    etag: str | None = None
    """The ETag that `read` returns. None in a local folder, where a file has to be read to compute it."""
    mark: str | None = None
    """In a local folder, the inode, size and time, which change with every replacement of the object."""


@dataclass(frozen=True, slots=True)
class Listing:
    objects: tuple[StoredObject, ...]
    """The objects found, sorted by key."""
    taken_at: datetime
    """The time by the store's clock before the first page was listed. It is never ahead, so ages computed
    with it err on the young side.
    """


def nothing(_: str) -> bool:
    """Leave nothing out of a listing. This is a `Skips`."""
    return False


def is_our_own(key: str) -> bool:
    """Leave the store's own objects out of a listing. This is a `Skips`."""
    return key.startswith(".")


class Store(Protocol):
    """Stores immutable objects under keys.

    Keys are parts of `[A-Za-z0-9._-]` joined by `/`. A prefix ends with `/` or is empty. Any other key or
    prefix raises ValueError.

    Every method raises `Unavailable` if the store does not answer correctly in time. `get` and `delete` raise
    `ObjectUnavailable` if the store still serves other objects.
    """

    is_local: bool
    """True if the store is on this machine. Reading then costs processor time and hardly ever waits."""

    def put(self, key: str, data: bytes) -> None:
        """Store an object. It is durable once this returns. A key is never put again with other content."""

    def get(self, key: str) -> bytes:
        """Return the whole object. Raises FileNotFoundError if there is none."""
        ...

    def address(self, key: str, seconds: int) -> str | None:
        """Return a URL at which anyone can get the object for this many seconds. Returns None if the store
        has no such URLs, or did not confirm that the object exists. `get` then raises the error.
        """
        ...

    def list(self, prefix: str) -> Listing:
        """List everything under a prefix, including what was put a moment ago."""
        ...

    def folders(self, prefix: str) -> builtins.list[str]:
        """Return the names of the non-empty immediate folders under a prefix. Some servers also return
        folders that became empty recently.
        """
        ...

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects. Accepts any key that was listed; a missing object is no error. If one object cannot
        be removed, the rest are removed all the same.
        """

    def check(self) -> None:
        """Return within seconds if the store answers, and raise otherwise."""

    def check_writing(self) -> None:
        """Return within seconds if an object can be written and read, and raise otherwise."""

    def sweep_temporary(self, older_than: timedelta) -> int:
        """Remove the files that interrupted writes left, and return their number. A bucket keeps no such
        files.
        """
        ...


class SwappingStore(Protocol):
    """Replaces objects by compare-and-swap. Nothing else ever changes an object."""

    def read(self, key: str) -> Object:
        """Return the whole object with its ETag.

        Raises:
            TooLarge: it is larger than `MAX_READ_BYTES`.
            FileNotFoundError: there is no such object. An outdated node of the store may claim this wrongly.
        """
        ...

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        """Replace an object if it has this ETag. None means that it must not exist yet. Returns the new ETag.

        Of several callers with the same ETag, only one replaces the object.

        Raises:
            Moved: the condition does not hold.
            Unavailable: the object may or may not have been replaced, or may still be. Read it to find out.
        """
        ...


class ObjectStore(Store, SwappingStore, Protocol):
    """A store with all operations that the registry uses. `open_store` opens one."""

    def now(self) -> datetime:
        """Return the time by the store's clock, which dates objects and documents. It is never ahead."""
        ...


def listing_of(found: Iterable[StoredObject], taken_at: datetime) -> Listing:
    return Listing(tuple(sorted(found, key=lambda stored: stored.key)), taken_at)


def check_key(key: str) -> str:
    """Return the key. Raises ValueError if stores do not accept it."""
    if len(key) >= MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise ValueError(f"not a key: {key[:80]!a}")
    return key


def has_unsafe_part(key: str) -> bool:
    """Return whether a key has an empty part, `.` or `..`, which could lead a path out of its folder."""
    return any(part in {"", ".", ".."} for part in key.split("/"))


def check_prefix(prefix: str) -> None:
    if prefix and not (prefix.endswith("/") and check_key(prefix[:-1])):
        raise ValueError(f"a prefix ends with '/': {prefix[:80]!a}")
