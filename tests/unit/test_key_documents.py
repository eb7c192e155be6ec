"""Tests of API keys as documents: making, rotating, revoking and forgetting them, races, lost replies and
losses of Redis. Store and Redis are in memory, and time is the test's own. All else is real.
"""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from services.registry_api.keys import key_rules
from services.registry_api.keys import make as make_module
from services.registry_api.keys.api_keys import ApiKey, Token, is_secret_of
from services.registry_api.keys.forget import forget
from services.registry_api.keys.key_changes import FRESH_SECONDS
from services.registry_api.keys.key_document import KeyDocument
from services.registry_api.keys.key_rules import KEPT_SECONDS
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.keys.make import make
from services.registry_api.keys.revoke import revoke
from services.registry_api.keys.rotate import rotate
from services.shared.bucket.layout import api_key_key
from services.shared.bucket.store import Object, ObjectUnavailable, listing_of
from services.shared.model.records import seal, unseal
from speaker_registry.errors import (
    ApiKeyEnded,
    ApiKeyNotFound,
    InvalidApiKey,
    InvalidRequest,
    PermissionDenied,
    QuotaExceeded,
    Unavailable,
)
from tests.memory_records import Process
from tests.memory_registry import World


class Store:
    """A store in memory whose next calls can be made to fail, and that counts what is asked."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.before: list[Callable[[], None]] = []
        """The functions that are called before the next swaps of keys, the last one first."""
        self.after: list[Callable[[], None]] = []
        self.reads: list[str] = []
        self.refuses: Callable[[str], Exception | None] = lambda _: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, key: str) -> Object:
        self.reads.append(key)
        if error := self.refuses(key):
            raise error
        return self._store.read(key)

    def swap(self, key: str, data: bytes, *, etag: str | None) -> str:
        of_key = key.startswith("_keys/")
        if of_key and self.before:
            self.before.pop()()
        made = self._store.swap(key, data, etag=etag)
        if of_key and self.after:
            self.after.pop()()
        return str(made)

    @property
    def read_keys(self) -> list[str]:
        return [key for key in self.reads if key.startswith("_keys/")]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def here(world: World) -> Process:
    return Process.settled(world)


def made(process: Process, **said: Any) -> tuple[Token, ApiKey]:
    given = {"name": "engines", "namespace": "default", "scopes": ["engine"], "created_by": "test", **said}
    return make(process.keys, **given)


def state(process: Process, key_id: str) -> str | None:
    """Return a key's state as a request would see it."""
    found = process.keys.read(key_id)
    return found and process.keys.state(found)


def holder(world: World, here: Process) -> tuple[Process, Token]:
    """Return another process, which holds a key that was made here, and the key's token."""
    there = Process(world)
    token, _ = made(here)
    assert state(there, token.id) == "active"
    return there, token


def lose() -> None:
    raise Unavailable("The reply was lost.")


def refused(_: str, call: Callable[[], Any]) -> Any:
    raise Unavailable("Redis does not answer.")


# -- finding


def test_a_key_is_known_to_every_process_by_its_id_alone(world: World, here: Process) -> None:
    """A listing may lack a key, or the end of one, so no request depends on a listing."""
    token, key = made(here, scopes=["voices:read", "engine"], expires_at=4_000_000_000)
    world.store.list = lambda _: pytest.fail("there was a listing")  # type: ignore[method-assign]
    other = Process(world, run_in_background=lambda _: None)
    found = other.keys.read(token.id)
    assert found == key
    assert is_secret_of(found, token)
    assert found.record.scopes == ("engine", "voices:read")


def test_nothing_that_is_stored_or_logged_opens_anything(
    world: World, here: Process, capfd: pytest.CaptureFixture[str]
) -> None:
    """Read access to the bucket, to Redis or to the logs gives no key."""
    token, _ = made(here)
    follower, _ = rotate(here.keys, here.keys.all("*")[0], grace_seconds=9, by="test")
    stored = b"".join(data for data, _ in world.store.objects.values())
    assert token.sha256.encode() in stored
    logged = "".join(capfd.readouterr())
    for secret in (token.secret, follower.secret):
        assert secret.encode() not in stored
        assert secret not in str(world.server.data)
        assert secret not in logged
    assert token.sha256 not in str(world.server.data) + logged


def test_a_check_costs_nothing_while_what_is_held_is_fresh_and_then_one_round_trip(
    world: World, here: Process
) -> None:
    """Every request is checked, and most come from the same few keys."""
    token, _ = made(here)
    calls: list[str] = []

    def counted(what: str, call: Callable[[], Any]) -> Any:
        calls.append(what)
        return call()

    store = Store(world.store)
    process = Process(world, store=store, weather=counted)
    state(process, token.id)
    calls.clear()
    store.reads.clear()
    for _ in range(1000):
        assert process.keys.find(token.id)
        assert state(process, token.id) == "active"
    assert calls == store.reads == []
    for _ in range(5):
        world.pass_time(FRESH_SECONDS + 0.01)
        assert process.keys.find(token.id) is None
        assert state(process, token.id) == "active"
    assert calls == ["get+zrangebyscore"] * 5
    assert store.read_keys == []


