"""Checks what a client reads against the ledger. Every check here holds at every moment of every history."""

from dataclasses import dataclass, field, replace

from services.shared.bucket.blobs import Unsound
from services.shared.bucket.facts import read_speaker
from services.shared.bucket.keys import SpeakerId
from services.shared.index.speaker_index import VersionSelection
from services.shared.model.domain import ArtifactRecord, Speaker, SpeakerVersion, given_key
from speaker_registry.artifact import Artifact, sha256_digest
from speaker_registry.errors import VoiceNotFound
from speaker_registry.names import DEFAULT
from tests.simulation.ledger import Ledger, Violation
from tests.simulation.process import Process
from tests.simulation.scheduler import current
from tests.simulation.world import World

ALL_VERSIONS = VersionSelection(limit=1000)
"""A limit for looks that no history reaches."""


@dataclass
class Memory:
    """The earlier observations."""

    served: dict[tuple[str, str], str] = field(default_factory=dict)
    """(vuid, akey) -> the winner."""
    defaults: dict[SpeakerId, "SeenDefault | None"] = field(default_factory=dict)
    """The last one that nothing may come before any more."""


@dataclass(frozen=True)
class SeenDefault:
    moment: int
    vuid: str
    serves: frozenset[str]
    moved: int
    """seq of the move that made it the default; 0: none did."""


def read(world: World, memory: Memory, process: Process, speaker_id: SpeakerId) -> None:
    """Look a speaker up as a GET does, fetch every artifact, and check all of it."""
    began = world.moment
    speaker = process.operations.speakers.look_up(speaker_id, ALL_VERSIONS).speaker
    if was_lied_to():
        return  # whoever asks again is told the truth
    if is_unreadable(world, speaker_id, speaker):
        return
    check_versions(world.ledger, speaker_id, speaker, began, world.moment)
    check_registered_once(world, speaker_id, speaker)
    check_numbers(world.ledger, speaker_id, speaker)
    _check_default(world, memory, process, speaker_id, speaker, began)
    for version in speaker.versions:
        for akey, record in artifacts_of(version):
            _check_artifact(world, memory, process, speaker_id, version, akey, record)


def check_registered_once(world: World, speaker_id: SpeakerId, speaker: Speaker) -> None:
    """Under the policy `immutable` a voice has one version until it is deleted, whenever Redis is lost."""
    if world.settings.registration_policy == "immutable" and len(speaker.versions) > 1:
        raise Violation(f"{speaker_id} is immutable and has {len(speaker.versions)} versions")


def is_unreadable(world: World, speaker_id: SpeakerId, speaker: Speaker) -> bool:
    """Return whether a speaker is said to be unreadable, for which there has to be a reason."""
    if speaker.unreadable and not any(key.startswith(speaker_id.prefix) for key in world.were_cursed):
        raise Violation(f"{speaker_id} is said to be unreadable: {speaker.unreadable}")
    return bool(speaker.unreadable)


def was_lied_to() -> bool:
    """Return whether the store told the reader something that is not so."""
    actor = current()
    return actor is not None and actor.lied_to


def artifacts_of(version: SpeakerVersion) -> list[tuple[str, ArtifactRecord]]:
    given = [(given_key(record.profile), record) for record in version.record.given]
    return given + sorted(version.artifacts.items())


def check_versions(ledger: Ledger, speaker_id: SpeakerId, speaker: Speaker, began: int, ended: int) -> None:
    """Nothing acknowledged is missing, nothing deleted is back, nothing is there that nobody uploaded."""
    visible = {version.vuid for version in speaker.versions}
    for vuid, answers in ledger.acknowledged.items():
        if vuid in visible or answers[0].author.speaker_id != speaker_id:
            continue
        for answer in answers:
            if answer.at < began and not ledger.may_be_gone(answer, ended):
                raise Violation(f"version {vuid} of {speaker_id}, acknowledged at {answer.at}, is not there")
    for vuid in visible:
        if vuid not in ledger.authors:
            raise Violation(f"version {vuid} of {speaker_id} was made by nobody")
        if ledger.must_be_gone(vuid, began):
            raise Violation(f"version {vuid} of {speaker_id} is there after its delete was acknowledged")


