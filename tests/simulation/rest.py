"""Checks of what must be true at rest: no faults, no actor on the way, and housekeeping has had its turns."""

import json
from typing import Any

from services.shared.bucket.facts import read_speaker, speaker_ids
from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import speaker_key
from services.shared.model.domain import Speaker, SpeakerVersion
from speaker_registry.errors import ClipDamaged
from speaker_registry.names import DEFAULT
from speaker_registry.schemas import FINISHED_STATES
from tests.simulation.ledger import Violation
from tests.simulation.process import Process
from tests.simulation.reading import (
    ALL_VERSIONS,
    artifacts_of,
    check_numbers,
    check_registered_once,
    check_versions,
    is_lost,
)
from tests.simulation.world import World


def check_promises_kept(world: World, process: Process) -> None:
    """Check, without waiting for the daily sweep, that everything acknowledged is there, and is ready or said
    to have failed. One voice that cannot be read must hold up no other.
    """
    if not process.index.gate_open():
        raise Violation("the gate stays closed")
    for speaker_id in speaker_ids(world.truth):
        if any(key.startswith(speaker_id.prefix) for key in world.cursed):
            continue
        indexed = process.operations.speakers.look_up(speaker_id, ALL_VERSIONS)
        check_versions(world.ledger, speaker_id, indexed.speaker, world.moment, world.moment)
        if indexed.pending_extractions:
            raise Violation(f"{speaker_id} still waits for {indexed.pending_extractions}")
        for version in indexed.speaker.versions:
            if version.vuid in world.ledger.acknowledged:
                _check_made(process, indexed, version)
    if not world.cursed:
        _check_jobs(world)


def check_everything(world: World, process: Process) -> None:
    """Check everything after the daily sweep, when every grace period has ended."""
    for speaker_id in speaker_ids(world.truth):
        truth = read_speaker(world.truth, speaker_id)
        indexed = process.operations.speakers.look_up(speaker_id, ALL_VERSIONS)
        _check_same(speaker_id, indexed.speaker, truth)
        check_versions(world.ledger, speaker_id, truth, world.moment, world.moment)
        check_registered_once(world, speaker_id, truth)
        check_numbers(world.ledger, speaker_id, truth)
        for version in truth.versions:
            _check_made(process, indexed, version)
        _check_default(process, indexed, truth)
        _check_objects(world, speaker_id, truth)
        _check_lost(world, speaker_id, truth)
        _check_forgotten(world, speaker_id, truth)
    _check_names(world, process)
    _check_jobs(world)


def _check_same(speaker_id: SpeakerId, indexed: Speaker, truth: Speaker) -> None:
    """The index tells what the facts tell. Its high-water marks may be higher: places were reserved and not
    taken."""
    marks = [(indexed.seq, truth.seq), (indexed.number, truth.number), (indexed.created_at, truth.created_at)]
    if any(mine < theirs for mine, theirs in marks):
        raise Violation(f"index of {speaker_id} has marks {marks}")
    mine, theirs = _told(indexed), _told(truth)
    for what in sorted(mine.keys() | theirs.keys()):
        if mine.get(what) != theirs.get(what):
            raise Violation(
                f"{what} of {speaker_id}: the index says {mine.get(what)}, the facts say {theirs.get(what)}"
            )


def _told(speaker: Speaker) -> dict[str, Any]:
    """All that is said of a speaker but its marks, in pieces that can be compared one by one."""
    told: dict[str, Any] = {"tombstone": speaker.tombstone, "unreadable": speaker.unreadable}
    told |= {f"alias {alias}": fact for alias, fact in speaker.alias_facts.items()}
    for place, version in enumerate(speaker.versions):
        told[f"version {version.vuid}"] = (place, version.seq, version.record)
        told |= {f"artifact {version.vuid} {akey}": one for akey, one in version.artifacts.items()}
        told |= {f"failure {version.vuid} {akey}": one for akey, one in version.failures.items()}
    return told


def _check_made(process: Process, indexed: IndexedSpeaker, version: SpeakerVersion) -> None:
    for status in process.operations.statuses.of_wanted(indexed, version):
        if status.state_of_current not in {"ready", "failed"} or status.job_id:
            raise Violation(
                f"{version.vuid} is {status.state_of_current} for {status.profile.name}, job {status.job_id}"
            )


def _check_default(process: Process, indexed: IndexedSpeaker, speaker: Speaker) -> None:
    """No newer version could take its place."""
    if not speaker.live:
        return
    moved = speaker.alias_facts.get(DEFAULT)
    chosen = moved.seq if moved is not None and not moved.automatic else 0
    kept = {one for one in _required(process) if speaker.default.artifact(one) is not None}
    newer = speaker.versions[speaker.versions.index(speaker.default) + 1 :]
    for version in (one for one in newer if one.seq >= chosen):
        statuses = [
            process.operations.statuses.of_profile(indexed, version, one) for one in _required(process)
        ]
        ready = {one.profile.name for one in statuses if one.state_of_current == "ready"}
        if ready and ready >= kept:
            raise Violation(f"default is {speaker.default.vuid}, and {version.vuid} serves all that it does")


