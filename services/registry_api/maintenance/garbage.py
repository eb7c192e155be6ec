"""Finds garbage among one speaker's objects, and when deleted data is due to be erased. Pure functions."""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Self

from services.shared.bucket.facts import parsed
from services.shared.bucket.keys import (
    ArtifactKey,
    BlobKey,
    CensusKey,
    FailureKey,
    Keyed,
    NewerRecordKey,
    ParsedKey,
    VersionKey,
    parse_key,
    version_folder_of,
)
from services.shared.bucket.store import Listing, StoredObject
from services.shared.model.domain import (
    AliasFact,
    Fact,
    Speaker,
    TombstoneFact,
    VoidFact,
    fold,
)

_DATA = BlobKey | ArtifactKey | FailureKey | VoidFact
"""What lies in the folder of a version."""
_RECORDS = VersionKey | CensusKey | AliasFact | TombstoneFact | NewerRecordKey
"""What lies in the folder of a speaker's records."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Garbage among the objects of one speaker."""

    certain: tuple[str, ...]
    """Keys of what a fact says is garbage: a tombstone covers it. Data comes before records."""
    presumed: tuple[str, ...]
    """Keys of what is garbage because something is missing: no record names it, no other artifact landed
    earlier, or no later census counts it. A store that leaves something out of one listing must not make it
    so.
    """
    foreign: int
    """How many objects are not ours and stay."""


def unreachable(
    listing: Listing, facts: Iterable[Fact], indexed: Speaker, *, grace: timedelta, deleted_grace: timedelta
) -> Unreachable:
    """What no live version needs and no process can be about to need. Pure.

    Ages are taken at the time *of the listing*: judged later, an upload that committed in between would lose
    its clip. Of a deleted voice everything goes, whoever put it there; elsewhere what is not ours stays.

    Args:
        facts: of the listing, none of them damaged or unreadable. indexed: what the index says of the
            speaker: an artifact that it serves stays, also where the facts name another one.
        grace: how long data without a record may belong to an upload or a worker still on its way.
        deleted_grace: how long a deleted voice's data stays.
    """
    objects, truth = parsed(listing), fold(facts)
    judge = _Judge.of(objects, truth, indexed, listing.taken_at, grace=grace, deleted_grace=deleted_grace)
    certain = [(stored, key) for stored, key in objects if judge.is_certain(stored, key)]
    presumed = [(stored, key) for stored, key in objects if judge.is_presumed(stored, key)]
    foreign = sum(judge.is_foreign(stored, key) for stored, key in objects)
    return Unreachable(_data_first(certain), _data_first(presumed), foreign)


