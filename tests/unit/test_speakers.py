"""Tests of the one gate through which a speaker is changed, and of the rooms that use it: lost replies,
losses of Redis, rivals and processes that die. Store and Redis are in memory; all else is real.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from services.registry_api.maintenance.erase import erasure_due_in
from services.registry_api.operations.alias import move
from services.registry_api.operations.bring import Brought, ReadyArtifact, Room, bring
from services.registry_api.operations.delete import delete_version
from services.registry_api.operations.edit import edit
from services.registry_api.operations.undelete import undelete
from services.shared.bucket.documents import CHANGE_SECONDS
from services.shared.bucket.layout import document_key
from services.shared.bucket.store import Moved, WritesRefused
from services.shared.model.document import SpeakerDocument
from services.shared.model.numbering import Numbering
from services.shared.model.stored_document import KEPT_CHANGES
from services.shared.registry.extract import extract
from services.shared.registry.fail import JobHandedBack, fail
from services.shared.registry.parsed import MissingSpeakers, ParsedDocuments
from services.shared.registry.speakers import ARTIFACTS_BYTES
from services.shared.view.agenda import ANNOUNCED_SECONDS
from services.shared.view.generation import SETTLED_SECONDS
from services.shared.view.keys import events_key
from services.shared.view.open_jobs import CLAIMED_SECONDS
from speaker_registry.artifact import Artifact, ComputedOn, Manifest
from speaker_registry.errors import (
    ExtractorFailed,
    ExtractorOutOfMemory,
    InvalidApiKey,
    InvalidArtifact,
    JobFinished,
    JobNotFound,
    LeaseExpired,
    QuotaExceeded,
    SpeakerRegistryError,
    Unavailable,
    VersionNotFound,
    VoiceDamaged,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
    VoiceUnreadable,
)
from speaker_registry.names import DEFAULT, parse_speaker_name
from tests.faults import lost, with_faults
from tests.memory_registry import CODEC, ECAPA, NS, ROOMY, Registry, World, id_of

HOUR, DAY = 3600.0, 86_400.0
AT_ONCE = timedelta(seconds=1)
WREN = id_of("wren")
KEY = document_key(WREN)


def die() -> None:
    """End like a process that is killed: no handler of errors runs."""
    raise SystemExit


def after_damage(world: World) -> None:
    data, at = world.store.objects[KEY]
    world.store.objects[KEY] = (data[:-20], at)


# Registering


def test_a_voice_is_registered_extracted_and_found(registry: Registry) -> None:
    """The way that every upload takes."""
    made = registry.register("Wren", 1)
    assert (made.created, made.version.number, made.jobs.keys()) == (True, 1, {"ecapa", "codec"})
    assert registry.work() == 2
    speaker, version = registry.find_version("wren", "latest")
    assert registry.profiles.is_complete(speaker, version)
    assert registry.blobs.clip(WREN, version) == b"clip 1"
    assert not speaker.open_jobs


def test_a_repeated_upload_is_the_same_version(registry: Registry) -> None:
    """A client that lost the answer sends its upload again."""
    first = registry.register("wren", 1)
    again = registry.register("wren", 1)
    assert (again.created, again.version.vuid, again.jobs) == (False, first.version.vuid, first.jobs)
    assert registry.register("wren", 1, dedupe=False).version.number == 2


def test_a_lost_reply_of_the_commit_makes_one_version(world: World) -> None:
    """The change finds by its id that it was made."""
    registry = with_faults(world, ("swap", "after", lost))
    assert registry.register("wren", 1).created
    assert [version.number for version in registry.document("wren").versions] == [1]


def test_a_change_whose_caller_may_not_go_on_is_not_made(registry: Registry) -> None:
    """It is refused right before the commit, and leaves no announcement behind."""

    def refuse() -> None:
        raise InvalidApiKey("This API key is revoked.")

    registry.register("wren", 1)
    before = registry.document("wren")
    registry.speakers.before_commit = refuse
    assert not registry.register("wren", 1).created, "what changes nothing is not refused"
    with pytest.raises(InvalidApiKey):
        registry.register("wren", 2)
    assert registry.document("wren") == before
    assert not registry.speakers.agenda.announced(WREN)


def _register(one: Registry) -> list[int]:
    return [one.register("wren", 2).version.number]


def _move_alias(one: Registry) -> list[int]:
    moved = move(one.speakers, one.profiles, NS, parse_speaker_name("wren"), "live", 1, by="key")
    return [moved.document.resolve(alias, lambda _: True).number for alias in (DEFAULT, "live")]


def _edit(one: Registry) -> list[int]:
    about = {"labels": {}, "members": {"description": "low"}, "limits": ROOMY, "by": "key"}
    found = edit(one.speakers, one.profiles, NS, parse_speaker_name("wren"), **about)
    return [version.number for version in found.document.versions]


def _undelete(one: Registry) -> list[int]:
    services = (one.speakers, one.jobs, one.profiles, NS, parse_speaker_name("wren"))
    found = undelete(*services, limits=ROOMY, grace_seconds=DAY, by="key")
    return [version.number for version in found.document.versions]


def _bring(one: Registry) -> list[int]:
    return [version.number for version in _brought(one, 2.0).speaker.document.versions]


@pytest.mark.parametrize(
    ("change", "answer"),
    [(_register, [2]), (_move_alias, [1, 1]), (_edit, [1]), (_undelete, [1]), (_bring, [1])],
    ids=["register", "alias", "edit", "undelete", "artifact"],
)
def test_a_change_that_was_undone_before_its_reply_came_is_answered_as_it_was_made(
    world: World, registry: Registry, change: Callable[[Registry], list[int]], answer: list[int]
) -> None:
    """The newest document then lacks what the answer describes."""

    def undone() -> None:
        registry.delete("wren")
        lost()

    registry.register("wren", 1)
    if change is _undelete:
        registry.delete("wren")
    slow = with_faults(world, ("swap", "after", undone))
    assert change(slow) == answer
    assert not registry.document("wren").live
    with pytest.raises(VoiceNotFound):
        slow.find("wren")


def test_a_lost_delete_spares_a_voice_that_was_registered_and_changed_often_since(
    world: World, registry: Registry
) -> None:
    """The document no longer keeps the id of the delete, so nobody knows whether it was made."""

    def others() -> None:
        registry.speakers.refresh(WREN)
        registry.register("wren", 2)
        for number in range(KEPT_CHANGES):
            about = {"labels": {}, "members": {"description": str(number)}, "limits": ROOMY, "by": "key"}
            edit(registry.speakers, registry.profiles, NS, parse_speaker_name("wren"), **about)
        lost()

    registry.register("wren", 1)
    slow = with_faults(world, ("swap", "after", others))
    with pytest.raises(Unavailable, match=r"not known whether the change was made.*look first"):
        slow.delete("wren")
    assert registry.document("wren").newest.number == 2


def test_two_uploads_at_one_moment_become_two_versions(world: World, registry: Registry) -> None:
    """The bucket puts them in order, and nothing is lost."""
    rival = with_faults(world, ("swap", "before", lambda: registry.register("wren", 2) and None))
    assert rival.register("wren", 1).version.number == 2
    assert [version.number for version in registry.document("wren").versions] == [1, 2]


def test_an_embedding_that_was_overtaken_is_packed_again(world: World, registry: Registry) -> None:
    """Its file names its version's number, which a conflict changes."""
    rival = with_faults(world, ("swap", "before", lambda: registry.register("wren", 2) and None))
    made = rival.register_embedding("wren", 7)
    [record] = made.version.artifacts["ecapa"]
    assert made.version.number == 2
    assert b'"version":2' in rival.blobs.artifact(WREN, made.version, record).replace(b'\\"', b'"')


