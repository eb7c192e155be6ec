"""The registry's API keys: facts in the bucket, all of them in the memory of each API process.

    _keys/{id}/made.{sha256 of its JSON}.json      a key was made
               end.{at:012d}.{uid}                 somebody ended it: from a time on, or at once (0)

Redis holds one value that changes with every such fact: as long as it stays the same, and the index is
trusted, nothing has happened. So a check costs no round trip, an end is noticed everywhere within
`FRESH_SECONDS`, and nothing is lost with Redis but when keys were used last. Knows no requests.
"""

import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

import structlog

from services.shared.api_keys import ANY_NAMESPACE, AT_ONCE, ApiKey, ApiKeyRecord, End, Token, new_token
from services.shared.clock import Clock
from services.shared.gate import GateClosed
from services.shared.index import SpeakerIndex
from services.shared.redis_access import unavailable_without_redis
from services.shared.store import Store
from speaker_registry.artifact import sha256_digest
from speaker_registry.errors import ApiKeyNotFound, InvalidRequest, QuotaExceeded, Unavailable
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

log = structlog.get_logger()

FRESH_SECONDS = 0.8
"""What is known is good so long; then it has to be looked whether something changed."""
MAX_KEYS = 10_000
"""Those that have ended lately among them: each process knows all."""
KEPT_SECONDS = 30 * 24 * 3600
"""A key that has ended is shown so long."""

_FOLDER = "_keys/"
_MADE = re.compile(r"_keys/([0-9a-z]{8})/made\.([0-9a-f]{64})\.json")
_END = re.compile(r"_keys/([0-9a-z]{8})/end\.(\d{12})\.([0-9a-f]{12})[0-9a-f]{20}")
_CHANGED = "sr:keys_changed"
_USED = "sr:keys_used"
"""Hash: key id -> Unix seconds."""
_TELL_USED_SECONDS = 60.0
_ALL_ANEW_SECONDS = 30.0
"""The facts themselves are looked at so often whatever Redis says: whoever put one may have died before
telling.
"""


@dataclass(frozen=True, slots=True)
class _Known:
    """What the facts said when they were last listed."""

    keys: dict[str, ApiKey] = field(default_factory=dict)
    told: tuple[str, str | None] | None = None
    """By which run of the server, and what: None where it could not say."""
    listed_at: float = float("-inf")


