"""Tests of deleting speakers while uploads and extractions are under way."""

from typing import Any

import pytest
from services.shared.index.speaker_index import (
    COMMIT_SECONDS,
    WINDOW_SECONDS,
)

from speaker_registry.errors import (
    PreconditionFailed,
    Unavailable,
    VoiceNotFound,
)
from tests.integration.storage import (
    NAMESPACE,
    Storage,
    speaker_id,
)


def test_a_deleted_voice_is_gone_at_once_and_comes_back_only_as_a_new_one(storage: Storage):
    storage.ready("alice")
    storage.delete("alice")
    for attempt in (storage.operations.speakers.find, storage.operations.deletions.delete):
        with pytest.raises(VoiceNotFound):
            attempt(NAMESPACE, "alice")
    assert storage.served("alice") is None
    assert storage.ready("alice").version.number == 2
    storage.sweep()
    storage.check_settled("alice")
    versions = {key.split("/d/")[1].split("/")[0] for key in storage.objects("alice") if "/d/" in key}
    assert len(versions) == 1, "nothing is left of the first"


@pytest.mark.parametrize("key", ["k", None])
def test_a_delete_that_never_lands_counts_only_while_it_may(storage: Storage, key: str | None):
    """A delete that never lands counts only while it still may. Its process was killed before it stored
    anything. While that is unknown, a repeated upload must not be answered with what would be deleted;
    counting the delete for ever would mean a second version for each key.
    """
    first = storage.register("alice", idempotency_key=key)
    storage.index.reserve_tombstone(speaker_id("alice"))
    storage.clock.sleep(WINDOW_SECONDS - 10)
    storage.index.admit(speaker_id("alice"))
    assert storage.index.look(speaker_id("alice")).deleting
    storage.clock.sleep(20)
    again = storage.register("alice", idempotency_key=key)
    assert (again.version.vuid, again.created) == (first.version.vuid, False)
    assert not storage.index.look(speaker_id("alice")).deleting
    assert len(storage.truth("alice").versions) == 1


def test_a_delete_that_landed_is_not_on_its_way_any_more(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A delete that landed is no longer pending. The next upload would otherwise read all facts first."""
    storage.register("alice")
    storage.delete("alice")
    storage.clock.sleep(2 * WINDOW_SECONDS)
    monkeypatch.setattr(storage.index, "admit", lambda *_: pytest.fail("its facts were read"))
    assert storage.register("alice", number=2, idempotency_key="l").created


def test_a_delete_that_slept_for_too_long_stores_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A delete that slept for too long stores nothing. By then a repeated upload may have been answered with
    the version that it would delete.
    """
    storage.register("alice", idempotency_key="k")
    reserve = storage.index.reserve_tombstone

    def reserve_and_sleep(*given: Any, **said: Any) -> Any:
        place = reserve(*given, **said)
        storage.clock.sleep(COMMIT_SECONDS + 1)
        return place

    monkeypatch.setattr(storage.index, "reserve_tombstone", reserve_and_sleep)
    with pytest.raises(Unavailable, match="took too long"):
        storage.delete("alice")
    assert storage.truth("alice").live


def test_a_delete_of_a_voice_that_changed_meanwhile_is_refused(storage: Storage):
    """A delete of a voice that changed meanwhile is refused. A caller that names the version to delete must
    not delete another one with it.
    """
    storage.register("alice")
    with pytest.raises(PreconditionFailed):
        storage.operations.deletions.delete(
            NAMESPACE, "alice", check=lambda _: storage.register("alice", number=2)
        )
    assert len(storage.speaker("alice").versions) == 2


def test_an_extraction_that_a_delete_overtakes_comes_too_late(storage: Storage):
    """An extraction that a delete overtakes comes too late, because a worker cannot bring a deleted voice
    back.
    """
    storage.register("alice")
    work = storage.take("alice")[0]
    storage.delete("alice")
    assert [job.state for job in storage.jobs("alice")] == ["superseded"]
    assert not storage.publish(work)
    assert [job.state for job in storage.jobs("alice")] == ["superseded"]
    storage.sweep()
    assert [key.split("/")[3] for key in storage.objects("alice")] == ["r"], "only the tombstone"
    assert not storage.operations.speakers.look_up(speaker_id("alice")).speaker.live


def test_an_extraction_of_a_deleted_voice_does_nothing_for_its_successor(storage: Storage):
    """An extraction of a deleted voice does nothing for its successor, which has the same name but is another
    person.
    """
    storage.register("alice")
    work = storage.take("alice")[0]
    storage.delete("alice")
    storage.register("alice", number=2)
    assert not storage.publish(work)
    assert storage.served("alice") is None
    storage.finish_all()
    storage.check_settled("alice")
