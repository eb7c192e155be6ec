"""Where facts and blobs lie in the bucket, and how they are read back. Knows the store, not Redis.

    {namespace}/v/{slug}/r/{seq:012d}.ver.{vuid}.{number}.{created_at}.{sha256 of its JSON}   a version
                           {seq:012d}.als.{alias}.{vuid}.{uid}          an alias was moved
                           {seq:012d}.del.{number}.{created_at}.{uid}   every version up to seq is dead
                           {seq:012d}.cen.{sha256 of its JSON}          the versions up to seq that count
                         d/{vuid}/blob/{sha256}                         bytes as uploaded, and decoded
                                  art/{akey}/{attempt}.{sha256}.safetensors   artifact bytes
                                             {attempt}.{sha256}.json    the artifact is published
                                             {attempt}.failed           its extraction was given up
                                             {uid}.void                 its bytes were lost: it counts no more
    _profiles/{profile}/{seq:012d}.{uid}.json                           a worker announced a fingerprint
    _keys/{id}/made.{sha256 of its JSON}.json                           an API key was made
               end.{at:012d}.{uid}                                      somebody ended it
    _registry/                                                          which bucket this is, see `identity`
    _place/{seq:06d}.{uid}                                              where it is, see `bucket_place`
    _epochs/{epoch:012d}                                                an index was begun, see `epochs`

Everything of one speaker lies under one prefix, so erasing it needs no reference counts. All objects are
immutable and uniquely named: a lost reply, a late write or a repeated one does no harm.

Other people can put objects into the bucket as well. `parse_key` tells ours from theirs, for everybody who
reads a listing: what it does not know is ignored.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Self

import structlog
from pydantic import TypeAdapter

from services.shared.bucket.store import (
    DATED_WITHIN,
    Listing,
    ObjectUnavailable,
    Store,
    StoredObject,
    together,
)
from services.shared.model.domain import (
    AUTOMATIC,
    AliasFact,
    ArtifactFact,
    ArtifactRecord,
    CensusFact,
    DamagedFact,
    Fact,
    FailureFact,
    FailureRecord,
    Speaker,
    TombstoneFact,
    UnreadableFact,
    VersionFact,
    VersionRecord,
    VoidFact,
    build_of,
    fold,
)
from services.shared.telemetry.metrics import INTEGRITY_FAILURES
from speaker_registry.names import SpeakerName, is_namespace, slug_of

log = structlog.get_logger()

LAST_SEQ, LAST_NUMBER, LAST_CREATED_AT, LAST_BUILD = 10**12 - 1, 10**9 - 1, 10**10 - 1, 10**4 - 1
"""The highest that keys hold. What says more is not ours, and whoever gives these out stops there: a record
with one more digit would be nobody's. Places follow the clock, 100 for each second, so they and `created_at`
have these digits until the year 2286.
"""
MAX_RECORD_BYTES = 2**24
"""More than any record has, and little enough to be read whole."""
_VUIDS = TypeAdapter(tuple[str, ...])
_HASHED_SLUG = re.compile(r"x-[0-9a-f]{40}")
_ID = r"[0-9a-f]{32}"
_UID = r"[0-9a-zA-Z-]{1,150}"
_SHA256 = r"[0-9a-z]{64}"
_WINNER = rf"{_UID}\.{_SHA256}"
_SEQ = r"[0-9]{12}"
_NUMBER = r"[0-9]{1,9}"
_CREATED_AT = r"[0-9]{1,10}"
_AKEY = re.compile(r"[0-9a-zA-Z._-]{1,200}-[1-9][0-9]{0,3}")
_RECORD = re.compile(rf"({_SEQ})\.([a-z]{{3}})\.([0-9a-zA-Z._-]+)")
_VERSION = re.compile(rf"({_ID})\.({_NUMBER})\.({_CREATED_AT})\.({_SHA256})")
_ALIAS = re.compile(rf"([a-z][a-z0-9._-]{{0,63}})\.({_ID})\.((?:{AUTOMATIC}{_SEQ}-)?{_ID})")
_TOMBSTONE = re.compile(rf"({_NUMBER})\.({_CREATED_AT})\.{_ID}")
_ARTIFACT = re.compile(rf"({_WINNER})\.(safetensors|json)")
_FAILURE = re.compile(rf"({_UID})\.failed")
_VOID = re.compile(rf"{_UID}\.void")
_ANNOUNCEMENT = re.compile(rf"({_SEQ})\.({_ID})\.json")
_MADE = re.compile(rf"made\.({_SHA256})\.json")
_END = re.compile(r"end\.([0-9]{12})\.([0-9a-f]{12})[0-9a-f]{20}")
_KEY_ID = re.compile(r"[0-9a-z]{8}")
_MARKER = re.compile(_ID)
_PLACE = re.compile(rf"([0-9]{{6}})\.({_ID})")
_EPOCH = re.compile(r"[0-9]{12}")
_DATA = re.compile(r"[^/]*/v/[^/]*/d/[^/]*/(?:blob/|art/[^/]*/[^/]*\.safetensors\Z)")


def is_slug(text: str) -> bool:
    """Whether `slug_of` can have made it."""
    return slug_of(text) == text or _HASHED_SLUG.fullmatch(text) is not None


@dataclass(frozen=True, slots=True)
class SpeakerId:
    """Which speaker, in bucket and Redis: its namespace and the safe form of its key."""

    namespace: str
    slug: str

    def __post_init__(self) -> None:
        if not is_namespace(self.namespace):
            raise ValueError(f"namespace {self.namespace!r} is not [a-z0-9-], 1 to 32 characters")

    @classmethod
    def of(cls, namespace: str, name: SpeakerName) -> Self:
        return cls(namespace, slug_of(name.key))

    @classmethod
    def of_record(cls, namespace: str, record: VersionRecord) -> Self:
        """The speaker that a version is one of."""
        return cls(namespace, slug_of(record.key))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Inverse of `str`."""
        namespace, slug = text.split("/")
        return cls(namespace, slug)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.slug}"

    @property
    def prefix(self) -> str:
        return f"{self.namespace}/v/{self.slug}/"

    def version_key(self, seq: int, record: VersionRecord) -> str:
        body = hashlib.sha256(record.to_json().encode()).hexdigest()
        return f"{self.prefix}r/{seq:012d}.ver.{record.vuid}.{record.number}.{record.created_at}.{body}"

    def alias_key(self, fact: AliasFact) -> str:
        return f"{self.prefix}r/{fact.seq:012d}.als.{fact.alias}.{fact.vuid}.{fact.uid}"

    def tombstone_key(self, fact: TombstoneFact, uid: str) -> str:
        return f"{self.prefix}r/{fact.seq:012d}.del.{fact.number}.{fact.created_at}.{uid}"

    def census_key(self, seq: int, body: bytes) -> str:
        return f"{self.prefix}r/{seq:012d}.cen.{hashlib.sha256(body).hexdigest()}"

    def data_prefix(self, vuid: str) -> str:
        return f"{self.prefix}d/{vuid}/"

    def blob_key(self, vuid: str, sha256: str) -> str:
        return f"{self.data_prefix(vuid)}blob/{sha256}"

    def artifact_prefix(self, vuid: str, akey: str) -> str:
        return f"{self.data_prefix(vuid)}art/{akey}/"

    def artifact_blob_key(self, vuid: str, akey: str, record: ArtifactRecord) -> str:
        return f"{self.artifact_prefix(vuid, akey)}{record.winner}.safetensors"

    def artifact_fact_key(self, vuid: str, akey: str, record: ArtifactRecord) -> str:
        return f"{self.artifact_prefix(vuid, akey)}{record.winner}.json"

    def void_key(self, fact: VoidFact, uid: str) -> str:
        return f"{self.artifact_prefix(fact.vuid, fact.akey)}{uid}.void"

    def failure_key(self, vuid: str, akey: str, record: FailureRecord) -> str:
        return f"{self.artifact_prefix(vuid, akey)}{record.attempt}.failed"


