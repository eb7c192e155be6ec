"""A world comes to rest: the weather ends, everything that is under way ends, and days go by. Then the
reckoning compares what is left with what is owed.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import astuple
from datetime import timedelta
from functools import partial
from operator import methodcaller
from typing import Any

from services.shared.model.document import SpeakerDocument
from services.shared.model.events import events_between
from services.shared.model.speaker import Speaker, SpeakerId
from services.shared.model.status import profile_status, unsupported_reason
from services.shared.view.away import ViewAway
from services.shared.view.keys import agenda_key, announcements_key, events_key, names_key, pinned_key
from services.shared.view.stamp import STAMP, Stamp
from speaker_registry.artifact import sha256_digest
from tests.memory_registry import NS, PROFILES, id_of
from tests.simulation.documents.ledger import NOTHING, Violation, named
from tests.simulation.documents.process import Process
from tests.simulation.documents.request import Request
from tests.simulation.documents.servers import applied_key
from tests.simulation.documents.store import DAY, HOUR, MINUTE
from tests.simulation.documents.weather import CALM
from tests.simulation.documents.world import World
from tests.simulation.scheduler import Actor

_STEPS = 300_000
"""What is under way ends within this many steps. A hundred looks at a voice of many versions take 60,000."""
_TURNS = (15 * MINUTE, 90 * MINUTE, 3 * DAY, 2 * HOUR, 4 * DAY, 35 * DAY, 2 * HOUR, 2 * HOUR)
"""The time that passes before each turn of housekeeping. Ids leave `swept` after 30 days."""
_GRACE = timedelta(days=2)


def come_to_rest(world: World) -> None:
    world.weather = CALM
    for process in world.processes:
        process.unreachable_until = float("-inf")
    for name in world.names:
        world.rewrite(id_of(name), needs=())
    _finish_all(world)
    for process in world.processes:
        process.server = len(world.servers) - 1
    for _ in range(200):  # those who were left behind ask, and one begins
        world.advance(1.0)
        _finish_all(world)
        if all(process.registry.generation._trusted for process in world.processes):
            break
    for seconds in _TURNS:
        _pass(world, seconds)
        _keep_house(world)


def _finish_all(world: World) -> None:
    """Let everything that is under way come to its end."""
    for _ in range(_STEPS):
        if not world.actors:
            return
        if awake := world.awake():
            world.step(world.random.choice(awake))
        else:
            asleep = [actor.asleep_until for actor in world.actors if actor.asleep_until > world.time]
            world.advance(min(asleep) - world.time)
    raise Violation(f"5: at rest {world.actors[0].name} does not end")


def _pass(world: World, seconds: float) -> None:
    world.advance(seconds)
    while world.next_coming is not None and seconds > DAY:
        world.advance(world.next_coming - world.time)
    _finish_all(world)


def _keep_house(world: World) -> None:
    for process in world.processes:
        _do(world, "rebuild", process, "", _rebuild)
    process = world.random.choice(world.processes)
    for name in world.names:
        if id_of(name) in world.ledger.damaged:
            _do(world, "delete", process, name, methodcaller("delete", name))
        _do(world, "erase", process, name, methodcaller("erase", name, grace=_GRACE))
        _do(world, "sweep", process, name, methodcaller("sweep", name))
        _do(world, "read", process, name, partial(_make_lost_again, world, name))
        _do(world, "settle", process, name, methodcaller("settle", name))
    for _ in range(30):
        _do(world, "settle", process, "", methodcaller("keep_house"))
        _work(world, process)
        if not world.queue.jobs and not _agenda(world):
            break
        world.advance(MINUTE)


def _agenda(world: World) -> dict[str, float]:
    server = world.servers[-1]
    return dict(server.data.get(agenda_key(Stamp.parse(server.get(STAMP) or "").generation), {}))


def _work(world: World, process: Process) -> None:
    while (job := world.queue.take(world.time)) is not None:
        _do(
            world,
            "work",
            process,
            "",
            methodcaller("work_at", job, fails=False, content=world.random.random()),
        )
        world.queue.finish(job)


def _make_lost_again(world: World, name: str, registry: Any) -> None:
    """Read every artifact, and have those made again whose bytes are lost."""
    for version in registry.speakers.read(id_of(name)).document.versions:
        for profile in version.artifacts:
            served = version.artifact(profile, world.fingerprints.current[profile])
            is_ours = served is not None and not served.brought
            if is_ours and not registry.blobs.has_artifact(id_of(name), version, served):
                registry.extract_lost(name, version.number, profile)


def _rebuild(registry: Any) -> None:
    try:
        registry.rebuild()
    except ViewAway:  # the process before found a contradiction, and so began another generation
        registry.rebuild()


def _do(world: World, kind: str, process: Process, name: str, work: Callable[[Any], Any]) -> None:
    def do(_: Request) -> Any:
        return work(process.registry)

    actor: Actor = world.spawn(kind, process, name, do)
    _finish_all(world)
    if actor.error is not None:
        raise Violation(f"5: at rest {kind} of {name} fails: {actor.error!r}") from actor.error


# The reckoning


def reckon(world: World) -> None:
    """Compare what is left with what is owed."""
    server = world.servers[-1]
    stamp = Stamp.parse(server.get(STAMP) or "")
    if (
        not stamp.generation
        or stamp.generation != world.ledger.generation
        or stamp.server.split(".")[0] != server.name
    ):
        raise Violation("5: at rest nobody serves the generation that `_view.json` names")
    _reckon_sums(world, stamp.generation)
    for name in world.names:
        speaker_id = id_of(name)
        document = world.ledger.newest[speaker_id]
        if document.revision:
            _reckon_view(world, stamp.generation, speaker_id, document)
            _reckon_work(world, speaker_id, document)
        _reckon_bytes(world, speaker_id, document)
        if server.hgetall(announcements_key(stamp.generation, speaker_id)):
            raise Violation(f"5: at rest a write to {speaker_id} is still announced")
    if gone := world.litter - world.truth.objects.keys():
        raise Violation(f"4: {gone} is not ours, and was removed")


def _reckon_view(world: World, generation: str, speaker_id: SpeakerId, document: SpeakerDocument) -> None:
    server = world.servers[-1]
    [copy] = world.processes[0].registry.speakers.view.get([speaker_id], {})
    if copy.revision != document.revision or SpeakerDocument.parse(copy.body) != document:
        raise Violation(
            f"5: at rest the view of {speaker_id} is at {copy.revision}, the document at {document.revision}"
        )
    told: list[str] = []
    at = 0
    for speaker, before, after in server.data.get(applied_key(generation), []):
        if speaker == str(speaker_id):
            if before != at:
                raise Violation(f"5: the view of {speaker_id} went from {at} to {after} by way of {before}")
            line = world.ledger.line[speaker_id]
            told += [event.what for event in events_between(line.get(before, NOTHING), line[after])]
            at = after
    events = server.data.get(events_key(generation), [])
    heard = [one["what"] for one in events if _is_about(one, speaker_id) and one["what"] != "job"]
    if heard != told:
        raise Violation(f"5: the events of {speaker_id} are {heard}, the changes were {told}")


def _is_about(event: Mapping[str, str], speaker_id: SpeakerId) -> bool:
    about = event.get("speaker")
    return str(speaker_id) in ([about] if about is not None else json.loads(event["speakers"]))


def _reckon_work(world: World, speaker_id: SpeakerId, document: SpeakerDocument) -> None:
    for version in document.versions:
        for profile in PROFILES:
            fingerprint = world.fingerprints.current[profile.name]
            status = profile_status(Speaker(document), version, profile, fingerprint)
            if (
                status.state_of_current != "ready"
                and not unsupported_reason(version, profile)
                and not version.failure(profile.name)
            ):
                raise Violation(
                    f"5: at rest {speaker_id}@{version.number} has no artifact for {profile.name}"
                )


def _reckon_bytes(world: World, speaker_id: SpeakerId, document: SpeakerDocument) -> None:
    objects = world.truth.objects
    owed, stored = named(speaker_id, world.ledger), world.stored(speaker_id)
    if garbage := stored - owed.keys():
        raise Violation(
            f"4: at rest {len(garbage)} objects of {speaker_id} are garbage: {sorted(garbage)[:2]}"
        )
    for key, digest in owed.items():
        is_sound = key in objects and sha256_digest(objects[key][0]) == digest
        if not is_sound and not (key in world.ledger.lost and _may_stay_lost(document, key, world)):
            raise Violation(f"4: at rest {key} is missing or damaged")
    if document.swept and min(document.swept.values()) < world.time - 33 * DAY:
        raise Violation(f"4: ids of {speaker_id} never leave `swept`")
    if document.erasing:
        raise Violation(f"4: an erasure of {speaker_id} does not go on")


def _may_stay_lost(document: SpeakerDocument, key: str, world: World) -> bool:
    """Return whether lost bytes are of an artifact that somebody brought, or that is not served any more."""
    for version in document.versions:
        for profile, made in version.artifacts.items():
            served = version.artifact(profile, world.fingerprints.current[profile])
            if any(one.object in key and (one.brought or one != served) for one in made):
                return True
    return not any(version.vuid in key for version in document.versions)


def _reckon_sums(world: World, generation: str) -> None:
    server = world.servers[-1]
    documents = [world.ledger.newest[id_of(name)] for name in world.names]
    live = {document.key for document in documents if document.live}
    if set(server.data.get(names_key(generation, NS), {})) != live:
        raise Violation("5: at rest the names in the view are not those of the documents")
    pinned = {document.key for document in documents if document.live and document.about.pinned}
    if set(server.data.get(pinned_key(generation, NS), {})) != pinned:
        raise Violation("5: at rest the pinned names in the view are not those of the documents")
    usage = world.processes[0].registry.speakers.view.usage(NS)
    counts = [astuple(document.counts) for document in documents]
    sums = tuple(map(sum, zip(*counts, strict=True)))
    if astuple(usage) != sums:
        raise Violation(f"5: at rest the view counts {usage}, the documents say {sums}")
