"""Tests of API keys in bucket, Redis and memory, on a real Valkey: calls that fail, threads that wait, and
many keys. What needs no real server is in the unit tests.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from typing import Any

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.keys.api_keys import ApiKey, ApiKeyRecord, Token
from services.registry_api.keys.forget import sweep
from services.registry_api.keys.held_keys import HeldKeys
from services.registry_api.keys.key_changes import FRESH_SECONDS
from services.registry_api.keys.key_document import KeyDocument, made_as
from services.registry_api.keys.key_rules import KEPT_SECONDS
from services.registry_api.keys.key_uses import KeyUses
from services.registry_api.keys.listings import LISTING
from services.registry_api.keys.make import make
from services.registry_api.keys.revoke import revoke
from services.registry_api.keys.rotate import rotate
from services.shared.bucket.layout import api_key_key
from services.shared.view.keys import keys_used_key
from speaker_registry.errors import Unavailable
from tests.failing_calls import WAYS, FailingRegistry
from tests.queue_workers import wait_until


@pytest.fixture
def registry(valkey: ValkeyServer, redis_client: Redis) -> Iterator[FailingRegistry]:
    with closing(FailingRegistry(valkey.url)) as registry:
        yield registry


def process(registry: FailingRegistry, **options: Any) -> HeldKeys:
    """Return the keys as another API process knows them. Background work is done at once."""
    opened, given = registry.opened, {"run_in_background": lambda do: do(), **options}
    return HeldKeys(opened.shared, opened.store, opened.clock, opened.run_all, **given)


def refuse(*_: object, **__: object) -> Any:
    raise Unavailable("not now", retry_after_seconds=3)


def made(keys: HeldKeys, **said: Any) -> tuple[Token, ApiKey]:
    given = {"name": "engines", "namespace": "default", "scopes": ["engine"], "created_by": "test", **said}
    return make(keys, **given)


def state(keys: HeldKeys, key_id: str) -> str | None:
    """Return a key's state as a request would see it."""
    found = keys.read(key_id)
    return found and keys.state(found)


@pytest.mark.parametrize("way", WAYS)
def test_whatever_call_fails_no_revoked_key_is_good_again(registry: FailingRegistry, way: str):
    """No revoked key becomes valid again, whichever call fails, when the caller repeats the request until it
    succeeds.
    """
    for call in range(1, 40):
        here, there = process(registry), process(registry)
        token, _ = made(here)
        assert state(there, token.id) == "active"
        with registry.border.failing(call, way) as reached:
            try:
                revoke(here, token.id, by="test")
            except Unavailable:
                revoke(here, token.id, by="test")
            if not reached():
                break
        assert state(there, token.id) == "revoked"
    else:
        raise AssertionError("revoking a key makes too many calls")
    assert call > 5


@pytest.mark.parametrize("grace_seconds", [0, 60])
@pytest.mark.parametrize("way", WAYS)
def test_a_rotation_that_fails_leaves_no_key_that_nobody_has(
    registry: FailingRegistry, way: str, grace_seconds: int
):
    """A rotation that fails leaves no key without an owner, whichever call fails. A caller that lost the old
    key by it has the new one.
    """
    for call in range(1, 60):
        keys = process(registry)
        _, old = made(keys)
        known = {key.record.id for key in keys.all("*")}
        with registry.border.failing(call, way) as reached:
            try:
                token, _ = rotate(keys, old, grace_seconds=grace_seconds, by="test")
                held = {token.id}
            except Unavailable:
                held = set()
            if not reached():
                break
        fresh = process(registry)
        active = {key.record.id for key in fresh.all("*") if fresh.state(key) == "active"} - known
        assert active == held
        assert held or state(fresh, old.record.id) == "active"
    else:
        raise AssertionError("rotating a key makes too many calls")
    assert call > 8


