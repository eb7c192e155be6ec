"""A store in a local folder. `durable_folder` does the writing, because obstore never syncs."""

import builtins
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from services.shared.bucket.durable_folder import DurableFolder, etag_of
from services.shared.bucket.store import (
    MAX_READ_BYTES,
    SENTINEL,
    SENTINEL_DATA,
    Listing,
    Moved,
    Object,
    StoredObject,
    check_key,
    check_prefix,
    has_unsafe_part,
    is_our_own,
    listing_of,
    nothing,
)
from services.shared.bucket.store_calls import StoreCalls, delete_each


class FolderStore:
    """A `Store` in a local folder."""

    is_local = True

    def __init__(self, root: Path) -> None:
        """Make the folder if there is none. Raises OSError if it cannot be made."""
        self._folder = DurableFolder(root)
        self._translating = StoreCalls(self._says_missing, self._serves_others).translating

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._translating("put"):
            self._folder.put(key, data)

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        check_key(key)
        with self._translating("swap"):
            if not self._folder.swap(key, data, etag):
                raise Moved
            return etag_of(data)

    def get(self, key: str) -> bytes:
        check_key(key)
        with self._translating("get"):
            return self._folder.read(key)

    def read(self, key: str) -> Object:
        check_key(key)
        with self._translating("get"):
            data = self._folder.read(key, MAX_READ_BYTES)
            return Object(data, etag_of(data))

    def address(self, key: str, seconds: int) -> None:  # noqa: ARG002 - a folder has no addresses
        check_key(key)

    def folders(self, prefix: str) -> builtins.list[str]:
        check_prefix(prefix)
        with self._translating("list"):
            self._folder.check()
            names = sorted(self._folder.folders(prefix))
        return names if prefix else [name for name in names if not is_our_own(name)]

    def list(self, prefix: str) -> Listing:
        check_prefix(prefix)
        with self._translating("list"):
            self._folder.check()
            taken_at = self._folder.now()
            # obstore is not used here: one file whose name it refuses would hide all the rest.
            found = self._folder.files(prefix, nothing if prefix else is_our_own)
            return listing_of(
                (
                    StoredObject(
                        key,
                        status.st_size,
                        datetime.fromtimestamp(status.st_mtime, UTC),
                        mark=f"{status.st_ino}.{status.st_size}.{status.st_mtime_ns}",
                    )
                    for key, status in found
                ),
                taken_at,
            )

    def delete(self, keys: Iterable[str]) -> None:
        delete_each(self._delete, builtins.list(keys))

    def _delete(self, keys: builtins.list[str]) -> None:
        with self._translating("delete"):
            self._folder.delete([_check_listed(key) for key in keys])

    def check(self) -> None:
        with self._translating("check"):
            self._folder.check()

    def check_writing(self) -> None:
        with self._translating("check"):
            self._folder.put(SENTINEL, SENTINEL_DATA)
            self._folder.read(SENTINEL)

    def now(self) -> datetime:
        with self._translating("check"):
            return self._folder.now()

    def sweep_temporary(self, older_than: timedelta) -> int:
        with self._translating("sweep"):
            return self._folder.sweep(older_than)

    def _serves_others(self) -> bool:
        try:
            self._folder.read(SENTINEL)
        except OSError:
            return False
        return True

    def _says_missing(self, error: Exception) -> bool:
        """Return whether the object is missing. An empty mount point must not pass for a store that has lost
        everything.
        """
        return isinstance(error, FileNotFoundError) and self._folder.is_there()


def _check_listed(key: str) -> str:
    """Return the key of a listed file, which any program may have put there. Raises ValueError if the key
    leads elsewhere.
    """
    if "\0" in key or has_unsafe_part(key):
        raise ValueError(f"not a key: {key[:80]!a}")
    return key
