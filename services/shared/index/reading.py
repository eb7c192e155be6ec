"""Parses what the index holds of one speaker into values. See `lua/_prelude.lua`, which writes the hash."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from services.shared.model.domain import (
    AliasFact,
    ArtifactRecord,
    FailureRecord,
    Speaker,
    SpeakerVersion,
    VersionRecord,
    aliases_in_force,
    in_order,
)

CensusState = Literal["settled", "due", "pending"]
"""`due`: a census has to be taken before a version is registered, or before a version from before this index
is acknowledged. `pending`: a census was begun, and its fact may not be in the bucket yet.
"""


@dataclass(frozen=True, slots=True)
class PendingExtraction:
    """The one job that is under way for a (vuid, profile, fingerprint)."""

    vuid: str
    profile: str
    fingerprint: str
    """The fingerprint is empty while no worker has announced the profile."""
    job_id: str
    processing: bool


@dataclass(frozen=True, slots=True)
class IndexedSpeaker:
    """A speaker as the index knows it, with its pending extractions."""

    speaker: Speaker
    pending_extractions: tuple[PendingExtraction, ...] = ()
    deleting: int = 0
    """Seq of a delete that was begun and may still take effect, or 0. Versions before it may vanish soon."""
    left_out: int = 0
    """The number of live versions that were not read, and so are missing in `speaker`."""
    census: CensusState = "settled"
    """Only `SpeakerIndex.look` reports `due`."""
    keyed: str | None = None
    """The version that the Idempotency-Key of the selection stands for."""
    page_end: int = 0
    """Number of the last version of the page that the look read, where `VersionSelection.max_bytes` ended
    it.
    """
    from_facts: bool = False
    """True if the speaker was read from its facts, because the index could not be used. A listing of facts
    may lack the newest, of which the index has told all processes already.
    """

    @property
    def version_count(self) -> int:
        """The number of the speaker's live versions, whether they were read or not."""
        return len(self.speaker.versions) + self.left_out

    def pending_extraction(
        self, vuid: str, profile: str, fingerprint: str | None
    ) -> PendingExtraction | None:
        """Return the pending extraction of this artifact.

        A pending extraction that has no fingerprint yet will be made with the current one.
        """
        return next(
            (
                pending
                for pending in self.pending_extractions
                if pending.vuid == vuid
                and pending.profile == profile
                and (fingerprint is None or pending.fingerprint in {"", fingerprint})
            ),
            None,
        )


NOTHING = IndexedSpeaker(Speaker())
"""The result for a name that was never used."""


def read_hash(fields: Mapping[str, str]) -> IndexedSpeaker:
    """Parse the hash of one speaker, which `lua/_prelude.lua` describes."""
    by_kind: dict[str, dict[str, str]] = {kind: {} for kind in "vaprxwf"}
    for name, value in fields.items():
        kind, separator, rest = name.partition(":")
        if separator and kind in by_kind:
            by_kind[kind][rest] = value
    versions = in_order(_versions(by_kind))
    moves = [_alias_fact(alias, value) for kind in "ap" for alias, value in by_kind[kind].items()]
    speaker = Speaker(
        versions=versions,
        alias_facts=aliases_in_force(moves, versions),
        tombstone=int(fields.get("tomb", 0)),
        damaged=int(fields.get("damaged", 0)),
        unreadable=tuple(fields.get("unreadable", "").split()),
        seq=int(fields.get("seq", 0)),
        number=int(fields.get("num", 0)),
        created_at=int(fields.get("at", 0)),
        undecided="undecided" in fields,
    )
    pending_extractions = tuple(_pending_extraction(name, value) for name, value in by_kind["f"].items())
    deleting = int(fields.get("rdel", "0").partition(":")[0])
    begun = fields.get("census", "").partition(":")[2].startswith("pending:")
    return IndexedSpeaker(speaker, pending_extractions, deleting, census="pending" if begun else "settled")


def read_look(answer: Sequence[Any]) -> IndexedSpeaker:
    """Parse the answer of `lua/look.lua`."""
    count, census, *fields = answer
    found = dict(zip(fields[::2], fields[1::2], strict=True))
    indexed = read_hash(found)
    left_out = int(count) - len(indexed.speaker.versions)
    page_end = int(found.get("page_end", 0))
    return replace(indexed, left_out=left_out, census=census, keyed=found.get("keyed"), page_end=page_end)


def _versions(by_kind: Mapping[str, Mapping[str, str]]) -> Iterator[SpeakerVersion]:
    artifacts: dict[str, dict[str, ArtifactRecord]] = {}
    for name, value in by_kind["r"].items():
        vuid, akey = name.split(":")
        artifacts.setdefault(vuid, {})[akey] = ArtifactRecord.model_validate_json(value.partition(":")[2])
    failures: dict[str, dict[str, FailureRecord]] = {}
    for name, value in by_kind["x"].items():
        vuid, akey = name.split(":")
        failures.setdefault(vuid, {})[akey] = FailureRecord.model_validate_json(value.partition(":")[2])
    void: dict[str, set[str]] = {}
    for name in by_kind["w"]:
        vuid, akey = name.split(":")
        void.setdefault(vuid, set()).add(akey)
    for vuid, value in by_kind["v"].items():
        seq, _, record = value.partition(":")
        yield SpeakerVersion(
            seq=int(seq),
            record=VersionRecord.model_validate_json(record),
            artifacts=artifacts.get(vuid, {}),
            failures=failures.get(vuid, {}),
            void=frozenset(void.get(vuid, ())),
        )


def _alias_fact(alias: str, value: str) -> AliasFact:
    seq, uid, vuid = value.split(":")
    return AliasFact(int(seq), alias, vuid, uid)


def _pending_extraction(name: str, value: str) -> PendingExtraction:
    vuid, profile, fingerprint = name.split(":", 2)
    job_id, _, state = value.partition(":")
    return PendingExtraction(vuid, profile, fingerprint, job_id, processing=state == "processing")
