"""An object store in memory that replaces objects by compare-and-swap, for tests with a time of their own."""

import builtins
import hashlib
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from services.shared.bucket.store import Listing, Moved, Object, StoredObject, check_key


class MemoryStore:
    """Implements the parts of `ObjectStore` that documents and their bytes need, without a fault."""

    is_local = False

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.objects: dict[str, tuple[bytes, float]] = {}

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._now(), UTC)

    def put(self, key: str, data: bytes) -> None:
        self.objects[check_key(key)] = (data, self._now())

    def get(self, key: str) -> bytes:
        try:
            return self.objects[check_key(key)][0]
        except KeyError:
            raise FileNotFoundError(key) from None

    def read(self, key: str) -> Object:
        data = self.get(key)
        return Object(data, etag_of(data))

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        there = etag_of(self.objects[key][0]) if key in self.objects else None
        if there != etag:
            raise Moved
        self.put(key, data)
        return etag_of(data)

    def list(self, prefix: str) -> Listing:
        return Listing(
            tuple(self._stored(key) for key in sorted(self.objects) if key.startswith(prefix)), self.now()
        )

    def _stored(self, key: str) -> StoredObject:
        data, at = self.objects[key]
        return StoredObject(key, len(data), datetime.fromtimestamp(at, UTC), etag_of(data))

    def folders(self, prefix: str) -> builtins.list[str]:
        rest = (key[len(prefix) :] for key in self.objects if key.startswith(prefix))
        return sorted({one.partition("/")[0] for one in rest if "/" in one})

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self.objects.pop(key, None)


def etag_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
