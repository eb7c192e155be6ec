"""What a speaker is: values, and the rules that turn facts into them. Pure: no clock, no bucket, no Redis.

A *fact* is an immutable object in the bucket that says something happened. `fold` reads the facts of one
speaker in any order, duplicates included, and tells what is true. The Redis scripts are the second reading of
the same rules (`lua/`); a property test holds the two equal.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from speaker_registry.artifact import TensorInfo, canonical_json, sha256_digest
from speaker_registry.errors import AliasNotFound, VersionNotFound
from speaker_registry.names import DEFAULT, LATEST, key_of_name

Source = Literal["audio", "embedding"]
_R = TypeVar("_R")

SizeInBytes = Annotated[int, Field(ge=0, le=10**12)]
"""More than an upload may have, and few enough to be added up in Redis."""
GIVEN_FINGERPRINT = "given"
"""Of an artifact that somebody brought: no encoder made it, so none can make it stale."""


class Record(BaseModel):
    """Base of what is stored as JSON. An unknown key is a newer writer's: kept out, never an error."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,  # JSON has no word for them, so they would not be read back
        hide_input_in_errors=True,  # errors are logged, transcripts never
    )

    def to_json(self) -> str:
        return canonical_json(self.model_dump(mode="json"))


class ArtifactRecord(Record):
    """One stored artifact: the JSON of an artifact fact."""

    profile: str
    fingerprint: str
    build: int = 1
    """Counts forced rebuilds of the same (version, profile, fingerprint); the highest is served."""
    attempt: str
    """Unique per try to make it: part of the blob's key."""
    digest: str
    """`sha256:…` of the file."""
    content_digest: str
    size: SizeInBytes
    tensors: dict[str, TensorInfo]
    extractor: dict[str, Any] = Field(default_factory=dict)
    untrained: bool = False
    seconds_spent: float = 0.0

    @property
    def winner(self) -> str:
        """What the index stores as the one that counts."""
        return f"{self.attempt}.{self.digest.removeprefix('sha256:')}"


class FailureRecord(Record):
    """Why the extraction of (version, profile, fingerprint) was given up: the JSON of a failure fact."""

    profile: str
    fingerprint: str
    build: int = 1
    attempt: str
    code: str
    message: str
    attempts: int


class ClipRecord(Record):
    """The uploaded clip."""

    sha256: str
    size: SizeInBytes
    mime_type: str
    seconds: float
    sample_rate: int
    channels: int
    rendition_sha256: str
    """Of the decoded mono rendition, which is what extractors read."""


def utf8_bytes(*texts: str | None) -> int:
    """How many bytes several texts take together."""
    return sum(len(text.encode()) for text in texts if text)


class VersionRecord(Record):
    """One source of a speaker: the JSON of a version fact. Never edited."""

    vuid: str
    number: int
    created_at: int
    name: str
    source: Source
    consent: str
    ref_text: str | None = None
    description: str | None = None
    clip: ClipRecord | None = None
    embedding_width: int | None = None
    given: tuple[ArtifactRecord, ...] = ()
    """Artifacts that came with the registration (a ready embedding): committed by the version fact itself."""
    idempotency: str | None = None
    """Hash of the request's Idempotency-Key."""
    request: str | None = None
    """Hash of what was asked for: the same again is the same version."""

    @property
    def key(self) -> str:
        """Of its speaker."""
        return key_of_name(self.name)

    @property
    def uploaded_bytes(self) -> int:
        """What counts against the quota of bytes."""
        source = (self.clip.size if self.clip else 0) + sum(artifact.size for artifact in self.given)
        return source + self.text_bytes

    @property
    def text_bytes(self) -> int:
        """What counts against the quota of texts."""
        return utf8_bytes(self.name, self.consent, self.ref_text, self.description)


@dataclass(frozen=True, slots=True)
class VersionFact:
    seq: int
    record: VersionRecord


@dataclass(frozen=True, slots=True)
class DamagedFact:
    """There is a version, and its record cannot be read. Its key still tells its place."""

    seq: int
    vuid: str
    number: int
    created_at: int


