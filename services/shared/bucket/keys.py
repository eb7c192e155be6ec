"""The layout of the bucket: every key is built and parsed here. Knows no store.

    {namespace}/v/{slug}/r/{seq:012d}.ver.{vuid}.{number}.{created_at}.{sha256 of its JSON}   a version
                           {seq:012d}.als.{alias}.{vuid}.{uid}          an alias was moved
                           {seq:012d}.del.{number}.{created_at}.{uid}   every version up to seq is dead
                           {seq:012d}.cen.{sha256 of its JSON}          the versions up to seq that count
                         d/{vuid}/blob/{sha256}                         bytes as uploaded, and decoded
                                  pic/{drawing}.{sha256}.{name}         a picture of the clip, see `pictures`
                                  art/{akey}/{attempt}.{sha256}.safetensors   artifact bytes
                                             {attempt}.{sha256}.json    the artifact is published
                                             {attempt}.failed           its extraction was given up
                                             {uid}.void                 its bytes were lost: it counts no more
    _profiles/{profile}.json                                            a document, see `profile_document`
    _keys/{id}.json                                                     an API key, see `layout`
    _registry/                                                          which bucket this is, see `identity`
    _place/{seq:06d}.{uid}                                              where it is, see `place`
    _epochs/{epoch:012d}                                                an index was begun, see `epochs`

Everything of one speaker lies under one prefix, so erasing it needs no reference counts. All objects are
immutable and uniquely named: a lost reply, a late write or a repeated one does no harm.

Other people can put objects into the bucket as well. `parse_key` tells ours from theirs, for everybody who
reads a listing: what it does not know is ignored.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Self

from services.shared.bucket.store import StoredObject
from services.shared.model.domain import (
    AUTOMATIC,
    AliasFact,
    ArtifactRecord,
    FailureRecord,
    TombstoneFact,
    VersionRecord,
    VoidFact,
)
from speaker_registry.names import SpeakerName, is_namespace, slug_of

LAST_SEQ, LAST_NUMBER, LAST_CREATED_AT, LAST_BUILD = 10**12 - 1, 10**9 - 1, 10**10 - 1, 10**4 - 1
"""The highest values that keys can hold. A key with a higher value is not ours, so no higher value is ever
assigned: a record with one more digit would be ignored. A seq follows the clock, with 100 for each second, so
seqs and `created_at` keep to these digits until the year 2286.
"""
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
_PICTURE = re.compile(rf"([1-9][0-9]{{0,3}})\.({_SHA256})\.([a-z]{{1,20}}\.(?:svg|png))")
_MARKER = re.compile(_ID)
_PLACE = re.compile(rf"([0-9]{{6}})\.({_ID})")
_EPOCH = re.compile(r"[0-9]{12}")
_DATA = re.compile(r"[^/]*/v/[^/]*/d/[^/]*/(?:blob/|pic/|art/[^/]*/[^/]*\.safetensors\Z)")


REGISTRY_FOLDER, PLACE_FOLDER, EPOCHS_FOLDER = "_registry/", "_place/", "_epochs/"
IDENTITY = f"{REGISTRY_FOLDER}identity"
"""The object that holds the bucket's identity."""


def is_slug(text: str) -> bool:
    """Return whether `slug_of` can have made the text."""
    return slug_of(text) == text or is_hashed_slug(text)


def is_hashed_slug(slug: str) -> bool:
    """Return whether the slug is a hash: the speaker's key does not fit into the bucket's alphabet."""
    return _HASHED_SLUG.fullmatch(slug) is not None


def speakers_folder(namespace: str) -> str:
    """Return the prefix under which each speaker of a namespace has a folder, named by its slug."""
    return f"{namespace}/v/"


def namespace_of(speaker_id: str) -> str:
    """Return the namespace in the text of a `SpeakerId`. The text is not checked."""
    return speaker_id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class SpeakerId:
    """Identifies a speaker in bucket and Redis, by its namespace and its slug."""

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
        """Return the speaker that a version belongs to."""
        return cls(namespace, slug_of(record.key))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what `str` returned."""
        namespace, slug = text.split("/")
        return cls(namespace, slug)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.slug}"

    @property
    def prefix(self) -> str:
        return f"{speakers_folder(self.namespace)}{self.slug}/"

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

    def pictures_prefix(self, vuid: str) -> str:
        return f"{self.data_prefix(vuid)}pic/"

    def picture_key(self, key: "PictureKey") -> str:
        return f"{self.pictures_prefix(key.vuid)}{key.drawing}.{key.sha256}.{key.name}"

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


@dataclass(frozen=True, slots=True)
class VersionKey:
    """The key of a version's record."""

    seq: int
    vuid: str
    number: int
    created_at: int
    sha256: str
    """The SHA-256 of the record's JSON."""


