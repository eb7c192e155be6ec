"""Tests that a Redis that evicts keys when its memory is full is not believed."""

from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from services.embedded.valkey import ValkeyServer
from services.shared.view import redis_access
from speaker_registry.errors import Unavailable
from tests.opened_registry import NS, OpenedRegistry, folder_settings


@pytest.fixture
def own(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path / "redis", port=0) as server:
        yield server


@pytest.fixture
def server(own: ValkeyServer) -> Iterator[redis.Redis]:
    """A client of a server whose settings a test may change."""
    with redis.Redis.from_url(own.url) as client:
        yield client


@pytest.fixture
def registry(tmp_path: Path, own: ValkeyServer) -> Iterator[OpenedRegistry]:
    """A registry in which a voice is ready."""
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), own.url)) as registry:
        registry.make_ready("alice")
        yield registry


def disconnect(registry: OpenedRegistry) -> None:
    for client in (registry.opened.generation.redis, registry.redis):
        client.connection_pool.disconnect()


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
@pytest.mark.parametrize("connected", [True, False], ids=["while connected", "at the start"])
def test_no_policy_but_noeviction_is_accepted(
    registry: OpenedRegistry,
    server: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    *,
    connected: bool,
) -> None:
    """Once 33 of 120 acknowledged voices were 404 while `/readyz` was ok; then came a second version 1."""
    served = registry.served("alice")
    server.config_set("maxmemory-policy", policy)
    if connected:
        monkeypatch.setattr(redis_access, "RECHECK_SECONDS", -1.0)  # connections are old by now
    else:
        disconnect(registry)
    with capture_logs() as logs, pytest.raises(Unavailable, match=f"'{policy}'. Accepted: noeviction"):
        registry.housekeeping().turn()
    assert [line["policy"] for line in logs if line["event"] == "redis.evicts"] == [policy]
    with pytest.raises(Unavailable, match="noeviction"):
        registry.register("alice", 2)
    with pytest.raises(Unavailable, match="noeviction"):
        registry.opened.generation.check()  # which is what /readyz shows
    assert registry.served("alice") == served, "from the bucket"

    server.config_set("maxmemory-policy", "noeviction")
    registry.opened.generation.check()
    assert registry.register("alice", 2).version.number == 2


def test_a_view_of_which_something_was_evicted_is_begun_anew(
    registry: OpenedRegistry, server: redis.Redis
) -> None:
    """The policy was wrong for a while and is right again, but nothing tells which voices are missing."""
    served, before = registry.served("alice"), registry.opened.generation.for_reading()
    server.config_set("maxmemory-policy", "allkeys-random")
    server.config_set("maxmemory", 1)
    with suppress(redis.ResponseError):  # everything evictable is evicted, and it is not enough
        server.set("one", "more")
    server.config_set("maxmemory", 0)
    server.config_set("maxmemory-policy", "noeviction")
    disconnect(registry)
    assert registry.served("alice") == served
    assert registry.register("alice", 2).version.number == 2
    assert registry.opened.generation.for_reading() != before
    registry.housekeeping().turn()
    assert registry.view.names(NS, limit=9) == ["alice"]