@dataclass(frozen=True, slots=True)
class UnreadableFact:
    """The store lists a version, a census or an artifact, and does not hand out its record. It may do so
    later.
    """

    vuid: str
    """Empty: it is a census."""
    akey: str | None = None
    """Of an artifact."""
    seq: int = 0
    """Of a version, as the two below, or of a census."""
    number: int = 0
    created_at: int = 0

    @property
    def name(self) -> str:
        """`vuid` of a version, `vuid:akey` of an artifact, `census-{seq}` of a census."""
        if not self.vuid:
            return f"census-{self.seq}"
        return self.vuid if self.akey is None else f"{self.vuid}:{self.akey}"


@dataclass(frozen=True, slots=True)
class TombstoneFact:
    """Every version with a smaller or equal seq is dead. Carries the marks that must survive an erasure."""

    seq: int
    number: int
    created_at: int


@dataclass(frozen=True, slots=True)
class CensusFact:
    """The versions that count of all whose place is at most `seq`.

    It is taken after a loss of Redis, before the first upload: places that had been reserved before the loss,
    and their numbers, may be given out again. A version from one of those that lands after the census never
    happened. Of several censuses the last one decides.
    """

    seq: int
    vuids: frozenset[str]

    def counts(self, seq: int, vuid: str) -> bool:
        """Whether a version happened, as far as this census says."""
        return seq > self.seq or vuid in self.vuids


NO_CENSUS = CensusFact(0, frozenset())

AUTOMATIC = "auto-"
"""Start of the uid of an alias move that nobody asked for."""


@dataclass(frozen=True, slots=True)
class AliasFact:
    seq: int
    alias: str
    vuid: str
    uid: str

    @classmethod
    def promotion(cls, seq: int, target: "SpeakerVersion", uid: str) -> Self:
        """An automatic move of `default`."""
        return cls(seq, DEFAULT, target.vuid, f"{AUTOMATIC}{target.seq:012d}-{uid}")

    @property
    def automatic(self) -> bool:
        """A promotion. It counts only if its target was registered after the last move by hand."""
        return self.uid.startswith(AUTOMATIC)

    @property
    def rank(self) -> tuple[int, str]:
        """Of moves of one kind the highest counts: by hand the last one, else the one to the youngest
        version. Somebody who was slow to promote an older one must not turn the voice back.
        """
        return 0 if self.automatic else self.seq, self.uid


@dataclass(frozen=True, slots=True)
class ArtifactFact:
    vuid: str
    akey: str
    landed_at: datetime
    """When the store says it was written."""
    record: ArtifactRecord


@dataclass(frozen=True, slots=True)
class VoidFact:
    """The stored bytes of an artifact were found missing or damaged. Nothing counts under this key any more.

    The artifact that replaces it is a further build, so bytes that were served never change.
    """

    vuid: str
    akey: str


@dataclass(frozen=True, slots=True)
class FailureFact:
    vuid: str
    akey: str
    record: FailureRecord