@dataclass(frozen=True, slots=True)
class NewerRecordKey:
    """The key of a record whose kind only a newer release knows."""

    seq: int


@dataclass(frozen=True, slots=True)
class BlobKey:
    """The key of an uploaded clip or of its decoded rendition."""

    vuid: str


@dataclass(frozen=True, slots=True)
class PictureKey:
    """The key of a picture of a version's clip."""

    vuid: str
    drawing: int
    """The number of the way in which it was drawn."""
    sha256: str
    """The SHA-256 of the picture."""
    name: str


@dataclass(frozen=True, slots=True)
class ArtifactKey:
    """The key of an artifact's bytes, or of the fact that it is published."""

    vuid: str
    akey: str
    winner: str
    """The same value as `ArtifactRecord.winner`."""
    published: bool
    """True for the key of the fact, False for the key of the bytes."""


@dataclass(frozen=True, slots=True)
class CensusKey:
    """The key of a census, whose body lists the versions up to `seq` that count."""

    seq: int
    sha256: str


@dataclass(frozen=True, slots=True)
class FailureKey:
    """The key of the fact that an extraction was given up."""

    vuid: str
    akey: str
    attempt: str


@dataclass(frozen=True, slots=True)
class MarkerKey:
    """The key of a candidate for the bucket's identity."""

    uid: str

    def __str__(self) -> str:
        return f"{REGISTRY_FOLDER}{self.uid}"


@dataclass(frozen=True, slots=True)
class PlaceKey:
    """The key of a fact that says where the bucket is. The highest undamaged one counts."""

    seq: int
    uid: str

    def __str__(self) -> str:
        return f"{PLACE_FOLDER}{self.seq:06d}.{self.uid}"


@dataclass(frozen=True, slots=True)
class EpochKey:
    """The key of the fact that an index was begun."""

    epoch: int

    def __str__(self) -> str:
        return f"{EPOCHS_FOLDER}{self.epoch:012d}"


SpeakerKey = (
    VersionKey
    | CensusKey
    | AliasFact
    | TombstoneFact
    | NewerRecordKey
    | BlobKey
    | PictureKey
    | ArtifactKey
    | FailureKey
    | VoidFact
)
"""The parsed key of any object of a speaker. A fact that consists of nothing but its key is its own parsed
key.
"""
ParsedKey = SpeakerKey | MarkerKey | PlaceKey | EpochKey
Keyed = tuple[StoredObject, ParsedKey | None]
"""An object of a listing with its parsed key, which is None if the object is not ours."""


def parse_key(key: str) -> ParsedKey | None:
    """Return what an object is, by its key, or None if it is not ours. Any text is accepted."""
    match key.split("/"):
        case [namespace, "v", slug, *rest] if is_namespace(namespace) and is_slug(slug):
            return _parse_of_speaker(rest)
        case [folder, name]:
            return _parse_of_bucket(folder, name)
    return None


def _parse_of_bucket(folder: str, name: str) -> MarkerKey | PlaceKey | EpochKey | None:
    """Parse a key of the facts about the bucket as a whole."""
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
        case ["d", vuid, "art", akey, name] if re.fullmatch(_ID, vuid) and _AKEY.fullmatch(akey):
            return _parse_of_artifact(vuid, akey, name)
        case ["d", vuid, "blob", sha256] if re.fullmatch(_ID, vuid) and re.fullmatch(_SHA256, sha256):
            return BlobKey(vuid)
        case ["d", vuid, "pic", name] if re.fullmatch(_ID, vuid) and (match := _PICTURE.fullmatch(name)):
            return PictureKey(vuid, int(match[1]), match[2], match[3])
    return None


def _parse_of_artifact(vuid: str, akey: str, name: str) -> ArtifactKey | FailureKey | VoidFact | None:
    if match := _ARTIFACT.fullmatch(name):
        return ArtifactKey(vuid, akey, match[1], match[2] == "json")
    if match := _FAILURE.fullmatch(name):
        return FailureKey(vuid, akey, match[1])
    return VoidFact(vuid, akey) if _VOID.fullmatch(name) else None


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


def version_folder_of(key: str) -> str | None:
    """Return the vuid of the version whose folder holds an object, or None. The object need not be ours."""
    match key.split("/"):
        case [_, _, _, "d", vuid, _, *_]:
            return vuid
    return None


def slug_in(key: str) -> str:
    """Return the slug in the key of a speaker's object."""
    return key.split("/")[2]


def is_data(key: str) -> bool:
    """Return whether a key of a speaker, or a folder (`…/`), holds bytes and no fact.

    Listings that need only facts pass this function as their `Skips`.
    """
    return _DATA.match(key) is not None
