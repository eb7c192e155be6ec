"""Speakers as values, and the rules that derive them from facts. Pure: no clock, no bucket, no Redis.

A *fact* is an immutable object in the bucket that says that something happened. `fold` reads the facts of one
speaker, in any order and with duplicates, and returns the speaker. The Redis scripts (`lua/`) implement the
same rules; a property test holds the two equal.
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
"""The limit exceeds that of every upload, and is small enough that Redis can add up sizes."""
GIVEN_FINGERPRINT = "given"
"""The fingerprint of uploaded artifacts. No encoder made them, so no new encoder makes them stale."""
AHEAD = "-ahead"
"""The end of an attempt's id if its artifact is made ahead of the promotion of its encoder."""


class Record(BaseModel):
    """Base of the values that are stored as JSON. Unknown keys come from newer releases and are ignored."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        allow_inf_nan=False,  # JSON cannot express them, so they could not be read back
        hide_input_in_errors=True,  # errors are logged, and transcripts must not be
    )

    def to_json(self) -> str:
        return canonical_json(self.model_dump(mode="json"))


class ArtifactRecord(Record):
    """The JSON of an artifact fact, which describes one stored artifact."""

    profile: str
    fingerprint: str
    build: int = 1
    """The number of this build of (version, profile, fingerprint). Forced extractions add builds, and the
    highest is served.
    """
    attempt: str
    """The id of the attempt that made the artifact. It is part of the blob's key."""
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
        """Return the text by which the index tells this artifact from others with the same key."""
        return f"{self.attempt}.{self.digest.removeprefix('sha256:')}"

    @property
    def made_ahead(self) -> bool:
        """True if the artifact was made ahead of the promotion of its encoder, which may never come."""
        return self.attempt.endswith(AHEAD)


class FailureRecord(Record):
    """The JSON of a failure fact, which says why the extraction of (version, profile, fingerprint) was given
    up.
    """

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
    """The SHA-256 of the decoded mono rendition, which extractors read."""


def utf8_bytes(*texts: str | None) -> int:
    """Return how many bytes several texts take together."""
    return sum(len(text.encode()) for text in texts if text)


class VersionRecord(Record):
    """The JSON of a version fact, which describes one source of a speaker. It is never edited."""

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
    """The artifacts that were registered with the version (a given embedding). The version fact commits them.
    """
    idempotency: str | None = None
    """Hash of the request's Idempotency-Key."""
    request: str | None = None
    """Hash of the request's content. A request with the same content is answered with the same version."""

    @property
    def key(self) -> str:
        """Return the key of the speaker's name."""
        return key_of_name(self.name)

    @property
    def text_bytes(self) -> int:
        """Return the bytes that count against the quota of texts."""
        return utf8_bytes(self.name, self.consent, self.ref_text, self.description)


@dataclass(frozen=True, slots=True)
class VersionFact:
    """A version was registered."""

    seq: int
    record: VersionRecord


@dataclass(frozen=True, slots=True)
class DamagedFact:
    """A version exists, but its record is damaged. Its place is known from the object's key."""

    seq: int
    vuid: str
    number: int
    created_at: int


@dataclass(frozen=True, slots=True)
class UnreadableFact:
    """The store lists a version, a census or an artifact, but does not return its record now."""

    vuid: str
    """The version's id. Empty for a census."""
    akey: str | None = None
    """The artifact's key. None for a version and a census."""
    seq: int = 0
    """The place of a version or a census."""
    number: int = 0
    """The number of a version."""
    created_at: int = 0
    """The time of a version."""

    @property
    def name(self) -> str:
        """Return `vuid` for a version, `vuid:akey` for an artifact, and `census-{seq}` for a census."""
        if not self.vuid:
            return f"census-{self.seq}"
        return self.vuid if self.akey is None else f"{self.vuid}:{self.akey}"


@dataclass(frozen=True, slots=True)
class TombstoneFact:
    """Every version with a smaller or equal seq is dead. Number and time are marks that must survive an
    erasure.
    """

    seq: int
    number: int
    created_at: int


@dataclass(frozen=True, slots=True)
class CensusFact:
    """Of all versions whose place is at most `seq`, only these count.

    A census is taken after a loss of Redis, before the first upload, because places that were reserved before
    the loss, and their numbers, may be given out again. A version that lands in such a place after the census
    does not exist. The last census decides.
    """

    seq: int
    vuids: frozenset[str]

    def counts(self, seq: int, vuid: str) -> bool:
        """Return whether a version counts according to this census."""
        return seq > self.seq or vuid in self.vuids


