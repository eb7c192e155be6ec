"""The index on each server that we say it runs on: the bundled Valkey, the others where there is Docker."""

from collections.abc import Iterator

import pytest
from redis import Redis

from services.shared.facts import SpeakerId
from services.shared.gate import GateClosed
from services.shared.index import SpeakerIndex
from services.shared.valkey import ValkeyServer
from tests import servers

ALICE = SpeakerId("default", "alice")


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


def test_the_index_counts_versions_and_notices_a_flush(redis_url: str) -> None:
    """If anything differs between servers, it is scripts and how one server is told from another."""
    index = SpeakerIndex(redis_url, "a bucket")
    with Redis.from_url(redis_url) as client:
        client.flushall()
        index.open_gate(index.begin_rebuild("token"), "token")
        numbers = [index.reserve_version(ALICE, max_speakers=10, immutable=False).number for _ in range(3)]
        assert numbers == [1, 2, 3]
        client.flushall()
        with pytest.raises(GateClosed):
            index.reserve_version(ALICE, max_speakers=10, immutable=False)
    index.close()
