"""Tests whether a store gives the guarantees that the registry relies on.

Objects that were put or deleted must be visible as such at once. The store must also support
compare-and-swap: several threads repeatedly swap one key at the same time, at most one of them may succeed
each time, and a read afterwards must return the object of the thread that succeeded. This module knows no
documents.
"""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from time import monotonic, sleep
from uuid import uuid4

from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.store import PROBES, SENTINEL, SENTINEL_DATA, Moved, ObjectStore
from speaker_registry.errors import Unavailable

PROBED = 20
"""The number of objects that are put, read, listed and deleted."""
OLD_PROBE = timedelta(hours=1)
MAX_CLOCK_DIFFERENCE = timedelta(minutes=5)
"""The largest accepted difference between a store's `Date` and the times of its objects. Comparing the two
shows which objects are young.
"""

WRITERS = 4
"""The number of competing writers. It is small, because SeaweedFS delays each writer that conflicts with
another one by a second.
"""
ROUNDS = 5
"""The number of swaps that the writers compete for. The first creates the object."""
_PAUSES_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0, 2.0, 2.0, 2.0)
"""The pauses before a failed swap is repeated. The client does not repeat swaps, only other requests."""
_PATIENCE_SECONDS = 15.0
"""A swap is not repeated after this time. A store that hangs takes longer than that for one."""

TRIED = "a local folder and SeaweedFS 4.48"
"""The stores on which the tests run the probe. Other stores are not tested."""
_NEVER_STORED = "0" * 32


def probe_consistency(store: ObjectStore) -> None:
    """Use the store as the registry does, on objects created for this purpose, and check every answer.

    Raises:
        StoreUnfit: an object that was put or deleted is not visible as such at once.
        Unavailable: the store does not answer.
    """
    store.put(SENTINEL, SENTINEL_DATA)
    _delete_older_probes(store)
    prefix = f"{PROBES}{uuid4().hex}/"
    contents = {f"{prefix}{number:02}": f"{prefix}{number}".encode() for number in range(PROBED)}
    try:
        _probe_puts(store, prefix, contents)
        _probe_deletes(store, prefix, list(contents))
    finally:
        with suppress(Unavailable):
            store.delete(contents)


def _probe_puts(store: ObjectStore, prefix: str, contents: dict[str, bytes]) -> None:
    # The objects are read before they are put, because a cache in between may remember that they were
    # missing.
    _expect(not _present(store, contents), "returned objects that were never put")
    for key, data in contents.items():
        store.put(key, data)
    listing = store.list(prefix)
    listed = {stored.key: stored.size for stored in listing.objects}
    _expect(listed == {key: len(data) for key, data in contents.items()}, "did not list what was just put")
    _expect(store.folders(PROBES).count(prefix.split("/")[1]) == 1, "did not name a folder just filled")
    _expect(_present(store, contents) == contents, "did not return what was just put")
    apart = max(abs(stored.last_modified - listing.taken_at) for stored in listing.objects)
    _expect(apart < MAX_CLOCK_DIFFERENCE, f"dates its objects and its answers {apart} apart")


def _probe_deletes(store: ObjectStore, prefix: str, keys: list[str]) -> None:
    store.delete(keys)
    store.delete(keys)  # a missing object must not be an error
    _expect(not store.list(prefix).objects, "listed what was just deleted")
    _expect(not _present(store, keys), "returned what was just deleted")


def _delete_older_probes(store: ObjectStore) -> None:
    """Delete the probes that killed processes have left."""
    listing = store.list(PROBES)
    old = listing.taken_at - OLD_PROBE
    store.delete(stored.key for stored in listing.objects if stored.last_modified < old)


def _present(store: ObjectStore, keys: Iterable[str]) -> dict[str, bytes]:
    found = {}
    for key in keys:
        with suppress(FileNotFoundError):
            found[key] = store.get(key)
    return found


def probe_swaps(store: ObjectStore) -> None:
    """Check that the store supports compare-and-swap. Nothing is left in the store.

    Raises:
        StoreUnfit: the store replaced an object although the condition did not hold.
        Unavailable: the store does not answer, or refuses conditional writes as such.
    """
    with _temporary_key(store) as key, ThreadPoolExecutor(WRITERS) as threads:
        _expect_swap(not _swaps(store, key, _NEVER_STORED), "replaced an object that does not exist")
        etag, earlier = None, _NEVER_STORED
        for _ in range(ROUNDS):
            etag, earlier = _compete(store, key, etag, threads), etag or _NEVER_STORED
            _expect_swap(
                not _swaps(store, key, earlier), "replaced an object that had changed since it was read"
            )
            _expect_swap(not _swaps(store, key, None), "created an object that was there already")


def _compete(store: ObjectStore, key: str, etag: str | None, threads: ThreadPoolExecutor) -> str:
    """Let all writers swap the key from this ETag at once. Returns the ETag of the stored object."""
    together = threading.Barrier(WRITERS)

    def write(data: bytes) -> tuple[str, bytes] | None:
        together.wait()
        with suppress(Moved):
            return _swap(store, key, data, etag), data
        return None

    tried = [uuid4().bytes for _ in range(WRITERS)]
    won = [win for win in threads.map(write, tried) if win is not None]
    _expect_swap(len(won) <= 1, f"let {len(won)} of {WRITERS} simultaneous writers replace one object")
    found = store.read(key)
    # When a swap had to be repeated, a store may report a refusal for a write that it carried out.
    stored = won or [(found.etag, data) for data in tried if data == found.data]
    _expect_swap(stored == [(found.etag, found.data)], "did not return what the one successful writer stored")
    return found.etag


def _swaps(store: ObjectStore, key: str, etag: str | None) -> bool:
    """Try a swap whose condition does not hold. Returns whether the store carried it out."""
    try:
        _swap(store, key, b"refused", etag)
    except Moved:
        return False
    return True


def _swap(store: ObjectStore, key: str, data: bytes, etag: str | None) -> str:
    """Swap, and repeat a swap that fails, because a passing fault must not end a start."""
    began = monotonic()
    for pause_seconds in _PAUSES_SECONDS:
        try:
            return store.swap(key, data, etag=etag)
        except Unavailable:
            if monotonic() - began > _PATIENCE_SECONDS:
                raise
        sleep(pause_seconds)
    return store.swap(key, data, etag=etag)


@contextmanager
def _temporary_key(store: ObjectStore) -> Iterator[str]:
    key = f"{PROBES}{uuid4().hex}/swap"
    try:
        yield key
    finally:
        with suppress(Unavailable):
            store.delete([key])


def _expect_swap(condition: bool, otherwise: str) -> None:
    _expect(condition, otherwise, f"it has no compare-and-swap. Use one that has it, such as {TRIED}")


def _expect(condition: bool, otherwise: str, so: str = "it can't be used") -> None:
    if not condition:
        raise StoreUnfit(f"the object store {otherwise}: {so}")
