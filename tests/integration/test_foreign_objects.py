"""Tests of foreign objects in the bucket, put there by hand or by mistake under keys like the registry's own.
Each harms the voice that it belongs to, and nothing else.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance import rebuild
from services.shared.bucket.keys import LAST_CREATED_AT, LAST_NUMBER, LAST_SEQ, parse_key
from services.shared.bucket.store import Listing, ObjectUnavailable, Store
from services.shared.index import script_arguments
from services.shared.model.domain import Speaker, TombstoneFact
from speaker_registry.errors import VoiceDamaged, VoiceNotFound, VoiceUnreadable
from tests.integration.storage import (
    FINGERPRINT,
    NAMESPACE,
    NEXT_FINGERPRINT,
    PROFILE,
    Storage,
    speaker_id,
)

ALICE = speaker_id("alice")
YEARS = 200 * 365 * 86_400


@pytest.fixture
def storage(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[Storage]:
    """A storage in which Alice and Bob are ready."""
    with Storage(tmp_path / "bucket", valkey.url) as storage:
        storage.ready("alice")
        storage.ready("bob")
        yield storage


def lose_redis(storage: Storage) -> None:
    storage.clock.sleep(4)  # what landed just now is not certain yet
    storage.raw.flushall()
    storage.index.redis.connection_pool.disconnect()


def put_version(storage: Storage, **said: Any) -> None:
    """Put a version of Alice's that was made by hand after her first one."""
    first = storage.truth("alice").versions[0]
    seq = said.pop("seq", first.seq + 1)
    said = {"number": 2, "created_at": first.record.created_at + 1} | said
    record = first.record.model_copy(update={"vuid": storage.clock.new_id(), **said})
    storage.store.put(ALICE.version_key(seq, record), record.to_json().encode())


def put_census(storage: Storage, seq: int, vuids: list[str]) -> None:
    body = json.dumps(vuids).encode()
    storage.store.put(ALICE.census_key(seq, body), body)


def check_bob(storage: Storage) -> None:
    """Check that Bob's voice is served and can be changed, and that the index is complete."""
    storage.settle()
    assert storage.index.complete()
    assert storage.served("bob") is not None
    last = storage.truth("bob").number
    assert storage.ready("bob", number=last + 1).version.number == last + 1
    assert storage.served("bob")[0] == last + 1
    storage.check_settled("bob")
    assert "bob" in storage.index.names(NAMESPACE, limit=9)


@pytest.mark.parametrize("seq", [LAST_SEQ + 1, 10**15 - 1])
def test_a_record_with_a_place_that_nobody_was_given_harms_nothing(storage: Storage, seq: int):
    """A record with a seq that was never assigned harms nothing. The next seq would have had one digit more
    than any reader accepts, and the version was lost.
    """
    put_version(storage, seq=seq)
    lose_redis(storage)
    assert storage.ready("alice", number=2).version.number == 2
    lose_redis(storage)
    assert [one.number for one in storage.speaker("alice").versions] == [
        1,
        2,
    ]
    assert storage.served("alice")[0] == 2
    check_bob(storage)


@pytest.mark.parametrize(
    "said",
    [{"seq": LAST_SEQ}, {"number": LAST_NUMBER}, {"created_at": LAST_CREATED_AT}],
    ids=["place", "number", "date"],
)
def test_nothing_is_registered_after_the_last_place_number_or_date(storage: Storage, said: dict[str, int]):
    """Nothing is registered after the last seq, number or date. The version would be
    acknowledged, and then be lost.
    """
    put_version(storage, **said)
    lose_redis(storage)
    before = set(storage.objects("alice"))
    with pytest.raises(VoiceDamaged, match="the last place, number or date"):
        storage.register("alice", number=3)
    assert {key for key in set(storage.objects("alice")) - before if ".cen." not in key} == set()
    assert storage.served("alice") is not None
    storage.sweep()
    check_bob(storage)


@pytest.mark.parametrize(
    "said",
    [{"seq": LAST_SEQ}, {"number": LAST_NUMBER}, {"created_at": LAST_CREATED_AT}],
    ids=["place", "number", "date"],
)
def test_a_voice_with_the_last_place_number_or_date_can_be_deleted_and_erased(
    storage: Storage, said: dict[str, int]
):
    """A voice with the last seq, number or date can be deleted and erased, because it is a person's voice."""
    put_version(storage, **said)
    lose_redis(storage)
    storage.delete("alice")
    with pytest.raises(VoiceNotFound):
        storage.operations.speakers.find(NAMESPACE, "alice")
    lose_redis(storage)
    with pytest.raises(VoiceNotFound):
        storage.operations.speakers.find(NAMESPACE, "alice")
    check_bob(storage)
    storage.sweep()
    (left,) = storage.objects("alice")
    assert ".del." in left