def test_a_delete_takes_an_upload_that_began_before(world: World, registry: Registry) -> None:
    """What a delete covers stays deleted, and the uploader is told."""
    registry.register("wren", 1)
    late = with_faults(world, ("put", "after", lambda: registry.delete("wren") and None))
    with pytest.raises(VoiceDeleted):
        late.register("wren", 2)
    assert not registry.document("wren").live


@pytest.mark.parametrize(
    ("limits", "error"),
    [
        ({"voices": 1}, QuotaExceeded),
        ({"bytes": 10}, QuotaExceeded),
        ({"text_bytes": 10}, QuotaExceeded),
        ({"versions": 1}, QuotaExceeded),
        ({"immutable": True}, VoiceExists),
    ],
)
def test_what_is_refused_stores_nothing(
    world: World, registry: Registry, limits: dict[str, Any], error: type[Exception]
) -> None:
    """A refused upload leaves no bytes that somebody would have to find."""
    registry.register("wren", 1)
    registry.rebuild()
    before = dict(world.store.objects)
    name = "robin" if "voices" in limits else "wren"
    with pytest.raises(error):
        registry.register(name, 2, limits=replace(ROOMY, **limits))
    assert {key: value for key, value in world.store.objects.items() if key != "_view.json"} == {
        key: value for key, value in before.items() if key != "_view.json"
    }
    assert not registry.speakers.agenda.announced(id_of(name))


def test_a_refusal_of_an_outdated_copy_is_decided_again(world: World, registry: Registry) -> None:
    """A copy that is behind must not refuse what the bucket allows."""
    registry.register("wren", 1)
    other = world.process()
    kept = world.server.snapshot()
    other.delete("wren")
    copies = {key: value for key, value in kept.items() if ":s:" in key}
    world.server.data.update(copies)  # the view is behind
    assert registry.register("wren", 2, limits=replace(ROOMY, immutable=True)).version.number == 2


def test_without_redis_nothing_is_stored(world: World) -> None:
    """A write that nobody knows of could land after a delete that found nothing."""

    def away(what: str, call: Callable[[], Any]) -> Any:
        raise Unavailable("Redis is not available.")

    world.process().generation.for_reading()
    stored = dict(world.store.objects)
    registry = world.process(weather=away)
    with pytest.raises(Unavailable):
        registry.register("wren", 1)
    assert world.store.objects == stored


def test_a_document_has_room_for_so_many_bytes(world: World) -> None:
    """The message says which limit was met."""
    registry = world.process()
    registry.speakers.max_document_bytes = 2_000
    with pytest.raises(QuotaExceeded, match="2000 bytes"):
        registry.register("wren", 1, description="d" * 2_000)


