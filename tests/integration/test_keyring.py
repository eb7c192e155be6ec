"""Tests of API keys in bucket, Redis and memory, on a real Valkey and a real local folder."""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from services.registry_api.keys import key_rules
from services.registry_api.keys.api_keys import ApiKey, Token, is_secret_of
from services.registry_api.keys.key_rules import KEPT_SECONDS
from services.registry_api.keys.keyring import FRESH_SECONDS, Keyring
from services.shared.bucket.facts import MAX_RECORD_BYTES
from services.shared.bucket.store import ObjectUnavailable
from services.shared.registry.opening import ConcurrentRunner
from speaker_registry.errors import (
    ApiKeyEnded,
    ApiKeyNotFound,
    InvalidApiKey,
    InvalidRequest,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from tests.integration.storage import Border, Storage

MAKING = 2
"""The call of a rotation that stores what makes a key. If its answer is lost, the outcome is unknown."""


def in_a_thread(do: Callable[[], None]) -> None:
    threading.Thread(target=do, name="keys-read", daemon=True).start()


def process(
    storage: Storage, run_in_background: Callable[[Callable[[], None]], None] = lambda do: do()
) -> Keyring:
    """Return the keys as another API process knows them. Background work is done at once."""
    return Keyring(
        storage.store,
        storage.index,
        storage.parts.leases,
        storage.clock,
        ConcurrentRunner(),
        run_in_background,
    )


def refuse(*_: object) -> Any:
    raise Unavailable("not now", retry_after_seconds=3)


def make(keys: Keyring, **said: Any) -> tuple[Token, ApiKey]:
    given = {"name": "engines", "namespace": "default", "scopes": ["engine"], "created_by": "test", **said}
    return keys.make(**given)


def state(keys: Keyring, key_id: str) -> str | None:
    """Return a key's state as a request would see it. Stale keys are refreshed first."""
    if keys.seconds_left <= 0:
        keys.refresh()
    found = keys.find(key_id)
    return found and keys.state(found)


def test_a_key_whose_record_is_too_large_for_one_opens_nothing(storage: Storage):
    """A key whose record is too large is not read. A caller with write access to the bucket could otherwise
    make every process read a record of any size.
    """
    token, key = make(process(storage))
    body = key.record.to_json().encode().ljust(MAX_RECORD_BYTES + 1)
    (made,) = [one.key for one in storage.store.list("_keys/").objects if token.id in one.key]
    storage.store.delete([made])
    storage.store.put(f"_keys/{token.id}/made.{hashlib.sha256(body).hexdigest()}.json", body)
    assert state(process(storage), token.id) is None


def test_a_key_is_known_to_every_process(storage: Storage):
    """A key is known to every process, whichever process made it."""
    token, made = make(process(storage), scopes=["voices:read", "engine"], expires_at=4_000_000_000)
    other = process(storage)
    other.refresh()
    found = other.find(token.id)
    assert found == made
    assert is_secret_of(found, token)
    assert found.record.scopes == ("engine", "voices:read")


def test_nothing_that_is_stored_opens_anything(storage: Storage, tmp_path: Path):
    """Nothing that is stored opens anything, so that read access to the bucket gives no key."""
    token, _ = make(process(storage))
    stored = b"".join(path.read_bytes() for path in (tmp_path / "bucket").rglob("*") if path.is_file())
    assert token.sha256.encode() in stored
    assert token.secret.encode() not in stored
    assert all(token.secret not in str(storage.raw.dump(name)) for name in storage.raw.scan_iter())


def test_an_ended_key_is_refused_everywhere_within_a_second(storage: Storage):
    """An ended key is refused everywhere within a second, also by processes that knew it as active."""
    here, there = process(storage), process(storage)
    token, _ = make(here)
    assert state(there, token.id) == "active"
    here.end(token.id, by="test")
    assert state(here, token.id) == "revoked"
    storage.clock.sleep(FRESH_SECONDS)
    assert FRESH_SECONDS < 1
    assert state(there, token.id) == "revoked"


def test_a_check_costs_no_round_trip(storage: Storage):
    """A check costs no round trip while what is known is fresh."""
    keys = process(storage)
    token, _ = make(keys)
    keys.refresh()
    with storage.border.failing(1, "not-done") as called:
        for _ in range(1000):
            assert keys.seconds_left > 0
            assert keys.find(token.id)
        keys.refresh(max_age_seconds=0.5)
        assert not called()


def test_while_nothing_changes_the_bucket_is_not_asked(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """The bucket is not read while nothing changes. A listing costs money and time; a query to Redis costs a
    tenth of a millisecond.
    """
    keys = process(storage)
    make(keys)
    keys.refresh()
    listed = []
    listing = storage.store.list
    monkeypatch.setattr(storage.store, "list", lambda prefix: (listed.append(prefix), listing(prefix))[1])
    for _ in range(10):
        storage.clock.sleep(FRESH_SECONDS)
        keys.refresh()
    assert listed == []


def test_keys_survive_the_loss_of_redis(storage: Storage):
    """Keys survive the loss of Redis, and so do their ends: the loss makes no ended key valid again."""
    here, there = process(storage), process(storage)
    good, _ = make(here)
    bad, _ = make(here)
    assert state(there, bad.id) == "active"
    here.end(bad.id, by="test")
    storage.raw.flushall()
    for _ in range(2):  # the index is not trusted, then rebuilt
        storage.clock.sleep(FRESH_SECONDS)
        assert [state(there, good.id), state(there, bad.id)] == ["active", "revoked"]
        fresh = process(storage)
        assert [state(fresh, good.id), state(fresh, bad.id)] == ["active", "revoked"]
        storage.housekeeper.rebuild()


def test_an_end_that_redis_was_not_told_of_is_one_all_the_same(storage: Storage):
    """The end of a key takes effect even if Redis was not told of it. The fact is stored, the caller gets the
    error, and all processes know it half a minute later.
    """
    here, there = process(storage), process(storage)
    token, _ = make(here)
    assert state(there, token.id) == "active"
    with storage.border.failing(3, "not-done") as reached, pytest.raises(Unavailable):  # look, put, tell
        here.end(token.id, by="test")
    assert reached()
    storage.clock.sleep(30)
    assert state(there, token.id) == "revoked"


@pytest.mark.parametrize("way", Border.WAYS)
def test_whatever_call_fails_no_ended_key_is_good_again(storage: Storage, way: str):
    """No ended key becomes valid again, whichever call fails, when the caller repeats the
    request until it succeeds.
    """
    for call in range(1, 12):
        here, there = process(storage), process(storage)
        token, _ = make(here)
        assert state(there, token.id) == "active"
        with storage.border.failing(call, way) as reached:
            try:
                here.end(token.id, by="test")
            except Unavailable:
                here.end(token.id, by="test")
            if not reached():
                break
        storage.clock.sleep(FRESH_SECONDS)
        assert state(there, token.id) == "revoked"
    else:
        raise AssertionError("ending a key makes too many calls")
    assert call > 3


def test_who_can_ask_nobody_knows_nothing(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A process that can reach neither Redis nor the bucket knows no keys. A key that may have been ended is
    not trusted.
    """
    keys = process(storage)
    token, _ = make(keys)
    assert state(keys, token.id) == "active"
    storage.clock.sleep(FRESH_SECONDS)
    monkeypatch.setattr(storage.store, "list", refuse)
    monkeypatch.setattr(storage.index, "read", refuse)
    with pytest.raises(Unavailable):
        keys.refresh()
    assert keys.seconds_left <= 0


def test_without_redis_keys_are_known_from_the_bucket(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Keys are read from the bucket without Redis. Reads go on without it, so keys have to."""
    token, _ = make(process(storage))
    monkeypatch.setattr(storage.index, "read", refuse)
    assert state(process(storage), token.id) == "active"


def test_while_the_bucket_is_away_keys_stay_good(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Keys stay valid while the bucket is away and Redis reports no change. Changes that Redis may not know
    of are looked for later.
    """
    here, there = process(storage), process(storage)
    token, _ = make(there)
    assert state(here, token.id) == "active"
    with monkeypatch.context() as patch:
        patch.setattr(storage.store, "list", refuse)
        for _ in range(3):
            storage.clock.sleep(31)
            assert state(here, token.id) == "active"
            assert here.seconds_left > 0
    there.refresh()
    with storage.border.failing(3, "not-done"), pytest.raises(Unavailable):  # look, put, tell
        there.end(token.id, by="test")
    storage.clock.sleep(31)
    state(here, token.id)
    assert state(here, token.id) == "revoked"


def test_a_slow_listing_holds_no_request_up(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A slow listing blocks no request. Listings run one at a time in the background; an end that comes
    meanwhile is noticed as usual, and stays when the listing without it is over.
    """
    here, there = process(storage), process(storage, in_a_thread)
    goes_on, listing = threading.Event(), storage.store.list
    token, _ = make(here)
    assert state(there, token.id) == "active"
    listed = []

    def slow(prefix: str) -> Any:
        found = listing(prefix)
        if threading.current_thread().name == "keys-read":
            listed.append(prefix)
            assert goes_on.wait(20)
        return found

    monkeypatch.setattr(storage.store, "list", slow)
    for _ in range(3):
        storage.clock.sleep(31)
        assert state(there, token.id) == "active"
    here.end(token.id, by="test")
    storage.clock.sleep(FRESH_SECONDS)
    assert state(there, token.id) == "revoked"
    (reading,) = [thread for thread in threading.enumerate() if thread.name == "keys-read"]
    goes_on.set()
    reading.join(20)
    assert listed == ["_keys/"]
    assert state(there, token.id) == "revoked"


def test_who_waited_for_a_look_that_fails_shares_its_failure(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """Requests that waited for a look that fails share its failure. It may take a minute to fail, and one
    after the other they would hold all threads for as many minutes.
    """
    keys, tries, waiting, fails = process(storage), count(), threading.Barrier(6), threading.Event()
    monkeypatch.setattr(storage.index, "read", refuse)

    def hang(_: str) -> Any:
        next(tries)
        assert fails.wait(20)
        refuse()

    def look() -> str:
        waiting.wait(20)
        with pytest.raises(Unavailable) as caught:
            keys.refresh(max_age_seconds=0.05)
        return f"{caught.value.message} {caught.value.retry_after_seconds}"

    monkeypatch.setattr(storage.store, "list", hang)
    with ThreadPoolExecutor(6) as pool:
        looks = [pool.submit(look) for _ in range(6)]
        threading.Event().wait(0.3)  # every key is present
        fails.set()
        assert {one.result() for one in looks} == {"not now 3"}
    assert next(tries) == 1
    storage.clock.sleep(1)
    with pytest.raises(Unavailable):
        keys.refresh()
    assert next(tries) == 3, "later it is tried again"


def test_a_record_that_was_changed_opens_nothing(storage: Storage, tmp_path: Path):
    """A record that was changed opens nothing. A caller with write access to the bucket could otherwise give
    a key any right.
    """
    keys = process(storage)
    token, _ = make(keys)
    (path,) = (tmp_path / "bucket" / "_keys" / token.id).iterdir()
    path.write_bytes(path.read_bytes().replace(b'"engine"', b'"admin"'))
    assert state(process(storage), token.id) is None


def test_a_key_that_cannot_be_read_keeps_nobody_waiting(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """A key that cannot be read blocks no request. A store that always fails for one object is retried for
    half a minute each time. Every request had to wait for that: at each change of any key, and without Redis
    all the time.
    """
    other = process(storage)
    good, bad = (make(other)[0] for _ in range(2))
    later: list[Callable[[], None]] = []
    keys, get, asked = process(storage, later.append), storage.store.get, list[str]()

    def refuse_one(key: str) -> bytes:
        if bad.id not in key:
            return get(key)
        asked.append(key)
        raise ObjectUnavailable("archived")

    with monkeypatch.context() as patch:
        patch.setattr(storage.store, "get", refuse_one)
        assert (state(keys, good.id), state(keys, bad.id)) == ("active", None)
        make(other)
        storage.clock.sleep(1)
        assert state(keys, good.id) == "active"
        patch.setattr(storage.index, "read", refuse)
        for _ in range(3):
            storage.clock.sleep(1)
            assert state(keys, good.id) == "active"
        assert len(asked) == 1
        later.pop()()
        assert len(asked) == 2, "again, in the background"
    storage.clock.sleep(31)
    keys.refresh()
    later.pop()()
    keys.refresh()
    assert state(keys, bad.id) == "active"


def test_long_ended_keys_are_forgotten(storage: Storage):
    """Long-ended keys are forgotten after a month in which they are still shown."""
    keys = process(storage)
    good, _ = make(keys)
    revoked, _ = make(keys)
    expired, _ = make(keys, expires_at=int(storage.clock.now()) + 60)
    keys.end(revoked.id, by="test")
    assert keys.sweep() == 0
    storage.clock.sleep(KEPT_SECONDS + 120)
    storage.housekeeper.sweep()
    storage.clock.sleep(30)
    assert [state(process(storage), one.id) for one in (good, revoked, expired)] == ["active", None, None]
    assert len(storage.store.list("_keys/").objects) == 1


def test_a_key_that_will_end_is_kept(storage: Storage):
    """A key that will end is kept, such as one that was rotated with a month of grace."""
    keys = process(storage)
    token, old = make(keys)
    keys.rotate(old, grace_seconds=90 * 86_400, by="test")
    storage.clock.sleep(KEPT_SECONDS + 120)
    keys.sweep()
    assert state(process(storage), token.id) == "active"


def test_use_is_remembered_to_the_minute(storage: Storage):
    """The time of a key's last use is remembered to the minute. Redis gets it now and then, and this process
    knows it at once.
    """
    here, there = process(storage), process(storage)
    token, _ = make(here)
    here.note_use(token.id)
    assert here.last_used()[token.id] == pytest.approx(storage.clock.now(), abs=2)
    assert there.last_used() == {}
    storage.clock.sleep(60)
    here.refresh()
    assert there.last_used()[token.id] == pytest.approx(storage.clock.now() - 60, abs=2)


def test_when_a_forgotten_key_was_used_is_forgotten_too(storage: Storage):
    """The time at which a forgotten key was used is forgotten too. Redis would otherwise remember it for
    ever.
    """
    keys = process(storage)
    good, _ = make(keys)
    ended, _ = make(keys)
    for token in (good, ended):
        keys.note_use(token.id)
    keys.end(ended.id, by="test")
    storage.clock.sleep(60)
    keys.refresh()
    assert keys.last_used().keys() == {good.id, ended.id}
    assert keys.sweep() == 0
    assert keys.last_used().keys() == {good.id, ended.id}
    storage.clock.sleep(KEPT_SECONDS)
    assert keys.sweep() == 1
    assert storage.raw.hkeys("sr:keys_used") == [good.id]


def test_one_namespace_leaves_room_for_others(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """One namespace leaves room for others. Keys for all namespaces are counted separately, too."""
    monkeypatch.setattr(key_rules, "MAX_KEYS_OF_NAMESPACE", 1)
    keys = process(storage)
    make(keys, namespace="tenant")
    with pytest.raises(QuotaExceeded):
        make(keys, namespace="tenant", by_operator=True)
    for namespace in ("default", "*"):
        make(keys, namespace=namespace)


def test_operators_have_room_when_tenants_have_none_left(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Operators have room when tenants have none left, but no more keys than a process can hold. Tenants are
    not told how many there are.
    """
    monkeypatch.setattr(key_rules, "MAX_KEYS", 2)
    monkeypatch.setattr(key_rules, "MAX_KEYS_OF_OPERATORS", 3)
    keys = process(storage)
    for namespace in ("one", "two"):
        make(keys, namespace=namespace)
    with pytest.raises(QuotaExceeded, match="takes no more API keys now") as caught:
        make(keys, namespace="three")
    assert "2" not in caught.value.message
    make(keys, namespace="three", by_operator=True)
    with pytest.raises(QuotaExceeded, match="There are 3 API keys"):
        make(keys, namespace="three", by_operator=True)


@pytest.mark.parametrize("grace_seconds", [0, 60])
@pytest.mark.parametrize("way", Border.WAYS)
def test_a_rotation_that_fails_leaves_no_key_that_nobody_has(storage: Storage, way: str, grace_seconds: int):
    """A rotation that fails leaves no key without an owner, whichever call fails. A caller that lost the old
    key by it has the new one.
    """
    for call in range(1, 20):
        keys = process(storage)
        _, old = make(keys)
        known = {key.record.id for key in keys.all("*")}
        with storage.border.failing(call, way) as reached:
            try:
                token, _ = keys.rotate(old, grace_seconds=grace_seconds, by="test")
                held = {token.id}
            except Unavailable:
                held = set()
            if not reached():
                break
        fresh = process(storage)
        fresh.refresh()
        active = {key.record.id for key in fresh.all("*") if fresh.state(key) == "active"} - known
        if way != "done-unanswered" or call != MAKING:
            assert active == held
        assert held or way == "done-unanswered" or fresh.state(fresh.find(old.record.id) or old) == "active"
    else:
        raise AssertionError("rotating a key makes too many calls")
    assert call > 5


def test_a_key_whose_word_is_lost_is_withdrawn(storage: Storage):
    """A key whose answer is lost is withdrawn, because no caller received it."""
    keys = process(storage)
    keys.refresh()
    with storage.border.failing(3, "not-done") as reached, pytest.raises(Unavailable):  # look, put, tell
        make(keys)
    assert reached()
    fresh = process(storage)
    fresh.refresh()
    assert [fresh.state(key) for key in fresh.all("*")] == ["revoked"]


def test_what_has_ended_is_not_rotated(storage: Storage):
    """A key that has ended is not rotated. A slip could otherwise readmit a caller who was shut out."""
    keys = process(storage)
    _, revoked = make(keys)
    _, expired = make(keys, expires_at=int(storage.clock.now()) + 60)
    keys.end(revoked.record.id, by="test")
    storage.clock.sleep(61)
    keys.refresh()
    for key, name in ((revoked, "revoked"), (expired, "expired")):
        found = keys.find(key.record.id)
        assert found
        with pytest.raises(
            ApiKeyEnded, match=f"API key '{key.record.id}' is {name}; only one that is active"
        ):
            keys.rotate(found, grace_seconds=60, by="test")
    assert len(keys.all("*")) == 2


# -- keys that a key made


def test_a_key_ends_no_later_than_the_key_that_made_it(storage: Storage):
    """A key ends no later than the key that made it. An admin key with a moment to live could otherwise make
    itself a successor that never ends.
    """
    keys = process(storage)
    end = int(storage.clock.now()) + 60
    _, maker = make(keys, scopes=["admin"], expires_at=end)
    by = maker.record.id
    _, unlimited = make(keys, created_by=by)
    assert unlimited.ends_at == end
    _, shorter = make(keys, created_by=by, expires_at=end - 30)
    assert shorter.ends_at == end - 30
    refusal = f"'expires_at' is {end + 1}; accepted: up to {end}, .*{by}"
    with pytest.raises(PermissionDenied, match=refusal) as caught:
        make(keys, created_by=by, expires_at=end + 1)
    assert caught.value.param == "expires_at"
    _, grandchild = make(keys, created_by=unlimited.record.id)
    assert grandchild.ends_at == end
    _, free = make(keys, created_by="jwt:0123456789ab")
    assert free.ends_at is None


def test_a_rotation_prolongs_no_key_beyond_the_one_that_asks(storage: Storage):
    """A rotation prolongs no key beyond the requesting key, because rotating makes a key. An ending key may
    still replace its own secret, for the rest of its life.
    """
    keys = process(storage)
    end = int(storage.clock.now()) + 60
    _, maker = make(keys, scopes=["admin"], expires_at=end)
    storage.clock.sleep(30)
    _, follower = keys.rotate(maker, grace_seconds=0, by=maker.record.id)
    assert follower.ends_at == end
    storage.clock.sleep(10)
    _, renewed = keys.rotate(follower, grace_seconds=0, by="bootstrap")
    assert renewed.ends_at is not None
    assert renewed.ends_at > end


def test_a_rotation_does_not_shorten_a_keys_life_by_the_way(storage: Storage):
    """A rotation does not shorten a key's life as a side effect. The key's holder expects its successor to
    live on, and a fleet would stop working without notice.
    """
    keys = process(storage)
    end = int(storage.clock.now()) + 60
    _, maker = make(keys, scopes=["admin"], expires_at=end)
    _, fleet = make(keys)
    with pytest.raises(PermissionDenied, match=f"'{maker.record.id}' ends at {end}, .*'{fleet.record.id}'"):
        keys.rotate(fleet, grace_seconds=60, by=maker.record.id)
    assert keys.find(fleet.record.id) == fleet
    assert len(keys.all("*")) == 2


def test_a_key_can_be_ended_with_all_that_came_from_it(storage: Storage):
    """A key can be ended with all that came from it. Keys that were made with a stolen admin key belong to
    the thief, and so do the keys that those made in turn.
    """
    here, there = process(storage), process(storage)
    _, thief = make(here, scopes=["admin"])
    _, child = make(here, scopes=["admin"], created_by=thief.record.id)
    here.end(child.record.id, by="test")
    _, second = make(here, scopes=["admin"], created_by=thief.record.id)
    _, follower = here.rotate(second, grace_seconds=60, by=second.record.id)
    _, others = make(here)
    here.end(thief.record.id, by="test", with_descendants=True)
    storage.clock.sleep(FRESH_SECONDS)
    gone = [key.record.id for key in (thief, child, second, follower)]
    for keys in (here, there):
        assert [state(keys, key_id) for key_id in gone] == ["revoked"] * 4
        assert state(keys, others.record.id) == "active"


def test_no_key_slips_through_while_its_maker_is_ended(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """No key slips through while its maker is ended. Another process accepted the maker as active a moment
    ago, and stores the child after the listing.
    """
    here, there = process(storage), process(storage)
    _, maker = make(here, scopes=["admin"])
    there.refresh()
    put = storage.store.put

    def end_first(key: str, body: bytes) -> None:
        monkeypatch.undo()
        here.end(maker.record.id, by="test", with_descendants=True)
        put(key, body)

    monkeypatch.setattr(storage.store, "put", end_first)
    with pytest.raises(InvalidApiKey, match="revoked"):
        make(there, created_by=maker.record.id)
    storage.clock.sleep(FRESH_SECONDS)
    here.refresh()
    assert [here.state(key) for key in here.all("*")] == ["revoked", "revoked"]


@pytest.mark.parametrize("namespace", ["", "Tenant", "a/b", "_keys", "a" * 33, ".."])
def test_a_namespace_is_a_folder_of_the_bucket(storage: Storage, namespace: str):
    with pytest.raises(InvalidRequest, match="accepted: 1 to 32"):
        make(process(storage), namespace=namespace)


def test_what_is_no_key_cannot_be_ended(storage: Storage):
    with pytest.raises(ApiKeyNotFound, match="'nokeyid0'"):
        process(storage).end("nokeyid0", by="test")
