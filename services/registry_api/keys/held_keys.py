"""The API keys that one process has in memory, found by their ids without a listing.

A process keeps each key's document in memory, and asks Redis which keys have changed (see `key_changes`).
Without Redis, and for keys that Redis does not know, the document in the bucket is read again. Documents
never come from Redis, because access to Redis would then give keys any right. This module knows no requests.
"""

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Literal, NoReturn

import structlog

from services.registry_api.keys.api_keys import ANY_NAMESPACE, ApiKey, is_key_id
from services.registry_api.keys.held_key import FailedRead, HeldKey
from services.registry_api.keys.key_changes import FRESH_SECONDS, KeyChanges
from services.registry_api.keys.key_document import KeyDocument
from services.registry_api.keys.key_memory import NO_KEY, KeyMemory
from services.registry_api.keys.key_rules import key_not_found
from services.registry_api.keys.listings import KeyListing, Listings
from services.shared.bucket.layout import api_key_key, api_key_of
from services.shared.bucket.store import ObjectUnavailable, Store
from services.shared.model.clock import Clock
from services.shared.registry.shared_documents import Changed, DocumentUnusable, SharedDocuments
from speaker_registry.errors import InvalidApiKey, Unavailable

log = structlog.get_logger(__name__)

_SETTLED_SECONDS = FRESH_SECONDS + 0.1
"""A change that ends a key is acknowledged after this time. It is a little longer than `FRESH_SECONDS`,
because the clocks of two machines do not run at exactly the same speed.
"""
_MISSING_SECONDS = 5.0
"""A key that is missing in the bucket, or whose document is damaged, is read again after this long."""
_UNREADABLE_SECONDS = 30.0
"""A document that could not be read is requested again after this long. Such a read may take half a minute to
fail, and no request waits for it again meanwhile.
"""
_STRIPES = 16
"""Largest number of keys that are read from the bucket at once."""

Do = Callable[[], object]


def _nothing() -> None:
    """Do not wait, because no process answers from memory."""


