"""Commits facts to the bucket, and reads them back. Knows the store but not Redis; `keys` has the layout."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import structlog
from pydantic import TypeAdapter

from services.shared.bucket.keys import (
    ArtifactKey,
    CensusKey,
    FailureKey,
    Keyed,
    ParsedKey,
    SpeakerId,
    VersionKey,
    is_data,
    is_slug,
    parse_key,
    slug_in,
    speakers_folder,
)
from services.shared.bucket.store import (
    DATED_WITHIN,
    Listing,
    ObjectUnavailable,
    Store,
    StoredObject,
    together,
)
from services.shared.model.domain import (
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
from speaker_registry.names import is_namespace, slug_of

log = structlog.get_logger()

MAX_RECORD_BYTES = 2**24
"""The largest record that is read. It is larger than any record of ours, and small enough to read at once."""
_VUIDS = TypeAdapter(tuple[str, ...])


def commit(store: Store, key: object, body: bytes = b"{}") -> None:
    """Write a fact. Once this returns, the fact is durable and cannot be taken back.

    Every fact of the registry is written here. Facts whose key says everything have the empty JSON object as
    their body. Writing the same fact again changes nothing.

    Args:
        key: the fact's key, as text or as a value of `keys` whose `str` it is.

    Raises:
        ValueError: no release of ours could read the key back, so the fact would be ignored for ever.
        Unavailable: the fact may or may not have been written.
    """
    path = str(key)
    if parse_key(path) is None or is_data(path):
        raise ValueError(f"{path!r} is not the key of a fact")
    store.put(path, body)


def read_speaker(store: Store, speaker_id: SpeakerId) -> Speaker:
    """Return the truth about one speaker, from the bucket alone."""
    return fold(read_facts(store, store.list(speaker_id.prefix)))


def read_certain(store: Store, speaker_id: SpeakerId, *, listings: int = 1) -> Speaker:
    """Return the truth about one speaker, without what may still change.

    Buckets date objects to the second, and of two artifacts of one second the younger attempt counts. So this
    leaves out artifacts that another one may still join in the same second, and promotions to a version that
    may only just have become ready. The speaker is `undecided` then, for a few seconds.

    Args:
        listings: number of listings to merge. A single listing may leave out objects that exist.
    """
    return certain_of(store, list_several_times(store, speaker_id.prefix, listings))


def truth_of(store: Store) -> Callable[[SpeakerId], Speaker]:
    """Return the function by which `SpeakerIndex` reads a speaker that it does not know. It takes two
    listings, because a version number that a single listing leaves out would be assigned again.
    """
    return lambda speaker_id: read_certain(store, speaker_id, listings=2)


def certain_of(store: Store, listing: Listing) -> Speaker:
    """Return the truth about one speaker as `read_certain` does, from a listing that was taken already."""
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
    """List a prefix several times and merge the listings, with the date of the first. A single listing may
    leave out objects that exist.
    """
    return together([store.list(prefix) for _ in range(times)])


def _depends_on_the_second(key: ParsedKey | None) -> bool:
    """Return whether a key says that an artifact is published, or belongs to a promotion, which says that
    one is ready.
    """
    match key:
        case ArtifactKey(published=True):
            return True
        case AliasFact() as fact:
            return fact.automatic
    return False


def read_facts(store: Store, listing: Listing) -> Iterator[Fact]:
    """Read the facts among the objects of one speaker.

    A damaged artifact or failure is logged and left out, so that it is made anew. A damaged version is a
    `DamagedFact`. A version or an artifact that the store lists but does not return is an `UnreadableFact`.
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
"""The key of a fact that also has a record to read."""


def _read_fact(store: Store, stored: StoredObject, key: RecordKey) -> Fact | None:
    """Read one fact. Returns None if it was swept since the listing, or is damaged and can be made anew."""
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
            return DamagedFact(key.seq, "", 0, 0)  # there is no telling which of its versions count
        _report("fact.damaged", "record", stored.key, error)
        return None


def _read_twice(store: Store, stored: StoredObject, key: RecordKey) -> Fact | None:
    """Read one fact, a second time if its record makes no sense. Returns None if the object is gone.

    A store may return wrong bytes once, so a record counts as damaged only if the second reading makes no
    sense either.

    Raises:
        ValueError: the record is damaged.
        ObjectUnavailable: the store lists the object and does not return it.
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
    """Parse the record of a fact. Raises ValueError if it is damaged."""
    match key:
        case VersionKey():
            return VersionFact(key.seq, _read_version(body, key, slug_in(stored.key)))
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
    """Return the fact that stands for one that cannot be read. Returns None for a failure: at worst the
    extraction is tried again.
    """
    match key:
        case VersionKey():
            return UnreadableFact(key.vuid, seq=key.seq, number=key.number, created_at=key.created_at)
        case CensusKey():
            return UnreadableFact("", seq=key.seq)
        case ArtifactKey():
            return UnreadableFact(key.vuid, akey=key.akey)
    return None


def read_record(store: Store, stored: StoredObject) -> bytes | None:
    """Read an object that is to be parsed, as `read_object` does.

    Raises:
        ValueError: the object is larger than any record. It is not read.
        ObjectUnavailable: the store lists the object and does not return it.
    """
    if stored.size > MAX_RECORD_BYTES:
        raise ValueError(f"{stored.size} bytes are no record; accepted: {MAX_RECORD_BYTES} at most")
    return read_object(store, stored.key)


def read_object(store: Store, key: str) -> bytes | None:
    """Read an object that was listed. Returns None if it is gone since.

    A store that reports an object as missing may be mistaken, so the object counts as gone only when the
    store no longer lists it either.

    Raises:
        ObjectUnavailable: the store lists the object and does not return it.
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
    """Iterate over every speaker in the bucket, including deleted ones."""
    for namespace in store.folders(""):
        if is_namespace(namespace):
            slugs = store.folders(speakers_folder(namespace))
            yield from (SpeakerId(namespace, slug) for slug in slugs if is_slug(slug))
