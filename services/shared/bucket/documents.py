"""JSON documents in the bucket. Each is replaced only if nothing has changed it since it was read.

The bucket alone puts the changes of a document in order, without a clock, a lock or Redis. This module knows
stores, ETags and lost replies, but not what a document contains.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import Any

from services.shared.bucket.store import Moved, SwappingStore, TooLarge, WritesRefused
from services.shared.model.clock import Clock
from services.shared.model.records import unseal
from speaker_registry.errors import SpeakerRegistryError, Unavailable

CHANGE_SECONDS = 30.0
"""The time limit of a change, from the arrival of its request. Callers do not wait longer. A change that was
suspended must not be applied to newer data: a delete from two days ago would remove a new voice.
"""
_RETRY_AFTER_SECONDS = 1.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.025, 1.0
"""The pause after a conflict is random, up to a bound that doubles. Sixteen writers of one document had 120
conflicts without the pause, and 17 with it.
"""
_TIMES_READ = 2
"""The number of times that a document is read before it counts as missing or damaged. An outdated node of the
store, or a bad connection, may give one wrong answer.
"""
_OLDER_SECONDS = 2.0
"""A document that is older than expected is read again for this long, because an outdated node of the store
may catch up. The request holds a slot of the bucket meanwhile. If many requests held one until their time
limit, as for a document of which an operator put an older copy back, other tenants would get no slot.
"""

BeforeCommit = Callable[[], None]
"""A function that is called right before a change is committed, and that raises an error of the registry to
refuse it. The API uses it to check that the caller may still change something.
"""


@dataclass(frozen=True, slots=True)
class Base:
    """A document as it was read, from which a change starts."""

    body: bytes | None
    """None if the bucket has no such document."""
    etag: str | None
    revision: int = 0
    """The number of changes so far, from the member `revision`. 0 for a missing or damaged document."""
    damaged: bool = False
    """True if the body is too large, or if its digest was wrong with the same bytes in each reading."""
    sound: bool = False
    """True if the digest of the body was right, or if this process has made the body."""
    oversize: int | None = None
    """The size of a document that is too large to be read. Its body is then empty."""
    members: dict[str, Any] | None = field(default=None, repr=False, compare=False)
    """The parsed members of the body that `unseal` returned, or None if it was not called."""


NOTHING = Base(None, None)

SEND_AGAIN = "Send the request again, or look first if a repeat would add something."
"""Advice in errors whose change may have been made. Most changes have no further effect when they are
repeated, but a repeated request for an API key makes another key, and a repeated upload may add another
version.
"""
_TOO_LATE = "The change took too long and was not made. Send it again."
_OUTCOME_UNKNOWN = (
    f"The object store did not answer in time, and it is not known whether the change was made. {SEND_AGAIN}"
)
_OLDER = (
    "The object store has an older state of this document than it had before, or has lost it, and {outcome}. "
    "If this lasts, the object must be restored from a backup. {advice}"
)
_OLDER_NOT_MADE = _OLDER.format(outcome="the change was not made", advice="Send it again.")
_OLDER_UNKNOWN = _OLDER.format(outcome="it is not known whether the change was made", advice=SEND_AGAIN)

Decide = Callable[[Base], bytes | None]
"""A decision returns the next body, or None if nothing is to be changed. It refuses by raising an error of
the registry.
"""
IsMade = Callable[[bytes, int], bool | None]
"""A function that returns whether a body contains a change, given the revision that the change would have
made. None means that the body can no longer tell, because it keeps only the ids of the last changes.
"""


class Documents:
    """Reads documents and changes them by compare-and-swap."""

    def __init__(self, store: SwappingStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def deadline(self) -> float:
        """Return the moment until which a request that arrives now may change documents."""
        return self._clock.since_boot() + CHANGE_SECONDS

    def read(self, key: str) -> Base:
        """Return a document. If it is missing or its digest is wrong, it is read a second time.

        Raises `Unavailable` if the digest is wrong and the two bodies differ.
        """
        wrong: set[bytes] = set()
        for _ in range(_TIMES_READ):
            try:
                found = self._store.read(key)
                members = unseal(found.data)
                revision = int(members.get("revision", 0))
            except FileNotFoundError:
                continue
            except TooLarge as error:
                return Base(b"", error.etag, damaged=True, oversize=error.size)
            except (ValueError, TypeError):
                if found.data in wrong:
                    return Base(found.data, found.etag, damaged=True)
                wrong.add(found.data)
                continue
            return Base(found.data, found.etag, revision, sound=True, members=members)
        if wrong:
            raise Unavailable(
                "A document in the object store could not be read as a whole.",
                retry_after_seconds=_RETRY_AFTER_SECONDS,
            )
        return NOTHING

    def change(
        self,
        key: str,
        decide: Decide,
        *,
        is_made: IsMade,
        base: Base | None = None,
        known_revision: int = 0,
        until: float | None = None,
        is_damaged: Callable[[Base], bool] = attrgetter("damaged"),
    ) -> Base:
        """Replace a document by the one that `decide` returns, and decide again after every conflict.

        Returns the newest document that was found. If the reply was lost, others may have changed it since.

        Args:
            is_made: returns whether a body contains this change already. If the reply was lost and `is_made`
                can no longer tell, the change is not decided again, because it could be made twice.
            base: a copy of the document from elsewhere. An outdated copy costs a conflict. If `decide`
                refuses it or leaves it unchanged, it decides again on the bucket's document, because no
                conflict would show that the copy is outdated.
            known_revision: a revision that the document has had. An older one is not decided on.
            until: the `deadline` of the request. By default the change counts as requested now.
            is_damaged: returns whether a document is none of this key's, of whatever revision. `decide` gets
                it at once. Any other document that is older than before is read again for a while.

        Raises:
            WritesRefused: the store is full or can only be read, and the change was not made.
            Unavailable: the time limit has passed, the store has an older document than before, or too many
                changes have followed to find out about a lost reply. The message says whether the change was
                not made or its outcome is unknown.
        """
        until = self.deadline() if until is None else until
        body = None if base is None else self._decide_on_copy(base, decide, until)
        if base is None or body is None:
            base = self._read_known(key, known_revision, until, is_damaged)
            self._check(until, _TOO_LATE)
            body = decide(base)
        reply_lost = False
        for tried in count():
            if body is None:
                return base
            # `decide` may have waited for a check of the caller, and a late swap must not be applied.
            self._check(until, _OUTCOME_UNKNOWN if tried else _TOO_LATE)
            try:
                etag = self._store.swap(key, body, etag=base.etag)
                return Base(body, etag, base.revision + 1, sound=True)
            except (Moved, Unavailable) as error:
                failure = error
            # WritesRefused is among these errors: the disk may get full right after the change was made.
            reply_lost = reply_lost or isinstance(failure, Unavailable)
            found = self._read_again(key, base, until, tried, is_damaged)
            if _has_change(found, is_made, base.revision + 1, reply_lost=reply_lost):
                return found  # an earlier attempt succeeded, and its reply was lost
            if isinstance(failure, WritesRefused):
                raise failure
            self._check(until, _OUTCOME_UNKNOWN)
            if found.etag != base.etag:
                # No earlier attempt was made, and none can be any more.
                base, body, reply_lost = found, decide(found), False
        raise AssertionError("counting never ends")

    def _decide_on_copy(self, copy: Base, decide: Decide, until: float) -> bytes | None:
        """Return the next body, or None if the copy does not lead to one."""
        self._check(until, _TOO_LATE)
        try:
            return decide(copy)
        except SpeakerRegistryError:
            return None

    def _read_known(self, key: str, revision: int, until: float, is_damaged: Callable[[Base], bool]) -> Base:
        """Read a document that has had a revision. If it is older, it is read again for a while. If it is
        missing, it is returned at once.
        """
        found = self.read(key)
        if found.etag is None or found.revision >= revision or is_damaged(found):
            return found
        return self._read_again(key, Base(None, None, revision), until, 0, is_damaged, is_sent=False)

    def _read_again(
        self,
        key: str,
        base: Base,
        until: float,
        tried: int,
        is_damaged: Callable[[Base], bool],
        *,
        is_sent: bool = True,
    ) -> Base:
        """Read the document again after a pause, until it can be read.

        A document older than `base` comes from an outdated node. A decision on it could refuse a change that
        was made, so it is read again.

        Args:
            is_sent: whether the change may have been made. Otherwise errors say that it was not. A refused
                swap counts as sent: a proxy may have repeated it after its first copy was carried out.
        """
        until_older = until
        for attempt in count(tried):
            pause = min(_FIRST_PAUSE_SECONDS * 2 ** min(attempt, 10), _LONGEST_PAUSE_SECONDS)
            self._clock.sleep(self._clock.up_to(pause))
            try:
                found = self.read(key)
            except Unavailable:
                self._check(until, _OUTCOME_UNKNOWN if is_sent else _TOO_LATE)
                continue
            if found.revision >= base.revision or is_damaged(found):
                return found
            until_older = min(until_older, self._clock.since_boot() + _OLDER_SECONDS)
            self._check(until_older, _OLDER_UNKNOWN if is_sent else _OLDER_NOT_MADE)
        raise AssertionError("counting never ends")

    def _check(self, until: float, otherwise: str) -> None:
        """Raise `Unavailable` once the time is over."""
        if self._clock.since_boot() > until:
            raise Unavailable(otherwise, retry_after_seconds=_RETRY_AFTER_SECONDS)


def _has_change(found: Base, is_made: IsMade, revision: int, *, reply_lost: bool) -> bool:
    """Return whether a document contains the change that would have made this revision.

    Raises `Unavailable` if the reply of the change was lost, and the document can no longer tell.
    """
    made = False if found.body is None or found.damaged else is_made(found.body, revision)
    if made is None and reply_lost:
        raise Unavailable(_OUTCOME_UNKNOWN, retry_after_seconds=_RETRY_AFTER_SECONDS)
    return bool(made)