def test_a_change_encodes_its_document_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Encoding a document of a megabyte stops every other request meanwhile."""
    registry.register("wren", 1)
    encoded, encode = [], SpeakerDocument.to_bytes

    def counted(document: SpeakerDocument) -> bytes:
        encoded.append(document.revision)
        return encode(document)

    monkeypatch.setattr(SpeakerDocument, "to_bytes", counted)
    registry.register("wren", 2)
    assert encoded == [registry.document("wren").revision]


def test_a_voice_whose_document_is_full_can_be_deleted(registry: Registry) -> None:
    """A change that takes away always fits, although the document says what was deleted and when."""
    registry.register("wren", 1)
    registry.speakers.max_document_bytes = len(registry.document("wren").to_bytes())
    registry.delete("wren")
    assert not registry.document("wren").live


def test_a_voice_whose_document_is_full_is_extracted_and_can_be_rolled_back(registry: Registry) -> None:
    """Callers cannot add to it, but what was accepted comes to an end, and what adds little is possible."""
    registry.register("wren", 1)
    registry.work()
    failing = registry.register("wren", 2).jobs["ecapa"]
    registry.speakers.max_document_bytes = len(registry.document("wren").to_bytes())
    error = ExtractorFailed("a defect")
    error.retryable = False
    fail(registry.speakers, registry.jobs, registry.profiles, begun(registry, failing), error)
    assert registry.document("wren").newest.failure("ecapa").code == error.code
    assert registry.work() == 1  # of the other profile
    move(registry.speakers, registry.profiles, NS, parse_speaker_name("wren"), DEFAULT, 1, by="key")
    assert registry.document("wren").default.number == 1
    with pytest.raises(QuotaExceeded, match="grace period"):
        registry.register("wren", 3)


def test_a_voice_without_room_for_artifacts_says_why_it_has_none(registry: Registry) -> None:
    """A worker tries once, and the job says what it met."""
    job = registry.register("wren", 1).jobs["ecapa"]
    registry.speakers.max_document_bytes = -ARTIFACTS_BYTES
    attempt = begun(registry, job)
    with pytest.raises(QuotaExceeded) as caught:
        registry.publish(attempt)
    fail(registry.speakers, registry.jobs, registry.profiles, attempt, caught.value)
    ended = registry.jobs.record(NS, job)
    assert (ended.state, ended.error["code"]) == ("failed", "quota_exceeded")
    registry.settle("wren")
    assert "ecapa" not in {one["profile"] for one in registry.queue.waiting.values()}


# The view


def test_a_voice_that_the_view_lacks_is_read_from_the_bucket(world: World, registry: Registry) -> None:
    """After a loss of Redis, reads and writes go on at once."""
    registry.register("wren", 1)
    world.lose_redis()
    assert registry.find("wren").document.newest.number == 1
    assert registry.register("wren", 2).version.number == 2


def test_a_voice_that_process_and_view_lose_at_once_is_read_from_the_bucket(world: World) -> None:
    """A request that relied on this process' copy must not take what a new view lacks for missing."""
    lose: list[Callable[[], None]] = []

    def weather(what: str, call: Callable[[], Any]) -> Any:
        found = call()
        if lose and "hgetall" in what:
            lose.pop()()
        return found

    registry = world.process(weather=weather)
    registry.register("wren", 1)

    def forget() -> None:
        registry.speakers.documents.parsed = ParsedDocuments()
        world.lose_redis()

    lose.append(forget)
    assert registry.find("wren").document.newest.number == 1
    assert not lose


def test_reads_go_on_without_redis(world: World, registry: Registry) -> None:
    """Documents are read where they are true."""
    registry.register("wren", 1)

    def away(what: str, call: Callable[[], Any]) -> Any:
        raise Unavailable("Redis is not available.")

    other = world.process(weather=away)
    assert other.find("wren").document.newest.number == 1
    with pytest.raises(VoiceNotFound, match="'Robin' not found"):
        other.find("Robin")


def test_a_change_under_which_the_view_was_replaced_is_not_acknowledged(world: World) -> None:
    """The new view may lack it. The repeat finds what was done."""
    other = world.process()

    def replaced() -> None:
        world.lose_redis()
        other.generation.check()

    registry = with_faults(world, ("swap", "after", replaced))
    with pytest.raises(Unavailable):
        registry.register("wren", 1)
    assert not registry.register("wren", 1).created
    assert len(registry.document("wren").versions) == 1


def test_a_commit_that_was_not_applied_is_found_by_a_look(world: World, registry: Registry) -> None:
    """A process may die between the commit and the view."""
    registry.register("wren", 1)
    copies = {key: value for key, value in world.server.snapshot().items() if ":s:" in key}
    registry.register("wren", 2)
    world.server.data.update(copies)
    assert registry.find("wren").document.newest.number == 1
    registry.settle("wren")
    assert registry.find("wren").document.newest.number == 2


def test_a_rebuild_makes_the_view_complete(world: World, registry: Registry) -> None:
    """Lists and counts need every speaker, and only what has changed is read."""
    for name in ("wren", "robin"):
        registry.register(name, 1)
    world.lose_redis()
    assert registry.speakers.usage(NS) is None
    assert registry.rebuild() == 2
    assert registry.speakers.view.names(NS, limit=9) == ["robin", "wren"]
    usage = registry.speakers.usage(NS)
    assert usage is not None
    assert usage.voices == 2
    assert registry.rebuild() == 0
    assert {due.speaker_id.slug for due in registry.speakers.agenda.due(9)} == set()
    world.pass_time(11)
    assert {due.speaker_id.slug for due in registry.speakers.agenda.due(9)} == {"robin", "wren"}


def test_a_damaged_document_is_left_out_of_a_rebuild(world: World, registry: Registry) -> None:
    """One bad object must not keep the lists away for ever."""
    registry.register("wren", 1)
    registry.register("robin", 1)
    world.lose_redis()
    after_damage(world)
    registry.generation.check()
    registry.rebuild()
    assert registry.speakers.view.names(NS, limit=9) == ["robin"]


def test_the_document_of_another_voice_is_not_served_under_this_name(
    world: World, registry: Registry
) -> None:
    """It can only lie there by mistake, for example after a backup was copied back to the wrong place."""
    registry.register("wren", 1)
    registry.register("robin", 2)
    world.lose_redis()
    world.store.objects[KEY] = world.store.objects[document_key(id_of("robin"))]
    with pytest.raises(VoiceDamaged, match=r"wren\.json"):
        registry.find("wren")
    with pytest.raises(VoiceDamaged):
        registry.register("wren", 3)
    registry.generation.check()
    registry.rebuild()
    assert registry.speakers.view.names(NS, limit=9) == ["robin"]
    assert registry.find("robin").document.newest.name == "robin"


def test_the_document_of_another_voice_is_not_taken_for_an_older_one_of_this_voice(
    world: World, registry: Registry
) -> None:
    """The view still has the voice's own document, and the other one has a lower revision."""
    registry.register("robin", 2)
    for content in (1, 2, 3):
        registry.register("wren", content)
    world.store.objects[KEY] = world.store.objects[document_key(id_of("robin"))]
    began = world.clock.since_boot()
    with pytest.raises(VoiceDamaged, match=r"wren\.json"):
        registry.register("wren", 4)
    assert world.clock.since_boot() - began < 1
    registry.delete("wren")
    assert registry.register("wren", 4).created


