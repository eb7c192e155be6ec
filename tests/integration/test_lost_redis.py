"""Tests of a Redis that loses everything, while voices are read and written: the bucket has the truth, and
what was acknowledged is served, listed and counted again.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance import housekeeping as housekeeping_module
from services.shared.bucket.store import Listing
from services.shared.registry.extract import extract
from services.shared.registry.lookup import find
from services.shared.registry.pages import speaker_page
from services.shared.view.away import ViewAway
from services.shared.view.keys import copy_key
from speaker_registry.errors import VoiceNotFound
from speaker_registry.names import parse_speaker_name
from tests.opened_registry import NS, OpenedRegistry, folder_settings, id_of

WIDER = "qwen3-tts-1.7b"
Open = Callable[[], OpenedRegistry]


@pytest.fixture
def opened(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[Open]:
    """Return a function that starts another process of one registry."""
    started: list[OpenedRegistry] = []

    def start() -> OpenedRegistry:
        started.append(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def registry(opened: Open) -> OpenedRegistry:
    """A registry whose view is complete."""
    registry = opened()
    registry.housekeeping().turn()
    return registry


def lose_redis(registry: OpenedRegistry, *, reconnects: bool = False) -> None:
    """Empty Redis, or replace it by an empty server, to which connections have to be made anew."""
    registry.redis.flushall()
    if reconnects:
        registry.opened.generation.redis.connection_pool.disconnect()


@pytest.mark.parametrize("reconnects", [True, False], ids=["replaced", "emptied"])
def test_reads_and_writes_go_on_at_once_after_a_loss(registry: OpenedRegistry, *, reconnects: bool) -> None:
    """Each voice is read from the bucket when it is needed, and no request waits for all of them."""
    registry.make_ready("alice", "bob")
    before = registry.served("alice")
    lose_redis(registry, reconnects=reconnects)
    assert registry.served("alice") == before
    assert registry.register("alice", 3).version.number == 2
    speaker, profiles = registry.find("alice"), registry.opened.profiles
    opened = extract(registry.jobs, profiles, speaker, speaker.document.default, [WIDER], force=True)
    assert opened.keys() == {WIDER}
    registry.delete("bob")
    assert registry.register("bob", 4).version.number == 2
    assert registry.register("carol").version.number == 1
    assert not registry.view.is_complete()


def test_a_list_tells_all_voices_while_the_view_lacks_some(registry: OpenedRegistry) -> None:
    """A page without those voices would pass for the whole, and a sum without them for what is used."""
    registry.make_ready("alice")
    lose_redis(registry)
    registry.register("bob")
    found = speaker_page(registry.speakers, registry.opened.store, NS, limit=10)
    assert [one.document.key for one in found.speakers] == ["alice", "bob"]
    assert (found.of_bucket, found.more, registry.speakers.usage(NS)) == (True, False, None)
    registry.housekeeping().rebuild()
    assert not speaker_page(registry.speakers, registry.opened.store, NS, limit=10).of_bucket
    usage = registry.speakers.usage(NS)
    assert usage is not None
    assert usage.voices == 2


def test_a_name_that_nobody_uses_leaves_nothing_in_redis(registry: OpenedRegistry) -> None:
    """Any caller that may read could otherwise fill it."""
    lose_redis(registry)
    with pytest.raises(VoiceNotFound):
        find(registry.speakers, NS, parse_speaker_name("nobody"))
    assert not [key for key in registry.redis.scan_iter() if "nobody" in key]


def test_housekeeping_brings_everything_back(
    registry: OpenedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists and counts are complete again, lost jobs are started anew, and numbers of names stay used."""
    monkeypatch.setattr(housekeeping_module, "CHECK_SECONDS", 0.0)
    registry.make_ready("alice", "bob", "carol")
    [lost] = registry.register("alice", 7).jobs.values()
    registry.delete("carol")
    before = registry.served("alice")
    lose_redis(registry)
    housekeeping = registry.housekeeping()
    housekeeping.turn()
    assert registry.view.names(NS, limit=9) == ["alice", "bob"]
    assert registry.served("alice") == before
    [job] = registry.find("alice").open_jobs
    assert job.job_id != lost
    registry.worker.finish_all()
    assert registry.served("alice") != before
    for name in ("alice", "bob", "carol"):
        found = registry.find(name)
        assert (found.document, found.open_jobs) == (registry.document(name), ())
    assert registry.register("carol", 8).version.number == 2


@pytest.mark.parametrize("namespace", ["jobs", "n", "view", "names", "0" * 32])
def test_no_namespace_is_lost_or_mixed_up_whatever_it_is_called(
    registry: OpenedRegistry, namespace: str
) -> None:
    """The keys in Redis hold words of their own beside the names of namespaces and voices."""
    names = sorted({"queued", "names", namespace})
    for name in names:
        registry.register(name, namespace=namespace)
    registry.register("names")
    for lost in (False, True):
        if lost:
            lose_redis(registry)
            registry.housekeeping().turn()
        assert registry.view.names(namespace, limit=9) == names
        assert registry.view.usage(namespace).voices == len(names)
        assert registry.view.names(NS, limit=9) == ["names"]
        for one, its in ((namespace, names), (NS, ["names"])):
            queued = registry.jobs.records.page(one, state="queued", limit=9).found
            assert sorted(job.slug for job in queued) == its


def test_a_rebuild_of_an_ended_generation_takes_nothing_from_the_next_one(
    opened: Open, registry: OpenedRegistry
) -> None:
    """A process that stood still before it removes what is left of others would remove live voices."""
    ended = registry.opened.generation.for_reading()
    lose_redis(registry)
    other = opened()
    other.register("alice")
    with pytest.raises(ViewAway):
        registry.view.forget_others(ended)
    assert other.view.names(NS, limit=9) == ["alice"]
    assert other.redis.exists(copy_key(other.opened.generation.for_reading(), id_of("alice")))


def test_a_voice_that_one_listing_leaves_out_is_not_lost(
    registry: OpenedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read from the bucket all the same, and the next listing brings it back into the lists."""
    registry.make_ready("alice")
    served, store = registry.served("alice"), registry.opened.store
    housekeeping, listing, once = registry.housekeeping(), store.list, [Listing((), store.now())]
    monkeypatch.setattr(store, "list", lambda prefix: once.pop() if once else listing(prefix))
    for is_read in (True, False):
        lose_redis(registry)
        registry.opened.generation.check()
        once[:] = [Listing((), store.now())]
        assert (housekeeping.rebuild(), registry.view.names(NS, limit=9)) == (0, [])
        if is_read:
            assert registry.served("alice") == served
        else:
            assert housekeeping.rebuild() == 1
        assert registry.view.names(NS, limit=9) == ["alice"]
