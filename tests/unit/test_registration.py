"""Tests of registering versions: repeats, rivals, losses of Redis in the middle, limits, and answers that are
overtaken. Store and Redis are in memory; all else is real.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from services.registry_api.operations.register import Limits, Registered
from services.registry_api.operations.sources import profiles_taking
from services.registry_api.operations.undelete import undelete
from services.shared.model.document import RECORD_BYTES, Counts, SpeakerDocument
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import (
    EmbeddingWidthMismatch,
    IdempotencyKeyReused,
    QuotaExceeded,
    Unavailable,
    VoiceDeleted,
    VoiceExists,
    VoiceNotFound,
)
from speaker_registry.names import VoiceId, parse_speaker_name
from tests.faults import lost, with_faults
from tests.memory_registry import NS, ROOMY, Registry, World, id_of

WREN = id_of("wren")
IMMUTABLE = replace(ROOMY, immutable=True)


def numbers(registry: Registry) -> list[int]:
    return [version.number for version in registry.document("wren").versions]


# Repeats


def test_an_upload_that_differs_in_any_text_is_a_new_version(registry: Registry) -> None:
    """Scripts upload the same folder every night. Only the newest version counts as the same."""
    assert registry.register("wren", 1).created
    assert not registry.register("wren", 1).created
    assert registry.register("wren", 1, ref_text="other words").version.number == 2
    assert registry.register("wren", 1, description="a wren").version.number == 3
    assert registry.register("wren", 1).version.number == 4


@pytest.mark.parametrize("changed", [{"content": 2}, {"ref_text": "other words"}, {"description": "a wren"}])
def test_an_idempotency_key_is_good_for_one_request(
    world: World, registry: Registry, changed: dict[str, Any]
) -> None:
    """A key that is used for another request by mistake must not return or store a wrong voice."""
    registry.register("wren", 1, idempotency_key="k")
    stored = dict(world.store.objects)
    with pytest.raises(IdempotencyKeyReused):
        registry.register("wren", **{"content": 1, "idempotency_key": "k", **changed})
    assert world.store.objects == stored


def test_a_key_that_met_an_equal_version_stands_for_it(registry: Registry) -> None:
    """A late repeat of an upload that was answered long ago must not take the voice back from a newer one."""
    first = registry.register("wren", 1).version
    met = registry.register("wren", 1, idempotency_key="k")
    assert (met.version.vuid, met.created) == (first.vuid, False)
    registry.register("wren", 2)
    registry.register("wren", 1)  # the first clip again, as the newest version
    assert registry.register("wren", 1, idempotency_key="k").version.vuid == first.vuid
    with pytest.raises(IdempotencyKeyReused):
        registry.register("wren", 3, idempotency_key="k")
    assert registry.register("wren", 2, idempotency_key="another").version.number == 4


def test_a_key_whose_version_was_deleted_makes_a_new_one(registry: Registry) -> None:
    """The client wants a version that stays. Keys that made a version and keys that met one are alike."""
    registry.register("wren", 1, idempotency_key="made")
    registry.register("wren", 1, idempotency_key="met")
    for number, key in ((2, "made"), (3, "met")):
        registry.delete("wren")
        again = registry.register("wren", 1, idempotency_key=key)
        assert (again.version.number, again.created) == (number, True)


def test_a_key_whose_first_attempt_is_on_its_way_gets_one_answer(world: World, registry: Registry) -> None:
    """The request is repeated while its first attempt stands still, and others register the voice as well."""
    answers: list[Registered] = []

    def overtaken() -> None:
        registry.register("wren", 1)
        answers.append(registry.register("wren", 1, idempotency_key="k"))
        registry.register("wren", 2)

    slow = with_faults(world, ("put", "after", overtaken))
    made = slow.register("wren", 1, idempotency_key="k")
    assert made.version.vuid == answers[0].version.vuid
    assert numbers(registry) == [1, 2]


# Losses of Redis, and views that are behind


def test_one_request_sent_twice_makes_one_version_though_redis_is_lost_between(
    world: World, registry: Registry
) -> None:
    """The second attempt had looked before the first one was registered."""
    made: list[Registered] = []

    def meanwhile() -> None:
        made.append(registry.register("wren", 1, idempotency_key="k"))
        world.lose_redis()

    second = with_faults(world, ("put", "after", meanwhile))
    with pytest.raises(Unavailable):  # its view is gone, so the answer would not be shown
        second.register("wren", 1, idempotency_key="k")
    again = second.register("wren", 1, idempotency_key="k")
    assert (again.version.vuid, again.created) == (made[0].version.vuid, False)
    assert numbers(registry) == [1]


def test_a_key_is_good_for_one_request_though_redis_is_lost_between(world: World, registry: Registry) -> None:
    """The second request brings another clip, so it is no repeat."""

    def meanwhile() -> None:
        registry.register("wren", 1, idempotency_key="k")
        world.lose_redis()

    second = with_faults(world, ("put", "after", meanwhile))
    with pytest.raises(IdempotencyKeyReused):
        second.register("wren", 2, idempotency_key="k")
    assert numbers(registry) == [1]


def register_unseen(world: World, registry: Registry) -> str:
    """Register a version that the view does not show, as if the process had died after the commit."""
    registry.register("wren", 1)
    registry.delete("wren")
    copies = {key: value for key, value in world.server.snapshot().items() if ":s:" in key}
    unseen = registry.register("wren", 1, idempotency_key="k").version.vuid
    world.server.data.update(copies)
    return unseen


def test_a_key_finds_its_version_though_the_view_was_never_told(world: World, registry: Registry) -> None:
    unseen = register_unseen(world, registry)
    again = world.process().register("wren", 1, idempotency_key="k")
    assert (again.version.vuid, again.created) == (unseen, False)
    assert numbers(registry) == [2]


def test_a_deleted_voice_is_registered_again_though_the_view_was_not_told_that_it_is_erased(
    world: World, registry: Registry
) -> None:
    """The process that erased it was stopped before it could show that."""
    registry.register("wren", 1)
    registry.delete("wren")
    copies = {key: value for key, value in world.server.snapshot().items() if ":s:" in key}
    world.pass_time(60)
    registry.erase("wren", grace=timedelta(seconds=30))
    assert registry.document("wren").version_ids == frozenset()
    world.server.data.update(copies)
    assert world.process().register("wren", 2).version.number == 2


def test_an_immutable_voice_is_not_registered_again_though_the_view_was_never_told(
    world: World, registry: Registry
) -> None:
    register_unseen(world, registry)
    with pytest.raises(VoiceExists, match="delete it first"):
        world.process().register("wren", 2, limits=IMMUTABLE)
    assert numbers(registry) == [2]


def test_of_two_first_registrations_of_an_immutable_voice_one_succeeds(
    world: World, registry: Registry
) -> None:
    """Both had seen that the voice does not exist."""
    late = with_faults(world, ("swap", "before", lambda: registry.register("wren", 2) and None))
    with pytest.raises(VoiceExists):
        late.register("wren", 1, limits=IMMUTABLE)
    assert numbers(registry) == [1]


@pytest.mark.parametrize("when", ["put", "swap"])
def test_a_version_of_one_voice_is_not_added_to_its_successor(
    world: World, registry: Registry, when: str
) -> None:
    """The name is registered again before the request, or while it is processed."""
    known = VoiceId(registry.register("wren", 1).version.id, "wren")
    assert registry.register("wren", 2, voice_id=known).created

    def replaced() -> None:
        registry.delete("wren")
        registry.register("wren", 3)

    late = with_faults(world, (when, "before", replaced))
    for process in (late, registry):
        with pytest.raises(VoiceDeleted):
            process.register("wren", 4, voice_id=known)
    assert numbers(registry) == [3]


# Limits


def test_no_more_voices_than_allowed_but_any_number_of_versions(world: World, registry: Registry) -> None:
    limits = replace(ROOMY, voices=2)
    for name in ("wren", "robin"):
        registry.register(name, 1, limits=limits)
    with pytest.raises(QuotaExceeded, match=r"limit reached \(2\)"):
        registry.register("owl", 1, limits=limits)
    assert registry.register("wren", 2, limits=limits).version.number == 2
    registry.delete("robin")
    assert registry.register("owl", 1, limits=limits).created


def test_new_voices_that_come_at_once_are_no_more_than_allowed(world: World, registry: Registry) -> None:
    """Each had looked before any of them was counted."""
    limits = replace(ROOMY, voices=2)
    refused: list[str] = []

    def others_come() -> None:
        registry.register("wren", 1, limits=limits)
        with pytest.raises(QuotaExceeded):
            registry.register("owl", 1, limits=limits)
        refused.append("owl")

    first = with_faults(world, ("put", "after", others_come))
    assert first.register("robin", 1, limits=limits).created
    assert refused == ["owl"]
    assert registry.speakers.usage_so_far(NS).voices == 2


def test_a_new_voice_counts_while_it_may_still_be_registered(world: World, registry: Registry) -> None:
    """One that failed leaves its room at once, and one whose process died leaves it soon."""
    limits = replace(ROOMY, voices=1)
    failing = with_faults(world, ("put", "before", lost))
    with pytest.raises(Unavailable):
        failing.register("wren", 1, limits=limits)
    with registry.speakers.reserving(id_of("robin"), SpeakerDocument()), pytest.raises(QuotaExceeded):
        registry.register("wren", 1, limits=limits)
    registry.speakers.view.reserve(id_of("owl"), "token")
    world.pass_time(61)
    assert registry.register("wren", 1, limits=limits).created


def test_a_refused_request_leaves_the_reservation_of_another_one(registry: Registry) -> None:
    """Otherwise any number of voices could be registered, each while an upload of a further one is slow."""
    limits = replace(ROOMY, voices=1)
    with registry.speakers.reserving(id_of("robin"), SpeakerDocument()):
        with pytest.raises(VoiceNotFound):
            bring_back(registry, "robin", limits)
        with pytest.raises(QuotaExceeded):
            registry.register("wren", 1, limits=limits)
    assert registry.register("wren", 1, limits=limits).created


def test_a_voice_that_comes_back_leaves_room_for_those_that_are_being_registered(registry: Registry) -> None:
    """Two that come back at once are no more than the namespace may have, either."""
    limits = replace(ROOMY, voices=1)
    registry.register("wren", 1, limits=limits)
    registry.delete("wren")
    with registry.speakers.reserving(id_of("robin"), SpeakerDocument()), pytest.raises(QuotaExceeded):
        bring_back(registry, "wren", limits)
    assert bring_back(registry, "wren", limits).document.live
    with pytest.raises(VoiceExists):
        bring_back(registry, "wren", limits)
    assert registry.speakers.usage_so_far(NS).voices == 1


def bring_back(registry: Registry, name: str, limits: Limits) -> FoundSpeaker:
    return undelete(
        registry.speakers,
        registry.jobs,
        registry.profiles,
        NS,
        parse_speaker_name(name),
        limits=limits,
        grace_seconds=3600.0,
        by="key",
    )


def test_an_undelete_answers_with_what_it_restored_though_another_delete_overtakes_it(
    world: World, registry: Registry
) -> None:
    """A voice that is deleted again, or registered anew, before the answer is no reason to fail."""
    restored = registry.register("wren", 1).version.vuid
    registry.delete("wren")
    overtaken = with_faults(world, ("swap", "after", lambda: registry.delete("wren")))
    assert bring_back(overtaken, "wren", ROOMY).document.default.vuid == restored
    assert not registry.document("wren").live

    def another_life() -> None:
        registry.delete("wren")
        registry.register("wren", 2)

    overtaken = with_faults(world, ("swap", "after", another_life))
    assert bring_back(overtaken, "wren", ROOMY).document.default.vuid == restored
    assert registry.document("wren").default.vuid != restored


def test_a_voice_has_so_many_versions_and_no_more(registry: Registry) -> None:
    """A repeat is no further version. A delete makes room, and numbers go on."""
    limits = replace(ROOMY, versions=2)
    for number in (1, 2):
        registry.register("wren", number, limits=limits)
    with pytest.raises(
        QuotaExceeded, match=r"has 2 versions, and SPEAKER_MAX_VERSIONS accepts 2\. Delete one of them"
    ):
        registry.register("wren", 3, limits=limits)
    assert not registry.register("wren", 2, limits=limits).created
    registry.delete("wren")
    assert registry.register("wren", 3, limits=limits).version.number == 3


def test_texts_count_as_the_bytes_that_are_stored(registry: Registry) -> None:
    """Every version's texts are in its document, which Redis holds too. A delete gives the room back."""
    said = "Größe " * 100
    texts = len("wren") + len("c") + len(said.encode()) + len("Low.")
    registry.register("wren", 1, ref_text=said, description="Low.")
    used = Counts(voices=1, bytes=len(b"clip 1") + texts, text_bytes=texts)
    assert registry.speakers.usage_so_far(NS) == used
    registry.delete("wren")
    assert registry.speakers.usage_so_far(NS) == Counts(
        voices=0,
        bytes=0,
        text_bytes=0,
        deleted_bytes=used.bytes,
        deleted_text_bytes=used.text_bytes + RECORD_BYTES,
    )