class HeldKeys:
    """Finds and changes API keys. Safe to use from several threads.

    Args:
        run_all: runs the reads of several keys, some at a time.
        run_in_background: runs a function without waiting for it. By default a thread does so.
        wait: returns when every process that answers from memory has applied the last change.
    """

    def __init__(
        self,
        shared: SharedDocuments,
        store: Store,
        clock: Clock,
        run_all: Callable[[Iterable[Do]], None],
        run_in_background: Callable[[Callable[[], None]], None] | None = None,
        *,
        wait: Callable[[], None] = _nothing,
    ) -> None:
        self.clock = clock
        self.run_all = run_all
        self.reading_bucket: Callable[[], AbstractContextManager[None]] = nullcontext
        """A function that returns the context in which requests list keys or read them from the bucket. The
        API uses it to limit the number of concurrent reads.
        """
        self._shared = shared
        self._store = store
        self._wait = wait
        self._changes = KeyChanges(shared.copies, clock)
        self._memory = KeyMemory(self._changes)
        self._reading = [threading.Lock() for _ in range(_STRIPES)]
        self._failed: dict[int, FailedRead] = {}  # bounded: one for each stripe
        self._listing = KeyListing()
        self.listings = Listings(clock, self.check_listing, run_in_background)
        """Runs `check_listing` in the background, when it is due."""

    @property
    def changes(self) -> int:
        """Rises whenever a key may have ended: by an event, or as a read or a listing finds it."""
        return self._changes.count

    # Reading

    def read(self, key_id: str) -> ApiKey | None:
        """Return a key in any state, at most `FRESH_SECONDS` old, or None if there is none.

        Raises `Unavailable` if the key's state is unknown, because a key that may have ended is not trusted.
        """
        if not is_key_id(key_id):
            return None
        held = self._fresh(key_id)
        if isinstance(held.problem, ObjectUnavailable):
            _raise_again(held.problem)
        return held.document.key

    def document(self, key_id: str) -> KeyDocument:
        """Return the document of a key. Raises the same errors as `read`."""
        return self._fresh(key_id).document if is_key_id(key_id) else NO_KEY

    def get(self, key_id: str, namespace: str) -> ApiKey:
        """Return a key of a namespace, or of any namespace (`*`), in any state.

        Raises:
            ApiKeyNotFound: there is no such key, or it is a key of another namespace.
            Unavailable: as by `read`. For any namespace, also if the document of the key cannot be used. A
                tenant is not told, because nobody knows whose key that is.
        """
        held = self._fresh_for_request(key_id) if is_key_id(key_id) else None
        if held is not None and held.problem is not None and namespace == ANY_NAMESPACE:
            _raise_again(held.problem)
        key = held.document.key if held is not None else None
        if key is None or namespace not in {ANY_NAMESPACE, key.record.namespace}:
            raise key_not_found(key_id, namespace)
        return key

    def _fresh_for_request(self, key_id: str) -> HeldKey:
        """Return what is held of a key like `_fresh`, and read it in the context `reading_bucket`."""
        self.listen()
        if (held := self._memory.valid(key_id)) is not None:
            return held
        with self.reading_bucket():
            return self._fresh(key_id)

    def _fresh(self, key_id: str) -> HeldKey:
        """Return what is held of a key, after it was confirmed or read again if that was necessary."""
        asked_at = self.clock.since_boot()
        self.listen()
        stripe = hash(key_id) % _STRIPES
        with self._reading[stripe]:
            held = self._memory.valid(key_id)
            if held is None:
                failed = self._failed.get(stripe)
                if failed is not None and failed.at >= asked_at:
                    _raise_again(failed.error)
                held = self._read(key_id, stripe)
                if self.clock.since_boot() - held.read_at > FRESH_SECONDS:
                    self.listen()  # the key may have been revoked during this read
                    held = self._memory.valid(key_id) or self._read(key_id, stripe)
        return held

    def find(self, key_id: str) -> ApiKey | None:
        """Return the held key if it is valid now. This does no I/O, and None means only that none is held."""
        held = self._memory.valid(key_id)
        return held.document.key if held is not None else None

    def recall(self, key_id: str) -> ApiKey | None:
        """Return the last known state of a key, however old it is, without I/O. It must grant no access."""
        held = self._memory.get(key_id)
        return held.document.key if held is not None else None

    def knows_of(self, key_id: str) -> bool:
        """Return whether this process knows that such a key exists or has existed. This does no I/O."""
        held = self._memory.get(key_id)
        exists = held is not None and held.document.revision > 0
        return exists or key_id in self._listing.documents or self._changes.has_recorded(key_id)

    def state(self, key: ApiKey) -> Literal["active", "expired", "revoked"]:
        return key.state(self.clock.now())

    def check_active(self, key: ApiKey) -> None:
        """Check that a key is active. Raises `InvalidApiKey` if it is revoked or has expired."""
        if (state := self.state(key)) != "active":
            raise InvalidApiKey(f"This API key is {state}.")

    def all(self, namespace: str) -> list[ApiKey]:
        """Return the keys of a namespace, or of all namespaces (`*`), oldest first. Raises the same errors as
        `read`.

        While Redis answers, only documents that have changed are read from the bucket. A key that was made
        without Redis may then be missing until the next listing.
        """
        documents = self._documents_of(namespace)
        keys = (one.key for one in (self.documents() if documents is None else documents).values())
        found = [key for key in keys if key and namespace in {ANY_NAMESPACE, key.record.namespace}]
        return sorted(found, key=lambda key: key.position)

    def _documents_of(self, namespace: str) -> dict[str, KeyDocument] | None:
        """Return the documents of a namespace's keys, or None if the bucket has to be listed to find them."""
        self.listen(ahead_seconds=FRESH_SECONDS)  # also of keys that were made a moment ago
        answer = self._changes.last_answer
        if answer is None or not self.seconds_left:
            return None
        ids = self._listing.ids_since(answer.seen, self.clock.since_boot())
        if ids is None:
            return None
        held = self._memory.all()
        known = ids | self._memory.ids_of_existing()
        wanted = (one for one in known if one not in held or held[one].may_be_of(namespace))
        return self._read_all(wanted, {})

    def documents(self) -> dict[str, KeyDocument]:
        """Return the documents of all keys by their ids. Raises the same errors as `read`.

        A listing may leave out a key, so the keys that this process knows are added.
        """
        with self.reading_bucket():
            listed = {key_id: one.etag for key_id, one in KeyListing.of(self._store).documents.items()}
        self.listen()
        return self._read_all(listed.keys() | self._memory.ids_of_existing(), listed)

    def _read_all(self, key_ids: Iterable[str], listed: Mapping[str, str | None]) -> dict[str, KeyDocument]:
        """Return existing documents. Those neither valid in memory nor with the ETag in `listed` are read."""
        found: dict[str, KeyDocument] = {}
        to_read: list[str] = []
        for one in key_ids:
            held = self._memory.get(one)
            is_same = held is not None and held.etag is not None and held.etag == listed.get(one)
            good = held if is_same else self._memory.valid(one)
            if good is not None:
                found[one] = good.document
            else:
                to_read.append(one)

        def read(key_id: str) -> None:
            found[key_id] = self.document(key_id)

        if to_read:
            with self.reading_bucket():
                self.run_all([partial(read, one) for one in to_read])
        return {key_id: document for key_id, document in found.items() if document.revision}

    def check_listing(self) -> None:
        """List the documents, and mark those that have changed to be read again. Raises `Unavailable`."""
        self._changes.ask()
        answer, began_at = self._changes.last_answer, self.clock.since_boot()
        listing = KeyListing.of(self._store, began_at, answer.seen if answer else None)
        self._changes.mark_listed()
        changed = listing.changed_since(self._listing, self._memory.all())
        for key_id in changed:
            self._memory.distrust(key_id)
        self._listing = listing
        if changed:
            self.events_missed()

    # Changing

    def stored(self, key_id: str) -> KeyDocument:
        """Return the document in the bucket now. Raises `Unavailable`, also if it cannot be used."""
        return self._shared.read(KeyDocument, api_key_key(key_id)).document

    def change(
        self,
        key_id: str,
        decide: Callable[[KeyDocument], KeyDocument],
        *,
        by: str,
        did: str,
        mends: bool = False,
    ) -> Changed[KeyDocument]:
        """Commit the document that `decide` makes from the newest one of a key, and record the change in
        Redis.

        This also works without Redis; `Changed.shared` is then false.

        Args:
            mends: decide on an empty document in place of a damaged one, instead of raising. Only for a
                revocation, because the key is lost with the damaged document.

        Raises:
            Unavailable: the change was not made, or it is not known whether it was. The document may be
                damaged. Errors that `decide` raises are passed on.
        """
        answer, began = self._changes.last_answer, self.clock.since_boot()
        changed: Changed[KeyDocument] = self._shared.change(
            KeyDocument,
            api_key_key(key_id),
            decide,
            by=by,
            did=did,
            with_body=False,
            mend=KeyDocument.after_damage if mends else None,
        )
        self._memory.hold(key_id, changed, answer, began)
        return changed

    def settle(self) -> None:
        """Wait until no process accepts a key that was ended before this call. Raises `Unavailable`."""
        self._shared.settle()
        began = self.clock.since_boot()
        self._wait()
        self.clock.sleep(max(0.0, began + _SETTLED_SECONDS - self.clock.since_boot()))

    def forget(self, key_ids: Iterable[str]) -> None:
        """Delete documents of keys that ended long ago. Raises `Unavailable`."""
        paths = [api_key_key(key_id) for key_id in key_ids]
        self._store.delete(paths)
        for path in paths:
            self._memory.forget(str(api_key_of(path)))
        self._shared.copies.forget(paths)

    def now(self) -> int:
        """Return the store's time in Unix seconds, which dates everything in a document."""
        return self._shared.now()

    # Learning of changes

    def on_event(self, event: Mapping[str, Any]) -> None:
        """Process an event, which may say that keys have changed."""
        if event["what"] == KeyDocument.UPDATED:
            self.events_missed()

    def events_missed(self) -> None:
        """Stop trusting the held keys without asking Redis, because keys may have changed."""
        self._changes.distrust()

    @property
    def seconds_left(self) -> float:
        """Return how many seconds the held keys are still valid since Redis was last asked."""
        return self._changes.seconds_left

    def listen(self, *, ahead_seconds: float = 0.0) -> None:
        """Ask Redis for changes, unless the held keys are valid for longer than `ahead_seconds`.

        Without an answer, documents are read again from the bucket. A listing is started as well if one is
        due, because Redis may not have been told of a change.
        """
        self.listings.start_if_due()
        self._changes.ask(ahead_seconds)

    def _read(self, key_id: str, stripe: int) -> HeldKey:
        """Read a document. One that is damaged or cannot be read is not read again for a while."""
        answer, began, path = self._changes.last_answer, self.clock.since_boot(), api_key_key(key_id)
        try:
            found = self._shared.read(KeyDocument, path)
            if answer is not None and self._shared.is_outdated(path, found):
                found, answer = self._shared.read(KeyDocument, path), None  # so that it is soon read again
        except DocumentUnusable as error:  # this was logged
            return self._memory.hold_nothing(key_id, began, _MISSING_SECONDS, error)
        except ObjectUnavailable as error:
            log.error("key.unreadable", key_id=key_id, reason=error.message)
            return self._memory.hold_nothing(key_id, began, _UNREADABLE_SECONDS, error)
        except Unavailable as error:
            self._failed[stripe] = FailedRead(self.clock.since_boot(), error)
            raise
        if found.etag is None:
            return self._memory.hold_nothing(key_id, began, _MISSING_SECONDS)
        return self._memory.hold(key_id, found, answer, began)


def _raise_again(error: Unavailable) -> NoReturn:
    """Raise a copy of an error that was raised in another thread."""
    raise Unavailable(error.message, retry_after_seconds=error.retry_after_seconds)