# -- what an object is by its key


@dataclass(frozen=True, slots=True)
class VersionKey:
    """Of a version's record."""

    seq: int
    vuid: str
    number: int
    created_at: int
    sha256: str
    """Of the record's JSON."""


@dataclass(frozen=True, slots=True)
class NewerRecordKey:
    """Of a record of a kind that only a newer release knows."""

    seq: int


@dataclass(frozen=True, slots=True)
class BlobKey:
    """Of an uploaded clip or its decoded rendition."""

    vuid: str


@dataclass(frozen=True, slots=True)
class ArtifactKey:
    """Of an artifact's bytes, or of the fact that it is published."""

    vuid: str
    akey: str
    winner: str
    """As `ArtifactRecord.winner`."""
    published: bool
    """It is the fact."""


@dataclass(frozen=True, slots=True)
class CensusKey:
    """Of a census: which versions up to `seq` count is in its body."""

    seq: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FailureKey:
    """Of the fact that an extraction was given up."""

    vuid: str
    akey: str
    attempt: str


@dataclass(frozen=True, slots=True)
class AnnouncementKey:
    """Of a worker's announcement."""

    profile: str
    seq: int
    uid: str


@dataclass(frozen=True, slots=True)
class KeyMadeKey:
    """Of the fact that an API key was made."""

    key_id: str
    sha256: str