def test_the_document_of_another_namespace_is_not_served_in_this_one(
    world: World, registry: Registry
) -> None:
    """Otherwise one tenant could read and change the texts of another one."""
    registry.register("wren", 1)
    body = world.store.get(KEY)
    assert body is not None
    foreign = SpeakerDocument.parse(body).having(namespace="tenant-b").to_bytes()
    world.lose_redis()
    world.store.put(KEY, foreign)
    with pytest.raises(VoiceDamaged, match=r"wren\.json"):
        registry.find("wren")
    with pytest.raises(VoiceDamaged):
        registry.register("wren", 3)
    world.store.put(KEY, SpeakerDocument.parse(body).having(namespace=None).to_bytes())
    assert registry.find("wren").document.newest.number == 1
    assert SpeakerDocument.parse(body).namespace == NS


def test_a_document_of_a_newer_release_is_neither_served_nor_changed(
    world: World, registry: Registry
) -> None:
    """An older release could ignore a consent that has ended."""
    body = SpeakerDocument(needs=("consent-ends",), revision=1).to_bytes()
    world.store.put(KEY, body)
    for verb in (registry.find, lambda name: registry.register(name, 1), registry.delete):
        with pytest.raises(VoiceUnreadable, match="consent-ends"):
            verb("wren")
    assert world.store.get(KEY) == body


# Deleting


def test_a_deleted_voice_is_gone_and_its_numbers_stay_used(registry: Registry) -> None:
    """A number stands for one clip for ever."""
    registry.register("wren", 1)
    assert registry.delete("wren").document.newest.number == 1
    with pytest.raises(VoiceNotFound):
        registry.find("wren")
    assert registry.register("wren", 1).version.number == 2


def test_a_delete_by_id_spares_a_voice_of_the_same_name(registry: Registry) -> None:
    """An id stands for one voice, also while its name is taken again."""
    first = registry.register("wren", 1).version.vuid
    registry.delete("wren")
    registry.register("wren", 2)
    with pytest.raises(VoiceNotFound):
        registry.delete(f"voice_{first}_wren")
    assert registry.find("wren").document.live
    second = registry.find("wren").document.newest.vuid
    registry.delete(f"voice_{second}_wren")
    with pytest.raises(VoiceNotFound):
        registry.find("wren")


def test_a_delete_that_finds_nothing_stops_an_upload_on_its_way(world: World, registry: Registry) -> None:
    """Otherwise the voice would appear after its owner was told that there is none."""
    registry.generation.for_reading()
    world.pass_time(HOUR)  # so that only the announcement tells

    def deleted() -> None:
        with pytest.raises(VoiceNotFound):
            registry.delete("wren")

    late = with_faults(world, ("put", "after", deleted))
    with pytest.raises(VoiceDeleted):
        late.register("wren", 1)
    assert registry.document("wren").marks.life == 2


def test_a_delete_that_finds_nothing_in_a_view_out_of_use_is_not_acknowledged(world: World) -> None:
    """Writes are announced elsewhere meanwhile, so an upload of that name may be on its way."""
    old = world.server
    left_behind = Registry(world.clock, world.store, lambda: old, world.queue, world.fingerprints)
    left_behind.generation.for_reading()
    world.pass_time(HOUR)
    world.lose_redis()
    world.process().generation.check()
    with pytest.raises(Unavailable):
        left_behind.delete("wren")


def test_a_delete_that_finds_nothing_writes_nothing_later(world: World, registry: Registry) -> None:
    """Nobody can fill the bucket by deleting names that never were."""
    registry.generation.for_reading()
    world.pass_time(HOUR)
    with pytest.raises(VoiceNotFound):
        registry.delete("wren")
    assert KEY not in world.store.objects


def test_a_delete_waits_until_no_reader_has_an_older_view(world: World, registry: Registry) -> None:
    """A reader of another view may serve the voice for seconds."""
    registry.register("wren", 1)
    began = world.clock.seconds
    world.lose_redis()
    registry.delete("wren")
    assert world.clock.seconds - began >= SETTLED_SECONDS


def test_a_damaged_voice_can_be_deleted(world: World, registry: Registry) -> None:
    """Its number goes on far above, so that no number is used twice."""
    registry.register("wren", 1)
    world.lose_redis()
    after_damage(world)
    with pytest.raises(VoiceDamaged, match=r"wren\.json"):
        registry.find("wren")
    with pytest.raises(VoiceDamaged):
        registry.register("wren", 2)
    registry.delete("wren")
    assert registry.register("wren", 2).version.number > 1_000


def test_a_delete_that_stood_still_takes_nothing(world: World) -> None:
    """What its name stands for may have been registered since."""
    world.process().register("wren", 1)

    def weather(what: str, call: Callable[[], Any]) -> Any:
        found = call()
        if what == "announce":
            world.pass_time(CHANGE_SECONDS + 1)
        return found

    slow = world.process(weather=weather)
    with pytest.raises(Unavailable, match="took too long"):
        slow.delete("wren")
    assert slow.document("wren").live


def test_an_extraction_of_a_deleted_voice_does_nothing_for_its_successor(registry: Registry) -> None:
    """The successor has the same name, and may be another person."""
    attempt = begun(registry, registry.register("wren", 1).jobs["ecapa"])
    registry.delete("wren")
    registry.register("wren", 2)
    assert not registry.publish(attempt)
    assert registry.document("wren").newest.artifacts == {}
    assert registry.work() == 2


def test_a_delete_ends_the_jobs_of_the_voice(registry: Registry) -> None:
    """Those who follow a job are told, and its worker publishes nothing."""
    [job, _] = registry.register("wren", 1).jobs.values()
    registry.delete("wren")
    assert registry.jobs.record(NS, job).state == "superseded"
    assert registry.work() == 0


def test_a_check_of_the_caller_is_made_on_the_newest_document(registry: Registry) -> None:
    """`If-Match` of yesterday deletes nothing."""
    registry.register("wren", 1)

    def check(document: SpeakerDocument) -> None:
        raise VoiceExists("it has changed")

    with pytest.raises(VoiceExists):
        registry.delete("wren", check=check)
    assert registry.find("wren").document.live


# Extracting


def begun(registry: Registry, job_id: str) -> Any:
    registry.queue.waiting.pop(job_id, None)
    registry.queue.taken.add(job_id)
    return registry.start("wren", job_id, ECAPA)