@pytest.mark.parametrize("key_id", ["", "nokeyid0", "../../x", "A" * 8, "x" * 500])
def test_what_is_no_key_is_none_and_cannot_be_revoked(here: Process, key_id: str) -> None:
    """An id comes from a request, and is looked at before a path is made of it."""
    assert here.keys.read(key_id) is None
    with pytest.raises(ApiKeyNotFound, match=f"'{key_id[:8]}'"):
        revoke(here.keys, key_id, by="test")


def test_an_unknown_key_is_remembered_for_some_seconds(world: World) -> None:
    """A dashboard with a forgotten key asks again and again."""
    store = Store(world.store)
    process = Process(world, store=store)
    for _ in range(10):
        assert state(process, "nokeyid0") is None
        world.pass_time(0.4)
    assert len(store.read_keys) == 2, "an absence is looked at a second time"


# -- revoking


def test_from_the_answer_on_a_revoked_key_is_refused_everywhere(world: World, here: Process) -> None:
    """Also by processes that held it as active a moment ago."""
    there, token = holder(world, here)
    ended = revoke(here.keys, token.id, by="test")
    assert ended
    assert (here.keys.state(ended), state(here, token.id), state(there, token.id)) == ("revoked",) * 3


def test_within_a_second_a_revoked_key_is_refused_everywhere(world: World, here: Process) -> None:
    """The bound does not depend on the process that revokes it, which may die before it answers."""
    there, token = holder(world, here)
    here.keys.settle = lambda: None  # type: ignore[method-assign]
    revoke(here.keys, token.id, by="test")
    world.pass_time(FRESH_SECONDS + 0.01)
    assert FRESH_SECONDS < 1
    assert state(there, token.id) == "revoked"


@pytest.mark.parametrize("away", [True, False])
def test_a_revoked_key_stays_one_after_a_loss_of_redis(world: World, here: Process, away: bool) -> None:
    """Neither a process that held it, nor a new one, with or without Redis, accepts it."""
    is_away = False

    def weather(what: str, call: Callable[[], Any]) -> Any:
        return refused(what, call) if is_away else call()

    there = Process(world, weather=weather)
    good, bad = made(here)[0], made(here)[0]
    assert [state(there, one.id) for one in (good, bad)] == ["active", "active"]
    revoke(here.keys, bad.id, by="test")
    world.lose_redis()
    is_away = away
    for process in (here, there, Process(world), Process(world, weather=refused)):
        assert [state(process, one.id) for one in (good, bad)] == ["active", "revoked"]


def test_a_key_that_is_revoked_while_redis_is_lost_is_refused_by_who_held_it(
    world: World, here: Process
) -> None:
    """What a process held belongs to the generation of before, and is read again in the next one."""
    there, token = holder(world, here)
    world.lose_redis()
    revoke(here.keys, token.id, by="test")
    assert state(there, token.id) == "revoked"


def test_a_revocation_that_redis_was_not_told_of_stands(world: World, here: Process) -> None:
    """The caller is told to send it again, and every other process notices it half a minute later."""
    there, token = holder(world, here)
    cut_off = Process(world, weather=refused)
    with pytest.raises(Unavailable, match=r"was made, but could not be recorded in Redis.*look first"):
        revoke(cut_off.keys, token.id, by="test")
    assert state(cut_off, token.id) == "revoked"
    assert KeyDocument.parse(world.store.get(api_key_key(token.id))).end
    world.pass_time(31)
    state(there, token.id)
    assert state(there, token.id) == "revoked"
    assert revoke(here.keys, token.id, by="test"), "again, with Redis"


def test_a_revocation_that_redis_was_not_told_of_is_noticed_without_a_read(
    world: World, here: Process
) -> None:
    """Requests with a key that is held read nothing, and listeners to events send no requests."""
    there, token = holder(world, here)
    with pytest.raises(Unavailable):
        revoke(Process(world, weather=refused).keys, token.id, by="test")
    changes = there.keys.changes
    world.pass_time(30)
    there.keys.listen()
    assert there.keys.find(token.id) is None
    assert there.keys.changes > changes
    there.keys._memory._held.clear()
    state(there, token.id)
    changes = there.keys.changes
    for _ in range(3):
        world.pass_time(30)
        there.keys.listen()
    assert there.keys.changes == changes, "nothing changed since"


def test_a_key_that_another_process_has_deleted_leaves_the_list(world: World, here: Process) -> None:
    """Redis forgets a key that was deleted, so only the next listing shows that it is gone."""
    there, token = holder(world, here)
    revoke(here.keys, token.id, by="test")
    assert [key.record.id for key in there.keys.all("default")] == [token.id]
    world.pass_time(KEPT_SECONDS + 120)
    there.keys.listen()
    assert forget(here.keys) == 1
    world.pass_time(30)
    there.keys.listen()
    world.pass_time(FRESH_SECONDS)
    assert there.keys.all("default") == []


