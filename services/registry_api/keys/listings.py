"""Lists the documents of API keys, in the background from time to time, and finds which ones have changed.

Redis tells processes which keys have changed. A listing finds the changes that Redis was not told of, because
the process that made them died or could not reach Redis.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from services.registry_api.keys.held_key import HeldKey
from services.shared.bucket.layout import API_KEYS, api_key_of
from services.shared.bucket.store import Store, StoredObject
from services.shared.model.clock import Clock
from services.shared.model.threads import BackgroundThread
from services.shared.view.shared_copies import SeenChanges

log = structlog.get_logger(__name__)

LISTING = "keys-listed"
"""The name of the thread that lists."""
_PERIOD_SECONDS = 20.0
"""The documents are listed this often. An ended key is refused within half a minute, which leaves ten seconds
for the listing itself.
"""
_KNOWN_SECONDS = 30.0
"""Keys are found without a new listing for this long after the start of the last one."""


@dataclass(frozen=True, slots=True)
class KeyListing:
    """The keys that a listing of the bucket has found."""

    documents: Mapping[str, StoredObject] = field(default_factory=dict)
    """The objects in the bucket that are documents of keys, by the ids of the keys."""
    began_at: float = float("-inf")
    seen: SeenChanges | None = None
    """The changes that Redis had recorded before the listing began. None if Redis did not answer."""

    @classmethod
    def of(
        cls, store: Store, began_at: float = float("-inf"), seen: SeenChanges | None = None
    ) -> "KeyListing":
        """List the keys in a bucket. Raises `Unavailable`."""
        objects = store.list(API_KEYS).objects
        return cls({key_id: one for one in objects if (key_id := api_key_of(one.key))}, began_at, seen)

    def ids_since(self, seen: SeenChanges, now: float) -> set[str] | None:
        """Return the ids of the keys that were listed or have changed since.

        Args:
            seen: the changes that Redis has recorded by now.
            now: the time by the same clock as `began_at`.

        Returns None if the listing is too old, or if Redis has lost changes since.
        """
        before = self.seen
        if before is None or before.generation != seen.generation or now - self.began_at > _KNOWN_SECONDS:
            return None
        paths = (path for path, number in seen.numbers.items() if number > before.position)
        return {*self.documents, *(key_id for path in paths if (key_id := api_key_of(path)))}

    def changed_since(self, before: "KeyListing", held: Mapping[str, HeldKey]) -> set[str]:
        """Return the ids of the keys whose documents have changed since the listing `before`, or since this
        process has read them. That includes held documents that were not found: they were deleted, or the
        listing has left them out.
        """
        return {
            key_id
            for key_id in self.documents.keys() | held.keys()
            if _has_changed(before.documents.get(key_id), self.documents.get(key_id), held.get(key_id))
        }


def _has_changed(before: StoredObject | None, now: StoredObject | None, held: HeldKey | None) -> bool:
    if now is None:  # a document that Redis does not vouch for is read again anyway
        return held is not None and held.generation != ""
    if held is not None and held.etag is not None and now.etag is not None:
        return held.etag != now.etag
    return (held is not None or before is not None) and _mark(before) != _mark(now)


def _mark(stored: StoredObject | None) -> str | None:
    """Return the ETag of a document, or another mark that changes with it. None if there is no document."""
    if stored is None:
        return None
    return stored.etag or f"{stored.size} {stored.last_modified.isoformat()}"


class Listings:
    """Starts listings when they are due. One runs at a time. Safe to use from several threads.

    Args:
        list_now: lists the documents.
        run_in_background: runs a function without waiting for it. By default a thread does so.
    """

    def __init__(
        self,
        clock: Clock,
        list_now: Callable[[], None],
        run_in_background: Callable[[Callable[[], None]], None] | None,
    ) -> None:
        self._clock = clock
        self._list_now = list_now
        self._thread = BackgroundThread(LISTING)
        self._run_in_background = run_in_background or self._thread
        self._next = float("-inf")
        self._running = threading.Lock()
        """Held from the start of a listing in the background to its end."""

    def close(self) -> None:
        """End the thread that lists."""
        self._thread.close()

    def start_if_due(self) -> None:
        """Start a listing in the background if one is due. No request waits for it."""
        now = self._clock.since_boot()
        if now < self._next:
            return
        self._next = now + _PERIOD_SECONDS
        if not self._running.acquire(blocking=False):
            return  # the previous listing still waits for the bucket
        try:
            self._run_in_background(self._list)
        except RuntimeError as error:  # no thread can be started now
            self._running.release()
            _log_failure(error)

    def _list(self) -> None:
        try:
            self._list_now()
        except Exception as error:  # noqa: BLE001 - it is retried, and Redis has the changes meanwhile
            _log_failure(error)
        finally:
            self._running.release()


def _log_failure(error: Exception) -> None:
    log.warning("keys.not_listed", error=type(error).__name__)