@pytest.mark.parametrize("limit", ["bytes", "text_bytes"])
def test_who_registers_and_deletes_in_turn_is_stopped_until_some_of_it_is_erased(
    registry: Registry, world: World, limit: str
) -> None:
    """Otherwise one key fills the bucket and Redis for all namespaces while its own quota shows nothing."""
    most = replace(ROOMY, **{limit: 3 * RECORD_BYTES})
    texts = {"ref_text": "x" * RECORD_BYTES}
    for number in range({"bytes": 3, "text_bytes": 2}[limit]):
        registry.register("wren", number, limits=most, **texts)
        registry.delete("wren")
    with pytest.raises(QuotaExceeded, match=r"were deleted still take \d+ bytes, .* accepted: .*3072"):
        registry.register("wren", 9, limits=most, **texts)
    assert registry.register("robin", 1, limits=ROOMY, **texts).created, "the limit is the operator's"
    world.pass_time(60)
    registry.erase("wren", grace=timedelta(seconds=30))
    assert registry.register("wren", 1, limits=replace(most, **{limit: 5000}), **texts).created


@pytest.mark.parametrize(
    ("limit", "room", "says"),
    [
        ("text_bytes", 0, r"Upload with 106 bytes of texts.* may take 105,.*SPEAKER_MAX_TEXT_BYTES"),
        ("bytes", len(b"clip 1"), r"Upload of 112 bytes.* may take 111,.*SPEAKER_MAX_BYTES"),
    ],
)
def test_an_upload_may_fill_the_room_and_not_exceed_it(
    registry: Registry, limit: str, room: int, says: str
) -> None:
    most = replace(ROOMY, **{limit: room + len("wren") + len("c") + 100})
    with pytest.raises(QuotaExceeded, match=says):
        registry.register("wren", 1, ref_text="x" * 101, limits=most)
    assert registry.register("wren", 1, ref_text="x" * 100, limits=most).created
    with pytest.raises(QuotaExceeded):
        registry.register("robin", 1, ref_text="", limits=most)
    assert not registry.register("wren", 1, ref_text="x" * 100, limits=most).created


