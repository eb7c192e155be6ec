"""Facts of one made-up speaker: plain ones to write histories of, and a strategy that draws any history.

Knows the rules only as far as writers keep them: places may be taken twice after a loss of Redis, ids never.
"""

from datetime import UTC, datetime, timedelta

from hypothesis import strategies as st

from services.shared.model.domain import (
    AUTOMATIC,
    AliasFact,
    ArtifactFact,
    ArtifactRecord,
    CensusFact,
    ClipRecord,
    Fact,
    FailureFact,
    FailureRecord,
    SpeakerVersion,
    TombstoneFact,
    VersionFact,
    VersionRecord,
    VoidFact,
    artifact_key,
    fold,
    fold_artifacts,
)
from speaker_registry.artifact import TensorInfo

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ECAPA = "ecapa"
OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64
"""Fingerprints."""
TENSORS = {"speaker_embedding": TensorInfo(dtype="F32", shape=(4,))}


def vuid(number: int) -> str:
    return f"{number:032x}"


def clip(number: int) -> ClipRecord:
    return ClipRecord(
        sha256=f"c{number:063x}",
        size=10,
        mime_type="audio/wav",
        seconds=1.5,
        sample_rate=16_000,
        channels=1,
        rendition_sha256=f"d{number:063x}",
    )


def given_artifact(number: int) -> ArtifactRecord:
    return artifact(f"{number:032x}", fingerprint="given")


def version(
    seq: int, which: int | None = None, *, number: int | None = None, created_at: int = 0, given: bool = False
) -> VersionFact:
    """Return a version. `which` selects the vuid, by default that with the same number as `seq`; the same
    holds for `number`.
    """
    which = seq if which is None else which
    record = VersionRecord(
        vuid=vuid(which),
        number=seq if number is None else number,
        created_at=created_at or 1_700_000_000 + seq,
        name="Alice",
        source="embedding" if given else "audio",
        consent="cons_1",
        clip=None if given else clip(which),
        embedding_width=4 if given else None,
        given=(given_artifact(which),) if given else (),
    )
    return VersionFact(seq, record)


def deleted(seq: int, number: int = 0, created_at: int = 0) -> TombstoneFact:
    return TombstoneFact(seq, number, created_at)


def moved(
    seq: int, which: int, alias: str = "default", *, automatic: bool = False, uid: str = ""
) -> AliasFact:
    """Return a move to the version of `vuid(which)`; a promotion moves to that of the same seq."""
    uid = uid or f"{seq:032x}"
    return AliasFact(seq, alias, vuid(which), f"{AUTOMATIC}{which:012d}-{uid}" if automatic else uid)


def artifact(attempt: str, *, fingerprint: str = NEW, build: int = 1) -> ArtifactRecord:
    return ArtifactRecord(
        profile=ECAPA,
        fingerprint=fingerprint,
        build=build,
        attempt=attempt,
        digest="sha256:" + (attempt * 64)[:64],
        content_digest="sha256:" + "3" * 64,
        size=100,
        tensors=TENSORS,
    )


def akey(which: int, fingerprint: str = NEW, build: int = 1) -> str:
    """Return the key of the artifact of `version(…, which)`."""
    return artifact_key(ECAPA, fingerprint, clip(which).rendition_sha256, build)


def made(
    which: int, attempt: str, *, second: float = 0, fingerprint: str = NEW, build: int = 1
) -> ArtifactFact:
    """An artifact that landed so many seconds after noon."""
    record = artifact(attempt, fingerprint=fingerprint, build=build)
    return ArtifactFact(
        vuid(which), akey(which, fingerprint, build), NOON + timedelta(seconds=second), record
    )


def gave_up(which: int, attempt: str, *, fingerprint: str = NEW, build: int = 1) -> FailureFact:
    record = FailureRecord(
        profile=ECAPA,
        fingerprint=fingerprint,
        build=build,
        attempt=attempt,
        code="extractor_failed",
        message="it broke",
        attempts=3,
    )
    return FailureFact(vuid(which), akey(which, fingerprint, build), record)


def lost(which: int, *, fingerprint: str = NEW, build: int = 1) -> VoidFact:
    """The bytes of such an artifact were found missing or damaged."""
    return VoidFact(vuid(which), akey(which, fingerprint, build))


NAMED = 4
"""Versions that histories speak of, some of them without ever recording them."""


@st.composite
def histories(draw: st.DrawFn) -> list[Fact]:
    """Facts of one speaker as they may lie in a bucket, in no order."""
    which, ids = st.integers(1, NAMED), (f"{number:032x}" for number in range(1_000, 2_000))
    seqs, builds, fingerprints = st.integers(1, 9), st.integers(1, 2), st.sampled_from((OLD, NEW))
    versions = [
        version(draw(seqs), one, number=draw(st.integers(1, 4)), given=draw(st.booleans()))
        for one in sorted(draw(st.sets(which)))
    ]
    facts: list[Fact] = [*versions]
    for seq in sorted(draw(st.lists(seqs, max_size=2))):
        facts.append(_tombstone(seq, facts, draw(st.integers(0, 1))))
    for seq in draw(st.lists(seqs, max_size=1)):
        facts.append(CensusFact(seq, frozenset(vuid(one) for one in draw(st.sets(which)))))
    for _ in range(draw(st.integers(0, 2))):
        alias = draw(st.sampled_from(("default", "prod.v1")))
        facts.append(moved(draw(seqs), draw(which), alias, uid=next(ids)))
    for target in draw(st.lists(st.sampled_from(versions), max_size=3)) if versions else ():
        later = draw(st.integers(target.seq + 1, 10))
        facts.append(
            AliasFact.promotion(later, SpeakerVersion(seq=target.seq, record=target.record), next(ids))
        )
    for _ in range(draw(st.integers(0, 3))):
        one, kind = draw(which), {"fingerprint": draw(fingerprints), "build": draw(builds)}
        for _ in range(draw(st.integers(1, 2))):  # rivals
            facts.append(made(one, next(ids), second=draw(st.integers(0, 1)), **kind))
    for _ in range(draw(st.integers(0, 2))):
        facts.append(lost(draw(which), fingerprint=draw(fingerprints), build=draw(builds)))
    for _ in range(draw(st.integers(0, 2))):
        facts.append(gave_up(draw(which), next(ids), fingerprint=draw(fingerprints), build=draw(builds)))
    return facts


def _tombstone(seq: int, facts: list[Fact], more: int) -> TombstoneFact:
    """Return a tombstone that carries the marks of all that was reserved before it."""
    before = fold(fact for fact in facts if isinstance(fact, VersionFact | TombstoneFact) and fact.seq <= seq)
    return deleted(seq, before.number + more, before.created_at + more)


def without_losers(facts: list[Fact]) -> list[Fact]:
    """Keep only the artifact that counts of rival ones, because a publisher tells no other."""
    artifacts = [fact for fact in facts if isinstance(fact, ArtifactFact)]
    count = fold_artifacts(artifacts)
    return [
        fact
        for fact in facts
        if not isinstance(fact, ArtifactFact) or count[fact.vuid][fact.akey] == fact.record
    ]