def test_an_event_makes_processes_look_again_at_once(
    registry: FailingRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Answers that are kept in memory end with the event, and must not be kept again for a key that was held
    as active when it came.
    """
    here, there = process(registry), process(registry)
    token, _ = made(here)
    assert state(there, token.id) == "active"
    monkeypatch.setattr(here, "settle", lambda: None)
    revoke(here, token.id, by="test")
    there.on_event({"what": "voice.deleted"})
    assert there.find(token.id), "what was held is still fresh"
    there.on_event({"what": KeyDocument.UPDATED})
    assert there.find(token.id) is None
    assert state(there, token.id) == "revoked"


def test_the_end_of_a_key_is_waited_for(registry: FailingRegistry):
    """It is acknowledged when nobody answers from memory what the key could have."""
    waited: list[str] = []
    keys = process(registry, wait=lambda: waited.append("keys"))
    token, _ = made(keys)
    assert waited == []
    revoke(keys, token.id, by="test")
    assert waited == ["keys"]


def test_a_slow_listing_holds_no_request_up(registry: FailingRegistry, monkeypatch: pytest.MonkeyPatch):
    """A slow listing blocks no request. Listings run one at a time in the background; a revocation that comes
    meanwhile is noticed as usual, and stays when the listing without it is over.
    """
    here = process(registry)
    there = process(registry, run_in_background=None)
    goes_on, listing = threading.Event(), registry.stored.list
    token, _ = made(here)
    listed = []

    def slow(prefix: str) -> Any:
        found = listing(prefix)
        if threading.current_thread().name == LISTING:
            listed.append(prefix)
            assert goes_on.wait(20)
        return found

    monkeypatch.setattr(registry.stored, "list", slow)
    assert state(there, token.id) == "active"
    for _ in range(3):
        registry.pass_time(31)
        assert state(there, token.id) == "active"
    revoke(here, token.id, by="test")
    assert state(there, token.id) == "revoked"
    (reading,) = [thread for thread in threading.enumerate() if thread.name == LISTING]
    goes_on.set()
    there.listings.close()
    reading.join(20)
    assert not reading.is_alive()
    assert listed == ["_keys/"]
    assert state(there, token.id) == "revoked"


def test_all_listings_run_in_one_thread(registry: FailingRegistry, monkeypatch: pytest.MonkeyPatch):
    """A thread for each might be refused, or die at its start, while memory is short."""
    keys, listing = process(registry, run_in_background=None), registry.stored.list
    ran_in: list[threading.Thread] = []

    def noted(prefix: str) -> Any:
        ran_in.append(threading.current_thread())
        return listing(prefix)

    def list_thrice() -> bool:
        registry.pass_time(31)
        keys.listings.start_if_due()
        return len(ran_in) >= 3

    monkeypatch.setattr(registry.stored, "list", noted)
    wait_until(list_thrice)
    keys.listings.close()
    ran_in[0].join(20)
    assert not ran_in[0].is_alive()
    assert len(set(ran_in)) == 1


def test_who_waited_for_a_read_that_fails_shares_its_failure(
    registry: FailingRegistry, monkeypatch: pytest.MonkeyPatch
):
    """Requests that waited for a read that fails share its failure. It may take a minute to fail, and one
    after the other they would hold all threads for as many minutes.
    """
    keys, tries, waiting, fails = process(registry), count(), threading.Barrier(6), threading.Event()
    monkeypatch.setattr(registry.opened.generation, "read", refuse)

    def hang(_: str) -> Any:
        next(tries)
        assert fails.wait(20)
        refuse()

    def look() -> str:
        waiting.wait(20)
        with pytest.raises(Unavailable) as caught:
            keys.read("somekey0")
        return f"{caught.value.message} {caught.value.retry_after_seconds}"

    monkeypatch.setattr(registry.stored, "read", hang)
    with ThreadPoolExecutor(6) as pool:
        looks = [pool.submit(look) for _ in range(6)]
        threading.Event().wait(0.3)  # every one of them waits
        fails.set()
        assert {one.result() for one in looks} == {"not now 3"}
    assert next(tries) == 1
    registry.pass_time(1)
    with pytest.raises(Unavailable):
        keys.read("somekey0")
    assert next(tries) == 3, "later it is tried again"


def test_a_thousand_keys_are_found_one_by_one_and_listed_as_a_whole(
    registry: FailingRegistry, monkeypatch: pytest.MonkeyPatch
):
    """A fleet has many keys. A request reads its own one, and the list reads each once."""
    ids = [f"{number:08x}" for number in range(1000)]
    for key_id in ids:
        record = ApiKeyRecord(
            id=key_id,
            secret_sha256="0" * 64,
            name="engines",
            namespace="default",
            scopes=("engine",),
            created_at=1_790_000_000,
            created_by="test",
        )
        document = made_as(KeyDocument(), record).following(KeyDocument(), None, at=1, by="test", did="make")
        registry.stored.swap(api_key_key(key_id), document.to_bytes(), etag=None)
    keys, read, asked = process(registry, run_in_background=lambda _: None), registry.stored.read, list[str]()
    monkeypatch.setattr(registry.stored, "read", lambda key: (asked.append(key), read(key))[1])
    assert not keys.knows_of(ids[500])
    assert state(keys, ids[500]) == "active"
    assert asked == [api_key_key(ids[500])]
    assert [key.record.id for key in keys.all("default")] == ids
    assert len(asked) == 1000
    keys.check_listing()
    assert all(keys.knows_of(key_id) for key_id in ids)
    registry.pass_time(FRESH_SECONDS)
    assert state(keys, ids[0]) == "active"


def test_the_number_of_a_change_is_never_used_again(registry: FailingRegistry):
    """Other processes would take the next revocation for the change of the forgotten key."""
    here, there = process(registry), process(registry)
    (token, _), (last, _) = made(here), made(here)
    assert [state(there, one.id) for one in (token, last)] == ["active", "active"]
    here.forget([last.id])
    registry.pass_time(FRESH_SECONDS)
    assert state(there, token.id) == "active"
    revoke(here, token.id, by="test")
    registry.pass_time(FRESH_SECONDS)
    assert state(there, token.id) == "revoked"


def test_the_sweep_forgets_keys_and_when_they_were_used(registry: FailingRegistry):
    """Redis would otherwise remember the use of a forgotten key for ever."""
    keys, uses = process(registry), KeyUses(registry.opened.generation, registry.opened.clock)
    good, ended = made(keys)[0], made(keys)[0]
    for token in (good, ended):
        uses.note(token.id)
    revoke(keys, ended.id, by="test")
    uses.write()
    assert sweep(keys, uses) == 0
    assert uses.last().keys() == {good.id, ended.id}
    registry.pass_time(KEPT_SECONDS + 120)
    assert sweep(keys, uses) == 1
    assert [state(process(registry), one.id) for one in (good, ended)] == ["active", None]
    assert [one.key for one in registry.stored.list("_keys/").objects] == [api_key_key(good.id)]
    assert registry.redis.hkeys(keys_used_key(registry.opened.generation.for_reading())) == [good.id]
