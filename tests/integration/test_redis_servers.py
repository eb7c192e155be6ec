"""Tests of the view on each supported server: the bundled Valkey, and the others if Docker is available."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import astuple
from pathlib import Path

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.view import generation
from services.shared.view.away import ViewAway
from tests import servers
from tests.opened_registry import NS, OpenedRegistry, folder_settings


@pytest.fixture(
    scope="module", params=["bundled", "valkey/valkey:9.1-alpine", "redis:8-alpine", "redis:7.2-alpine"]
)
def redis_url(request: pytest.FixtureRequest, valkey: ValkeyServer) -> Iterator[str]:
    if request.param == "bundled":
        yield valkey.url
        return
    if reason := servers.no_docker():
        pytest.skip(reason)
    with servers.redis_container(request.param) as url:
        yield url


def test_the_view_is_kept_in_step_and_a_flush_is_noticed(redis_url: str, tmp_path: Path) -> None:
    """Servers are most likely to differ in scripts, and in how one history is told from another."""
    with Redis.from_url(redis_url) as client:
        client.flushall()
        with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), redis_url)) as registry:
            registry.housekeeping().turn()
            registry.make_ready("wren", "robin")
            registry.register("wren", 2)
            registry.delete("robin")
            began = registry.opened.generation.for_reading()
            for _ in range(2):
                assert registry.view.names(NS, limit=9) == ["wren"]
                counts = [astuple(registry.document(name).counts) for name in ("wren", "robin")]
                assert astuple(registry.view.usage(NS)) == tuple(map(sum, zip(*counts, strict=True)))
                client.flushall()
                registry.opened.generation.check()
                registry.housekeeping().turn()
            assert registry.opened.generation.for_reading() != began
            assert registry.register("wren", 3).version.number == 3


def test_a_server_that_does_not_tell_its_history_is_refused(
    valkey: ValkeyServer, redis_client: Redis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Some servers that speak the protocol do not tell it. The message says what is accepted."""
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url)) as registry:
        monkeypatch.setattr(generation, "SECTIONS", ["stats"])
        for use in (registry.opened.generation.check, registry.view.is_complete):
            registry.opened.generation.redis.connection_pool.disconnect()
            with pytest.raises(
                ViewAway, match=r"INFO .* lacks one of .* Accepted: Valkey or Redis from 7\.2"
            ):
                use()