def test_two_workers_of_one_artifact_meet_in_the_document(world: World, registry: Registry) -> None:
    """A claim that ran out makes work, and no second artifact."""
    job = registry.register("wren", 1).jobs["ecapa"]
    first = begun(registry, job)
    world.pass_time(CLAIMED_SECONDS + 1)
    registry.queue.taken.clear()
    registry.settle("wren")
    [second_job] = [one for one, job in registry.queue.waiting.items() if job["profile"] == "ecapa"]
    second = begun(registry, second_job)
    assert registry.publish(second, 2.0)
    assert registry.publish(first, 1.0)
    [record] = registry.document("wren").newest.artifacts["ecapa"]
    assert record.build == 1
    assert registry.jobs.record(NS, second_job).state == "succeeded"


def test_two_attempts_of_one_job_leave_one_artifact(registry: Registry) -> None:
    """A worker that was taken for dead comes back. What is served stays."""
    job = registry.register("wren", 1).jobs["ecapa"]
    slow, quick = begun(registry, job), begun(registry, job)
    assert (slow.number, quick.number) == (1, 2)
    assert registry.publish(quick, 2.0)
    served = registry.document("wren").newest.artifacts["ecapa"]
    assert registry.publish(slow, 1.0)
    assert registry.document("wren").newest.artifacts["ecapa"] == served
    assert registry.jobs.record(NS, job).state == "succeeded"


def test_an_embedding_takes_the_place_of_a_clip_at_once(registry: Registry) -> None:
    """It needs no extraction. The clip has no transcript, so that the embedding serves as much."""
    registry.register("wren", 1, ref_text=None)
    registry.work()
    embedded = registry.register_embedding("wren", 2)
    assert embedded.jobs == {}
    assert registry.find_version("wren", "default")[1].number == 2


def brought(registry: Registry, value: float, **options: Any) -> bool:
    """Bring an embedding of the newest version. Returns whether it is new."""
    return _brought(registry, value, **options).new


def _brought(
    registry: Registry,
    value: float,
    *,
    builds: int = 9,
    size: int = 10**6,
    manifest: Manifest | None = None,
) -> Brought:
    speaker = registry.find("wren")
    tensors = {"speaker_embedding": np.full(4, value, np.float32)}
    return bring(
        registry.speakers,
        registry.blobs,
        registry.profiles,
        room=Room(builds=builds, bytes=size),
        speaker=speaker,
        version=speaker.document.newest,
        profile="ecapa",
        given=ReadyArtifact(tensors=tensors, fingerprint="f1", manifest=manifest),
        by="key",
    )


@pytest.mark.parametrize(
    ("others", "error", "says"),
    [
        ([1], VoiceDeleted, "Voice 'wren' was deleted while"),
        ([1, 2], VersionNotFound, "Version 2 of voice 'wren' was deleted while"),
    ],
    ids=["the voice", "the version"],
)
def test_an_artifact_of_what_was_deleted_meanwhile_says_what_is_gone(
    world: World, registry: Registry, others: list[int], error: type[SpeakerRegistryError], says: str
) -> None:
    """A client drops a voice that it takes for deleted."""
    for number in others:
        registry.register("wren", number)
    wren, newest = parse_speaker_name("wren"), others[-1]

    def delete_newest() -> None:
        delete_version(registry.speakers, registry.jobs, NS, wren, newest, by="key")

    late = with_faults(world, ("put", "after", delete_newest))
    with pytest.raises(error, match=says):
        brought(late, 2.0)
    assert registry.document("wren").live == (len(others) > 1)


def served_file(registry: Registry) -> Artifact:
    """Return the artifact that is served for the newest version."""
    version = registry.document("wren").newest
    record = version.artifact("ecapa", "f1")
    assert record is not None
    return Artifact.parse(registry.blobs.artifact(id_of("wren"), version, record))


def test_the_file_of_a_moved_artifact_takes_the_place_of_one_with_equal_tensors(registry: Registry) -> None:
    """A worker may be quicker than the import. The header of its file names another machine."""
    registry.register("wren", 1, numbering=Numbering(1, 50, "a" * 32))
    registry.work()
    made = served_file(registry)
    manifest = made.manifest
    elsewhere = manifest.model_copy(update={"computed_on": ComputedOn(device="cuda", gpu="H200")})
    value = float(made.tensors["speaker_embedding"][0])
    assert not brought(registry, value, manifest=elsewhere.model_copy(update={"version_id": "other"}))
    assert brought(registry, value, manifest=elsewhere)
    assert served_file(registry).manifest.computed_on == elsewhere.computed_on
    assert not brought(registry, value, manifest=elsewhere)


def test_artifacts_that_are_brought_count_and_those_that_are_made_do_not(registry: Registry) -> None:
    """They are as large as their sender likes."""
    registry.register("wren", 1)
    before = registry.speakers.usage_so_far(NS).bytes
    registry.work()
    assert registry.speakers.usage_so_far(NS).bytes == before
    assert brought(registry, 2.0)
    [*_, record] = registry.document("wren").newest.artifacts["ecapa"]
    assert registry.speakers.usage_so_far(NS).bytes == before + record.size
    registry.delete("wren")
    assert registry.speakers.usage_so_far(NS).bytes == 0


def test_an_artifact_that_there_is_no_room_for_leaves_nothing_behind(
    world: World, registry: Registry
) -> None:
    registry.register("wren", 1)
    stored = dict(world.store.objects)
    with pytest.raises(QuotaExceeded, match=r"Artifact of \d+ bytes refused"):
        brought(registry, 2.0, size=100)
    assert world.store.objects == stored


def test_an_artifact_is_made_so_often_and_no_more(registry: Registry) -> None:
    """Each build leaves bytes that do not count. Without force, what there is serves on."""
    registry.register("wren", 1)
    registry.work()
    assert brought(registry, 2.0)

    def ask(*, force: bool) -> dict[str, str]:
        speaker = registry.find("wren")
        newest = speaker.document.newest
        return extract(
            registry.jobs, registry.profiles, speaker, newest, ["ecapa"], force=force, max_builds=2
        )

    with pytest.raises(QuotaExceeded, match=r"made or canceled 2 times already.*SPEAKER_MAX_BUILDS"):
        ask(force=True)
    with pytest.raises(QuotaExceeded, match="made or canceled 2 times already"):
        brought(registry, 3.0, builds=2)
    assert ask(force=False) == {}


