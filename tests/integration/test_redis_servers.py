"""Tests of the index on each supported server: the bundled Valkey, and the others if Docker is available."""

from collections.abc import Iterator

import pytest
from redis import Redis
from services.shared.index import gate
from services.shared.index.gate import InfoMissing
from services.shared.index.refusals import CensusDue
from services.shared.index.speaker_index import SpeakerIndex
from services.shared.model.domain import Speaker

from services.embedded.valkey import ValkeyServer
from services.shared.model.speaker import SpeakerId
from tests import servers
from tests.integration.storage import NoEpochs

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
    """The index counts versions and notices a flush on each server. Servers are most likely to differ in
    scripts and in how one server is distinguished from another.
    """
    index = SpeakerIndex(redis_url, "a bucket", lambda _: Speaker(), NoEpochs())
    with Redis.from_url(redis_url) as client:
        client.flushall()
        assert _numbers(index) == [1, 2, 3]
        first = index.epoch
        client.flushall()
        assert _numbers(index) == [1, 2, 3], "the bucket knows of none"
        assert index.epoch > first
    index.close()


def _numbers(index: SpeakerIndex) -> list[int]:
    """Return the numbers of three versions that are reserved one after the other."""
    with pytest.raises(CensusDue):
        index.reserve_version(ALICE, max_speakers=10, immutable=False)
    high, _ = index.begin_census(ALICE) or (0, b"")
    index.end_census(ALICE, high)
    return [index.reserve_version(ALICE, max_speakers=10, immutable=False).number for _ in range(3)]


@pytest.mark.parametrize(
    ("sections", "missing"), [(["server", "stats"], "master_replid"), (["stats"], "run_id and master_replid")]
)
def test_a_server_that_does_not_tell_its_history_is_refused(
    valkey: ValkeyServer, monkeypatch: pytest.MonkeyPatch, sections: list[str], missing: str
) -> None:
    """A server that does not tell its history is refused, because other servers that speak the protocol do
    not tell it. The message says what they lack and what is accepted.
    """
    monkeypatch.setattr(gate, "_SECTIONS", sections)
    index = SpeakerIndex(valkey.url, "a bucket", lambda _: Speaker(), NoEpochs())
    assert not index.gate_open()
    for use in (index.open, lambda: index.load(ALICE)):
        with pytest.raises(InfoMissing, match=f"lacks {missing}, so .* Accepted: Valkey or Redis from 7.2"):
            use()
    index.close()