def test_a_read_that_a_revocation_and_a_listing_overtake_is_not_kept(world: World, here: Process) -> None:
    """Redis was not told of the revocation, and the next listing comes only after twenty seconds."""
    token, _ = made(here)
    store = Store(world.store)
    reader = Process(world, store=store, run_in_background=lambda _: None)
    assert state(reader, token.id) == "active"
    reader.keys.check_listing()
    outdated = world.store.read(api_key_key(token.id))

    def overtaken(_: str) -> Object:
        del store.read  # type: ignore[method-assign]
        with pytest.raises(Unavailable):
            revoke(Process(world, weather=refused).keys, token.id, by="test")
        world.pass_time(0.1)
        reader.keys.check_listing()
        return outdated

    world.pass_time(1)
    reader.keys.events_missed()
    store.read = overtaken  # type: ignore[method-assign]
    state(reader, token.id)
    world.pass_time(1)
    assert state(reader, token.id) == "revoked"


def test_a_key_that_is_revoked_during_a_slow_read_is_refused(world: World, here: Process) -> None:
    """The answer of the bucket was on its way for longer than what is held may be trusted."""
    token, _ = made(here)
    store = Store(world.store)
    reader = Process(world, store=store)
    outdated = world.store.read(api_key_key(token.id))

    def slow(key: str) -> Object:
        if key != api_key_key(token.id):
            return world.store.read(key)
        del store.read  # type: ignore[method-assign]
        revoke(here.keys, token.id, by="test")
        world.pass_time(5)
        return outdated

    store.read = slow  # type: ignore[method-assign]
    assert state(reader, token.id) == "revoked"


def test_a_read_that_finds_an_ended_key_counts_as_a_change(world: World, here: Process) -> None:
    """Otherwise the listeners with this key would never ask again while Redis is away."""
    there = Process(world, weather=refused)
    token, _ = made(here)
    assert state(there, token.id) == "active"
    world.pass_time(FRESH_SECONDS + 0.01)
    changes = there.keys.changes
    assert state(there, token.id) == "active"
    assert there.keys.changes == changes
    revoke(here.keys, token.id, by="test")
    assert state(there, token.id) == "revoked"
    assert there.keys.changes > changes


def test_a_node_of_the_store_that_is_behind_makes_no_revoked_key_good_again(
    world: World, here: Process
) -> None:
    """A process without Redis reads the document again and again, and one answer may be outdated."""
    token, _ = made(here)
    before = world.store.get(api_key_key(token.id))
    revoke(here.keys, token.id, by="test")
    process = Process(world, weather=refused)
    assert state(process, token.id) == "revoked"
    world.store.put(api_key_key(token.id), before)
    world.pass_time(FRESH_SECONDS + 0.01)
    assert state(process, token.id) == "revoked"


def test_an_outdated_answer_of_the_store_is_not_believed(world: World, here: Process) -> None:
    """A process that had not held the key accepted it until the next listing, up to 20 s later."""
    token, _ = made(here)
    before = world.store.read(api_key_key(token.id))
    revoke(here.keys, token.id, by="test")
    store = Store(world.store)
    there = Process(world, store=store)
    read, answers = store.read, [before]
    store.read = lambda key: answers.pop() if answers and "_keys/" in key else read(key)  # type: ignore[method-assign]
    assert state(there, token.id) == "revoked"
    assert not answers


def test_a_key_whose_document_was_restored_from_a_backup_is_read_often(world: World, here: Process) -> None:
    """Redis has recorded a later revision, so the document may still be an outdated answer."""
    token, _ = made(here)
    before = world.store.get(api_key_key(token.id))
    revoke(here.keys, token.id, by="test")
    after = world.store.get(api_key_key(token.id))
    world.store.put(api_key_key(token.id), before)
    there = Process(world, run_in_background=lambda _: None)
    assert state(there, token.id) == "active"
    world.store.put(api_key_key(token.id), after)
    world.pass_time(FRESH_SECONDS + 0.01)
    assert state(there, token.id) == "revoked"


def test_without_redis_and_bucket_no_key_is_trusted(world: World, here: Process) -> None:
    """A key that may have been revoked is not accepted."""
    token, _ = made(here)
    store = Store(world.store)
    process = Process(world, store=store, weather=refused)
    assert state(process, token.id) == "active"
    store.refuses = lambda _: Unavailable("not now")
    world.pass_time(FRESH_SECONDS + 0.01)
    with pytest.raises(Unavailable):
        state(process, token.id)
    assert process.keys.find(token.id) is None


def test_while_the_bucket_is_away_keys_stay_good(world: World, here: Process) -> None:
    """Redis says that nothing has changed. Requests go on that need no bytes of the bucket."""
    token, _ = made(here)
    store = Store(world.store)
    process = Process(world, store=store)
    assert state(process, token.id) == "active"
    store.refuses = lambda _: Unavailable("not now")
    for _ in range(5):
        world.pass_time(20)
        assert state(process, token.id) == "active"


