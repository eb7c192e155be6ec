"""The registry's API keys: facts in the bucket, all of them in the memory of each API process.

    _keys/{id}/made.{sha256 of its JSON}.json      a key was made
               end.{at:012d}.{uid}                 somebody ended it: from a time on, or at once (0)

Redis holds one value that changes with every such fact: as long as it stays the same, and the index is
trusted, nothing has happened. So a check costs no round trip, an end is noticed everywhere within
`FRESH_SECONDS`, and nothing is lost with Redis but when keys were used last. The bucket is waited for only
where Redis says that something has happened, or cannot say. Knows no requests.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple, NoReturn, cast

import structlog

from services.registry_api.keys.api_keys import (
    ANY_NAMESPACE,
    AT_ONCE,
    ID_LETTERS,
    ApiKey,
    ApiKeyRecord,
    End,
    Token,
    new_token,
)
from services.shared.bucket.facts import commit, read_record
from services.shared.bucket.keys import API_KEYS_FOLDER, KeyEndKey, KeyMadeKey, key_end_key, parse_key
from services.shared.bucket.store import ObjectUnavailable, Store, StoredObject
from services.shared.index.gate import GateClosed
from services.shared.index.redis_access import unavailable_without_redis
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.clock import Clock
from speaker_registry.artifact import sha256_digest
from speaker_registry.errors import (
    ApiKeyEnded,
    ApiKeyNotFound,
    InvalidApiKey,
    InvalidRequest,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

log = structlog.get_logger()

FRESH_SECONDS = 0.8
"""What is known is good so long; then it has to be looked whether something changed."""
MAX_KEYS = 10_000
"""Those that have ended lately among them: each process knows all."""
MAX_KEYS_OF_NAMESPACE = 1_000
"""So that one tenant cannot leave no room for others."""
MAX_KEYS_OF_OPERATORS = MAX_KEYS + 1_000
"""Whoever is for any namespace can still make keys when tenants have made all that they can."""
KEPT_SECONDS = 30 * 24 * 3600
"""A key that has ended is shown so long."""

_CHANGED = "sr:keys_changed"
_USED = "sr:keys_used"
"""Hash: key id -> Unix seconds."""
_TELL_USED_SECONDS = 60.0
_ALL_ANEW_SECONDS = 30.0
"""The facts themselves are listed so often whatever Redis says, beside the requests: whoever put one may have
died before telling.
"""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the facts said when they were last listed."""

    keys: dict[str, ApiKey] = field(default_factory=dict)
    told: tuple[str, str | None] | None = None
    """By which run of the server, and what: None where it could not say."""
    listed_at: float = float("-inf")
    """When that began."""
    missing: frozenset[str] = frozenset()
    """Ids of keys that this listing lacked and an earlier one had."""


class _Failure(NamedTuple):
    """Why the last look told nothing, for all who waited for it."""

    at: float
    error: Unavailable


class _Facts(NamedTuple):
    """What there is of keys in the bucket."""

    made: dict[str, tuple[StoredObject, str]]
    """Id -> the object, sha256."""
    ends: dict[str, dict[str, End]]
    """Id -> key of the object -> what it says."""


def _in_a_thread(do: Callable[[], None]) -> None:
    threading.Thread(target=do, name="keys-anew", daemon=True).start()