@pytest.mark.parametrize("kind", ["version", "census", "damaged census", "damaged version"])
def test_a_voice_with_a_record_from_the_future_can_be_deleted_and_registered_again(
    storage: Storage, kind: str
):
    """A voice with a record from the future can be deleted and registered again. The record's values are
    believed, but for its own voice only.
    """
    later = storage.truth("alice").seq + YEARS * 100
    if kind == "version":
        put_version(storage, seq=later, created_at=storage.truth("alice").created_at + YEARS)
    elif kind == "census":
        put_census(storage, later, [storage.truth("alice").versions[0].vuid])
    else:
        ours = {"damaged census": "cen", "damaged version": f"ver.{'a' * 32}.2.1800000000"}[kind]
        storage.store.put(f"{ALICE.prefix}r/{later}.{ours}.{'0' * 64}", b"of somebody else")
    lose_redis(storage)
    check_bob(storage)
    storage.delete("alice")
    storage.sweep()
    (tombstone,) = storage.objects("alice")
    parsed = parse_key(tombstone)
    assert isinstance(parsed, TombstoneFact)
    assert parsed.seq > later

    again = storage.ready("alice", number=5).version
    assert again.number > 1
    served = storage.served("alice")
    lose_redis(storage)
    assert storage.served("alice") == served
    assert storage.speaker("alice").newest.vuid == again.vuid
    check_bob(storage)


def _of_alice(work: Callable[..., Any], whose: Callable[..., bool]) -> Callable[..., Any]:
    """Return the same function, changed so that it fails for Alice."""

    def fail(*arguments: Any, **more: Any) -> Any:
        if whose(*arguments):
            raise ValueError("unexpected")
        return work(*arguments, **more)

    return fail


def _is_listing_of_alice(_: Store, listing: Listing) -> bool:
    return any(stored.key.startswith(ALICE.prefix) for stored in listing.objects)


def _is_alice(truth: Speaker) -> bool:
    return any(version.record.name == "alice" for version in truth.versions)


@pytest.mark.parametrize("what", ["reading", "telling"])
def test_a_voice_that_cannot_be_admitted_keeps_no_other_out_and_is_no_new_one(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, what: str
):
    """A voice that cannot be admitted blocks no other voice and is not considered a new one. Its version
    numbers would otherwise be assigned again once all other voices are admitted.
    """
    lose_redis(storage)
    with monkeypatch.context() as patched:
        if what == "reading":
            certain_of = _of_alice(rebuild.certain_of, _is_listing_of_alice)
            patched.setattr(rebuild, "certain_of", certain_of)
        else:
            patched.setattr(script_arguments, "_all_of", _of_alice(script_arguments._all_of, _is_alice))
        storage.housekeeper.rebuild()
    assert storage.index.complete()
    assert storage.index.names(NAMESPACE, limit=9) == ["bob"]
    assert storage.speaker("alice").live, "admitted when it is needed"
    assert storage.ready("alice", number=2).version.number == 2
    check_bob(storage)


def test_a_voice_whose_census_is_not_handed_out_waits_for_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """A voice whose census cannot be read waits for it. An index without the census would count versions that
    never happened.
    """
    lose_redis(storage)
    storage.ready("alice", number=2)
    assert any(".cen." in key for key in storage.objects("alice"))
    get = storage.store.get

    def archived(key: str) -> bytes:
        if ".cen." in key:
            raise ObjectUnavailable("archived")
        return get(key)

    with monkeypatch.context() as patched:
        patched.setattr(storage.store, "get", archived)
        storage.housekeeper.repairs.repair(ALICE)
        assert storage.served("alice")[0] == 2, "the index knows what it says"
        lose_redis(storage)
        with pytest.raises(VoiceUnreadable):
            storage.operations.speakers.find(NAMESPACE, "alice")
        with pytest.raises(VoiceUnreadable):
            storage.register("alice", number=3)
        assert storage.register("bob", number=2).created
    storage.clock.sleep(60)
    check_bob(storage)
    storage.settle()
    assert storage.ready("alice", number=3).version.number == 3
    storage.check_settled("alice")


def test_a_foreign_document_of_a_profile_is_followed_by_the_next_workers(storage: Storage):
    """The worker that starts next announces what it makes, and its document survives a loss of Redis."""
    lose_redis(storage)
    storage.store.put(f"_profiles/{PROFILE}.json", b"of somebody else")
    storage.parts.profile_records.look_anew()
    assert storage.parts.profile_records.current(PROFILE) is None
    for fingerprint in (FINGERPRINT, NEXT_FINGERPRINT):
        storage.announce(fingerprint, [PROFILE])
        lose_redis(storage)
        assert storage.parts.profile_records.fingerprint(PROFILE) == fingerprint