def test_an_extraction_that_is_refused_for_one_profile_opens_no_job(registry: Registry) -> None:
    """The answer was 429, and yet one of the two artifacts was made again."""
    registry.register("wren", 1)
    registry.work()
    assert brought(registry, 2.0)
    speaker = registry.find("wren")
    names = [CODEC.name, ECAPA.name]
    with pytest.raises(QuotaExceeded, match=f"profile '{ECAPA.name}'"):
        extract(
            *(registry.jobs, registry.profiles, speaker, speaker.document.newest, names),
            force=True,
            max_builds=2,
        )
    assert registry.find("wren").open_jobs == ()


def test_an_artifact_of_the_wrong_shape_is_refused(registry: Registry) -> None:
    """A worker with a defect must not put anything into service."""
    attempt = begun(registry, registry.register("wren", 1).jobs["ecapa"])
    wrong = replace(attempt, provenance=replace(attempt.provenance, profile=CODEC))
    with pytest.raises(InvalidArtifact):
        registry.publish(replace(wrong, provenance=replace(wrong.provenance, profile=ECAPA)), float("nan"))


def test_a_job_of_a_replaced_encoder_is_not_begun(registry: Registry) -> None:
    """Its artifact would be stale at once."""
    job = registry.register("wren", 1).jobs["ecapa"]
    registry.fingerprints.current["ecapa"] = "f2"
    assert begun(registry, job) is None
    registry.settle("wren")
    assert {"ecapa", "codec"} == {one["profile"] for one in registry.queue.waiting.values()}


def test_an_artifact_of_a_candidate_is_published_ahead_and_changes_nothing_that_is_served(
    registry: Registry,
) -> None:
    """A campaign prepares voices for an encoder that may never be promoted."""
    attempt = begun(registry, registry.register("wren", 1).jobs["ecapa"])
    of_candidate = replace(attempt.provenance, fingerprint="f2")
    assert registry.publish(replace(attempt, provenance=of_candidate))
    version = registry.document("wren").newest
    assert [record.ahead for record in version.artifacts["ecapa"]] == [True]
    assert version.artifact("ecapa", "f1") is None
    assert "ecapa" not in version.served


def test_a_candidate_that_fails_leaves_what_is_said_of_the_current_encoder(registry: Registry) -> None:
    """A campaign's failure is the campaign's. The voice waits for the current encoder as before."""
    attempt = begun(registry, registry.register("wren", 1).jobs["ecapa"])
    of_candidate = replace(attempt, provenance=replace(attempt.provenance, fingerprint="f2"))
    error = ExtractorFailed("a defect")
    error.retryable = False
    fail(registry.speakers, registry.jobs, registry.profiles, of_candidate, error)
    version = registry.document("wren").newest
    assert version.failure("ecapa") is version.failure("ecapa", "f1") is None
    found = version.failure("ecapa", "f2")
    assert found == found.having(code=error.code, ahead=True)


@pytest.mark.parametrize("restarts", [0, 4])
def test_a_failed_attempt_is_tried_again_and_given_up_at_last(registry: Registry, restarts: int) -> None:
    """A failure in the document keeps it from being tried for ever. Attempts that a stopping worker broke off
    do not count, or restarts during one outage would fail sound clips for good.
    """
    job = registry.register("wren", 1).jobs["ecapa"]
    stops, failures = [JobHandedBack("away")] * restarts, [ExtractorOutOfMemory("no memory")] * 3
    for error in (*stops, *failures):
        assert registry.jobs.record(NS, job).state == "queued"
        attempt = begun(registry, job)
        fail(registry.speakers, registry.jobs, registry.profiles, attempt, error)
    assert registry.jobs.record(NS, job).state == "failed"
    assert registry.document("wren").newest.failure("ecapa").attempts == restarts + 3
    registry.settle("wren")
    assert "ecapa" not in {one["profile"] for one in registry.queue.waiting.values()}


def test_a_canceled_job_publishes_nothing(registry: Registry) -> None:
    """The document says that the build is used, so that a worker that is late is refused."""
    job = registry.register("wren", 1).jobs["ecapa"]
    attempt = begun(registry, job)
    assert registry.cancel(job).state == "canceled"
    assert registry.cancel(job).state == "canceled"
    assert not registry.publish(attempt)
    assert "ecapa" not in registry.document("wren").newest.artifacts
    registry.settle("wren")
    assert "ecapa" not in {one["profile"] for one in registry.queue.waiting.values()}


def test_what_has_finished_cannot_be_canceled(registry: Registry) -> None:
    """The caller is told in which state the job is."""
    job = registry.register("wren", 1).jobs["ecapa"]
    registry.work()
    with pytest.raises(JobFinished, match="succeeded"):
        registry.cancel(job)
    with pytest.raises(JobNotFound):
        registry.cancel("job_unknown")


def test_lost_bytes_are_made_again_and_sound_ones_stay(world: World, registry: Registry) -> None:
    """The old record leaves with the next build, unless its bytes are there after all."""
    registry.register("wren", 1)
    registry.work()
    for is_lost in (False, True):
        version = registry.find("wren").document.newest
        record = version.artifacts["ecapa"][-1]
        if is_lost:
            [key] = [key for key in world.store.objects if record.object in key]
            world.store.delete([key])
        registry.jobs.open(WREN, version, "ecapa", "f1")
        registry.work(content=9.0)
        [now] = registry.document("wren").newest.artifacts["ecapa"]
        assert (now.object != record.object, now.build) == (is_lost, 1 + is_lost)


# Housekeeping