def test_a_record_that_was_changed_or_is_damaged_opens_nothing_and_can_be_revoked(
    world: World, here: Process
) -> None:
    """A caller with write access to the bucket could otherwise give a key any right by a slip."""
    token, _ = made(here)
    path = api_key_key(token.id)
    world.store.put(path, world.store.get(path).replace(b'"engine"', b'"admin"'))
    process = Process(world)
    assert state(process, token.id) is None
    assert revoke(process.keys, token.id, by="test") is None
    assert KeyDocument.parse(world.store.get(path)).end, "a restored copy of before is older than this"
    assert state(Process(world), token.id) is None


def test_the_record_of_another_key_opens_nothing_and_can_be_revoked(world: World, here: Process) -> None:
    """It is neither that key under a second id, nor the key whose record it replaced."""
    token, other = made(here)[0], made(here)[0]
    world.store.put(api_key_key(token.id), world.store.get(api_key_key(other.id)))
    process = Process(world)
    assert state(process, token.id) is None
    assert [key.record.id for key in process.keys.all("*")] == [other.id]
    assert revoke(process.keys, token.id, by="test") is None
    assert state(Process(world), other.id) == "active"


def test_the_record_of_another_key_is_not_taken_for_an_older_one(world: World, here: Process) -> None:
    """It comes while a change is made, and has a lower revision than the key's own document."""
    token, other = made(here)[0], made(here)[0]
    for _ in range(2):
        made(here, created_by=token.id)
    foreign = world.store.get(api_key_key(other.id))
    store = Store(world.store)
    store.before.append(lambda: world.store.put(api_key_key(token.id), foreign))
    assert revoke(Process(world, store=store).keys, token.id, by="test") is None
    assert state(Process(world), other.id) == "active"


def test_a_key_that_cannot_be_read_is_not_called_unknown_and_keeps_nobody_waiting(
    world: World, here: Process
) -> None:
    """A store that always fails for one object takes half a minute each time. Whoever is told that the key is
    unknown makes another one.
    """
    good, bad = made(here)[0], made(here)[0]
    store = Store(world.store)
    store.refuses = lambda key: ObjectUnavailable("archived") if bad.id in key else None
    process = Process(world, store=store, weather=refused)
    for _ in range(5):
        assert state(process, good.id) == "active"
        with pytest.raises(Unavailable, match="archived"):
            state(process, bad.id)
        assert [key.record.id for key in process.keys.all("*")] == [good.id]
        world.pass_time(FRESH_SECONDS + 0.01)
    assert len([key for key in store.read_keys if bad.id in key]) == 1
    store.refuses = lambda _: None
    world.pass_time(30)
    assert state(process, bad.id) == "active"


def test_a_key_of_a_newer_release_opens_nothing_and_an_operator_is_told_why(
    world: World, here: Process
) -> None:
    """It is not an unknown key, which an operator would make anew."""
    token, _ = made(here)
    path = api_key_key(token.id)
    world.store.put(path, seal({**unseal(world.store.get(path)), "needs": ["telepathy"]}))
    process = Process(world)
    with capture_logs() as logs:
        for _ in range(3):
            assert state(process, token.id) is None
            with pytest.raises(Unavailable, match=rf"'{path}' .* a newer release: .* needs telepathy"):
                process.keys.get(token.id, "*")
            with pytest.raises(ApiKeyNotFound):
                process.keys.get(token.id, "default")
            world.pass_time(10)
    assert [line["path"] for line in logs if line["event"] == "document.newer"] == [path]


def test_members_of_a_newer_release_are_kept(world: World, here: Process) -> None:
    """An older release revokes a key during an upgrade, and must not drop what it does not know."""
    token, _ = made(here)
    path = api_key_key(token.id)
    members = unseal(world.store.get(path))
    members["shade"], members["record"]["hue"] = "blue", 7
    world.store.put(path, seal(members))
    revoke(here.keys, token.id, by="test")
    kept = unseal(world.store.get(path))
    assert (kept["shade"], kept["record"]["hue"]) == ("blue", 7)


# -- listing