@dataclass(frozen=True, slots=True)
class KeyEndKey:
    """Of the fact that an API key was ended."""

    key_id: str
    at: int
    """Unix seconds; 0: at once."""
    said_at: int
    """Unix seconds."""


@dataclass(frozen=True, slots=True)
class MarkerKey:
    """Of a candidate for the bucket's identity."""

    uid: str


@dataclass(frozen=True, slots=True)
class PlaceKey:
    """Of a fact that says where the bucket is. Of those that are whole the highest counts."""

    seq: int
    uid: str


@dataclass(frozen=True, slots=True)
class EpochKey:
    """Of the fact that an index was begun."""

    epoch: int


SpeakerKey = (
    VersionKey
    | CensusKey
    | AliasFact
    | TombstoneFact
    | NewerRecordKey
    | BlobKey
    | ArtifactKey
    | FailureKey
    | VoidFact
)
"""Of an object of one speaker. Facts that have no more to say than their key are themselves."""
ParsedKey = SpeakerKey | AnnouncementKey | KeyMadeKey | KeyEndKey | MarkerKey | PlaceKey | EpochKey
Keyed = tuple[StoredObject, ParsedKey | None]
"""An object, and what it is by its key."""


def parse_key(key: str) -> ParsedKey | None:
    """What an object is, by its key; None if it is not ours. Takes any text."""
    match key.split("/"):
        case [namespace, "v", slug, *rest] if is_namespace(namespace) and is_slug(slug):
            return _parse_of_speaker(rest)
        case ["_profiles", profile, name] if match := _ANNOUNCEMENT.fullmatch(name):
            return AnnouncementKey(profile, int(match[1]), match[2])
        case ["_keys", key_id, name] if _KEY_ID.fullmatch(key_id):
            return _parse_of_api_key(key_id, name)
        case [folder, name]:
            return _parse_of_bucket(folder, name)
    return None


def _parse_of_bucket(folder: str, name: str) -> MarkerKey | PlaceKey | EpochKey | None:
    """What is said of the bucket as a whole."""
    match folder:
        case "_registry" if _MARKER.fullmatch(name):
            return MarkerKey(name)
        case "_place" if match := _PLACE.fullmatch(name):
            return PlaceKey(int(match[1]), match[2])
        case "_epochs" if _EPOCH.fullmatch(name):
            return EpochKey(int(name))
    return None


def _parse_of_speaker(parts: list[str]) -> SpeakerKey | None:
    match parts:
        case ["r", name] if match := _RECORD.fullmatch(name):
            return _parse_record(int(match[1]), match[2], match[3])
        case ["d", vuid, "blob", sha256] if re.fullmatch(_ID, vuid) and re.fullmatch(_SHA256, sha256):
            return BlobKey(vuid)
        case ["d", vuid, "art", akey, name] if re.fullmatch(_ID, vuid) and _AKEY.fullmatch(akey):
            if match := _ARTIFACT.fullmatch(name):
                return ArtifactKey(vuid, akey, match[1], match[2] == "json")
            if match := _FAILURE.fullmatch(name):
                return FailureKey(vuid, akey, match[1])
            if _VOID.fullmatch(name):
                return VoidFact(vuid, akey)
    return None


