"""Tries whether a store has compare-and-swap, which documents in the bucket rely on.

Several threads swap one key at once, again and again: each time at most one may win, and what is read
afterwards must be what the winner stored. This module knows no documents.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from uuid import uuid4

from services.shared.bucket.store import PROBES, Moved, ObjectStore, StoreUnfit
from speaker_registry.errors import Unavailable

WRITERS = 4
"""SeaweedFS lets each writer that meets another one at an object wait for one second, so few have to do."""
ROUNDS = 5
"""The number of swaps that the writers compete for. The first creates the object."""

TRIED = "a local folder and SeaweedFS 4.48"
"""The stores on which the tests run the probe. Nobody should rely on a store that was only read about."""
_NEVER_STORED = "0" * 32


def probe_swaps(store: ObjectStore) -> None:
    """Return if the store has compare-and-swap. Nothing is left in the store.

    Raises:
        StoreUnfit: the store replaced an object although the condition did not hold.
        Unavailable: the store does not answer, or refuses conditional writes as such.
    """
    with _temporary_key(store) as key, ThreadPoolExecutor(WRITERS) as threads:
        _expect(not _swaps(store, key, _NEVER_STORED), "replaced an object that does not exist")
        etag, earlier = None, _NEVER_STORED
        for _ in range(ROUNDS):
            etag, earlier = _compete(store, key, etag, threads), etag or _NEVER_STORED
            _expect(not _swaps(store, key, earlier), "replaced an object that had changed since it was read")
            _expect(not _swaps(store, key, None), "created an object that was there already")


def _compete(store: ObjectStore, key: str, etag: str | None, threads: ThreadPoolExecutor) -> str:
    """Let all writers swap the key from this ETag at once. Returns the ETag of what was stored."""
    together = threading.Barrier(WRITERS)

    def write(data: bytes) -> tuple[str, bytes] | None:
        together.wait()
        with suppress(Moved):
            return store.swap(key, data, etag=etag), data
        return None

    tried = [uuid4().bytes for _ in range(WRITERS)]
    won = [win for win in threads.map(write, tried) if win is not None]
    _expect(len(won) <= 1, f"let {len(won)} of {WRITERS} simultaneous writers replace one object")
    found = store.read(key)
    # A store may say that it refused the write that it carried out, when the client had to repeat a request.
    stored = won or [(found.etag, data) for data in tried if data == found.data]
    _expect(stored == [(found.etag, found.data)], "did not return what the one successful writer stored")
    return found.etag


def _swaps(store: ObjectStore, key: str, etag: str | None) -> bool:
    """Try a swap whose condition does not hold. Returns whether the store carried it out."""
    try:
        store.swap(key, b"refused", etag=etag)
    except Moved:
        return False
    return True


@contextmanager
def _temporary_key(store: ObjectStore) -> Iterator[str]:
    key = f"{PROBES}{uuid4().hex}/swap"
    try:
        yield key
    finally:
        with suppress(Unavailable):
            store.delete([key])


def _expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise StoreUnfit(
            f"the object store {otherwise}: it has no compare-and-swap. Use one that has it, such as {TRIED}"
        )