def test_a_list_of_keys_reads_only_what_has_changed(
    world: World, here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Listings for one tenant would otherwise cost more with each key that other tenants make."""
    old, kept = made(here)[0], made(here)[0]
    made(here, namespace="other")
    store = Store(world.store)
    there = Process(world, store=store)
    there.keys.all("*")
    world.pass_time(21)
    there.keys.listen()
    monkeypatch.setattr(store, "list", lambda _: pytest.fail("the bucket was listed"), raising=False)
    revoke(here.keys, old.id, by="test")
    new, others = made(here)[0], made(here, namespace="other")[0]
    store.reads.clear()
    for _ in range(2):
        found = {key.record.id: there.keys.state(key) for key in there.keys.all("default")}
        assert found == {old.id: "revoked", kept.id: "active", new.id: "active"}
    assert sorted(store.read_keys) == sorted(api_key_key(one.id) for one in (old, new, others))


@pytest.mark.parametrize("seconds", [0, 21])
def test_no_key_is_missing_from_a_list_after_a_loss_of_redis(
    world: World, here: Process, seconds: float
) -> None:
    """Redis has then forgotten which keys were made since the last listing."""
    there = Process(world)
    there.keys.all("*")
    world.pass_time(21)
    there.keys.listen()
    token, _ = made(here)
    world.lose_redis()
    world.pass_time(seconds)
    assert [key.record.id for key in there.keys.all("default")] == [token.id]


def test_a_key_that_redis_was_not_told_of_is_listed_half_a_minute_later(world: World, here: Process) -> None:
    """A process without Redis lists the bucket, and finds such a key at once."""
    there = Process(world)
    there.keys.all("*")
    world.pass_time(21)
    there.keys.listen()
    token, _ = made(Process(world, weather=refused))
    assert [key.record.id for key in Process(world, weather=refused).keys.all("*")] == [token.id]
    world.pass_time(30)
    assert [key.record.id for key in there.keys.all("*")] == [token.id]


# -- making


def test_a_key_is_made_without_redis(world: World) -> None:
    """No process can know a key that has just been made, so none has to be told."""
    process = Process(world, weather=refused)
    token, _ = made(process)
    assert state(process, token.id) == state(Process(world), token.id) == "active"


def test_a_key_ends_no_later_than_the_key_that_made_it(world: World, here: Process) -> None:
    """An admin key with a moment to live could otherwise make itself a successor that never ends."""
    end = int(world.clock.now()) + 60
    _, maker = made(here, scopes=["admin"], expires_at=end)
    by = maker.record.id
    _, unlimited = made(here, created_by=by)
    _, shorter = made(here, created_by=by, expires_at=end - 30)
    _, grandchild = made(here, created_by=unlimited.record.id)
    assert (unlimited.ends_at, shorter.ends_at, grandchild.ends_at) == (end, end - 30, end)
    with pytest.raises(PermissionDenied, match=rf"'expires_at' is {end + 1}; accepted: up to {end}, .*{by}"):
        made(here, created_by=by, expires_at=end + 1)
    assert made(here, created_by="jwt:0123456789ab")[1].ends_at is None


@pytest.mark.parametrize("namespace", ["", "Tenant", "a/b", "_keys", "a" * 33, ".."])
def test_bad_input_is_refused_with_what_is_accepted(here: Process, namespace: str) -> None:
    """A namespace is a folder of the bucket, and a key that has expired would open nothing."""
    with pytest.raises(InvalidRequest, match="accepted: 1 to 32"):
        made(here, namespace=namespace)
    with pytest.raises(InvalidRequest, match="'expires_at' is 5, which has passed"):
        made(here, expires_at=5)
    assert here.keys.all("*") == []


def test_one_namespace_leaves_room_for_others_and_operators_have_room_of_their_own(
    here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant cannot use up the room of all tenants, and is not told how many keys the others have."""
    monkeypatch.setattr(key_rules, "MAX_KEYS_OF_NAMESPACE", 1)
    monkeypatch.setattr(key_rules, "MAX_KEYS", 3)
    monkeypatch.setattr(key_rules, "MAX_KEYS_OF_OPERATORS", 4)
    made(here, namespace="tenant")
    with pytest.raises(QuotaExceeded, match="There are 1 API keys in namespace 'tenant'"):
        made(here, namespace="tenant", by_operator=True)
    for namespace in ("default", "*"):
        made(here, namespace=namespace)
    with pytest.raises(QuotaExceeded, match="takes no more API keys now") as caught:
        made(here, namespace="another")
    assert "3" not in caught.value.message
    made(here, namespace="another", by_operator=True)
    with pytest.raises(QuotaExceeded, match="There are 4 API keys"):
        made(here, namespace="yet-another", by_operator=True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_key_whose_making_is_answered_by_silence_is_made_once(
    world: World, here: Process, when: str
) -> None:
    """The change is recognised by its id, and made again only if it was not made."""
    store = Store(world.store)
    getattr(store, when).append(lose)
    token, _ = made(Process(world, store=store))
    assert [key.record.id for key in here.keys.all("*")] == [token.id]


def test_a_key_whose_making_fails_is_withdrawn(
    world: World, here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its token was given to no caller, so nobody may find a key that is active."""
    store, withdraw = Store(world.store), make_module.withdraw

    def fall_silent() -> None:
        store.refuses = lambda key: Unavailable("not now") if "_keys" in key else None
        lose()

    def speak_again(*arguments: Any, **options: Any) -> None:
        store.refuses = lambda _: None
        withdraw(*arguments, **options)

    monkeypatch.setattr(make_module, "withdraw", speak_again)
    store.after.append(fall_silent)
    with pytest.raises(Unavailable, match="not known whether the change was made"):
        made(Process(world, store=store))
    assert [here.keys.state(key) for key in here.keys.all("*")] == ["revoked"]


# -- rotating


def test_a_rotated_key_is_followed_by_one_with_the_same_rights(world: World, here: Process) -> None:
    """The old one stays valid for the grace period, and both share their rate limits."""
    token, old = made(here, expires_at=int(world.clock.now()) + 1000, uploads_per_minute=3)
    world.pass_time(100)
    new, follower = rotate(here.keys, old, grace_seconds=60, by="test")
    there = Process(world)
    assert [state(there, one.id) for one in (token, new)] == ["active", "active"]
    assert (follower.record.first, follower.record.uploads_per_minute) == (token.id, 3)
    assert follower.ends_at == int(world.clock.now()) + 1000
    world.pass_time(61)
    assert [state(there, one.id) for one in (token, new)] == ["revoked", "active"]
    third, _ = rotate(here.keys, follower, grace_seconds=0, by="test")
    assert [state(there, one.id) for one in (new, third)] == ["revoked", "active"], "from the answer on"


@pytest.mark.parametrize("part", [0.0, 0.1, 0.9])
def test_the_grace_of_a_rotation_is_never_shorter_than_asked(
    world: World, here: Process, part: float
) -> None:
    """The store tells the time in whole seconds, and a moment may be anywhere in its second."""
    world.pass_time(part)
    token, old = made(here)
    rotate(here.keys, old, grace_seconds=3, by="test")
    world.pass_time(2.99)
    assert state(Process(world), token.id) == "active"
    world.pass_time(1.02)
    assert state(Process(world), token.id) == "revoked"


def test_a_rotation_neither_prolongs_nor_shortens_a_life_by_the_way(world: World, here: Process) -> None:
    """An ending key may replace its own secret for the rest of its life, and end no fleet before its time."""
    end = int(world.clock.now()) + 60
    _, maker = made(here, scopes=["admin"], expires_at=end)
    _, fleet = made(here)
    with pytest.raises(PermissionDenied, match=rf"'{maker.record.id}' ends at {end}, .*'{fleet.record.id}'"):
        rotate(here.keys, fleet, grace_seconds=60, by=maker.record.id)
    world.pass_time(30)
    _, follower = rotate(here.keys, maker, grace_seconds=0, by=maker.record.id)
    assert follower.ends_at == end
    assert len(here.keys.all("*")) == 3


def test_a_key_that_has_ended_makes_no_other_and_is_told_so(world: World, here: Process) -> None:
    """Its end was taken for one that is too early for the new key, as if it were still valid."""
    _, maker = made(here, scopes=["admin"])
    _, fleet = made(here)
    revoke(here.keys, maker.record.id, by="test")
    with pytest.raises(InvalidApiKey, match="This API key is revoked"):
        rotate(here.keys, fleet, grace_seconds=60, by=maker.record.id)
    with pytest.raises(InvalidApiKey, match="This API key is revoked"):
        made(here, created_by=maker.record.id, expires_at=int(world.clock.now()) + 60)
    assert len(here.keys.all("*")) == 2


def test_what_has_ended_is_not_rotated(world: World, here: Process) -> None:
    """A slip could otherwise readmit a caller who was shut out."""
    revoked, expired = made(here)[1], made(here, expires_at=int(world.clock.now()) + 60)[1]
    revoke(here.keys, revoked.record.id, by="test")
    world.pass_time(61)
    for key, name in ((revoked, "revoked"), (expired, "expired")):
        found = here.keys.read(key.record.id)
        assert found
        with pytest.raises(ApiKeyEnded, match=f"API key '{key.record.id}' is {name}; only an active key"):
            rotate(here.keys, found, grace_seconds=60, by="test")
    assert len(here.keys.all("*")) == 2


def test_a_key_that_is_revoked_while_it_is_rotated_has_no_follower(world: World, here: Process) -> None:
    """An operator who revokes a key wants nobody in. Another process accepted it a moment before."""
    _, old = made(here)
    store = Store(world.store)
    rotating = Process(world, store=store)

    def revoked() -> None:
        revoke(here.keys, old.record.id, by="operator")

    store.before = [revoked, lambda: None]  # the end of the old key comes second
    with pytest.raises(ApiKeyEnded, match="is revoked; only an active key"):
        rotate(rotating.keys, old, grace_seconds=60, by="test")
    assert {here.keys.state(key) for key in here.keys.all("*")} == {"revoked"}
    assert len(here.keys.all("*")) == 2


@pytest.mark.parametrize(
    ("damage", "error"),
    [
        (lambda body, _: body[: len(body) // 2], Unavailable),
        (lambda _, others: others, Unavailable),
        (lambda *_: None, ApiKeyNotFound),
    ],
)
@pytest.mark.parametrize("meanwhile", [False, True])
def test_a_key_whose_document_is_damaged_or_lost_is_not_changed(
    world: World, here: Process, damage: Callable[..., bytes | None], error: type[Exception], meanwhile: bool
) -> None:
    """It works again once its document was put back. Processes that hold the key accept it meanwhile."""
    (token, old), other = made(here, scopes=["admin"]), made(here)[0]
    path, store = api_key_key(token.id), Store(world.store)
    rotating = Process(world, store=store)
    good, others = world.store.get(path), world.store.get(api_key_key(other.id))
    damaged = damage(good, others)

    def harm() -> None:
        world.store.delete([path])
        if damaged is not None:
            world.store.put(path, damaged)

    if meanwhile:
        store.before = [harm]  # while the new key is made
    else:
        harm()
    number = len(world.store.objects)
    with pytest.raises(error):
        rotate(rotating.keys, old, grace_seconds=0, by="test")
    if damaged is not None:
        with pytest.raises(Unavailable, match=r"is damaged\. Restore it"):
            made(here, created_by=token.id)
    assert world.store.objects.get(path, (None,))[0] == damaged
    assert meanwhile or len(world.store.objects) == number, "no new key was made in vain"
    world.store.put(path, good)
    there = Process(world)
    active = {key.record.id for key in there.keys.all("*") if there.keys.state(key) == "active"}
    assert active == {token.id, other.id}


@pytest.mark.parametrize("lost", [False, True])
def test_every_process_believes_a_revocation_of_an_older_document(
    world: World, here: Process, lost: bool
) -> None:
    """An operator has put an older copy of the document back, or the bucket has lost it. What processes have
    read of it is newer than what the bucket has.
    """
    token, _ = made(here, scopes=["admin"])
    path = api_key_key(token.id)
    old = world.store.get(path)
    for _ in range(3):
        made(here, created_by=token.id)
    there = Process(world)
    there.keys.read(token.id)
    world.store.delete([path])
    if not lost:
        world.store.put(path, old)
    revoke(here.keys, token.id, by="test")
    assert {state(one, token.id) for one in (here, there, Process(world))} <= {None, "revoked"}


@pytest.mark.parametrize("damaged", [b"{", None])
def test_keys_are_revoked_with_those_that_a_lost_document_named(
    world: World, here: Process, damaged: bytes | None
) -> None:
    """They say themselves which key made them."""
    maker, _ = made(here, scopes=["admin"])
    middle, _ = made(here, scopes=["admin"], created_by=maker.id)
    last, _ = made(here, created_by=middle.id)
    other, _ = made(here)
    path = api_key_key(middle.id)
    world.store.delete([path])
    if damaged is not None:
        world.store.put(path, damaged)
    revoke(here.keys, maker.id, by="test", with_descendants=True)
    assert state(here, last.id) == "revoked"
    assert state(here, other.id) == "active"


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("swap", [1, 2])
def test_a_rotation_whose_replies_are_lost_is_made_once(
    world: World, here: Process, when: str, swap: int
) -> None:
    """The holder of the old key has the new one, and there is no third."""
    token, old = made(here)
    store = Store(world.store)
    setattr(store, when, [lose, *[lambda: None] * (swap - 1)])
    new, _ = rotate(Process(world, store=store).keys, old, grace_seconds=0, by="test")
    states = {key.record.id: here.keys.state(key) for key in here.keys.all("*")}
    assert states == {token.id: "revoked", new.id: "active"}


# -- keys that a key made


def test_a_key_is_revoked_with_all_that_came_from_it(
    world: World, here: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that were made with a stolen admin key belong to the thief, and so do those that they made."""
    there = Process(world)
    _, thief = made(here, scopes=["admin"])
    _, child = made(here, scopes=["admin"], created_by=thief.record.id)
    revoke(here.keys, child.record.id, by="test")
    _, second = made(here, scopes=["admin"], created_by=thief.record.id)
    _, follower = rotate(here.keys, second, grace_seconds=60, by=second.record.id)
    _, others = made(here)
    with monkeypatch.context() as patch:
        patch.setattr(world.store, "list", lambda _: listing_of((), world.store.now()))  # it may lack keys
        revoke(here.keys, thief.record.id, by="test", with_descendants=True)
    gone = [key.record.id for key in (thief, child, second, follower)]
    for process in (here, there):
        assert [state(process, key_id) for key_id in gone] == ["revoked"] * 4
        assert state(process, others.record.id) == "active"


def test_keys_are_revoked_with_those_that_a_restored_document_does_not_name(
    world: World, here: Process
) -> None:
    """A maker's document is restored from a backup that is older than the keys that it made."""
    maker, _ = made(here, scopes=["admin"])
    path = api_key_key(maker.id)
    backup = world.store.get(path)
    child, _ = made(here, scopes=["admin"], created_by=maker.id)
    grandchild, _ = made(here, created_by=child.id)
    other, _ = made(here)
    world.store.delete([path])
    world.store.put(path, backup)
    revoke(here.keys, maker.id, by="test", with_descendants=True)
    for process in (here, Process(world)):
        assert {state(process, one.id) for one in (maker, child, grandchild)} == {"revoked"}
        assert state(process, other.id) == "active"


@pytest.mark.parametrize("swap", [1, 2])
def test_no_key_slips_through_while_its_maker_is_revoked(world: World, here: Process, swap: int) -> None:
    """Another process accepted the maker as active a moment ago. It is revoked before it names the new key,
    or between that and the making of it.
    """
    _, maker = made(here, scopes=["admin"])
    store = Store(world.store)
    making = Process(world, store=store)

    def revoked() -> None:
        revoke(here.keys, maker.record.id, by="test", with_descendants=True)

    store.before = [revoked, *[lambda: None] * (swap - 1)]
    with pytest.raises(InvalidApiKey, match="revoked"):
        made(making, created_by=maker.record.id)
    assert [here.keys.state(key) for key in here.keys.all("*")] == ["revoked"]
    assert len(world.store.list("_keys/").objects) == swap, "what could still be made is fenced"


# -- forgetting


def test_long_ended_keys_are_forgotten(world: World, here: Process) -> None:
    """They are shown for a month. What they have made is still found by the key that made them."""
    good, thief = made(here)[0], made(here, scopes=["admin"])[0]
    expired, _ = made(here, expires_at=int(world.clock.now()) + 60)
    child, _ = made(here, created_by=thief.id)
    grandchild, _ = made(here, created_by=child.id)
    last, _ = made(here, created_by=grandchild.id)
    for one in (child, grandchild):
        revoke(here.keys, one.id, by="test")
    _, rotated = made(here)
    rotate(here.keys, rotated, grace_seconds=90 * 86_400, by="test")
    assert forget(here.keys) == 0
    world.pass_time(KEPT_SECONDS + 120)
    assert forget(here.keys) == 3
    process = Process(world)
    gone = [state(process, one.id) for one in (expired, child, grandchild)]
    kept = [state(process, one.id) for one in (good, thief, last)]
    assert (gone, kept) == ([None] * 3, ["active"] * 3)
    assert state(process, rotated.record.id) == "active", "it will end, and has not"
    revoke(here.keys, thief.id, by="test", with_descendants=True)
    assert state(process, last.id) == "revoked"


def test_a_revocation_is_noticed_after_the_key_that_changed_last_was_forgotten(
    world: World, here: Process
) -> None:
    """The revocation had the number of the forgotten change, which other processes had read already."""
    there, token = holder(world, here)
    last, _ = made(here)
    world.pass_time(FRESH_SECONDS)
    assert state(there, last.id) == state(there, token.id) == "active"
    here.keys.forget([last.id])
    revoke(here.keys, token.id, by="test")
    world.pass_time(FRESH_SECONDS)
    assert state(there, token.id) == "revoked"


def test_use_is_remembered_and_forgotten_with_the_key(world: World, here: Process) -> None:
    """Redis gets the times once a minute, this process knows them at once, and none stays for ever."""
    used, unused = made(here)[0], made(here)[0]
    uses, others = (KeyUses(process.generation, world.clock) for process in (here, Process(world)))
    uses.note(used.id)
    assert uses.last() == {used.id: int(world.clock.now())}
    assert others.last() == {}
    uses.write()
    world.pass_time(60)
    uses.note(unused.id)
    before = {used.id: int(world.clock.now() - 60)}
    assert others.last() == others.last([used.id, unused.id]) == uses.last([used.id]) == before
    assert others.last([unused.id]) == others.last([]) == {}
    assert uses.last().keys() == {used.id, unused.id}
    uses.forget([used.id])
    assert others.last() == {}
    world.lose_redis()
    assert others.last() == {}


def crashed(_what: str, _call: Callable[[], Any]) -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize("failing", [refused, crashed])
def test_use_is_written_while_the_process_lives_and_when_it_stops(
    world: World, here: Process, failing: Callable[[str, Callable[[], Any]], Any]
) -> None:
    """A process whose last requests came a while ago would otherwise take their times with it. While they
    cannot be written, the times stay in the process.
    """
    stop, token = threading.Event(), made(here)[0]
    is_away = True

    def weather(what: str, call: Callable[[], Any]) -> Any:
        return failing(what, call) if is_away else call()

    uses = KeyUses(Process(world, weather=weather).generation, world.clock)
    others = KeyUses(here.generation, world.clock)
    uses.note(token.id)
    noted = int(world.clock.now())
    uses.write()
    world.pass_time(60)
    is_away = False
    stop.set()
    uses.run(stop)
    assert others.last() == {token.id: noted}


def test_a_late_write_keeps_a_later_use_of_another_process(world: World, here: Process) -> None:
    token, is_away = made(here)[0], True

    def weather(what: str, call: Callable[[], Any]) -> Any:
        return refused(what, call) if is_away else call()

    uses = KeyUses(Process(world, weather=weather).generation, world.clock)
    others = KeyUses(here.generation, world.clock)
    uses.note(token.id)
    uses.write()
    world.pass_time(60)
    others.note(token.id)
    others.write()
    is_away = False
    uses.write()
    assert others.last() == {token.id: int(world.clock.now())}