def check_numbers(ledger: Ledger, speaker_id: SpeakerId, speaker: Speaker) -> None:
    """An acknowledged `name@N` never changes its bytes, for ever."""
    for version in speaker.versions:
        promised = ledger.numbered.get((speaker_id, version.number))
        if promised is not None and promised.vuid != version.vuid:
            raise Violation(
                f"{speaker_id}@{version.number} was promised to {promised.vuid}, and is {version.vuid}"
            )


def _check_default(
    world: World, memory: Memory, process: Process, speaker_id: SpeakerId, speaker: Speaker, began: int
) -> None:
    """No engine that has the voice loses it to a newer version, unless somebody says so."""
    if not speaker.live:
        return
    default, before = speaker.default, memory.defaults.get(speaker_id)
    if before is not None and before.moment >= began:
        return  # somebody looked meanwhile: who has seen the older one?
    # Until the place of a later version than the first is written down, a slow upload may come before it.
    moved = speaker.alias_facts[DEFAULT].seq if DEFAULT in speaker.aliases else 0
    now = SeenDefault(world.moment, default.vuid, serves(process, default), moved)
    certain = default.number == 1 or moved
    memory.defaults[speaker_id] = now if certain else None
    was = speaker.by_vuid(before.vuid) if before is not None else None
    if before is None or was is None or was is default:
        return
    if not {was.vuid, default.vuid} & world.ledger.moved_by_hand:
        if was.void:  # what was lost, no promotion has taken from anybody
            before = replace(before, serves=before.serves & serves(process, was))
        _check_succession(speaker_id, was, default, before, now)


def _check_succession(
    speaker_id: SpeakerId, was: SpeakerVersion, default: SpeakerVersion, before: SeenDefault, now: SeenDefault
) -> None:
    if default.seq < was.seq:
        # A move that the facts told already may not be in the index yet.
        if now.moved >= before.moved:
            raise Violation(f"default of {speaker_id} went back from {was.vuid} to {default.vuid}")
    elif lost := before.serves - now.serves:
        raise Violation(f"default of {speaker_id} went from {was.vuid} to {default.vuid}, without {lost}")


def serves(process: Process, version: SpeakerVersion) -> frozenset[str]:
    """Return the profiles that a version serves, with any fingerprint: a new one makes artifacts stale, not
    useless.
    """
    required = process.opened.catalogue.required
    return frozenset(profile for profile in required if version.artifact(profile) is not None)


def _check_artifact(
    world: World,
    memory: Memory,
    process: Process,
    speaker_id: SpeakerId,
    version: SpeakerVersion,
    akey: str,
    record: ArtifactRecord,
) -> None:
    """Its bytes are what the record says, come from this version's clip, and never change. Where they are
    lost it is made again, unless it came with the registration.
    """
    try:
        data = process.operations.extractions.artifact_or_replacement(speaker_id, version, record)
    except VoiceNotFound:
        if not was_lied_to():
            _check_it_may_be_missing(world, speaker_id, version, akey)
        return
    except Unsound:
        if not (record in version.record.given and is_lost(world, speaker_id, version, akey, record)):
            raise Violation(f"artifact {version.vuid} {akey} cannot be served") from None
        return
    if data is None:
        return  # it is extracted again
    if sha256_digest(data) != record.digest:
        raise Violation(f"artifact {version.vuid} {akey} is not what its record says")
    made_from = Artifact.parse(data).tensors["speaker_embedding"][0]
    if made_from != world.ledger.authors[version.vuid].content:
        raise Violation(f"artifact {version.vuid} {akey} was made from clip {made_from}")
    before = memory.served.setdefault((version.vuid, akey), record.winner)
    if before != record.winner:
        raise Violation(f"artifact {version.vuid} {akey} was {before} and is {record.winner}")


def is_lost(
    world: World, speaker_id: SpeakerId, version: SpeakerVersion, akey: str, record: ArtifactRecord
) -> bool:
    """Return whether the world has lost an artifact's bytes."""
    return speaker_id.artifact_blob_key(version.vuid, akey, record) in world.lost


def _check_it_may_be_missing(world: World, speaker_id: SpeakerId, version: SpeakerVersion, akey: str) -> None:
    """Deleted between two looks: then the facts say so as well."""
    truth = read_speaker(world.truth, speaker_id).by_vuid(version.vuid)
    if truth is not None and akey in dict(artifacts_of(truth)):
        raise Violation(f"artifact {version.vuid} {akey} has no bytes")
