"""Tests of a Redis that is brought back to an older state of its data, while the bucket has gone on."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import redis
from services.shared.bucket.epochs import LOOK_SECONDS, Epochs
from services.shared.bucket.facts import truth_of
from services.shared.bucket.identity import bucket_identity
from services.shared.index.gate import BOOT
from services.shared.index.speaker_index import Reservation, SpeakerIndex
from services.shared.model.domain import VersionRecord

from services.embedded.valkey import ValkeyServer
from speaker_registry.errors import Unavailable, VoiceNotFound
from tests.integration.storage import NAMESPACE, Storage, speaker_id
from tests.queue_workers import wait_until

ALICE = speaker_id("alice")
BringBack = Callable[[], None]
Keep = Callable[[ValkeyServer, Path, ExitStack], BringBack]
"""Keeps the present state of a server. The function that it returns brings that state back."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    with ValkeyServer(tmp_path / "redis", port=0) as server:
        yield server


@pytest.fixture
def storage(tmp_path: Path, server: ValkeyServer) -> Iterator[Storage]:
    with Storage(tmp_path / "bucket", server.url) as storage:
        yield storage


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
    """Write each key of a dump into the same run of the server, after it was emptied."""
    keys = list(client(server).scan_iter())
    dump = {key: client(server).dump(key) for key in keys}

    def bring_back() -> None:
        for key, value in dump.items():
            client(server).restore(key, 0, value, replace=True)

    client(server).flushall()  # those who use it begin another index meanwhile
    return bring_back


def client(server: ValkeyServer) -> redis.Redis:
    return redis.Redis.from_url(server.url)


def reserve(storage: Storage) -> Reservation:
    return storage.index.reserve_version(ALICE, max_speakers=99, immutable=False, vuid=storage.clock.new_id())


def commit(storage: Storage, place: Reservation, like: VersionRecord) -> bool:
    """Commit a version as an upload does last, once its clip is stored."""
    said = {"vuid": place.vuid, "number": place.number, "created_at": place.created_at}
    record = like.model_copy(update=said)
    storage.store.put(ALICE.version_key(place.seq, record), record.to_json().encode())
    return storage.index.apply_version(ALICE, place.seq, record)


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
    storage: Storage, server: ValkeyServer, tmp_path: Path, keep: Keep, noticed_by: str
):
    """Acknowledged versions outlive a rollback, and no number is assigned twice. The key that names the index
    comes back unchanged, so the registry must notice the rollback in another way.
    """
    first = storage.ready("alice").version.record
    storage.ready("carol")
    boot = storage.raw.get(BOOT)
    with ExitStack() as stack:
        bring_back = keep(server, tmp_path, stack)
        storage.ready("alice", number=2)
        storage.ready("bob")
        storage.delete("carol")
        landed, lost = reserve(storage), reserve(storage)
        assert commit(storage, landed, first)
        before = {name: storage.served(name) for name in ("alice", "bob")}
        storage.clock.sleep(4)  # what landed just now is not certain yet

        bring_back()
        assert storage.raw.get(BOOT) == boot
        if noticed_by == NEW:
            identity = bucket_identity(storage.store, storage.clock)
            truth, epochs = truth_of(storage.store), Epochs(storage.store, storage.clock)
            other = SpeakerIndex(server.url, identity, truth, epochs, clock=storage.clock.now)
            with closing(other):
                other.open()
        else:
            storage.index.open()  # as housekeeping does with every turn
        assert storage.raw.get(BOOT) != boot
        assert {name: storage.served(name) for name in before} == before
        with pytest.raises(VoiceNotFound):
            storage.operations.speakers.find(NAMESPACE, "carol")
        again = storage.register("alice", number=3).version
        assert again.number == landed.number + 1 == lost.number
        with pytest.raises(Unavailable):
            commit(storage, lost, first)
        assert storage.register("carol", number=3).version.number == 2

        storage.settle()
        for speaker in (storage.truth("alice"), storage.index.load(ALICE).speaker):
            assert [one.number for one in speaker.versions] == [1, 2, 3, 4]
            assert speaker.resolve(3).vuid == landed.vuid
            assert speaker.resolve(4).vuid == again.vuid
        for name in ("alice", "bob", "carol"):
            storage.check_settled(name)


