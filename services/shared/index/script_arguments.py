"""The arguments of the index's scripts: facts and records as the JSON objects that `lua/` reads."""

from dataclasses import dataclass
from typing import Any

from services.shared.model.domain import (
    AliasFact,
    ArtifactRecord,
    FailureRecord,
    Speaker,
    VersionRecord,
    build_of,
    without_build,
)


@dataclass(frozen=True, slots=True)
class SpeakerUpdate:
    """Everything that a speaker's facts say, on its way to the index."""

    truth: Speaker
    """The speaker as its facts describe it."""
    listed: float
    """The time when the facts were listed, or an earlier one, in Unix seconds."""
    look: bool = False
    """Housekeeping should look at the speaker if this update admits it. It does so anyway if the truth is
    undecided.
    """


def update_arguments(update: SpeakerUpdate, epoch: int) -> dict[str, Any]:
    """Return the arguments of `lua/tell.lua`."""
    about = {"unknown": True, "listed_in": str(epoch), "listed": update.listed, "look": update.look}
    return about | _all_of(update.truth)


def _all_of(truth: Speaker) -> dict[str, Any]:
    """Return the arguments that describe all facts of a speaker."""
    census = truth.census
    marks = {"seq": truth.seq, "number": truth.number, "created_at": truth.created_at}
    artifacts = [
        artifact_arguments(version.vuid, akey, record)
        for version in truth.versions
        for akey, record in version.artifacts.items()
    ]
    failures = [
        failure_arguments(version.vuid, akey, record)
        for version in truth.versions
        for akey, record in version.failures.items()
    ]
    return {
        "marks": marks,
        "damaged": truth.damaged,
        "unreadable": " ".join(truth.unreadable),
        "undecided": truth.undecided,
        "census": {"high": census.seq, "vuids": sorted(census.vuids)} if census.seq else None,
        "tombstone": marks | {"seq": truth.tombstone} if truth.tombstone else None,
        "versions": [version_arguments(version.seq, version.record) for version in truth.versions],
        "void": [void_arguments(version.vuid, akey) for version in truth.versions for akey in version.void],
        "artifacts": artifacts,
        "failures": failures,
        "moves": [move_arguments(fact) for fact in truth.alias_facts.values()],
    }


def version_arguments(seq: int, record: VersionRecord) -> dict[str, Any]:
    return {
        "seq": seq,
        "vuid": record.vuid,
        "number": record.number,
        "created_at": record.created_at,
        "key": record.key,
        "record": record.model_dump_json(),
        "given": bool(record.given),
        **({"idempotency": record.idempotency} if record.idempotency else {}),
    }


def artifact_arguments(vuid: str, akey: str, record: ArtifactRecord) -> dict[str, Any]:
    return {
        "vuid": vuid,
        "base": without_build(akey),
        "build": record.build,
        "winner": record.winner,
        "record": record.model_dump_json(),
        "profile": record.profile,
        "fingerprint": record.fingerprint,
    }


def failure_arguments(vuid: str, akey: str, record: FailureRecord) -> dict[str, Any]:
    return {
        "vuid": vuid,
        "akey": akey,
        "attempt": record.attempt,
        "record": record.model_dump_json(),
        "profile": record.profile,
    }


def void_arguments(vuid: str, akey: str) -> dict[str, Any]:
    return {"vuid": vuid, "base": without_build(akey), "build": build_of(akey)}


def move_arguments(fact: AliasFact) -> dict[str, Any]:
    return {
        "seq": fact.seq,
        "alias": fact.alias,
        "automatic": fact.automatic,
        "uid": fact.uid,
        "vuid": fact.vuid,
    }
