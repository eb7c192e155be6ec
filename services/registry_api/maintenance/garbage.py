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
    PictureKey,
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

_DATA = BlobKey | PictureKey | ArtifactKey | FailureKey | VoidFact
"""Keys of the objects in the folder of a version."""
_RECORDS = VersionKey | CensusKey | AliasFact | TombstoneFact | NewerRecordKey
"""Keys of the objects in the folder of a speaker's records."""


@dataclass(frozen=True, slots=True)
class Unreachable:
    """Garbage among the objects of one speaker."""

    certain: tuple[str, ...]
    """Keys of objects that a tombstone covers. Data comes before records."""
    presumed: tuple[str, ...]
    """Keys of objects that are garbage because something else is absent: no record names them, no earlier
    artifact takes precedence, or no later census counts them. One listing is not enough to delete them,
    because a store may omit an object from a listing.
    """
    foreign: int
    """The number of foreign objects. They are kept."""


def unreachable(
    listing: Listing, facts: Iterable[Fact], indexed: Speaker, *, grace: timedelta, deleted_grace: timedelta
) -> Unreachable:
    """Return the objects that no live version needs and that no running process can still come to need.

    Ages are taken at the time *of the listing*: judged later, an upload that committed in between would lose
    its clip. Everything in the folder of a deleted voice is garbage, foreign objects included. Elsewhere
    foreign objects are kept.

    Args:
        facts: the facts in the listing, none of them damaged or unreadable.
        indexed: the speaker as the index knows it. An artifact that the index serves is kept, even if the
            facts name
            another one.
        grace: how long data without a record may belong to an upload or a worker that is still running.
        deleted_grace: how long the data of a deleted voice is kept.
    """
    objects, truth = parsed(listing), fold(facts)
    judge = _Judge.of(objects, truth, indexed, listing.taken_at, grace=grace, deleted_grace=deleted_grace)
    certain = [(stored, key) for stored, key in objects if judge.is_certain(stored, key)]
    presumed = [(stored, key) for stored, key in objects if judge.is_presumed(stored, key)]
    foreign = sum(judge.is_foreign(stored, key) for stored, key in objects)
    return Unreachable(_data_first(certain), _data_first(presumed), foreign)


def _data_first(objects: Iterable[Keyed]) -> tuple[str, ...]:
    """Return the keys, with those of records last. Data that a crash left without its records could not be
    attributed.
    """
    return tuple(stored.key for stored, key in sorted(objects, key=lambda one: isinstance(one[1], _RECORDS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    """Decides for each object of one speaker whether it is garbage."""

    truth: Speaker
    indexed: Speaker
    recorded: Set[str]
    """Version ids of the versions that have a record."""
    left_out: Set[str]
    """Version ids of the versions that the census does not count."""
    dead: Set[str]
    """Version ids of the versions that a tombstone covers."""
    deleted: bool
    """True if the speaker was deleted with all its versions."""
    in_grace_period: bool
    """True if the last delete is so recent that nothing may be removed yet."""
    final: bool
    """True if no later census can count a version that this census leaves out."""
    old_before: datetime
    """Unrecorded data from before this time cannot belong to a process that is still running."""

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
        deleted_at = _last_put(objects, partial(_is_tombstone, seq=truth.tombstone))
        return cls(
            truth=truth,
            indexed=indexed,
            recorded=recorded,
            left_out=left_out,
            dead=recorded - left_out - {version.vuid for version in truth.versions},
            deleted=deleted_at is not None and not truth.versions,
            in_grace_period=deleted_at is not None and taken_at - deleted_at < deleted_grace,
            final=any(
                _is_census(key, truth.census.seq) and taken_at - stored.last_modified > grace
                for stored, key in objects
            ),
            old_before=taken_at - grace,
        )

    def is_foreign(self, stored: StoredObject, key: ParsedKey | None) -> bool:
        """Return whether the object is foreign and is kept."""
        return key is None and not self.deleted and version_folder_of(stored.key) not in self.dead

    def is_certain(self, stored: StoredObject, key: ParsedKey | None) -> bool:
        """Return whether a tombstone covers the object and its grace period is over."""
        if self.in_grace_period or self.is_foreign(stored, key):
            return False
        if isinstance(key, _DATA):
            return key.vuid in self.dead
        return key is None or _is_dead_record(key, self.truth.tombstone)

    def is_presumed(self, stored: StoredObject, key: ParsedKey | None) -> bool:
        """Return whether the object is garbage because nothing that would need it is there."""
        if not isinstance(key, _DATA):
            return self.final and key is not None and self._is_left_out(key)
        if key.vuid in self.dead or key.vuid in self.left_out:
            return self.final and key.vuid in self.left_out
        needed = key.vuid in self.recorded and not _lost_the_race(key, self.truth, self.indexed)
        return stored.last_modified < self.old_before and not needed

    def _is_left_out(self, key: ParsedKey) -> bool:
        """Return whether the key is of a version that the census does not count, or of an older census."""
        if _is_dead_record(key, self.truth.tombstone):
            return False
        if isinstance(key, VersionKey):
            return not self.truth.census.counts(key.seq, key.vuid)
        return isinstance(key, CensusKey) and key.seq < self.truth.census.seq


def erasure_due_in(listing: Listing, *, deleted_grace: timedelta) -> float | None:
    """Return in how many seconds the deleted data of a speaker is due to be erased: 0 for now.

    Returns None if nothing is left to erase.
    """
    objects = parsed(listing)
    tombstone = max((key.seq for _, key in objects if isinstance(key, TombstoneFact)), default=0)
    deleted_at = _last_put(objects, partial(_is_tombstone, seq=tombstone))
    if deleted_at is None or not any(_is_dead_record(key, tombstone) for _, key in objects):
        return None
    return max(0.0, (deleted_at + deleted_grace - listing.taken_at).total_seconds())


def kind_of(key: str) -> str:
    """Return the kind of a speaker's object, as a label of the metrics."""
    match parse_key(key):
        case BlobKey():
            return "blob"
        case PictureKey():
            return "picture"
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
    """Return whether the key is of a version or an alias that the tombstone covers, or of an older tombstone.

    The last tombstone is never garbage, because it carries the highest number and time of the name.
    """
    if not isinstance(key, _RECORDS):
        return False
    return key.seq < tombstone or (key.seq == tombstone and not isinstance(key, TombstoneFact))


def _lost_the_race(key: ParsedKey, truth: Speaker, indexed: Speaker) -> bool:
    """Return whether the key is of an artifact that lost to another one.

    That is certain only if facts and index agree which artifact is in force.
    """
    if not isinstance(key, ArtifactKey):
        return False
    in_force, served = (_winner(speaker, key) for speaker in (truth, indexed))
    return in_force is not None and in_force == served and key.winner != in_force


def _winner(speaker: Speaker, key: ArtifactKey) -> str | None:
    version = speaker.by_vuid(key.vuid)
    record = version.artifacts.get(key.akey) if version else None
    return record.winner if record else None