# Embeddings


def test_an_embedding_is_of_one_known_encoder() -> None:
    """Both encoders make 192 numbers, and neither understands the other's: an engine would play noise."""
    catalogue = ProfileCatalogue.load(["ming-tts", "ecapa-voxceleb", "qwen3-tts-0.6b"])
    says = r"192 elements, .* ming-tts, ecapa-voxceleb\. .* PUT /v1/voices/\{name\}/.*/artifacts/\{profile\}"
    with pytest.raises(EmbeddingWidthMismatch, match=says):
        profiles_taking(catalogue, np.zeros(192, np.float32))
    assert [one.name for one in profiles_taking(catalogue, np.zeros(1024, np.float32))] == ["qwen3-tts-0.6b"]
    with pytest.raises(EmbeddingWidthMismatch, match=r"has 7 elements; .* take \[192, 1024\]"):
        profiles_taking(catalogue, np.zeros(7, np.float32))


# Answers


def test_a_committed_version_is_acknowledged_though_its_job_cannot_be_queued(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without an answer the client would send the clip again. Housekeeping queues the jobs."""

    def refuse(*_: Any) -> None:
        raise Unavailable("The queue is not available.")

    with monkeypatch.context() as without_queue:
        without_queue.setattr(world.queue, "enqueue", refuse)
        assert registry.register("wren", 1).created
    assert registry.work() == 0
    registry.settle("wren")
    assert registry.work() == 2


def while_it_is_answered(
    world: World, registry: Registry, do: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> Registered:
    """Register a version, and do something once it is committed and its first job is queued."""
    enqueue = world.queue.enqueue

    def overtaken(*arguments: Any) -> None:
        enqueue(*arguments)
        monkeypatch.setattr(world.queue, "enqueue", enqueue)
        do()

    monkeypatch.setattr(world.queue, "enqueue", overtaken)
    return registry.register("wren", 1)


def test_a_worker_may_be_quicker_than_the_answer(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered = while_it_is_answered(world, registry, registry.work, monkeypatch)
    assert registered.created
    assert registered.jobs.keys() == {"ecapa", "codec"}
    status = registry.profiles.status(registered.speaker, registered.version, registry.profiles.get("ecapa"))
    assert status.state == "ready"


@pytest.mark.parametrize("again", [False, True])
def test_a_delete_may_overtake_the_answer(
    world: World, registry: Registry, monkeypatch: pytest.MonkeyPatch, *, again: bool
) -> None:
    """The answer tells of the version that was made, also if the name belongs to another voice meanwhile."""

    def replace_voice() -> None:
        registry.delete("wren")
        if again:
            registry.register("wren", 2)

    registered = while_it_is_answered(world, registry, replace_voice, monkeypatch)
    assert registered.created
    assert registered.version.number == 1
    assert registered.speaker.document.versions == (registered.version,)