NO_CENSUS = CensusFact(0, frozenset())

AUTOMATIC = "auto-"
"""The uid of every automatic alias move begins with this."""


@dataclass(frozen=True, slots=True)
class AliasFact:
    """An alias was moved to a version."""

    seq: int
    alias: str
    vuid: str
    uid: str

    @classmethod
    def promotion(cls, seq: int, target: "SpeakerVersion", uid: str) -> Self:
        """Return an automatic move of `default`."""
        return cls(seq, DEFAULT, target.vuid, f"{AUTOMATIC}{target.seq:012d}-{uid}")

    @property
    def automatic(self) -> bool:
        """Return whether the move is a promotion, not made by a caller.

        A promotion counts only if its target was registered after the last move by hand.
        """
        return self.uid.startswith(AUTOMATIC)

    @property
    def rank(self) -> tuple[int, str]:
        """Return the order of moves of one kind, of which the highest counts.

        That is the last move by hand, and the promotion of the youngest version: a slow promotion of an older
        version must not turn the voice back.
        """
        return 0 if self.automatic else self.seq, self.uid


@dataclass(frozen=True, slots=True)
class ArtifactFact:
    """An artifact was published."""

    vuid: str
    akey: str
    landed_at: datetime
    """The time at which the object was written, according to the store."""
    record: ArtifactRecord


@dataclass(frozen=True, slots=True)
class VoidFact:
    """The bytes of an artifact were found missing or damaged, and no artifact counts under its key any more.

    The artifact that replaces it is a further build, so bytes that were served never change.
    """

    vuid: str
    akey: str