class Keyring:
    """One per process; for all threads.

    Args:
        run_all: runs the reading of new keys.
    """

    def __init__(
        self,
        store: Store,
        index: SpeakerIndex,
        clock: Clock,
        run_all: Callable[[Iterable[Callable[[], object]]], None],
    ) -> None:
        self._store = store
        self._index = index
        self._clock = clock
        self._run_all = run_all
        self._known = _Known()
        self._good_until = float("-inf")
        self._looking = threading.Lock()
        self._used: dict[str, int] = {}  # bounded: only keys that there are
        self._told_used_at = clock.monotonic()

    # -- what is known

    @property
    def seconds_left(self) -> float:
        """So long what is known is good; 0 or less: `look` first."""
        return self._good_until - self._clock.monotonic()

    def find(self, key_id: str) -> ApiKey | None:
        """In any state."""
        return self._known.keys.get(key_id)

    def state(self, key: ApiKey) -> Literal["active", "expired", "revoked"]:
        """Now."""
        return key.state(self._clock.now())

    def all(self, namespace: str) -> list[ApiKey]:
        """Keys of a namespace, or of any (`*`), oldest first."""
        keys = [
            key for key in self._known.keys.values() if namespace in {ANY_NAMESPACE, key.record.namespace}
        ]
        return sorted(keys, key=lambda key: (key.record.created_at, key.record.id))

    def look(self, *, longest_ago_seconds: float = 0.0) -> None:
        """See whether anything changed, unless somebody did within the last `longest_ago_seconds`.

        Raises:
            Unavailable: neither Redis nor the bucket can be asked.
        """
        asked_at = self._clock.monotonic()
        with self._looking:
            looked_at = self._good_until - FRESH_SECONDS
            if looked_at >= asked_at - longest_ago_seconds:
                return  # while we waited for the lock
            began = self._clock.monotonic()
            told = self._ask()
            if told is None or told != self._known.told or began - self._known.listed_at > _ALL_ANEW_SECONDS:
                self._read_all(told, began)
            self._good_until = began + FRESH_SECONDS
            self._tell_used(began)

    def _ask(self) -> tuple[str, str | None] | None:
        """What Redis says now; None where it cannot be asked or trusted."""
        try:
            (value,) = self._index.read(lambda pipeline: pipeline.get(_CHANGED))
        except (GateClosed, Unavailable):
            return None
        return self._index.stamp, value

    def _read_all(self, told: tuple[str, str | None] | None, began: float) -> None:
        made: dict[str, tuple[str, str]] = {}
        ends: dict[str, list[End]] = {}
        for stored in self._store.list(_FOLDER).objects:
            if match := _MADE.fullmatch(stored.key):
                made[match[1]] = (stored.key, match[2])
            elif match := _END.fullmatch(stored.key):
                ends.setdefault(match[1], []).append(_end(match))
        records = {key_id: key.record for key_id, key in self._known.keys.items() if key_id in made}
        new = [key_id for key_id in made if key_id not in records]
        self._run_all([partial(self._read_one, key_id, *made[key_id], records) for key_id in new])
        keys = {key_id: ApiKey(record, tuple(ends.get(key_id, ()))) for key_id, record in records.items()}
        self._known = _Known(keys, told, began)

    def _read_one(self, key_id: str, key: str, sha256: str, into: dict[str, ApiKeyRecord]) -> None:
        """A record that is not what was written opens nothing."""
        try:
            body = self._store.get(key)
            if sha256_digest(body) != f"sha256:{sha256}":
                raise ValueError("the record is not what was written")
            record = ApiKeyRecord.model_validate_json(body)
            if record.id != key_id:
                raise ValueError("the record is of another key")
        except FileNotFoundError:
            return  # swept
        except ValueError as error:
            log.error("key.damaged", key_id=key_id, error=str(error))
            return
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
    ) -> tuple[Token, ApiKey]:
        """A new key. The token is nowhere else.

        Raises:
            InvalidRequest: no such namespace can be. QuotaExceeded: there are too many keys. Unavailable.
        """
        if namespace != ANY_NAMESPACE and not is_namespace(namespace):
            raise InvalidRequest(
                f"'namespace' is {namespace[:80]!a}; accepted: {ACCEPTED_NAMESPACES}, or '*' for all.",
                param="namespace",
            )
        now = self._clock.now()
        if expires_at is not None and expires_at <= now:
            raise InvalidRequest(
                f"'expires_at' is {expires_at}, which has passed; accepted: Unix seconds after {now:.0f}.",
                param="expires_at",
            )
        self.look()
        if len(self._known.keys) >= MAX_KEYS:
            raise QuotaExceeded(
                f"There are {MAX_KEYS} API keys, which is the most there can be. Revoke some: they go "
                f"{KEPT_SECONDS // 86_400} days later."
            )
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
        )
        body = record.to_json().encode()
        sha256 = sha256_digest(body).removeprefix("sha256:")
        self._put(f"{_FOLDER}{record.id}/made.{sha256}.json", body)
        log.info("key.made", key_id=record.id, namespace=namespace, by=created_by)
        self.look()
        return token, ApiKey(record)

    def end(self, key_id: str, *, at: int = AT_ONCE, by: str) -> ApiKey:
        """Not accepted any more, at once or from `at` on (Unix seconds); an earlier end stays. From when this
        returns every process that looks knows.

        Raises:
            ApiKeyNotFound, Unavailable.
        """
        self.look()
        if self.find(key_id) is None:
            raise key_not_found(key_id)
        self._put(f"{_FOLDER}{key_id}/end.{at:012d}.{self._clock.new_id()}", b"{}")
        log.info("key.ended", key_id=key_id, at=at, by=by)
        self.look()
        ended = self.find(key_id)
        assert ended is not None, "a key's facts outlive its end"
        return ended

    def rotate(self, old: ApiKey, *, grace_seconds: int, by: str) -> tuple[Token, ApiKey]:
        """A new key for the same, after which the old one is good for `grace_seconds`. One that expires is
        followed by one with as long a life.

        Raises:
            QuotaExceeded, Unavailable.
        """
        record, now = old.record, self._clock.now()
        life = record.expires_at - record.created_at if record.expires_at is not None else None
        token, made = self.make(
            name=record.name,
            namespace=record.namespace,
            scopes=record.scopes,
            created_by=by,
            expires_at=int(now) + life if life is not None else None,
            requests_per_minute=record.requests_per_minute,
            uploads_per_minute=record.uploads_per_minute,
        )
        self.end(record.id, at=int(now) + grace_seconds if grace_seconds else AT_ONCE, by=by)
        return token, made

    def _put(self, key: str, body: bytes) -> None:
        """The fact, then the word of it. Where Redis cannot be told everybody reads the facts."""
        self._store.put(key, body)
        with unavailable_without_redis():
            self._index.ungated.set(_CHANGED, self._clock.new_id())

    def sweep(self) -> int:
        """Forget keys that ended long ago. Returns how many."""
        self.look()
        before = self._clock.now() - KEPT_SECONDS
        old = {key_id for key_id, key in self._known.keys.items() if (key.ends_at or before) < before}
        if not old:
            return 0
        keys = [stored.key for stored in self._store.list(_FOLDER).objects if stored.key.split("/")[1] in old]
        # What made it first: an end alone opens nothing.
        for part in ("made.", "end."):
            self._store.delete(key for key in keys if key.split("/")[2].startswith(part))
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


def _end(match: re.Match[str]) -> End:
    """When it was said is in the id, as in any UUIDv7: the milliseconds come first."""
    return End(int(match[2]), int(match[3], 16) // 1000)


def key_not_found(key_id: str) -> ApiKeyNotFound:
    """Also of another namespace's."""
    return ApiKeyNotFound(f"No API key {key_id[:40]!a}.", param="key_id")