@pytest.mark.parametrize("noticed_by", [RUNNING, NEW])
def test_a_redis_that_the_registry_worked_without_for_a_while_is_begun_anew(
    storage: Storage, server: ValkeyServer, tmp_path: Path, noticed_by: str
):
    """An index on a Redis that the registry did not use for a while is begun anew. An address or a setting
    led to another Redis, and back: nothing of the first one records that.
    """
    storage.ready("alice")
    storage.ready("carol")
    stale = storage.served("alice")
    with (
        ValkeyServer(tmp_path / "other redis", port=0) as other,
        Storage(tmp_path / "bucket", other.url) as meanwhile,
    ):
        meanwhile.ready("alice", number=2)
        newest = meanwhile.served("alice")
        meanwhile.delete("carol")
        meanwhile.ready("bob")
        meanwhile.clock.sleep(4)
    boot = storage.raw.get(BOOT)
    assert storage.served("alice") == stale != newest, "nobody has looked yet"
    with ExitStack() as stack:
        if noticed_by == NEW:
            storage = stack.enter_context(Storage(tmp_path / "bucket", server.url))
            storage.clock.sleep(4)  # what landed just now was not certain
            storage.settle()
        else:
            storage.clock.sleep(LOOK_SECONDS + 4)
            storage.index.open()  # as housekeeping does with every turn
        assert storage.raw.get(BOOT) != boot
        assert storage.served("alice") == newest
        assert storage.served("bob") is not None
        with pytest.raises(VoiceNotFound):
            storage.operations.speakers.find(NAMESPACE, "carol")
        assert storage.register("alice", number=3).version.number == 3
        assert storage.register("carol", number=3).version.number == 2
        for name in ("alice", "bob", "carol"):
            storage.settle()
            storage.finish_all(name)
            storage.check_settled(name)


def test_the_bucket_knows_an_index_before_it_is_used(storage: Storage):
    """The bucket knows an index before it is used. A process that began an index and was killed would
    otherwise leave no trace of it.
    """
    putting = storage.store.put

    def refuse(key: str, data: bytes) -> None:
        if key.startswith("_epochs/"):
            raise Unavailable("The object store cannot be reached.")
        putting(key, data)

    storage.ready("alice")
    storage.store.put = refuse  # type: ignore[method-assign]
    storage.raw.flushall()
    with pytest.raises(Unavailable):
        storage.index.load(ALICE)
    assert storage.speaker("alice").live, "read from the facts"
    storage.store.put = putting  # type: ignore[method-assign]
    assert storage.index.load(ALICE).speaker.live
    listed = [stored.key for stored in storage.store.list("_epochs/").objects]
    assert f"_epochs/{storage.index.epoch:012d}" in listed


def test_a_sweep_leaves_the_highest_epoch_alone(storage: Storage):
    for _ in range(3):
        storage.raw.flushall()
        storage.index.open()
    storage.sweep()
    [left] = storage.store.list("_epochs/").objects
    assert left.key == f"_epochs/{storage.index.epoch:012d}"


@pytest.mark.parametrize("foreign", ["999999999999", "12", "readme.txt", "000000000001/x"])
def test_what_others_put_among_the_epochs_changes_nothing(storage: Storage, foreign: str):
    storage.ready("alice")
    epoch = storage.index.epoch
    storage.store.put(f"_epochs/{foreign}", b"")
    storage.clock.sleep(LOOK_SECONDS + 1)
    storage.index.open()
    assert storage.index.epoch == epoch
    storage.sweep()
    assert storage.served("alice") is not None
