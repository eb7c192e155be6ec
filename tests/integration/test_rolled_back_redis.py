"""Tests of a Redis that is brought back to an older state of its data, while the bucket has gone on."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis

from services.embedded.valkey import ValkeyServer
from services.shared.registry.lookup import find
from services.shared.view.away import LeftBehind
from speaker_registry.errors import Unavailable, VoiceNotFound
from speaker_registry.names import parse_speaker_name
from tests.opened_registry import NS, OpenedRegistry, folder_settings
from tests.queue_workers import wait_until

PROFILE = "qwen3-tts-0.6b"
NEXT = "sha256:" + "2" * 64
BringBack = Callable[[], None]
Keep = Callable[[ValkeyServer, Path, ExitStack], BringBack]
"""Keeps the present state of a server. The function that it returns brings that state back."""
Open = Callable[[ValkeyServer], OpenedRegistry]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path / "redis", port=0) as server:
        yield server


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Return a function that starts another process of one registry, on any server."""
    with ExitStack() as stack:

        def start(server: ValkeyServer) -> OpenedRegistry:
            registry = OpenedRegistry(folder_settings(tmp_path / "bucket"), server.url)
            return stack.enter_context(closing(registry))

        yield start


def copied_log(server: ValkeyServer, folder: Path, stack: ExitStack) -> BringBack:
    """Kill the server and start it on the copy of its log."""
    data, copy = server.data_dir / "appendonlydir", folder / "copy"
    shutil.copytree(data, copy)

    def bring_back() -> None:
        server.kill()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        server.start()

    return bring_back


def late_replica(server: ValkeyServer, folder: Path, stack: ExitStack) -> BringBack:
    """Let the same run of the server take over the data of a replica whose link broke a while ago."""
    other = stack.enter_context(ValkeyServer(folder / "replica", port=0))
    follow(other, server)
    client(other).replicaof("NO", "ONE")

    def bring_back() -> None:
        follow(server, other)
        client(server).replicaof("NO", "ONE")

    return bring_back


def follow(replica: ValkeyServer, primary: ValkeyServer) -> None:
    client(primary).config_set("repl-diskless-sync-delay", 0)
    client(replica).replicaof("127.0.0.1", str(primary.port))
    wait_until(lambda: client(replica).info("replication")["master_link_status"] == "up")


def restored_dump(server: ValkeyServer, folder: Path, stack: ExitStack) -> BringBack:
    """Write each key of a dump into the same run of the server."""
    dump = {key: client(server).dump(key) for key in client(server).scan_iter()}

    def bring_back() -> None:
        client(server).flushall()
        for key, value in dump.items():
            client(server).restore(key, 0, value, replace=True)

    return bring_back


def client(server: ValkeyServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def check_served(registry: OpenedRegistry, served: dict[str, tuple[int, str] | None]) -> None:
    """Check what is served now, and that names count on from where they were."""
    assert {name: registry.served(name) for name in served} == served
    with pytest.raises(VoiceNotFound):
        find(registry.speakers, NS, parse_speaker_name("carol"))
    numbers = {name: registry.document(name).marks.number for name in (*served, "carol")}
    for name, number in numbers.items():
        assert registry.register(name, 9).version.number == number + 1


def go_on(registry: OpenedRegistry) -> dict[str, tuple[int, str] | None]:
    """Change the voices `alice`, `bob` and `carol`. Returns what is served then."""
    registry.register("alice", 5)
    registry.worker.finish_all()
    registry.make_ready("bob")
    registry.delete("carol")
    return {name: registry.served(name) for name in ("alice", "bob")}


RUNNING, NEW = "a running process", "a new process"


@pytest.mark.parametrize(
    ("keep", "noticed_by"),
    [
        (copied_log, RUNNING),
        (copied_log, NEW),
        (late_replica, RUNNING),
        (late_replica, NEW),
        (restored_dump, RUNNING),  # nothing on the server could tell a new one
    ],
)
def test_what_was_acknowledged_outlives_a_rollback_and_no_number_is_given_twice(
    opened: Open, server: ValkeyServer, tmp_path: Path, keep: Keep, noticed_by: str
) -> None:
    """The keys that name the view come back unchanged, so the rollback is noticed in another way."""
    registry = opened(server)
    registry.make_ready("alice", "carol")
    stamp = registry.redis.get("sr:view")
    with ExitStack() as stack:
        bring_back = keep(server, tmp_path, stack)
        registry.opened.generation.check()  # a server that gets its first replica begins another history
        served = go_on(registry)
        registry.opened.generation.check()
        bring_back()
        assert registry.redis.get("sr:view") == stamp
        if noticed_by == NEW:
            registry = opened(server)
        registry.opened.generation.check()  # as every process does once a second
        assert registry.redis.get("sr:view") != stamp
        check_served(registry, served)
        registry.housekeeping().turn()
        assert registry.view.names(NS, limit=9) == ["alice", "bob", "carol"]


@pytest.mark.parametrize("noticed_by", [RUNNING, NEW])
def test_a_redis_that_the_registry_worked_without_for_a_while_is_not_believed(
    opened: Open, server: ValkeyServer, tmp_path: Path, noticed_by: str
) -> None:
    """An address or a setting led other processes to another Redis. A process that stays on the old one reads
    from the bucket and writes nothing, and one that is started there begins another view.
    """
    registry = opened(server)
    registry.make_ready("alice", "carol")
    stale = registry.served("alice")
    with ValkeyServer(tmp_path / "other redis", port=0) as other:
        served = go_on(opened(other))
        assert registry.served("alice") == stale != served["alice"], "nobody has looked yet"
        if noticed_by == NEW:
            registry = opened(server)
            check_served(registry, served)
            return
        registry.opened.clock.sleep(3)
        with pytest.raises(LeftBehind, match="SPEAKER_REDIS_URL"):
            registry.opened.generation.check()
        assert {name: registry.served(name) for name in served} == served
        with pytest.raises(Unavailable):
            registry.register("alice", 9)


def test_an_encoder_that_redis_forgot_in_a_rollback_is_read_from_the_bucket(
    opened: Open, server: ValkeyServer, tmp_path: Path
) -> None:
    """The copy in Redis is older than what the worker announced, and artifacts made before would pass for
    new.
    """
    registry = opened(server)
    registry.make_ready("alice")
    registry.opened.generation.check()
    bring_back = restored_dump(server, tmp_path, ExitStack())
    registry.worker.announce(NEXT)
    registry.opened.generation.check()
    bring_back()
    registry.opened.generation.check()
    registry.opened.profile_records.clear_cache()
    assert registry.opened.profile_records.fingerprint(PROFILE) == NEXT
