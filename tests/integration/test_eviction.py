"""Tests that a Redis that evicts keys when its memory is full cannot hold the index."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from services.embedded.valkey import ValkeyServer
from services.shared.view import redis_access
from speaker_registry.errors import Unavailable
from tests.integration.storage import Storage


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    with (
        ValkeyServer(tmp_path / "redis", port=0) as server,
        Storage(tmp_path / "bucket", server.url) as storage,
    ):
        yield storage


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
@pytest.mark.parametrize("connected", [True, False], ids=["while connected", "at the start"])
def test_any_policy_but_noeviction_closes_the_gate(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, policy: str, *, connected: bool
):
    """Any policy other than noeviction closes the gate. Once 33 of 120 acknowledged voices were 404 while
    `/readyz` was ok, and then came a second version 1.
    """
    storage.ready("alice")
    storage.clock.sleep(4)
    storage.raw.config_set("maxmemory-policy", policy)
    if connected:
        monkeypatch.setattr(redis_access, "RECHECK_SECONDS", -1.0)  # connections are old by now
    else:
        for client in (storage.index.redis, storage.index.ungated):
            client.connection_pool.disconnect()
    with capture_logs() as logs, pytest.raises(Unavailable, match=f"'{policy}'. Accepted: noeviction"):
        storage.housekeeper.turn()
    assert [line["policy"] for line in logs if line["event"] == "redis.evicts"] == [policy]
    with pytest.raises(Unavailable, match="noeviction"):
        storage.register("alice", number=2)
    with pytest.raises(Unavailable, match="noeviction"):
        storage.index.gate_open()  # which is what /readyz shows
    assert storage.served("alice")[0] == 1, "from the facts"

    storage.raw.config_set("maxmemory-policy", "noeviction")
    storage.settle()
    assert storage.register("alice", number=2).version.number == 2


def test_an_index_of_which_something_was_evicted_is_begun_anew(storage: Storage):
    """An index of which something was evicted is begun anew. The policy was wrong for a while and is right
    again, but nothing tells which voices are missing.
    """
    storage.ready("alice")
    storage.clock.sleep(4)
    epoch = storage.index.epoch
    storage.raw.config_set("maxmemory-policy", "allkeys-random")
    storage.raw.config_set("maxmemory", 1)
    with suppress(redis.ResponseError):  # everything evictable is evicted, and it is not enough
        storage.raw.set("one", "more")
    storage.raw.config_set("maxmemory", 0)
    storage.raw.config_set("maxmemory-policy", "noeviction")
    for client in (storage.index.redis, storage.index.ungated):
        client.connection_pool.disconnect()
    assert storage.served("alice")[0] == 1
    assert storage.register("alice", number=2).version.number == 2
    assert storage.index.epoch > epoch