def _parse_of_api_key(key_id: str, name: str) -> KeyMadeKey | KeyEndKey | None:
    if match := _MADE.fullmatch(name):
        return KeyMadeKey(key_id, match[1])
    if match := _END.fullmatch(name):
        # The id is a UUIDv7: it begins with the milliseconds at which it was made.
        return KeyEndKey(key_id, int(match[1]), int(match[2], 16) // 1000)
    return None


def _parse_record(seq: int, kind: str, rest: str) -> SpeakerKey | None:
    if kind == "ver":
        match = _VERSION.fullmatch(rest)
        return VersionKey(seq, match[1], int(match[2]), int(match[3]), match[4]) if match else None
    if kind == "cen":
        return CensusKey(seq, rest) if re.fullmatch(_SHA256, rest) else None
    if kind == "als":
        match = _ALIAS.fullmatch(rest)
        return AliasFact(seq, match[1], match[2], match[3]) if match else None
    if kind == "del":
        match = _TOMBSTONE.fullmatch(rest)
        return TombstoneFact(seq, int(match[1]), int(match[2])) if match else None
    return NewerRecordKey(seq)


def is_data(key: str) -> bool:
    """Whether an object of a speaker, or a folder (`…/`), is bytes that no fact is in. `Skips` for listings
    whose facts alone are wanted.
    """
    return _DATA.match(key) is not None


# -- reading facts


def read_speaker(store: Store, speaker_id: SpeakerId) -> Speaker:
    """The truth about one speaker, from the bucket alone."""
    return fold(read_facts(store, store.list(speaker_id.prefix)))


def read_certain(store: Store, speaker_id: SpeakerId, *, listings: int = 1) -> Speaker:
    """The truth about one speaker, without what may still change.

    Buckets date objects to the second, and of two artifacts of one second the younger attempt counts. So this
    leaves out artifacts that another may still join in their second, and promotions to what may only just
    have become ready. The speaker is `undecided` then, for a few seconds.

    Args:
        listings: how many to put together. One may leave out what is there.
    """
    return certain_of(store, list_several_times(store, speaker_id.prefix, listings))


def truth_of(store: Store) -> Callable[[SpeakerId], Speaker]:
    """How `SpeakerIndex` reads a speaker that it does not know: with two listings, because a number that one
    leaves out would be given out again.
    """
    return lambda speaker_id: read_certain(store, speaker_id, listings=2)


def certain_of(store: Store, listing: Listing) -> Speaker:
    """The same, of a listing that was taken already."""
    uncertain_from = listing.taken_at.replace(microsecond=0) - DATED_WITHIN
    objects = parsed(listing)
    certain = [
        (stored, key)
        for stored, key in objects
        if stored.last_modified < uncertain_from or not _depends_on_the_second(key)
    ]
    truth = fold(_facts_among(store, certain))
    return replace(truth, undecided=True) if len(certain) < len(objects) else truth


def list_several_times(store: Store, prefix: str, times: int) -> Listing:
    """All that any of the listings tells of, dated as the first: one listing may leave out what is there."""
    return together([store.list(prefix) for _ in range(times)])


def _depends_on_the_second(key: ParsedKey | None) -> bool:
    """Whether it says that an artifact is published, or is a promotion, which says that one is ready."""
    match key:
        case ArtifactKey(published=True):
            return True
        case AliasFact() as fact:
            return fact.automatic
    return False


def read_facts(store: Store, listing: Listing) -> Iterator[Fact]:
    """The facts among the objects of one speaker.

    A damaged artifact or failure is logged and left out, so that it is made anew. A damaged version is a
    `DamagedFact`. A version or an artifact that the store lists and does not hand out is an `UnreadableFact`.
    """
    return _facts_among(store, parsed(listing))


def parsed(listing: Listing) -> list[Keyed]:
    return [(stored, parse_key(stored.key)) for stored in listing.objects]


def _facts_among(store: Store, objects: Iterable[Keyed]) -> Iterator[Fact]:
    for stored, key in objects:
        if isinstance(key, AliasFact | TombstoneFact | VoidFact):
            yield key
        elif isinstance(key, VersionKey | CensusKey | FailureKey) or (
            isinstance(key, ArtifactKey) and key.published
        ):
            fact = _read_fact(store, stored, key)
            if fact is not None:
                yield fact


RecordKey = VersionKey | CensusKey | ArtifactKey | FailureKey
"""Of a fact that has more to say than its key."""


def _read_fact(store: Store, stored: StoredObject, key: RecordKey) -> Fact | None:
    """None: it was swept since the listing, or it is damaged and can be made anew."""
    try:
        return _read_twice(store, stored, key)
    except ObjectUnavailable as error:
        _report("fact.unreadable", "unreadable", stored.key, error)
        return _unreadable(key)
    except ValueError as error:
        if isinstance(key, VersionKey):
            _report("version.damaged", "record", stored.key, error)
            return DamagedFact(key.seq, key.vuid, key.number, key.created_at)
        if isinstance(key, CensusKey):
            _report("census.damaged", "record", stored.key, error)
            return DamagedFact(key.seq, "", 0, 0)  # nobody can tell which of its versions count
        _report("fact.damaged", "record", stored.key, error)
        return None


def _read_twice(store: Store, stored: StoredObject, key: RecordKey) -> Fact | None:
    """None: the object is gone. A store may hand out wrong bytes once, so a record counts as damaged only
    when it is read again and still makes no sense.

    Raises:
        ValueError: the record is damaged. ObjectUnavailable.
    """
    body = read_record(store, stored)
    if body is None:
        return None
    try:
        return _fact_of(stored, key, body)
    except ValueError as error:
        log.warning("fact.read_again", key=stored.key, error=str(error))
    body = read_object(store, stored.key)
    return _fact_of(stored, key, body) if body is not None else None


def _fact_of(stored: StoredObject, key: RecordKey, body: bytes) -> Fact:
    """Raises ValueError: it is damaged."""
    match key:
        case VersionKey():
            return VersionFact(key.seq, _read_version(body, key, stored.key.split("/")[2]))
        case CensusKey():
            if hashlib.sha256(body).hexdigest() != key.sha256:
                raise ValueError("the census is not what was written")
            return CensusFact(key.seq, frozenset(_VUIDS.validate_json(body)))
        case ArtifactKey():
            return ArtifactFact(key.vuid, key.akey, stored.last_modified, _read_artifact(body, key))
        case FailureKey():
            return FailureFact(key.vuid, key.akey, _read_failure(body, key))


def _report(event: str, kind: str, key: str, error: Exception) -> None:
    log.error(event, key=key, error=str(error))
    INTEGRITY_FAILURES.labels(kind).inc()


def _unreadable(key: RecordKey) -> UnreadableFact | None:
    """None for a failure: at worst the extraction is tried again."""
    match key:
        case VersionKey():
            return UnreadableFact(key.vuid, seq=key.seq, number=key.number, created_at=key.created_at)
        case CensusKey():
            return UnreadableFact("", seq=key.seq)
        case ArtifactKey():
            return UnreadableFact(key.vuid, akey=key.akey)
    return None


def read_record(store: Store, stored: StoredObject) -> bytes | None:
    """As `read_object`, of an object that is to be parsed.

    Raises:
        ValueError: it is larger than any record; it is not read. ObjectUnavailable.
    """
    if stored.size > MAX_RECORD_BYTES:
        raise ValueError(f"{stored.size} bytes are no record; accepted: {MAX_RECORD_BYTES} at most")
    return read_object(store, stored.key)


def read_object(store: Store, key: str) -> bytes | None:
    """An object that was listed; None if it is gone since.

    A store that says "missing" may be mistaken, so it has to say so twice: by not listing it any more.

    Raises:
        ObjectUnavailable: it is listed, and the store does not hand it out.
    """
    for _ in range(2):
        try:
            return store.get(key)
        except FileNotFoundError:
            folder = key[: key.rindex("/") + 1]
            if all(stored.key != key for stored in store.list(folder).objects):
                return None
    raise ObjectUnavailable("An object is listed and said to be missing.", retry_after_seconds=60)


def _read_version(body: bytes, key: VersionKey, slug: str) -> VersionRecord:
    if hashlib.sha256(body).hexdigest() != key.sha256:
        raise ValueError("the record is not what was written")
    record = VersionRecord.model_validate_json(body)
    if (record.vuid, record.number, record.created_at) != (key.vuid, key.number, key.created_at):
        raise ValueError("the record is of another version than its key says")
    if slug_of(record.key) != slug:
        raise ValueError("the record is of another speaker than its key says")
    return record


def _read_artifact(body: bytes, key: ArtifactKey) -> ArtifactRecord:
    record = ArtifactRecord.model_validate_json(body)
    if (record.winner, record.build) != (key.winner, build_of(key.akey)):
        raise ValueError("the record is of another artifact than its key says")
    return record


def _read_failure(body: bytes, key: FailureKey) -> FailureRecord:
    record = FailureRecord.model_validate_json(body)
    if record.attempt != key.attempt:
        raise ValueError("the record is of another attempt than its key says")
    return record


def speaker_ids(store: Store) -> Iterator[SpeakerId]:
    """Every speaker the bucket knows, dead ones included."""
    for namespace in store.folders(""):
        if is_namespace(namespace):
            slugs = store.folders(f"{namespace}/v/")
            yield from (SpeakerId(namespace, slug) for slug in slugs if is_slug(slug))