def test_jobs_that_redis_lost_are_started_again(world: World, registry: Registry) -> None:
    """An upload must not stay pending for ever."""
    registry.register("wren", 1)
    world.lose_redis()
    registry.generation.check()
    registry.queue.waiting.clear()
    assert registry.settle("wren") is not None
    assert registry.work() == 2
    assert registry.settle("wren") is None


def test_a_job_that_the_queue_gave_up_becomes_a_failure(registry: Registry) -> None:
    """Its worker died each time."""
    job = registry.register("wren", 1).jobs["ecapa"]
    registry.queue.failed.add(job)
    registry.settle("wren")
    assert registry.document("wren").newest.failure("ecapa").code == "lease_expired"


@pytest.mark.parametrize(("max_attempts", "made"), [(1, 2), (2, 2), (3, 3)])
def test_a_clip_that_ends_its_worker_in_each_attempt_is_given_up(
    registry: Registry, max_attempts: int, made: int
) -> None:
    """The clip is given up by the next worker, which begins no attempt. It is tried alone once, even if one
    attempt is allowed, because the first time another clip may have ended the worker.
    """
    registry.jobs._max_attempts = max_attempts
    job = registry.register("wren", 1).jobs["ecapa"]
    for number in range(1, made + 1):
        attempt = begun(registry, job)
        assert (attempt.number, attempt.max_attempts) == (number, max(max_attempts, number))
        registry.jobs.latest_attempt(str(WREN), job)()
    with pytest.raises(
        LeaseExpired, match=r"no attempts are left. It died, or .* SPEAKER_JOB_SECONDS"
    ) as caught:
        begun(registry, job)
    assert not caught.value.retryable
    record = registry.jobs.record(NS, job)
    assert (record.state, record.attempt, record.max_attempts) == ("failed", made, made)
    assert record.error is not None
    assert (record.error["message"], record.error["attempt"]) == (caught.value.message, made)
    assert registry.document("wren").newest.failure("ecapa").attempts == made


def test_a_job_that_waits_keeps_its_claim(world: World, registry: Registry) -> None:
    """A queue that is long for hours must not fill with repetitions."""
    jobs = registry.register("wren", 1).jobs
    for _ in range(10):
        world.pass_time(CLAIMED_SECONDS * 0.9)
        registry.settle("wren")
    assert registry.queue.waiting.keys() == set(jobs.values())


def test_a_write_whose_outcome_nobody_knows_is_fenced(world: World) -> None:
    """A swap that is on its way for hours then fails on its condition."""
    swaps: list[Any] = []
    registry = with_faults(world, ("swap", "before", lost), *[("read", "before", lost)] * 400)
    store = registry.speakers.documents.stored._store
    real = world.store.swap

    def sent(key: str, data: bytes, *, etag: str | None) -> str:
        swaps.append((key, data, etag))
        return real(key, data, etag=etag)

    with pytest.raises(Unavailable):
        registry.register("wren", 1)
    assert registry.speakers.agenda.announced(WREN)
    store.faults = []  # type: ignore[attr-defined]
    world.pass_time(ANNOUNCED_SECONDS + 1)
    registry.settle("wren")
    assert not registry.speakers.agenda.announced(WREN)
    assert registry.document("wren").revision == 1
    with pytest.raises(Moved):
        sent(KEY, b"{}", etag=None)


def test_garbage_is_fenced_before_it_goes(world: World, registry: Registry) -> None:
    """An upload that stood still must not name bytes that are gone."""
    registry.register("wren", 1)
    unnamed = "0" * 31 + "1"
    registry.blobs.store_clip(WREN, unnamed, b"x", b"y")
    assert registry.sweep("wren") == 0
    world.pass_time(HOUR + 1)
    assert registry.sweep("wren") == 2
    assert unnamed in registry.document("wren").swept
    assert registry.sweep("wren") == 0
    assert registry.blobs.clip(WREN, registry.find("wren").document.newest) == b"clip 1"


def test_an_upload_whose_bytes_were_swept_is_refused(world: World, registry: Registry) -> None:
    """It stood still for longer than anything may, and is told to come again."""

    def swept() -> None:
        world.pass_time(HOUR + 1)
        registry.sweep("wren")

    registry.register("wren", 1)
    late = with_faults(world, ("put", "before", lambda: None), ("put", "after", swept))
    with pytest.raises(Unavailable, match="too long"):
        late.register("wren", 2)
    assert [version.number for version in registry.document("wren").versions] == [1]


def test_what_was_deleted_goes_after_the_grace_period(world: World, registry: Registry) -> None:
    """Until then it can be undeleted, and after it nothing of it is left but marks."""
    registry.register("wren", 1)
    registry.work()
    registry.delete("wren")
    grace = timedelta(days=7)
    again = registry.erase("wren", grace=grace)
    assert again == pytest.approx(7 * DAY, abs=60)
    world.pass_time(7 * DAY + 60)
    assert registry.erase("wren", grace=grace) is None
    assert [key for key in world.store.objects if key.startswith(f"{NS}/d/")] == []
    assert (registry.document("wren").key, registry.document("wren").marks.number) == (None, 1)


@pytest.mark.parametrize(
    ("method", "when", "happens"),
    [
        ("list", "before", lost),
        ("delete", "before", lost),
        ("delete", "after", lost),
        ("list", "before", die),
        ("delete", "after", die),
    ],
)
def test_an_erasure_that_was_interrupted_goes_on_at_the_next_check(
    world: World, registry: Registry, method: str, when: str, happens: Callable[[], None]
) -> None:
    """All bytes of a person stayed in the bucket until a sweep that came a day or more later."""
    for seed in (1, 2, 3):
        registry.register("wren", seed)
        registry.work()
    wren = parse_speaker_name("wren")
    delete_version(registry.speakers, registry.jobs, NS, wren, 1, by="key")
    registry.delete("wren")
    world.pass_time(60)
    with pytest.raises((Unavailable, SystemExit)):
        with_faults(world, (method, when, happens)).erase("wren", grace=AT_ONCE)
    assert len(registry.document("wren").erasing) == 3
    restarted = world.process()
    assert erasure_due_in(restarted.document("wren"), AT_ONCE, now=0) == 1
    assert restarted.erase("wren", grace=AT_ONCE) is None
    assert [key for key in world.store.objects if key.startswith(f"{NS}/d/")] == []
    assert restarted.document("wren").erasing == ()