def _required(process: Process) -> tuple[str, ...]:
    return process.opened.catalogue.required


def _check_objects(world: World, speaker_id: SpeakerId, truth: Speaker) -> None:
    """Nothing is left of what is dead, whoever put it there, and nothing is missing of what lives."""
    keys = {stored.key for stored in world.truth.list(speaker_id.prefix).objects}
    if truth.tombstone and not truth.versions and keys & world.litter:
        raise Violation(f"left in the folder of a deleted voice: {sorted(keys & world.litter)}")
    for key in sorted(keys - world.litter):
        _, _, _, kind, name, *_ = key.split("/")
        if kind == "d" and truth.by_vuid(name) is None:
            raise Violation(f"left of a dead version: {key}")
        seq = int(name.partition(".")[0]) if kind == "r" else truth.tombstone + 1
        if seq < truth.tombstone or (seq == truth.tombstone and ".del." not in name):
            raise Violation(f"left of what a tombstone covers: {key}")
    keys |= world.lost
    if missing := [
        key for version in truth.versions for key in needed(speaker_id, version) if key not in keys
    ]:
        raise Violation(f"missing: {missing}")


def _check_lost(world: World, speaker_id: SpeakerId, truth: Speaker) -> None:
    """Check that everything that was lost and could be made again was, and that nothing else is said to be
    lost.
    """
    for version in truth.versions:
        for akey, record in version.artifacts.items():
            if is_lost(world, speaker_id, version, akey, record):
                raise Violation(f"artifact {version.vuid} {akey} is lost and was not made again")
        clip = version.record.clip
        blobs = (
            {speaker_id.blob_key(version.vuid, one) for one in (clip.sha256, clip.rendition_sha256)}
            if clip
            else set()
        )
        if not blobs <= world.lost and any(one.code == ClipDamaged.code for one in version.failures.values()):
            raise Violation(f"the clip of {version.vuid} is said to be lost")


def _check_forgotten(world: World, speaker_id: SpeakerId, truth: Speaker) -> None:
    """Redis holds nothing of a dead version either, nor of a delete that never landed."""
    raw: Any = world.server.raw
    if raw.hexists(speaker_key(speaker_id), "rdel"):
        raise Violation(f"a delete of {speaker_id} still counts as on its way")
    for field in sorted(name.decode() for name in raw.hkeys(speaker_key(speaker_id))):
        kind, _, rest = field.partition(":")
        vuid = rest.partition(":")[0]
        if kind in {"v", "r", "b", "g", "x", "w", "f", "k"} and vuid and truth.by_vuid(vuid) is None:
            raise Violation(f"left of a dead version in the index of {speaker_id}: {field}")


def needed(speaker_id: SpeakerId, version: SpeakerVersion) -> list[str]:
    """Every object that a live version names."""
    keys = [speaker_id.version_key(version.seq, version.record)]
    if clip := version.record.clip:
        keys += [speaker_id.blob_key(version.vuid, sha256) for sha256 in (clip.sha256, clip.rendition_sha256)]
    for akey, record in artifacts_of(version):
        keys.append(speaker_id.artifact_blob_key(version.vuid, akey, record))
        if akey in version.artifacts:
            keys.append(speaker_id.artifact_fact_key(version.vuid, akey, record))
    return keys


def _check_names(world: World, process: Process) -> None:
    """Paging finds every live speaker, and only those."""
    page = process.operations.pages.page("default", limit=1000)
    told = [indexed.speaker.newest.record.name.lower() for indexed in page.speakers]
    live = [read_speaker(world.truth, speaker_id) for speaker_id in speaker_ids(world.truth)]
    if page.more or told != sorted(speaker.newest.record.name.lower() for speaker in live if speaker.live):
        raise Violation(f"paging tells {told}")


def _check_jobs(world: World) -> None:
    """Every job has ended, and is listed under the state it ended in."""
    raw: Any = world.server.raw
    for key in raw.keys("sr:job:*"):
        job = {name.decode(): value.decode() for name, value in raw.hgetall(key).items()}
        if job["state"] not in FINISHED_STATES:
            raise Violation(f"job has not ended: {json.dumps(job)}")
        losses = world.ledger.canceled.get(job["id"])
        if losses == world.counts["redis_is_replaced"] and job["state"] != "canceled":
            raise Violation(f"job was said to be canceled: {json.dumps(job)}")
        for profile in ("", f":{job['profile']}"):
            listed = [
                state
                for state in sorted(FINISHED_STATES | {"queued", "processing"})
                if raw.zscore(f"sr:jobs:{job['ns']}:{state}{profile}", job["id"]) is not None
            ]
            if listed != [job["state"]]:
                raise Violation(f"job {job['id']} is {job['state']} and listed{profile} under {listed}")
