"""Keeps the registry's API keys. They are facts in the bucket, and each API process holds them all in memory.

    _keys/{id}/made.{sha256 of its JSON}.json      a key was made
               end.{at:012d}.{uid}                 a key was ended, from a time on or at once (0)

Redis holds a change mark, a value that changes with every such fact. As long as the mark stays the same and
the index is trusted, the list in memory is complete. So checking a key costs no round trip, every process
notices the end of a key within `FRESH_SECONDS`, and a loss of Redis loses only the times at which keys were
last used. Requests wait for the bucket only if the mark has changed or cannot be read. Knows no requests.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple, NoReturn, Self, cast

import structlog

from services.registry_api.keys.api_keys import (
    ANY_NAMESPACE,
    AT_ONCE,
    ApiKey,
    ApiKeyRecord,
    End,
    Token,
    new_token,
)
from services.registry_api.keys.key_rules import (
    KEPT_SECONDS,
    check_expiry,
    check_namespace,
    check_room,
    end_after_rotation,
    end_within_makers,
    key_not_found,
)
from services.shared.bucket.facts import commit, read_record
from services.shared.bucket.keys import API_KEYS_FOLDER, KeyEndKey, KeyMadeKey, key_end_key, parse_key
from services.shared.bucket.store import ObjectUnavailable, Store, StoredObject
from services.shared.index.gate import GateClosed
from services.shared.index.leases import Leases
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.clock import Clock
from services.shared.registry.parts import RegistryParts
from speaker_registry.artifact import sha256_digest
from speaker_registry.errors import (
    ApiKeyEnded,
    InvalidApiKey,
    Unavailable,
)

log = structlog.get_logger()

FRESH_SECONDS = 0.8
"""The key list is valid for this long after the change mark was read. Then the mark must be read again."""
KEYS_UPDATED = "keys.updated"
"""Type of the event that a key was made or ended."""
_CHANGED = "sr:keys_changed"
_USED = "sr:keys_used"
"""Hash of key id -> Unix seconds."""
_WRITE_USES_SECONDS = 60.0
_FULL_READ_SECONDS = 30.0
"""The facts are listed this often in the background, even if the mark stays the same: the process that stored
a fact may have died before it changed the mark.
"""


@dataclass(frozen=True, slots=True)
class _KeyList:
    """All keys, according to one listing of the facts."""

    keys: dict[str, ApiKey] = field(default_factory=dict)
    mark: tuple[str, str | None] | None = None
    """The change mark before the listing, with the run of the Redis server that it came from, or None if it
    could not be read.
    """
    listed_at: float = float("-inf")
    """Start time of the listing."""
    missing: frozenset[str] = frozenset()
    """Ids of keys that this listing lacked and an earlier one had."""


class _Failure(NamedTuple):
    """The error of the last refresh, for all threads that waited for it."""

    at: float
    error: Unavailable


class _Facts(NamedTuple):
    """The facts about keys in the bucket."""

    made: dict[str, tuple[StoredObject, str]]
    """Key id -> the stored object, and the SHA-256 in its name."""
    ends: dict[str, dict[str, End]]
    """Key id -> key of the stored object -> the end."""


def _start_thread(do: Callable[[], None]) -> None:
    threading.Thread(target=do, name="keys-read", daemon=True).start()


class Keyring:
    """The API keys of one process. Safe to use from several threads.

    Args:
        run_all: runs the reads of new keys, several at a time.
        run_in_background: runs a function without waiting for it.
    """

    def __init__(
        self,
        store: Store,
        index: SpeakerIndex,
        leases: Leases,
        clock: Clock,
        run_all: Callable[[Iterable[Callable[[], object]]], None],
        run_in_background: Callable[[Callable[[], None]], None] = _start_thread,
    ) -> None:
        self._store = store
        self._index = index
        self._leases = leases
        self._clock = clock
        self._run_all = run_all
        self._run_in_background = run_in_background
        self._list = _KeyList()
        self._swap_lock = threading.Lock()
        self._refreshed_at = float("-inf")
        self._outdated_since = float("-inf")
        """A refresh that began before this time does not count, because keys were made or ended since."""
        self.hears_changes: Callable[[], bool] = lambda: True
        """Returns whether this process is told of every change at once. While it is not, the key
        list is valid only for the request that refreshed it.
        """
        self._failed: _Failure | None = None
        self._unreadable = set[str]()  # bounded: keys of stored objects in the last listing
        self._refresh_lock = threading.Lock()
        self._next_full_read = float("-inf")
        self._full_read_lock = threading.Lock()
        self._uses: dict[str, int] = {}  # bounded: only keys that exist
        self._uses_written_at = clock.monotonic()

    @classmethod
    def over(cls, parts: RegistryParts) -> Self:
        """Return a keyring over the open parts of a registry."""
        return cls(parts.store, parts.index, parts.leases, parts.clock, parts.run_all)

    # -- reading

    @property
    def seconds_left(self) -> float:
        """Return for how long the key list is still valid. If this is 0 or less, call `refresh` first."""
        if self._refreshed_at <= self._outdated_since:
            return 0.0
        if self._list.mark is not None and not self.hears_changes():
            return 0.0
        return self._refreshed_at + FRESH_SECONDS - self._clock.monotonic()

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take note of an event of the index, which may say that a key was made or ended."""
        if event["type"] == KEYS_UPDATED:
            self.events_missed()

    def events_missed(self) -> None:
        """Take note that keys may have been made or ended."""
        self._outdated_since = self._clock.monotonic()

    def find(self, key_id: str) -> ApiKey | None:
        """Return a key in any state, or None if there is no such key."""
        return self._list.keys.get(key_id)

    def state(self, key: ApiKey) -> Literal["active", "expired", "revoked"]:
        return key.state(self._clock.now())

    def check_active(self, key: ApiKey) -> None:
        """Raises `InvalidApiKey` if the key is revoked or has expired."""
        if (state := self.state(key)) != "active":
            raise InvalidApiKey(f"This API key is {state}.")

    def all(self, namespace: str) -> list[ApiKey]:
        """Return the keys of a namespace, or of all namespaces (`*`), oldest first."""
        keys = [key for key in self._list.keys.values() if namespace in {ANY_NAMESPACE, key.record.namespace}]
        return sorted(keys, key=lambda key: (key.record.created_at, key.record.id))

    def refresh(self, *, max_age_seconds: float = 0.0) -> None:
        """Read the change mark, and the facts if it has changed, unless that was done within the last
        `max_age_seconds`.

        One thread does it at a time. If it fails, it fails for all threads that waited for it, because each
        of them would otherwise wait as long again.

        Raises:
            Unavailable: neither Redis nor the bucket answers.
        """
        since = max(self._clock.monotonic() - max_age_seconds, self._outdated_since)
        with self._refresh_lock:
            if self._refreshed_at >= since:
                return  # another thread refreshed the list while this one waited for the lock
            if self._failed is not None and self._failed.at >= since:
                _raise_again(self._failed.error)
            began = self._clock.monotonic()
            self._refresh(began)
            self._refreshed_at = began
            self._write_uses(began)

    def _refresh(self, began: float) -> None:
        mark = self._read_change_mark()
        if mark is None or mark != self._list.mark:
            try:
                self._read_all(mark, began)
            except Unavailable as error:
                self._failed = _Failure(self._clock.monotonic(), error)
                raise
            if not self._unreadable:
                self._next_full_read = began + _FULL_READ_SECONDS
        self._start_full_read_if_due(mark, began)

    def _read_change_mark(self) -> tuple[str, str | None] | None:
        """Return the change mark, or None if Redis does not answer or the index is not trusted."""
        try:
            (value,) = self._index.read(lambda pipeline: pipeline.get(_CHANGED))
        except (GateClosed, Unavailable):
            return None
        return self._index.stamp, value

    def _start_full_read_if_due(self, mark: tuple[str, str | None] | None, began: float) -> None:
        """Start reading all facts in the background, if the last such read is long ago.

        No request waits for it, because the list is valid: the mark says so, or it lacks only records that
        cannot be read. A bucket that is slow or away must not stop every request twice a minute.
        """
        if began >= self._next_full_read:
            self._next_full_read = began + _FULL_READ_SECONDS
            self._run_in_background(partial(self._read_in_background, mark, began))

    def _read_in_background(self, mark: tuple[str, str | None] | None, began: float) -> None:
        if not self._full_read_lock.acquire(blocking=False):
            return  # the previous read still waits for the bucket
        try:
            self._read_all(mark, began, retried=frozenset(self._unreadable))
        except Exception as error:  # noqa: BLE001 - it is tried again, and the mark shows changes meanwhile
            log.warning("keys.not_read_anew", error=type(error).__name__)
        finally:
            self._full_read_lock.release()

    def _read_all(
        self, mark: tuple[str, str | None] | None, began: float, retried: frozenset[str] = frozenset()
    ) -> _Facts:
        """List the facts, read the keys that are new, and replace the list.

        Args:
            mark: the change mark, read after `began` and before this call.
            retried: unreadable objects to read again. The store may take half a minute to refuse one, so
                requests do not wait for them a second time.
        """
        facts = _facts_in(self._store.list(API_KEYS_FOLDER).objects)
        self._unreadable.intersection_update(stored.key for stored, _ in facts.made.values())
        put_off = self._unreadable - retried
        known = self._list
        # One listing may leave out objects. A key is removed only if two listings in a row lack it, and an
        # end is never removed.
        missing = frozenset(known.keys.keys() - facts.made.keys())
        records = {
            key_id: key.record for key_id, key in known.keys.items() if key_id not in known.missing & missing
        }
        new = [
            key_id
            for key_id, (stored, _) in facts.made.items()
            if key_id not in records and stored.key not in put_off
        ]
        self._run_all([partial(self._read_one, key_id, *facts.made[key_id], records) for key_id in new])
        keys = {key_id: ApiKey(record, _ends(key_id, known, facts)) for key_id, record in records.items()}
        self._swap_in(_KeyList(keys, mark, began, missing))
        return facts

    def _swap_in(self, known: _KeyList) -> None:
        """Replace the list unless the current one was begun later. An older one may lack the end of a key."""
        with self._swap_lock:
            if known.listed_at >= self._list.listed_at:
                self._list = known

    def _read_one(
        self, key_id: str, stored: StoredObject, sha256: str, into: dict[str, ApiKeyRecord]
    ) -> None:
        """Read the record of one key into `into`. A record that is damaged or unreadable is left out, so that
        the key is not accepted.
        """
        try:
            body = read_record(self._store, stored)
            if body is None:
                return  # the sweep has deleted it
            if sha256_digest(body) != f"sha256:{sha256}":
                raise ValueError("the record is not what was written")
            record = ApiKeyRecord.model_validate_json(body)
            if record.id != key_id:
                raise ValueError("the record is of another key")
        except ObjectUnavailable as error:
            self._unreadable.add(stored.key)
            log.error("key.unreadable", key_id=key_id, error=str(error))
            return
        except ValueError as error:
            log.error("key.damaged", key_id=key_id, error=str(error))
            return
        self._unreadable.discard(stored.key)
        into[key_id] = record

    # -- changes

    def make(
        self,
        *,
        name: str,
        namespace: str,
        scopes: Iterable[str],
        created_by: str,
        expires_at: int | None = None,
        requests_per_minute: int | None = None,
        uploads_per_minute: int | None = None,
        by_operator: bool = False,
        first: str | None = None,
    ) -> tuple[Token, ApiKey]:
        """Make a key. Its token is stored nowhere.

        A key ends no later than the API key that made it, so that no holder of a key can prolong its access
        by making another one. Keys made by the bootstrap key or by a JWT have no such limit.

        Args:
            created_by: id of the API key that makes this one, or another name of the caller.
            expires_at: Unix seconds. None means as late as allowed.
            by_operator: the caller may use any namespace.
            first: see `ApiKeyRecord`.

        Raises:
            InvalidRequest: the namespace or the expiry is not accepted.
            PermissionDenied: the key would end after the key that makes it.
            InvalidApiKey: the key that makes it has ended meanwhile.
            QuotaExceeded: there are too many keys.
            Unavailable: Redis or the bucket does not answer. If the fact was stored all the same, there is a
                key whose token no caller has.
        """
        now = self._clock.now()
        check_namespace(namespace)
        check_expiry(expires_at, now)
        self.refresh()
        expires_at = end_within_makers(expires_at, self.find(created_by))
        check_room(self._list.keys.values(), namespace, by_operator=by_operator)
        token = new_token()
        record = ApiKeyRecord(
            id=token.id,
            secret_sha256=token.sha256,
            name=name,
            namespace=namespace,
            scopes=tuple(sorted(set(scopes))),
            created_at=int(now),
            created_by=created_by,
            expires_at=expires_at,
            requests_per_minute=requests_per_minute,
            uploads_per_minute=uploads_per_minute,
            first=first,
        )
        self._store_made(record)
        try:
            self._announce_change()
            self._check_maker(created_by)
        except (InvalidApiKey, Unavailable):
            self._withdraw(record.id, by=created_by)
            raise
        return token, ApiKey(record)

    def _check_maker(self, created_by: str) -> None:
        """Raise `InvalidApiKey` if the key that makes another one has ended.

        Ending a key with its descendants lists the keys after the end was stored. So either the new key is in
        that listing, or the end of its maker is in the listing that follows the new key's own fact.
        """
        if (maker := self.find(created_by)) is not None:
            self.check_active(maker)

    def end(self, key_id: str, *, by: str, with_descendants: bool = False) -> ApiKey:
        """End a key at once. Every process that calls `refresh` after this has returned knows of the end.

        Args:
            by: the caller that ends it, for the log.
            with_descendants: also end the keys that it made, the keys that these made, and so on. If that
                fails half-way, it can be repeated.

        Raises:
            ApiKeyNotFound, Unavailable.
        """
        self.refresh()
        if self.find(key_id) is None:
            raise key_not_found(key_id)
        self._store_end(key_id, AT_ONCE, by)
        self._announce_change()
        if with_descendants:
            self._end_descendants(key_id, by)
        ended = self.find(key_id)
        assert ended is not None, "a key's facts outlive its end"
        return ended

    def _end_descendants(self, key_id: str, by: str) -> None:
        active = [key.record.id for key in self._descendants(key_id) if self.state(key) == "active"]
        if active:
            self._run_all([partial(self._store_end, one, AT_ONCE, by) for one in active])
            self._announce_change()

    def _descendants(self, key_id: str) -> Iterator[ApiKey]:
        """Yield the keys that a key made, the keys that these made, and so on."""
        made_by: dict[str, list[ApiKey]] = {}
        for key in self._list.keys.values():
            made_by.setdefault(key.record.created_by, []).append(key)
        makers = [key_id]
        while makers:
            children = made_by.pop(makers.pop(), [])
            makers.extend(key.record.id for key in children)
            yield from children

    def rotate(
        self, old: ApiKey, *, grace_seconds: int, by: str, by_operator: bool = False
    ) -> tuple[Token, ApiKey]:
        """Make a new key with the permissions of an old one, which stays valid for `grace_seconds`.

        If the old key expires, the new one has a lifetime of the same length, but does not outlive the API
        key `by` that requests it, as with `make`. The two keys share their rate limits.

        Callers should not repeat this call if they get no answer, because each call makes one more key. If
        the end of the old key cannot be stored, the new key is ended as well, if possible. If the end is
        stored and Redis does not answer, other processes notice it up to half a minute late.

        Raises:
            ApiKeyEnded: the old key is revoked or has expired, and must not become valid again.
            PermissionDenied: the new key would end before the old one was to end.
            InvalidApiKey, QuotaExceeded, Unavailable.
        """
        record, now = old.record, self._clock.now()
        if (state := old.state(now)) != "active":
            raise ApiKeyEnded(
                f"API key {record.id!r} is {state}; only one that is active can be rotated. Make a new one.",
                param="key_id",
            )
        token, made = self.make(
            name=record.name,
            namespace=record.namespace,
            scopes=record.scopes,
            created_by=by,
            expires_at=end_after_rotation(old, self.find(by), now),
            requests_per_minute=record.requests_per_minute,
            uploads_per_minute=record.uploads_per_minute,
            by_operator=by_operator,
            first=record.first or record.id,
        )
        try:
            self._store_end(record.id, int(now) + grace_seconds if grace_seconds else AT_ONCE, by)
        except Unavailable:
            self._withdraw(token.id, by=by)
            raise
        try:
            self._announce_change()
        except Unavailable:  # the old key ends, so its holder must get the new one
            log.warning("key.end_not_told", key_id=record.id)
        return token, made

    def _withdraw(self, key_id: str, *, by: str) -> None:
        """End a key whose token no caller was given."""
        try:
            self._store_end(key_id, AT_ONCE, by)
            self._announce_change()
        except Unavailable:
            log.warning("key.not_withdrawn", key_id=key_id)

    def _store_made(self, record: ApiKeyRecord) -> None:
        body = record.to_json().encode()
        sha256 = sha256_digest(body).removeprefix("sha256:")
        commit(self._store, KeyMadeKey(record.id, sha256), body)
        log.info("key.made", key_id=record.id, namespace=record.namespace, by=record.created_by)

    def _store_end(self, key_id: str, at: int, by: str) -> None:
        commit(self._store, key_end_key(key_id, at, self._clock.new_id()))
        log.info("key.ended", key_id=key_id, at=at, by=by)

    def _announce_change(self) -> None:
        """Change the mark in Redis after a new fact, and refresh the list.

        Returns when no process accepts a key from memory that has ended. Raises `Unavailable`.
        """
        self._leases.tell_all(KEYS_UPDATED, _CHANGED, self._clock.new_id())
        self.refresh()
        self._leases.settle()

    def sweep(self) -> int:
        """Delete the keys that ended long ago and the times of their last use. Returns the number of keys."""
        used = self._ids_used()  # read first, so that the listing contains every key that was used
        began = self._clock.monotonic()
        facts = self._read_all(self._read_change_mark(), began)
        known = self._list.keys
        before = self._clock.now() - KEPT_SECONDS
        old = {key_id for key_id, key in known.items() if (key.ends_at or before) < before}
        # The `made` facts are deleted first, because an end alone gives no access.
        self._store.delete(facts.made[key_id][0].key for key_id in old & facts.made.keys())
        self._store.delete(key for key_id in old & facts.ends.keys() for key in facts.ends[key_id])
        self._forget_use(used - (known.keys() - old))
        if old:
            log.info("keys.swept", keys=len(old))
        return len(old)

    # -- use

    def note_use(self, key_id: str) -> None:
        """Note that a key was used just now. The times are written to Redis once a minute."""
        self._uses[key_id] = int(self._clock.now())

    def last_used(self) -> dict[str, int]:
        """Return key id -> Unix seconds of the last use. Keys without an entry were never used, or Redis has
        lost their times.
        """
        try:
            with unavailable_without_redis():
                written = cast(dict[str, str], self._index.ungated.hgetall(_USED))
        except Unavailable:
            written = {}
        known = {key_id: int(at) for key_id, at in written.items()}
        return known | {key_id: max(at, known.get(key_id, 0)) for key_id, at in dict(self._uses).items()}

    def _ids_used(self) -> set[str]:
        try:
            with unavailable_without_redis():
                return set(cast(list[str], self._index.ungated.hkeys(_USED)))
        except Unavailable:
            return set()

    def _forget_use(self, key_ids: Iterable[str]) -> None:
        """Delete the times of last use. If Redis does not answer, the next sweep deletes them."""
        if ids := list(key_ids):
            with suppress(Unavailable), unavailable_without_redis():
                self._index.ungated.hdel(_USED, *ids)

    def _write_uses(self, now: float) -> None:
        if now - self._uses_written_at < _WRITE_USES_SECONDS or not self._uses:
            return
        self._uses_written_at = now
        self._uses, used = {}, self._uses
        try:
            with unavailable_without_redis():
                self._index.ungated.hset(_USED, mapping={key_id: str(at) for key_id, at in used.items()})
        except Unavailable:
            log.info("keys.use_not_told", keys=len(used))


def _facts_in(objects: tuple[StoredObject, ...]) -> _Facts:
    facts = _Facts({}, {})
    for stored in objects:
        match parse_key(stored.key):
            case KeyMadeKey(key_id, sha256):
                facts.made[key_id] = (stored, sha256)
            case KeyEndKey(key_id, at, said_at):
                facts.ends.setdefault(key_id, {})[stored.key] = End(at, said_at)
    return facts


def _ends(key_id: str, known: _KeyList, facts: _Facts) -> tuple[End, ...]:
    """Return all ends of a key that were ever listed, those of this listing first."""
    before = known.keys[key_id].ends if key_id in known.keys else ()
    listed = facts.ends.get(key_id, {}).values()
    return (*listed, *(end for end in before if end not in listed))


def _raise_again(error: Unavailable) -> NoReturn:
    """Raise a copy of an error that was raised in another thread."""
    raise Unavailable(error.message, retry_after_seconds=error.retry_after_seconds)