Fact = (
    VersionFact
    | DamagedFact
    | UnreadableFact
    | TombstoneFact
    | CensusFact
    | AliasFact
    | ArtifactFact
    | FailureFact
    | VoidFact
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeakerVersion:
    """A live version and what has been made from it."""

    seq: int
    record: VersionRecord
    artifacts: Mapping[str, ArtifactRecord] = field(default_factory=dict)
    """akey -> the one that counts."""
    failures: Mapping[str, FailureRecord] = field(default_factory=dict)
    """akey -> why it was given up; without effect once there is an artifact."""
    void: frozenset[str] = frozenset()
    """Keys of artifacts whose bytes were lost. They are never used again."""

    @property
    def vuid(self) -> str:
        return self.record.vuid

    @property
    def number(self) -> int:
        return self.record.number

    @property
    def extractable(self) -> bool:
        """Whether there is a clip to extract anything from."""
        return self.record.clip is not None

    @property
    def rank(self) -> tuple[int, int, str]:
        """The younger of two versions of a speaker has the higher one."""
        return self.record.number, self.seq, self.vuid

    def artifact_key(self, profile: str, fingerprint: str, build: int) -> str:
        """What an artifact that is extracted from it is stored under."""
        clip = self.record.clip
        return artifact_key(profile, fingerprint, clip.rendition_sha256 if clip else "", build)

    def last_build(self, profile: str, fingerprint: str) -> int:
        """The highest build that was ever published of an artifact, void ones included; 0 if none was."""
        base = without_build(self.artifact_key(profile, fingerprint, 0))
        keys = (key for key in (*self.artifacts, *self.void) if without_build(key) == base)
        return max(map(build_of, keys), default=0)

    def artifact(self, profile: str, fingerprint: str | None = None) -> ArtifactRecord | None:
        """The artifact to serve: made with `fingerprint`, or any if that is None; the highest build of
        those.
        """
        found = [
            record
            for record in (*self.record.given, *self.artifacts.values())
            if record.profile == profile
            and (fingerprint is None or record.fingerprint in {fingerprint, GIVEN_FINGERPRINT})
        ]
        return max(found, key=lambda record: (record.build, record.attempt), default=None)

    def failure(self, profile: str, fingerprint: str | None) -> FailureRecord | None:
        """Why there is no such artifact, if it was given up."""
        found = [
            record
            for record in self.failures.values()
            if record.profile == profile and fingerprint in {None, record.fingerprint}
        ]
        return max(found, key=lambda record: (record.build, record.attempt), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """All that is true about one name. Without live versions it is only its high-water marks."""

    versions: tuple[SpeakerVersion, ...] = ()
    """Live ones, by (number, seq, vuid)."""
    alias_facts: Mapping[str, AliasFact] = field(default_factory=dict)
    """The move of each alias that counts, also where its target is dead. None from before the tombstone."""
    tombstone: int = 0
    census: CensusFact = field(default=NO_CENSUS, compare=False)
    """The last one. Only the facts tell it."""
    damaged: int = 0
    """Seq of the last version that was not deleted and whose record cannot be read; 0: there is none."""
    unreadable: tuple[str, ...] = ()
    """Versions, censuses and artifacts that were not deleted and whose record the store does not hand out
    now, as `UnreadableFact.name`.
    """
    undecided: bool = field(default=False, compare=False)
    """Whether artifacts or automatic moves were left out because they are so young that others may still take
    their place. Only the facts tell it.
    """
    seq: int = 0
    number: int = 0
    created_at: int = 0
    """High-water marks: neither is ever used again, also after a delete."""

    @property
    def live(self) -> bool:
        """With a damaged or unreadable record nobody can tell what its names stand for, and nothing is
        guessed.
        """
        return bool(self.versions) and not self.damaged and not self.unreadable

    @property
    def aliases(self) -> Mapping[str, SpeakerVersion]:
        """Those that point to a live version. `default` is in here only once it was moved."""
        targets = {alias: self.by_vuid(fact.vuid) for alias, fact in self.alias_facts.items()}
        return {alias: target for alias, target in targets.items() if target is not None}

    @property
    def default(self) -> SpeakerVersion:
        """Where the alias `default` points; until it was first moved, the oldest version."""
        return self.aliases.get(DEFAULT, self.versions[0])

    @property
    def newest(self) -> SpeakerVersion:
        return self.versions[-1]

    def by_vuid(self, vuid: str) -> SpeakerVersion | None:
        return next((version for version in self.versions if version.vuid == vuid), None)

    def resolve(self, reference: int | str, complete: frozenset[str] = frozenset()) -> SpeakerVersion:
        """The version a reference stands for: a number, an alias, `default` or `latest`.

        Args:
            complete: vuids of the versions that count for `latest`; if there is none, the newest of all.

        Raises:
            VersionNotFound, AliasNotFound: never another version in its place.
        """
        if reference == DEFAULT:
            return self.default
        if reference == LATEST:
            return next((v for v in reversed(self.versions) if v.vuid in complete), self.newest)
        if isinstance(reference, int):
            return self._numbered(reference)
        aliases = self.aliases
        if reference in aliases:
            return aliases[reference]
        known = ", ".join(sorted({DEFAULT, LATEST, *aliases}))
        raise AliasNotFound(
            f"Voice '{self.newest.record.name}' has no alias '{reference}'. It has: {known}.", param="ref"
        )

    def _numbered(self, number: int) -> SpeakerVersion:
        for version in self.versions:
            if version.number == number:
                return version
        raise VersionNotFound(
            f"Voice '{self.newest.record.name}' has no version {number}. The newest is {self.newest.number}.",
            param="ref",
        )


def fold(facts: Iterable[Fact]) -> Speaker:
    """What the facts of one speaker say. Any order, duplicates harmless."""
    facts = list(facts)
    census = max(_of_kind(CensusFact, facts), key=lambda fact: fact.seq, default=NO_CENSUS)
    damaged, unreadable = _of_kind(DamagedFact, facts), _of_kind(UnreadableFact, facts)
    tombstones = _of_kind(TombstoneFact, facts)
    tombstone = max((fact.seq for fact in tombstones), default=0)
    versions = {fact.record.vuid: fact for fact in _of_kind(VersionFact, facts)}
    counted = [fact for vuid, fact in versions.items() if census.counts(fact.seq, vuid)]
    live = _with_what_was_made([fact for fact in counted if fact.seq > tombstone], facts)
    marks = [(fact.record.number, fact.record.created_at) for fact in counted]
    marks += [(fact.number, fact.created_at) for fact in damaged]
    marks += [(fact.number, fact.created_at) for fact in unreadable]
    marks += [(fact.number, fact.created_at) for fact in tombstones]
    return Speaker(
        versions=in_order(live),
        alias_facts=aliases_in_force(
            (fact for fact in _of_kind(AliasFact, facts) if fact.seq > tombstone), live
        ),
        tombstone=tombstone,
        census=census,
        damaged=max(
            (fact.seq for fact in damaged if fact.seq > tombstone and census.counts(fact.seq, fact.vuid)),
            default=0,
        ),
        unreadable=_unreadable(unreadable, tombstone, census, live),
        seq=max(_seqs(facts), default=0),
        number=max((number for number, _ in marks), default=0),
        created_at=max((created_at for _, created_at in marks), default=0),
    )


def _of_kind(kind: type[_R], facts: Iterable[Fact]) -> list[_R]:
    return [fact for fact in facts if isinstance(fact, kind)]


def _with_what_was_made(versions: Iterable[VersionFact], facts: Iterable[Fact]) -> list[SpeakerVersion]:
    """Each version with its artifacts and failures."""
    void = _keys_of(_of_kind(VoidFact, facts))
    unclear = _keys_of(_of_kind(UnreadableFact, facts))  # which of several landed first
    artifacts = fold_artifacts(_of_kind(ArtifactFact, facts))
    failures = _last_failures(_of_kind(FailureFact, facts))
    return [
        SpeakerVersion(
            seq=fact.seq,
            record=fact.record,
            artifacts=_without(void.get(vuid, set()) | unclear.get(vuid, set()), artifacts.get(vuid, {})),
            failures=_without(void.get(vuid, set()), failures.get(vuid, {})),
            void=frozenset(void.get(vuid, ())),
        )
        for vuid, fact in ((fact.record.vuid, fact) for fact in versions)
    ]


def _unreadable(
    facts: list[UnreadableFact], tombstone: int, census: CensusFact, live: Iterable[SpeakerVersion]
) -> tuple[str, ...]:
    """Those of versions that count and that no tombstone covers, without void artifacts."""
    void = {version.vuid: version.void for version in live}
    void |= {
        fact.vuid: frozenset()
        for fact in facts
        if fact.akey is None and fact.seq > tombstone and census.counts(fact.seq, fact.vuid)
    }
    return tuple(
        sorted({fact.name for fact in facts if fact.vuid in void and fact.akey not in void[fact.vuid]})
    )


def in_order(versions: Iterable[SpeakerVersion]) -> tuple[SpeakerVersion, ...]:
    """Oldest first. No two that count have the same number: after a loss of Redis a census sees to that."""
    return tuple(sorted(versions, key=lambda version: version.rank))


def _seqs(facts: Iterable[Fact]) -> Iterable[int]:
    placed = VersionFact | DamagedFact | UnreadableFact | TombstoneFact | CensusFact | AliasFact
    return (fact.seq for fact in facts if isinstance(fact, placed))


def aliases_in_force(facts: Iterable[AliasFact], live: Iterable[SpeakerVersion]) -> dict[str, AliasFact]:
    """Of each alias the highest automatic move if it goes to a version younger than the last move by hand,
    else the latter: a promotion on its way never undoes what somebody chose meanwhile.
    """
    registered = {version.vuid: version.seq for version in live}
    in_force: dict[str, AliasFact] = {}
    last: dict[tuple[str, bool], AliasFact] = {}
    for fact in sorted(facts, key=lambda fact: fact.rank):
        last[fact.alias, fact.automatic] = fact
    for (alias, automatic), fact in sorted(last.items(), key=lambda item: item[0]):
        by_hand = in_force[alias].seq if alias in in_force else 0
        if not automatic or registered.get(fact.vuid, 0) > by_hand:
            in_force[alias] = fact
    return in_force


def fold_artifacts(facts: Iterable[ArtifactFact]) -> dict[str, dict[str, ArtifactRecord]]:
    """vuid -> akey -> the artifact that landed first; of two in the same second the newer attempt."""
    best: dict[tuple[str, str], ArtifactFact] = {}
    for fact in facts:
        current = best.get((fact.vuid, fact.akey))
        if current is None or _lands_before(fact, current):
            best[fact.vuid, fact.akey] = fact
    winners: dict[str, dict[str, ArtifactRecord]] = {}
    for (vuid, akey), fact in best.items():
        winners.setdefault(vuid, {})[akey] = fact.record
    return winners


def _lands_before(fact: ArtifactFact, other: ArtifactFact) -> bool:
    if fact.landed_at != other.landed_at:
        return fact.landed_at < other.landed_at
    return fact.record.winner > other.record.winner


def _keys_of(facts: Iterable[VoidFact | UnreadableFact]) -> dict[str, set[str]]:
    """vuid -> keys of the artifacts that they are about."""
    keys: dict[str, set[str]] = {}
    for fact in facts:
        if fact.akey is not None:
            keys.setdefault(fact.vuid, set()).add(fact.akey)
    return keys


def _without(keys: Set[str], records: Mapping[str, _R]) -> dict[str, _R]:
    return {key: record for key, record in records.items() if key not in keys}


def _last_failures(facts: Iterable[FailureFact]) -> dict[str, dict[str, FailureRecord]]:
    last: dict[str, dict[str, FailureRecord]] = {}
    for fact in facts:
        of_version = last.setdefault(fact.vuid, {})
        current = of_version.get(fact.akey)
        if current is None or fact.record.attempt > current.attempt:
            of_version[fact.akey] = fact.record
    return last


def artifact_key(profile: str, fingerprint: str, rendition_sha256: str, build: int) -> str:
    """`{hash}-{build}`: what an artifact is stored under within its version. Letters, digits and `-`."""
    digest = sha256_digest(canonical_json([profile, fingerprint, rendition_sha256]).encode())
    return f"{digest.removeprefix('sha256:')[:32]}-{build}"


def without_build(akey: str) -> str:
    """What all builds of an artifact have in common."""
    return akey.rpartition("-")[0]


def build_of(akey: str) -> int:
    """The build that an artifact's key names."""
    return int(akey.rpartition("-")[2])


def given_key(profile: str) -> str:
    """The same of an artifact that came with the registration."""
    return f"given-{profile}-1"