class Keyring:
    """One per process; for all threads.

    Args:
        run_all: runs the reading of new keys.
        beside: runs what no request waits for.
    """

    def __init__(
        self,
        store: Store,
        index: SpeakerIndex,
        clock: Clock,
        run_all: Callable[[Iterable[Callable[[], object]]], None],
        beside: Callable[[Callable[[], None]], None] = _in_a_thread,
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._run_all = run_all
        self._beside = beside
        self._known = _Known()
        self._learning = threading.Lock()
        self._looked_at = float("-inf")
        self._failed: _Failure | None = None
        self._unreadable = set[str]()  # bounded: keys of objects that were listed last
        self._looking = threading.Lock()
        self._anew_at = float("-inf")
        self._reading_anew = threading.Lock()
        self._used: dict[str, int] = {}  # bounded: only keys that there are
        self._told_used_at = clock.monotonic()

    # -- what is known

    @property
    def seconds_left(self) -> float:
        """So long what is known is good; 0 or less: `look` first."""
        return self._looked_at + FRESH_SECONDS - self._clock.monotonic()

    def find(self, key_id: str) -> ApiKey | None:
        """In any state."""
        return self._known.keys.get(key_id)

    def state(self, key: ApiKey) -> Literal["active", "expired", "revoked"]:
        """Now."""
        return key.state(self._clock.now())

    def check_active(self, key: ApiKey) -> None:
        """Raises `InvalidApiKey` if the key is revoked or has expired."""
        if (state := self.state(key)) != "active":
            raise InvalidApiKey(f"This API key is {state}.")

    def all(self, namespace: str) -> list[ApiKey]:
        """Keys of a namespace, or of any (`*`), oldest first."""
        keys = [
            key for key in self._known.keys.values() if namespace in {ANY_NAMESPACE, key.record.namespace}
        ]
        return sorted(keys, key=lambda key: (key.record.created_at, key.record.id))

    def look(self, *, longest_ago_seconds: float = 0.0) -> None:
        """See whether anything changed, unless somebody did within the last `longest_ago_seconds`.

        One look at a time. Its failure is that of all who waited for it: else each would wait as long again.

        Raises:
            Unavailable: neither Redis nor the bucket can be asked.
        """
        since = self._clock.monotonic() - longest_ago_seconds
        with self._looking:
            if self._looked_at >= since:
                return  # while we waited for the lock
            if self._failed is not None and self._failed.at >= since:
                _raise_again(self._failed.error)
            began = self._clock.monotonic()
            self._look(began)
            self._looked_at = began
            self._tell_used(began)

    def _look(self, began: float) -> None:
        told = self._ask()
        if told is None or told != self._known.told:
            try:
                self._read_all(told, began)
            except Unavailable as error:
                self._failed = _Failure(self._clock.monotonic(), error)
                raise
            if not self._unreadable:
                self._anew_at = began + _ALL_ANEW_SECONDS
        self._read_anew_if_due(told, began)

    def _ask(self) -> tuple[str, str | None] | None:
        """What Redis says now; None where it cannot be asked or trusted."""
        try:
            (value,) = self._index.read(lambda pipeline: pipeline.get(_CHANGED))
        except (GateClosed, Unavailable):
            return None
        return self._index.stamp, value

    def _read_anew_if_due(self, told: tuple[str, str | None] | None, began: float) -> None:
        """Nobody waits for that: what is known is good, for Redis says so, or it lacks only what cannot be
        read. A bucket that is slow or away must not stop every request twice a minute.
        """
        if began >= self._anew_at:
            self._anew_at = began + _ALL_ANEW_SECONDS
            self._beside(partial(self._read_anew, told, began))

    def _read_anew(self, told: tuple[str, str | None] | None, began: float) -> None:
        if not self._reading_anew.acquire(blocking=False):
            return  # the one before still waits for the bucket
        try:
            self._read_all(told, began, also=frozenset(self._unreadable))
        except Exception as error:  # noqa: BLE001 - it is tried again; Redis says meanwhile what happens
            log.warning("keys.not_read_anew", error=type(error).__name__)
        finally:
            self._reading_anew.release()

    def _read_all(
        self, told: tuple[str, str | None] | None, began: float, also: frozenset[str] = frozenset()
    ) -> _Facts:
        """`told` was asked for after `began`, and before this. `also`: unreadable objects to try again. The
        store may take half a minute to refuse one, so requests do not wait for those twice.
        """
        facts = _facts_in(self._store.list(API_KEYS_FOLDER).objects)
        self._unreadable.intersection_update(stored.key for stored, _ in facts.made.values())
        put_off = self._unreadable - also
        known = self._known
        # One listing may leave out what is there. A key goes only when two in a row lack it; an end stays.
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
        self._learn(_Known(keys, told, began, missing))
        return facts

    def _learn(self, known: _Known) -> None:
        """What began to be listed earlier and ends later says nothing: it may lack the end of a key."""
        with self._learning:
            if known.listed_at >= self._known.listed_at:
                self._known = known

    def _read_one(
        self, key_id: str, stored: StoredObject, sha256: str, into: dict[str, ApiKeyRecord]
    ) -> None:
        """A record that is not what was written, or cannot be read, opens nothing."""
        try:
            body = read_record(self._store, stored)
            if body is None:
                return  # swept
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
        """Make a key. The token is stored nowhere.

        A key ends no later than the API key that made it, so that nobody keeps access by handing it on to
        oneself. This does not concern keys made by the bootstrap key, or by somebody who signed in elsewhere.

        Args:
            created_by: id of the API key that makes it, or another name of whoever does. expires_at: Unix
                seconds; None: as late as may be. by_operator: whoever makes it is for any namespace. first:
                see `ApiKeyRecord`.

        Raises:
            InvalidRequest: no such namespace can be. PermissionDenied: it would end after the key that makes
                it. InvalidApiKey: that key has ended meanwhile. QuotaExceeded: there are too many keys.
                Unavailable: where its fact was stored all the same, there is one more key, which nobody has.
        """
        now = self._clock.now()
        _check_namespace(namespace)
        _check_expiry(expires_at, now)
        self.look()
        expires_at = self._end_within_makers(expires_at, created_by)
        self._check_room(namespace, by_operator)
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
            self._tell()
            self._check_maker(created_by)
        except (InvalidApiKey, Unavailable):
            self._withdraw(record.id, by=created_by)
            raise
        return token, ApiKey(record)

    def _check_maker(self, created_by: str) -> None:
        """Raises `InvalidApiKey` if it is a key that has ended.

        Whoever ends a key together with what it made lists the keys after the end was stored. So a new key is
        in that listing, or its maker's end is in the one that follows the new key's own fact.
        """
        if (maker := self.find(created_by)) is not None:
            self.check_active(maker)

    def _end_within_makers(self, expires_at: int | None, created_by: str) -> int | None:
        """When a new key is to expire: no later than its maker ends. Raises `PermissionDenied`."""
        maker = self.find(created_by)
        if maker is None or maker.ends_at is None:
            return expires_at
        if expires_at is not None and expires_at > maker.ends_at:
            raise PermissionDenied(
                f"'expires_at' is {expires_at}; accepted from API key {created_by!r}, which ends at "
                f"{maker.ends_at} itself: up to that.",
                param="expires_at",
            )
        return maker.ends_at if expires_at is None else expires_at

    def _check_room(self, namespace: str, by_operator: bool) -> None:
        """Raises `QuotaExceeded`, which tells a tenant nothing of what others have."""
        keys = self._known.keys.values()
        later = f"Revoke some: they go {KEPT_SECONDS // 86_400} days later."
        if Counter(key.record.namespace for key in keys)[namespace] >= MAX_KEYS_OF_NAMESPACE:
            raise QuotaExceeded(
                f"There are {MAX_KEYS_OF_NAMESPACE} API keys in namespace {namespace!r}, which is the most "
                f"there can be in one. {later}"
            )
        if by_operator and len(keys) >= MAX_KEYS_OF_OPERATORS:
            raise QuotaExceeded(
                f"There are {MAX_KEYS_OF_OPERATORS} API keys, which is the most there can be. {later}"
            )
        if not by_operator and len(keys) >= MAX_KEYS:
            raise QuotaExceeded("This registry takes no more API keys now; only who runs it can make room.")

    def end(self, key_id: str, *, by: str, with_descendants: bool = False) -> ApiKey:
        """End a key at once. Every process that looks after this has returned knows of it.

        Args:
            by: who ends it, for the log. with_descendants: also end the keys that it made, the keys that
                these made, and so on. Where that fails half-way, it can be repeated.

        Raises:
            ApiKeyNotFound, Unavailable.
        """
        self.look()
        if self.find(key_id) is None:
            raise key_not_found(key_id)
        self._store_end(key_id, AT_ONCE, by)
        self._tell()
        if with_descendants:
            self._end_descendants(key_id, by)
        ended = self.find(key_id)
        assert ended is not None, "a key's facts outlive its end"
        return ended

    def _end_descendants(self, key_id: str, by: str) -> None:
        active = [key.record.id for key in self._descendants(key_id) if self.state(key) == "active"]
        if active:
            self._run_all([partial(self._store_end, one, AT_ONCE, by) for one in active])
            self._tell()

    def _descendants(self, key_id: str) -> Iterator[ApiKey]:
        """The keys that this one made, and all that these made in turn."""
        made_by: dict[str, list[ApiKey]] = {}
        for key in self._known.keys.values():
            made_by.setdefault(key.record.created_by, []).append(key)
        makers = [key_id]
        while makers:
            children = made_by.pop(makers.pop(), [])
            makers.extend(key.record.id for key in children)
            yield from children

    def rotate(
        self, old: ApiKey, *, grace_seconds: int, by: str, by_operator: bool = False
    ) -> tuple[Token, ApiKey]:
        """Make a new key for the same as an old one, which stays valid for `grace_seconds`.

        A key that expires is followed by one with as long a life, but none that outlives the API key `by`
        which asks for it, as with `make`. The two have one limit together.

        Callers should not repeat this when they get no answer: each call makes one more key. Where the old
        key's end cannot be stored, the new key is ended as well, if possible. Where it is stored and Redis
        cannot be told, other processes notice it up to half a minute late.

        Raises:
            ApiKeyEnded: the old key is revoked or has expired, and must not come back. PermissionDenied: the
                new key would end before the old one was to end. InvalidApiKey, QuotaExceeded, Unavailable.
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
            expires_at=self._end_after_rotation(old, by, now),
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
            self._tell()
        except Unavailable:  # the old one ends, so its holder must have the new one
            log.warning("key.end_not_told", key_id=record.id)
        return token, made

    def _end_after_rotation(self, old: ApiKey, by: str, now: float) -> int | None:
        """When the key that follows `old` is to expire. Raises `PermissionDenied`."""
        record, maker = old.record, self.find(by)
        life = None if record.expires_at is None else record.expires_at - record.created_at
        wanted = None if life is None else int(now) + life
        latest = None if maker is None else maker.ends_at
        if latest is None or (wanted is not None and wanted <= latest):
            return wanted
        if old.ends_at is None or latest < old.ends_at:
            raise PermissionDenied(
                f"API key {by!r} ends at {latest}, and so would the key that follows {record.id!r}, which "
                "would have lived longer. Rotate it with a key that does not end before it.",
                param="key_id",
            )
        return latest

    def _withdraw(self, key_id: str, *, by: str) -> None:
        """A key that nobody was given must not stay good."""
        try:
            self._store_end(key_id, AT_ONCE, by)
            self._tell()
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

    def _tell(self) -> None:
        """The word that there is a new fact. Raises `Unavailable`."""
        with unavailable_without_redis():
            self._index.ungated.set(_CHANGED, self._clock.new_id())
        self.look()

    def sweep(self) -> int:
        """Forget keys that ended long ago, and when they were used. Returns how many."""
        used = self._ids_used()  # first: whatever was used by now is in the listing
        began = self._clock.monotonic()
        facts = self._read_all(self._ask(), began)
        known = self._known.keys
        before = self._clock.now() - KEPT_SECONDS
        old = {key_id for key_id, key in known.items() if (key.ends_at or before) < before}
        # What made it first: an end alone opens nothing.
        self._store.delete(facts.made[key_id][0].key for key_id in old & facts.made.keys())
        self._store.delete(key for key_id in old & facts.ends.keys() for key in facts.ends[key_id])
        self._forget_use(used - (known.keys() - old))
        if old:
            log.info("keys.swept", keys=len(old))
        return len(old)

    # -- use

    def used(self, key_id: str) -> None:
        """It was used just now. Told to Redis once a minute."""
        self._used[key_id] = int(self._clock.now())

    def last_used(self) -> dict[str, int]:
        """Key id -> Unix seconds, of those that were, as far as Redis remembers."""
        try:
            with unavailable_without_redis():
                told = cast(dict[str, str], self._index.ungated.hgetall(_USED))
        except Unavailable:
            told = {}
        known = {key_id: int(at) for key_id, at in told.items()}
        return known | {key_id: max(at, known.get(key_id, 0)) for key_id, at in dict(self._used).items()}

    def _ids_used(self) -> set[str]:
        try:
            with unavailable_without_redis():
                return set(cast(list[str], self._index.ungated.hkeys(_USED)))
        except Unavailable:
            return set()

    def _forget_use(self, key_ids: Iterable[str]) -> None:
        """As far as Redis can be told: the next sweep finds what is left."""
        if ids := list(key_ids):
            with suppress(Unavailable), unavailable_without_redis():
                self._index.ungated.hdel(_USED, *ids)

    def _tell_used(self, now: float) -> None:
        if now - self._told_used_at < _TELL_USED_SECONDS or not self._used:
            return
        self._told_used_at = now
        self._used, used = {}, self._used
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


def _ends(key_id: str, known: _Known, facts: _Facts) -> tuple[End, ...]:
    """All that were ever listed, in the order in which they are listed."""
    before = known.keys[key_id].ends if key_id in known.keys else ()
    listed = facts.ends.get(key_id, {}).values()
    return (*listed, *(end for end in before if end not in listed))


def _check_namespace(namespace: str) -> None:
    if namespace != ANY_NAMESPACE and not is_namespace(namespace):
        raise InvalidRequest(
            f"'namespace' is {namespace[:80]!a}; accepted: {ACCEPTED_NAMESPACES}, or '*' for all.",
            param="namespace",
        )


def _check_expiry(expires_at: int | None, now: float) -> None:
    if expires_at is not None and expires_at <= now:
        raise InvalidRequest(
            f"'expires_at' is {expires_at}, which has passed; accepted: Unix seconds after {now:.0f}.",
            param="expires_at",
        )


def _raise_again(error: Unavailable) -> NoReturn:
    """In another thread than the one that it was raised in."""
    raise Unavailable(error.message, retry_after_seconds=error.retry_after_seconds)


def key_not_found(key_id: str) -> ApiKeyNotFound:
    """Also of another namespace's. Says no more of it than an id has: it may be a whole key."""
    shown = f"{key_id[:ID_LETTERS]!a}" + ("…" if len(key_id) > ID_LETTERS else "")
    return ApiKeyNotFound(f"No API key {shown}.", param="key_id")