@dataclass(frozen=True, slots=True)
class FailureFact:
    """An extraction was given up."""

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
    """A live version, and what has been made from it."""

    seq: int
    record: VersionRecord
    artifacts: Mapping[str, ArtifactRecord] = field(default_factory=dict)
    """For each artifact key the artifact that counts."""
    failures: Mapping[str, FailureRecord] = field(default_factory=dict)
    """For each artifact key the last failure. It has no effect once there is an artifact."""
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
        """Return whether there is a clip to extract from."""
        return self.record.clip is not None

    @property
    def rank(self) -> tuple[int, int, str]:
        """Return the order of a speaker's versions. A younger version has a higher rank."""
        return self.record.number, self.seq, self.vuid

    @property
    def all_artifacts(self) -> tuple[ArtifactRecord, ...]:
        """The artifacts that the version was registered with, and those that were made or uploaded later."""
        return *self.record.given, *self.artifacts.values()

    def artifact_key(self, profile: str, fingerprint: str, build: int) -> str:
        """Return the key of an artifact that is extracted from this version."""
        clip = self.record.clip
        return artifact_key(profile, fingerprint, clip.rendition_sha256 if clip else "", build)

    def last_build(self, profile: str, fingerprint: str) -> int:
        """Return the highest build of an artifact ever published, void ones included; 0 if there is none."""
        base = without_build(self.artifact_key(profile, fingerprint, 0))
        keys = (key for key in (*self.artifacts, *self.void) if without_build(key) == base)
        return max(map(build_of, keys), default=0)

    def artifact(self, profile: str, fingerprint: str | None = None) -> ArtifactRecord | None:
        """Return the artifact to serve: the highest build that was made with `fingerprint`.

        With None, it is the highest build of any encoder that was not made ahead of a promotion.
        """
        found = [
            record
            for record in self.all_artifacts
            if record.profile == profile
            and (
                record.fingerprint in {fingerprint, GIVEN_FINGERPRINT}
                if fingerprint is not None
                else not record.made_ahead
            )
        ]
        return max(found, key=lambda record: (record.build, record.attempt), default=None)

    def failure(self, profile: str, fingerprint: str | None) -> FailureRecord | None:
        """Return why the extraction of such an artifact was given up, or None if it was not."""
        found = [
            record
            for record in self.failures.values()
            if record.profile == profile and fingerprint in {None, record.fingerprint}
        ]
        return max(found, key=lambda record: (record.build, record.attempt), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """A speaker as its facts describe it. Without live versions, only its high-water marks mean anything."""

    versions: tuple[SpeakerVersion, ...] = ()
    """The live versions, sorted by (number, seq, vuid)."""
    alias_facts: Mapping[str, AliasFact] = field(default_factory=dict)
    """For each alias the move that counts, even if its target is dead. Moves before the tombstone do not
    count.
    """
    tombstone: int = 0
    census: CensusFact = field(default=NO_CENSUS, compare=False)
    """The last census. Only the facts contain it."""
    damaged: int = 0
    """Seq of the last version that was not deleted and whose record is damaged; 0 if there is none."""
    unreadable: tuple[str, ...] = ()
    """Names (`UnreadableFact.name`) of the versions, censuses and artifacts that were not deleted and whose
    record the store does not return now.
    """
    undecided: bool = field(default=False, compare=False)
    """True if artifacts or automatic moves were left out, because they are so young that others may still
    take their place.
    """
    seq: int = 0
    number: int = 0
    created_at: int = 0
    """High-water marks, as `seq` and `number`. None of these values is ever used again, even after a delete.
    """

    @property
    def live(self) -> bool:
        """Return whether the speaker can be resolved.

        With a damaged or unreadable record it cannot, because its aliases might point to that version.
        """
        return bool(self.versions) and not self.damaged and not self.unreadable

    @property
    def aliases(self) -> Mapping[str, SpeakerVersion]:
        """Return the aliases that point to a live version. `default` is among them only once it was moved."""
        targets = {alias: self.by_vuid(fact.vuid) for alias, fact in self.alias_facts.items()}
        return {alias: target for alias, target in targets.items() if target is not None}

    @property
    def default(self) -> SpeakerVersion:
        """Return the version that `default` points to. Until the alias is first moved, that is the oldest."""
        return self.aliases.get(DEFAULT, self.versions[0])

    @property
    def newest(self) -> SpeakerVersion:
        return self.versions[-1]

    def by_vuid(self, vuid: str) -> SpeakerVersion | None:
        return next((version for version in self.versions if version.vuid == vuid), None)

    def resolve(self, reference: int | str, complete: frozenset[str] = frozenset()) -> SpeakerVersion:
        """Return the version that a reference stands for: a number, an alias, `default` or `latest`.

        Args:
            complete: ids of the versions among which `latest` is the newest. If none of them is live,
            `latest`
                is the newest version.

        Raises:
            VersionNotFound, AliasNotFound: no other version is returned in its place.
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
    """Return the speaker that its facts describe. Order and duplicates do not matter."""
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
    """Return each version with its artifacts and failures."""
    void = _keys_of(_of_kind(VoidFact, facts))
    unclear = _keys_of(
        _of_kind(UnreadableFact, facts)
    )  # it is unknown which of several artifacts landed first
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
    """Return the names of the unreadable facts that matter.

    They concern versions that count and that no tombstone covers. Void artifacts do not matter.
    """
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
    """Sort versions, oldest first. No two that count have the same number, because a census after a loss of
    Redis ensures it.
    """
    return tuple(sorted(versions, key=lambda version: version.rank))


def _seqs(facts: Iterable[Fact]) -> Iterable[int]:
    placed = VersionFact | DamagedFact | UnreadableFact | TombstoneFact | CensusFact | AliasFact
    return (fact.seq for fact in facts if isinstance(fact, placed))


def aliases_in_force(facts: Iterable[AliasFact], live: Iterable[SpeakerVersion]) -> dict[str, AliasFact]:
    """Return the move of each alias that counts.

    That is the highest automatic move if its target is younger than the last move by hand, and else the move
    by hand. So a pending promotion never undoes what a caller chose meanwhile.
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
    """Return, by vuid and artifact key, the artifact that landed first. Within one second, the newer attempt
    counts as first.
    """
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
    """Return the keys of the artifacts that the facts concern, by vuid."""
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
    """Return the key of an artifact within its version: `{hash}-{build}`, in letters, digits and `-`."""
    digest = sha256_digest(canonical_json([profile, fingerprint, rendition_sha256]).encode())
    return f"{digest.removeprefix('sha256:')[:32]}-{build}"


def without_build(akey: str) -> str:
    """Return the part of the key that all builds of an artifact have in common."""
    return akey.rpartition("-")[0]


def build_of(akey: str) -> int:
    """Return the build in an artifact's key."""
    return int(akey.rpartition("-")[2])


def given_key(profile: str) -> str:
    """Return the key of an artifact that was registered with its version."""
    return f"given-{profile}-1"
