"""Where facts and blobs lie in the bucket, and how they are read back. Knows the store, not Redis.

    {namespace}/v/{slug}/r/{seq:012d}.ver.{vuid}.{number}.{created_at}.{sha256 of its JSON}   a version
                           {seq:012d}.als.{alias}.{vuid}.{uid}          an alias was moved
                           {seq:012d}.del.{number}.{created_at}.{uid}   every version up to seq is dead
                         d/{vuid}/blob/{sha256}                         bytes as uploaded, and decoded
                                  art/{akey}/{attempt}.{sha256}.safetensors   artifact bytes
                                             {attempt}.{sha256}.json    the artifact is published
                                             {attempt}.failed           its extraction was given up
                                             {uid}.void                 its bytes were lost: it counts no more
    _profiles/{profile}/{seq:012d}.{uid}.json                           a worker announced a fingerprint
    _keys/                                                              API keys, see `keyring`
    _registry/{uid}                                                     the smallest one names the bucket

Everything of one speaker lies under one prefix, so erasing it needs no reference counts. All objects are
immutable and uniquely named: a lost reply, a late write or a repeated one does no harm.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import structlog

from services.shared.domain import (
    AUTOMATIC,
    AliasFact,
    ArtifactFact,
    ArtifactRecord,
    DamagedFact,
    Fact,
    FailureFact,
    FailureRecord,
    Speaker,
    TombstoneFact,
    VersionFact,
    VersionRecord,
    VoidFact,
    fold,
)
from services.shared.metrics import INTEGRITY_FAILURES
from services.shared.store import Listing, Store, StoredObject
from speaker_registry.names import SpeakerName, is_namespace, slug_of

log = structlog.get_logger()


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


def read_speaker(store: Store, speaker_id: SpeakerId) -> Speaker:
    """The truth about one speaker, from the bucket alone."""
    return fold(read_facts(store, store.list(speaker_id.prefix)))


def read_certain(store: Store, speaker_id: SpeakerId) -> Speaker:
    """The truth about one speaker as far as it cannot change by what lands from now on.

    Buckets date objects to the second, and of two artifacts of one second the younger attempt counts. So one
    from the second in which the listing was taken is left out: another may still join it. So are promotions
    to what may only just have become ready.
    """
    listing = store.list(speaker_id.prefix)
    this_second = listing.taken_at.replace(microsecond=0)
    certain = [
        stored
        for stored in listing.objects
        if stored.last_modified != this_second or not _depends_on_the_second(stored.key)
    ]
    return fold(read_facts(store, replace(listing, objects=tuple(certain))))


def _depends_on_the_second(key: str) -> bool:
    """An artifact is published, or a promotion says that one is."""
    match key.split("/")[3:]:
        case ["r", name]:
            return name.rpartition(".")[2].startswith(AUTOMATIC)
        case ["d", _, "art", _, name]:
            return name.endswith(".json")
    return False


def read_facts(store: Store, listing: Listing) -> Iterator[Fact]:
    """The facts among the objects of one speaker. One that vanished since the listing was swept: it is no
    fact. Of one that cannot be read the key is logged: an artifact is made anew, and who put an object here
    that is none of ours may take it away again.
    """
    for stored in listing.objects:
        try:
            fact = _read_fact(store, stored)
        except FileNotFoundError:
            continue
        except ValueError as error:
            log.error("fact.damaged", key=stored.key, error=str(error))
            INTEGRITY_FAILURES.labels("record").inc()
            continue
        if fact is not None:
            yield fact


def _read_fact(store: Store, stored: StoredObject) -> Fact | None:
    parts = stored.key.split("/")
    match parts[2:]:
        case [_, "r", name]:
            return _read_record(store, stored.key, name)
        case [_, "d", vuid, "art", akey, name] if name.endswith(".json"):
            artifact = ArtifactRecord.model_validate_json(store.get(stored.key))
            return ArtifactFact(vuid, akey, stored.last_modified, artifact)
        case [_, "d", vuid, "art", akey, name] if name.endswith(".failed"):
            return FailureFact(vuid, akey, FailureRecord.model_validate_json(store.get(stored.key)))
        case [_, "d", vuid, "art", akey, name] if name.endswith(".void"):
            return VoidFact(vuid, akey)
    return None


def _read_record(store: Store, key: str, name: str) -> Fact | None:
    seq_text, kind, *rest = name.split(".")
    seq = int(seq_text)
    if kind == "ver":
        vuid, number, created_at, sha256 = rest
        body = store.get(key)
        try:
            return VersionFact(seq, _read_version(body, sha256))
        except ValueError as error:
            log.error("version.damaged", key=key, error=str(error))
            INTEGRITY_FAILURES.labels("record").inc()
            return DamagedFact(seq, vuid, int(number), int(created_at))
    if kind == "als":
        *alias, vuid, uid = rest
        return AliasFact(seq, ".".join(alias), vuid, uid)
    if kind == "del":
        number, created_at, _ = rest
        return TombstoneFact(seq, int(number), int(created_at))
    return None  # a newer writer's kind


def _read_version(body: bytes, sha256: str) -> VersionRecord:
    if hashlib.sha256(body).hexdigest() != sha256:
        raise ValueError("the record is not what was written")
    return VersionRecord.model_validate_json(body)


def speaker_ids(store: Store) -> Iterator[SpeakerId]:
    """Every speaker the bucket knows, dead ones included."""
    for namespace in store.folders(""):
        if is_namespace(namespace):
            yield from (SpeakerId(namespace, slug) for slug in store.folders(f"{namespace}/v/"))


def bucket_identity(store: Store, new_id: str) -> str:
    """What tells this bucket from all others, made on first use: an index built for one must not pass for
    another's.
    """
    if not store.list("_registry/").objects:
        store.put(f"_registry/{new_id}", b"{}")
    return min(stored.key for stored in store.list("_registry/").objects).rpartition("/")[2]