@pytest.mark.parametrize("is_lost", [False, True])
def test_an_artifact_that_arrives_after_the_erasure_is_removed_by_its_worker(
    world: World, registry: Registry, is_lost: bool
) -> None:
    """A worker was in the middle of its upload, and what it had made of a person's clip stayed for a day."""

    def erased() -> None:
        registry.delete("wren")
        world.pass_time(3)
        assert registry.erase("wren", grace=AT_ONCE) is None

    attempt = begun(registry, registry.register("wren", 1).jobs["ecapa"])
    late = with_faults(world, ("put", "before", erased), *[("swap", "after", lost)] * is_lost)
    assert not late.publish(attempt)
    assert [key for key in world.store.objects if key.startswith(f"{NS}/d/")] == []


def test_a_late_artifact_whose_removal_fails_is_left_to_the_sweep(world: World, registry: Registry) -> None:
    """The deletion of what the document might name is never tried without a change that excludes this."""
    attempt = begun(registry, registry.register("wren", 1).jobs["ecapa"])

    def gone() -> None:
        registry.delete("wren")
        world.store.swap = refuse

    def refuse(*_: Any, **__: Any) -> None:
        raise WritesRefused("The object store can only be read.")

    before = len(world.store.objects)
    assert not with_faults(world, ("put", "before", gone)).publish(attempt)
    assert len(world.store.objects) == before + 1


def test_an_erasure_that_goes_on_spares_a_voice_that_was_restored_from_a_backup(
    world: World, registry: Registry
) -> None:
    """The copy in Redis still says that the bytes are to be removed."""
    registry.register("wren", 1)
    backup = world.store.objects[KEY]
    registry.delete("wren")
    world.pass_time(60)
    with pytest.raises(Unavailable):
        with_faults(world, ("delete", "before", lost)).erase("wren", grace=AT_ONCE)
    world.store.objects[KEY] = backup
    registry.erase("wren", grace=AT_ONCE)
    assert registry.blobs.clip(WREN, registry.document("wren").newest) == b"clip 1"


def test_artifacts_of_old_encoders_leave(registry: Registry) -> None:
    """Otherwise every upgrade would keep another copy of everything. Those of the one before stay."""
    registry.register("wren", 1)
    registry.work()
    for fingerprint in ("f2", "f3"):
        registry.fingerprints.change("ecapa", fingerprint)
        registry.settle("wren")
        registry.work()
        registry.settle("wren")
    artifacts = registry.document("wren").newest.artifacts["ecapa"]
    assert [record.fingerprint for record in artifacts] == ["f2", "f3"]


def test_a_look_is_put_off_and_one_that_was_asked_for_stays(world: World, registry: Registry) -> None:
    """Two processes of housekeeping must not take a look from each other that is still needed."""
    agenda = registry.speakers.agenda
    registry.register("wren", 1)
    world.pass_time(11)
    [due] = agenda.due(9)
    agenda.check_within({WREN: 5})
    agenda.checked(due, again_in=None)
    [still] = agenda.due(9)
    agenda.checked(still, again_in=60)
    assert agenda.due(9) == []
    world.pass_time(61)
    [later] = agenda.due(9)
    agenda.checked(later, again_in=None)
    assert agenda.due(9) == []


def test_every_change_is_told(registry: Registry, world: World) -> None:
    """Engines that wait for a version hear of it."""
    registry.register("wren", 1)
    registry.work()
    stream = world.server.data[events_key(registry.generation.for_reading())]
    told = [event["what"] for event in stream if event["what"] != "job"]
    assert told == ["voice.created", "version.created", "artifact.ready", "artifact.ready"]


# What a process keeps


def test_parsed_documents_take_no_more_than_they_may() -> None:
    """A million voices must not fill the memory of a process."""
    parsed = ParsedDocuments(max_bytes=100)
    for name in ("a", "b", "c"):
        parsed.put(id_of(name), "e", SpeakerDocument(), 40)
    assert [parsed.etag(id_of(name)) for name in ("a", "b", "c")] == [None, "e", "e"]
    assert parsed.get(id_of("b"), "other") is None
    parsed.put(id_of("b"), "e2", SpeakerDocument(), 10)
    parsed.put(id_of("a"), "e", SpeakerDocument(), 40)
    assert parsed.etag(id_of("c")) == "e"


def test_a_missing_speaker_is_asked_for_again_after_a_while() -> None:
    """Names that do not exist must not cost the bucket a request each, nor stay missing."""
    now = 100.0
    missing = MissingSpeakers(lambda: now, seconds=5, most=2)
    for name in ("a", "b", "c"):
        missing.put(id_of(name), "g")
    now = 104.0
    assert [missing.holds(id_of(name), "g") for name in ("a", "b", "c")] == [False, True, True]
    assert not missing.holds(id_of("b"), "another")
    missing.drop(id_of("c"))
    assert not missing.holds(id_of("c"), "g")
    now = 106.0
    assert not missing.holds(id_of("b"), "g")


def test_a_voice_that_was_missing_is_found_at_once_without_redis(world: World, registry: Registry) -> None:
    """One lost reply of Redis must not have a process deny what another has registered since."""
    is_away = False

    def weather(what: str, call: Callable[[], Any]) -> Any:
        if is_away:
            raise Unavailable("Redis is not available.")
        return call()

    other = world.process(weather=weather)
    with pytest.raises(VoiceNotFound):
        other.find("wren")
    registry.register("wren", 1)
    is_away = True
    assert other.find("wren").document.live


def test_a_voice_that_was_missing_is_found_at_once_after_a_loss_of_redis(
    world: World, registry: Registry
) -> None:
    """A process that had just asked for the name must not deny what another has registered since."""
    other = world.process()
    with pytest.raises(VoiceNotFound):
        other.find("wren")
    registry.register("wren", 1)
    world.lose_redis()
    assert other.find("wren").document.live