def _data_first(objects: Iterable[Keyed]) -> tuple[str, ...]:
    """The keys, those of records last: what a crash leaves of the data would be nobody's without them."""
    return tuple(stored.key for stored, key in sorted(objects, key=lambda one: isinstance(one[1], _RECORDS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """Tells garbage among the objects of one speaker from what is needed."""

    truth: Speaker
    indexed: Speaker
    recorded: Set[str]
    """Versions (vuid) that have a record, as the two below."""
    left_out: Set[str]
    """Those that the census does not count."""
    dead: Set[str]
    """Those that a tombstone covers."""
    gone: bool
    """The speaker was deleted, with all its versions."""
    forgiven: bool
    """It was deleted so lately that nothing of it goes yet."""
    final: bool
    """No later census can count what this one leaves out."""
    old_before: datetime

    @classmethod
    def of(
        cls,
        objects: Sequence[Keyed],
        truth: Speaker,
        indexed: Speaker,
        taken_at: datetime,
        *,
        grace: timedelta,
        deleted_grace: timedelta,
    ) -> Self:
        versions = [key for _, key in objects if isinstance(key, VersionKey)]
        recorded = {key.vuid for key in versions}
        left_out = {
            key.vuid
            for key in versions
            if key.seq > truth.tombstone and not truth.census.counts(key.seq, key.vuid)
        }
        buried_at = _last_put(objects, partial(_is_tombstone, seq=truth.tombstone))
        return cls(
            truth=truth,
            indexed=indexed,
            recorded=recorded,
            left_out=left_out,
            dead=recorded - left_out - {version.vuid for version in truth.versions},
            gone=buried_at is not None and not truth.versions,
            forgiven=buried_at is not None and taken_at - buried_at < deleted_grace,
            final=any(
                _is_census(key, truth.census.seq) and taken_at - stored.last_modified > grace
                for stored, key in objects
            ),
            old_before=taken_at - grace,
        )

    def is_foreign(self, stored: StoredObject, key: ParsedKey | None) -> bool:
        """It is not ours, and stays."""
        return key is None and not self.gone and version_folder_of(stored.key) not in self.dead

    def is_certain(self, stored: StoredObject, key: ParsedKey | None) -> bool:
        """A tombstone covers it, and the grace period of that is over."""
        if self.forgiven or self.is_foreign(stored, key):
            return False
        if isinstance(key, _DATA):
            return key.vuid in self.dead
        return key is None or _is_dead_record(key, self.truth.tombstone)

    def is_presumed(self, stored: StoredObject, key: ParsedKey | None) -> bool:
        """Something is missing that would need it."""
        if not isinstance(key, _DATA):
            return self.final and key is not None and self._is_left_out(key)
        if key.vuid in self.dead or key.vuid in self.left_out:
            return self.final and key.vuid in self.left_out
        needed = key.vuid in self.recorded and not _lost_the_race(key, self.truth, self.indexed)
        return stored.last_modified < self.old_before and not needed

    def _is_left_out(self, key: ParsedKey) -> bool:
        """A version that does not count as the census says, or an older census."""
        if _is_dead_record(key, self.truth.tombstone):
            return False
        if isinstance(key, VersionKey):
            return not self.truth.census.counts(key.seq, key.vuid)
        return isinstance(key, CensusKey) and key.seq < self.truth.census.seq


def erasure_due_in(listing: Listing, *, deleted_grace: timedelta) -> float | None:
    """Seconds until what was deleted of a speaker is to be erased; 0: now; None: nothing is left to erase.
    Pure.
    """
    objects = parsed(listing)
    tombstone = max((key.seq for _, key in objects if isinstance(key, TombstoneFact)), default=0)
    buried_at = _last_put(objects, partial(_is_tombstone, seq=tombstone))
    if buried_at is None or not any(_is_dead_record(key, tombstone) for _, key in objects):
        return None
    return max(0.0, (buried_at + deleted_grace - listing.taken_at).total_seconds())


def kind_of(key: str) -> str:
    """Of an object of a speaker, for the metrics."""
    match parse_key(key):
        case BlobKey():
            return "blob"
        case ArtifactKey() | FailureKey() | VoidFact():
            return "artifact"
        case None:
            return "foreign"
    return "record"


def _last_put(objects: Iterable[Keyed], is_meant: Callable[[ParsedKey | None], bool]) -> datetime | None:
    return max((stored.last_modified for stored, key in objects if is_meant(key)), default=None)


def _is_tombstone(key: ParsedKey | None, seq: int) -> bool:
    return isinstance(key, TombstoneFact) and key.seq == seq


def _is_census(key: ParsedKey | None, seq: int) -> bool:
    return isinstance(key, CensusKey) and key.seq == seq


def _is_dead_record(key: ParsedKey | None, tombstone: int) -> bool:
    """A version or an alias that the tombstone covers, or an older tombstone. The last one keeps the marks
    for ever.
    """
    if not isinstance(key, _RECORDS):
        return False
    return key.seq < tombstone or (key.seq == tombstone and not isinstance(key, TombstoneFact))


def _lost_the_race(key: ParsedKey, truth: Speaker, indexed: Speaker) -> bool:
    """An artifact's object that is not of the one in force, though there is one, and facts and index agree
    which that is.
    """
    if not isinstance(key, ArtifactKey):
        return False
    in_force, served = (_winner(speaker, key) for speaker in (truth, indexed))
    return in_force is not None and in_force == served and key.winner != in_force


def _winner(speaker: Speaker, key: ArtifactKey) -> str | None:
    version = speaker.by_vuid(key.vuid)
    record = version.artifacts.get(key.akey) if version else None
    return record.winner if record else None
