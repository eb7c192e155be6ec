"""Tests of housekeeping apart from its repairs, which the fault simulation covers: when it runs, what it
sweeps, and that trouble with one speaker stays with that speaker.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import boto3
import numpy as np
import pytest
from botocore.config import Config
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance import rebuild, sweep
from services.registry_api.maintenance.housekeeping import Housekeeper, RenewLock
from services.registry_api.maintenance.sweep import ask_for_sweep
from services.registry_api.operations import Operations
from services.registry_api.operations.registration import Upload
from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.bucket.durable_folder import TEMPORARY
from services.shared.bucket.keys import SpeakerId
from services.shared.bucket.store import Listing, ObjectUnavailable
from services.shared.configuration.settings import HousekeepingSettings, RegistrySettings, StoreSettings
from services.shared.index.jobs import KEPT_SECONDS, Jobs
from services.shared.index.script_arguments import SpeakerUpdate
from services.shared.index.speaker_index import DIRTY, WINDOW_SECONDS
from services.shared.registry.opening import open_parts
from services.shared.registry.parts import RegistryParts
from services.shared.telemetry.metrics import FOREIGN
from speaker_registry.errors import Unavailable, VoiceDamaged, VoiceNotFound, VoiceUnreadable
from speaker_registry.names import parse_speaker_name
from tests.integration.api.worker import StandIn
from tests.integration.conftest import bucket_settings
from tests.integration.storage import Storage, digest, speaker_id
from tests.queue_workers import wait_until
from tests.servers import S3Server

ALICE = SpeakerId("default", "alice")
DAY = 86_400
CLIP = DecodedClip(
    ReferenceAudio(np.full(24_000, 0.5, np.float32), 24_000), "wav", "pcm_s16le", "audio/wav", 1
)


@dataclass(frozen=True)
class OpenRegistry:
    """A registry in this process, with the operations that its housekeepers use."""

    parts: RegistryParts
    operations: Operations

    def housekeeper(self, **settings: Any) -> Housekeeper:
        return Housekeeper(
            self.parts,
            self.operations,
            HousekeepingSettings(**settings),
            lambda: 0,
        )


def open_registry(store: StoreSettings, settings: RegistrySettings) -> OpenRegistry:
    parts = open_parts(store, settings)
    return OpenRegistry(parts, Operations.over(parts))


@pytest.fixture
def registry(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[OpenRegistry]:
    registry = open_registry(
        StoreSettings(url=(tmp_path / "bucket").as_uri(), create_bucket=True),
        RegistrySettings(redis_url=valkey.url),
    )
    yield registry
    registry.parts.close()


@pytest.fixture
def housekeeper(registry: OpenRegistry) -> Housekeeper:
    """A housekeeper whose first turn has rebuilt the index."""
    housekeeper = registry.housekeeper()
    housekeeper.turn()
    return housekeeper


def register(registry: OpenRegistry, name: str, *, words: str = "words") -> None:
    upload = Upload(name=parse_speaker_name(name), consent="yes", ref_text=words)
    registry.operations.registrations.register_clip("default", upload, name.encode(), CLIP)


def make_ready(registry: OpenRegistry, *names: str) -> StandIn:
    """Register voices, finish their extractions, and return the worker that did so."""
    worker = StandIn(registry.parts)
    worker.announce()
    for name in names:
        register(registry, name)
        worker.finish_all(name)
    return worker


def record_of_alice(bucket: Path) -> Path:
    """Return the record of the newest version."""
    return sorted((bucket / ALICE.prefix / "r").glob("*.ver.*"))[-1]


def names_of(registry: OpenRegistry) -> list[str]:
    page = registry.operations.pages.page("default", limit=10)
    return [one.speaker.newest.record.name for one in page.speakers]


def age(bucket: Path, seconds: float) -> None:
    """Make every file look as if it had been written this long ago."""
    then = time.time() - seconds
    for path in bucket.rglob("*"):
        os.utime(path, (then, then))


def remember_longer(client: Redis) -> None:
    """Move the first listing of each voice two hours into the past."""
    for name in client.scan_iter("sr:suspicion:*"):
        for key, at in client.hgetall(name).items():
            client.hset(name, key, float(at) - 7200)


def files(bucket: Path) -> set[str]:
    return {str(path.relative_to(bucket)) for path in bucket.rglob("*") if path.is_file()}


def test_the_first_turn_admits_every_speaker(registry: OpenRegistry):
    registry.housekeeper().turn()
    assert registry.parts.index.complete()


def test_a_rebuild_reads_no_further_ahead_than_it_has_threads(
    registry: OpenRegistry, redis_client: Redis, monkeypatch: pytest.MonkeyPatch
):
    """A rebuild reads no further ahead than it has threads. A million voices must not be
    in memory together.
    """
    names = [f"voice-{number}" for number in range(6)]
    for name in names:
        register(registry, name)
    redis_client.flushall()
    read, told, unknown, tell_many = [0], [0], registry.parts.index.unknown, registry.parts.index.tell_many
    ahead: list[int] = []

    def count_read(batch: Sequence[SpeakerId]) -> list[SpeakerId]:
        read[0] += len(batch)
        return unknown(batch)

    def count_told(speakers: Sequence[tuple[SpeakerId, SpeakerUpdate]], *, epoch: int) -> None:
        told[0] += len(speakers)
        tell_many(speakers, epoch=epoch)
        ahead.append(read[0] - told[0])

    monkeypatch.setattr(rebuild, "_ADMITTED_AT_A_TIME", 1)
    monkeypatch.setattr(registry.parts.index, "unknown", count_read)
    monkeypatch.setattr(registry.parts.index, "tell_many", count_told)
    assert registry.housekeeper().rebuild() == len(names)
    assert max(ahead) <= 1, "one thread reads a folder"
    assert len(registry.operations.pages.page("default", limit=10).entries) == len(names)


def test_a_sweep_takes_what_crashed_writers_left_and_nothing_else(
    registry: OpenRegistry, housekeeper: Housekeeper, tmp_path: Path, redis_client: Redis
):
    """A sweep collects what crashed writers left and nothing else: an upload that died before its record, and
    a write that died before its name.
    """
    bucket = tmp_path / "bucket"
    make_ready(registry, "Alice")
    live = files(bucket)
    registry.parts.store.put(ALICE.blob_key(uuid4().hex, "0" * 64), b"clip")
    (bucket / TEMPORARY / "half").write_bytes(b"cl")
    young = files(bucket)

    housekeeper.sweep()
    assert files(bucket) == young  # they might be on their way
    age(bucket, 2 * DAY)
    for _ in range(2):
        housekeeper.sweep()
        assert files(bucket) == young - {f"{TEMPORARY}/half"}  # an hour has to lie between two listings
    remember_longer(redis_client)
    housekeeper.sweep()
    assert files(bucket) == live


def test_what_one_listing_leaves_out_is_not_collected(
    registry: OpenRegistry,
    housekeeper: Housekeeper,
    tmp_path: Path,
    redis_client: Redis,
    monkeypatch: pytest.MonkeyPatch,
):
    """An object that one listing leaves out is not collected. The clip of a version that the listing does not
    show looks like a crashed upload's.
    """
    register(registry, "Alice")
    age(tmp_path / "bucket", 2 * DAY)
    live, list_all = files(tmp_path / "bucket"), registry.parts.store.list

    def leave_out_records(prefix: str) -> Listing:
        listing = list_all(prefix)
        return replace(listing, objects=tuple(one for one in listing.objects if ".ver." not in one.key))

    for _ in range(3):  # lie, truth, lie: they never agree
        with monkeypatch.context() as patched:
            patched.setattr(registry.parts.store, "list", leave_out_records)
            housekeeper.garbage.collect(ALICE)
        assert redis_client.keys("sr:suspicion:*")
        housekeeper.garbage.collect(ALICE)
        assert not redis_client.keys("sr:suspicion:*")
        assert files(tmp_path / "bucket") == live


def test_a_record_that_the_store_denies_costs_a_voice_nothing(
    registry: OpenRegistry, housekeeper: Housekeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A record that the store denies costs a voice nothing. S3 once answered one GET of a sweep with
    NoSuchKey, and the version lost its bytes.
    """
    make_ready(registry, "Alice")
    age(tmp_path / "bucket", 2 * DAY)
    live, get = files(tmp_path / "bucket"), registry.parts.store.get

    def deny_version(key: str) -> bytes:
        if ".ver." in key:
            raise FileNotFoundError
        return get(key)

    monkeypatch.setattr(registry.parts.store, "get", deny_version)
    housekeeper.garbage.collect(ALICE)
    assert files(tmp_path / "bucket") == live


def test_files_of_others_stop_nothing(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis, tmp_path: Path
):
    """Foreign files stop nothing. The files of a file manager, an editor and a person are counted, and
    otherwise ignored.
    """
    worker = make_ready(registry, "Alice")
    bucket, profile = tmp_path / "bucket", registry.parts.catalogue.required[0]
    foreign = [
        bucket / "_profiles" / profile / ".DS_Store",
        bucket / "_profiles" / f"{profile}.json~",
        bucket / "_keys" / "abcdefgh",
        bucket / "_registry" / ".DS_Store",
        bucket / ALICE.prefix / ".DS_Store",
        bucket / ALICE.prefix / "a copy of it.wav",
        bucket / ALICE.prefix / "d" / "café~",
        bucket / ALICE.prefix / "r" / "000000000001.ver.copy",
        bucket / "default" / "v" / "Not a speaker" / "r" / "x",
    ]
    for path in foreign:
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(b"none of yours")
    age(bucket, 2 * DAY)
    redis_client.flushall()
    counted = FOREIGN._value.get()

    (alice,) = registry.operations.pages.page("default", limit=10).speakers
    assert alice.speaker.newest.record.name == "Alice"
    housekeeper.turn()
    housekeeper.sweep()
    assert FOREIGN._value.get() == counted + 4
    assert all(path.exists() for path in foreign)
    worker.announce()
    assert registry.parts.profile_records.current(profile) is not None
    indexed = registry.operations.speakers.find("default", "alice")
    assert registry.operations.statuses.state(indexed, indexed.speaker.default) == "ready"

    registry.operations.deletions.delete("default", "Alice")
    age(bucket, 2 * DAY)
    housekeeper.sweep()
    (left,) = (path for path in (bucket / ALICE.prefix).rglob("*") if path.is_file())
    assert ".del." in left.name


def test_a_deleted_voice_leaves_only_the_mark_that_keeps_it_deleted(
    registry: OpenRegistry, housekeeper: Housekeeper, tmp_path: Path
):
    register(registry, "Alice")
    registry.operations.deletions.delete("default", "Alice")
    age(tmp_path / "bucket", 2 * DAY)
    housekeeper.sweep()
    (left,) = (stored.key for stored in registry.parts.store.list(ALICE.prefix).objects)
    assert ".del." in left


def test_two_processes_do_not_sweep_at_the_same_time(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    """Two processes do not sweep at the same time, because that would only be twice the work."""
    sweep, busy = housekeeper.sweep, []

    def while_another_looks(renew: RenewLock) -> None:
        with pytest.raises(Unavailable, match="is doing the sweep"):
            registry.housekeeper().turn()
        busy.append(True)
        sweep(renew)

    ask_for_sweep(registry.parts.index.ungated)
    monkeypatch.setattr(housekeeper, "sweep", while_another_looks)
    housekeeper.turn()
    housekeeper.turn()
    assert busy == [True], "asked for once, done once"


MOMENT = 1e-9
ONE_BY_ONE = {"sweep_threads": 1, "turn_seconds": MOMENT}
"""Settings with which a sweep looks after the speakers that are due after each speaker."""


def swept(registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which a sweep appends the speakers that it looks after from now
    on, one after the other.
    """
    seen: list[str] = []
    promote = registry.operations.promoter.promote
    monkeypatch.setattr(
        registry.operations.promoter, "promote", lambda one: (seen.append(one.slug), promote(one))[1]
    )
    return seen


def test_a_sweep_that_was_stopped_goes_on_where_it_was(
    registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch
):
    """A sweep that was stopped continues where it was. The last of a million voices would otherwise never be
    reached by processes that live for a day.
    """
    for name in ("Alice", "Bob", "Carol"):
        register(registry, name)
    seen = swept(registry, monkeypatch)
    monkeypatch.setattr(registry.parts.index, "due", lambda limit: [] if len(seen) < 2 else _fail())
    with pytest.raises(Unavailable):
        registry.housekeeper(**ONE_BY_ONE).sweep()
    monkeypatch.setattr(registry.parts.index, "due", lambda limit: [])
    registry.housekeeper().sweep()
    assert seen == ["alice", "bob", "carol"]
    registry.housekeeper(**ONE_BY_ONE).sweep()
    assert seen == ["alice", "bob", "carol"] * 2, "what was finished is begun anew"


def _fail() -> list[object]:
    raise Unavailable("gone", retry_after_seconds=1)


def test_a_sweep_that_outlives_a_loss_of_redis_answers_no_later_question(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    """A sweep that outlives a loss of Redis answers no later request. Requests are counted anew in the next
    index, and its second one would pass for answered.
    """
    housekeeper.turn()
    client = registry.parts.index.ungated
    for _ in range(2):
        ask_for_sweep(client)

    def lose_redis(*_: object) -> list[None]:
        client.flushall()
        registry.housekeeper().rebuild()
        return []

    with monkeypatch.context() as losing:
        losing.setattr(housekeeper.sweeps, "_forget_jobs", lose_redis)
        housekeeper.sweep()
    for _ in range(2):
        ask_for_sweep(client)
    assert housekeeper.sweeps.is_due()
    housekeeper.sweep()
    assert not housekeeper.sweeps.is_due()


def test_a_process_that_is_told_to_stop_leaves_its_sweep_to_others(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    """A process that is told to stop leaves its sweep to others. Finishing it would take hours, and the
    process would be killed.
    """
    for name in ("Alice", "Bob"):
        register(registry, name)
    seen, stop = swept(registry, monkeypatch), threading.Event()
    monkeypatch.setattr(registry.parts.index, "due", lambda limit: stop.set() or [] if seen else [])
    ask_for_sweep(registry.parts.index.ungated)
    registry.housekeeper(**ONE_BY_ONE).run(stop)
    assert seen == ["alice"]
    registry.housekeeper().turn()
    assert seen == ["alice", "bob"]


def test_a_sweep_looks_after_several_voices_at_a_time_and_after_who_is_due_meanwhile(
    registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch
):
    """A sweep looks after several voices at a time, and after the voices that become due meanwhile. Each look
    waits for the bucket most of the time, and a crash's repair must not wait for the last voice.
    """
    housekeeper = registry.housekeeper(sweep_threads=2, turn_seconds=MOMENT)
    housekeeper.turn()
    for name in ("Alice", "Bob"):
        register(registry, name)
    both, due = threading.Barrier(2), []
    monkeypatch.setattr(housekeeper.garbage, "collect", lambda speaker_id: both.wait(20))
    monkeypatch.setattr(registry.parts.index, "due", lambda limit: due.append(limit) or [])
    housekeeper.sweep()
    assert not both.broken
    assert due


def test_a_sweep_is_made_once_a_day_and_when_there_is_a_new_encoder(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    made: list[float] = []
    sweep = housekeeper.sweep
    clock = registry.parts.clock
    monkeypatch.setattr(housekeeper, "sweep", lambda renew: (made.append(clock.now()), sweep(renew)))
    now, ahead = clock.now, 0.0
    monkeypatch.setattr(clock, "now", lambda: now() + ahead)

    def sweeps_in_two_turns() -> int:
        made.clear()
        housekeeper.turn()
        housekeeper.turn()
        return len(made)

    assert sweeps_in_two_turns() == 0
    StandIn(registry.parts).announce()
    assert sweeps_in_two_turns() == 1
    ahead = WINDOW_SECONDS + 100
    assert sweeps_in_two_turns() == 1, "what had been on its way when the index was begun has landed by now"
    ahead += DAY
    assert sweeps_in_two_turns() == 1


def test_a_start_with_other_profiles_looks_at_every_voice(
    registry: OpenRegistry, housekeeper: Housekeeper, tmp_path: Path, valkey: ValkeyServer
):
    """A start with other profiles looks at every voice. With fewer profiles, a version that waited for the
    others may be complete; with more, there is work.
    """
    housekeeper.turn()
    register(registry, "Alice")

    def jobs_after_start(*profiles: str) -> list[str]:
        settings = RegistrySettings(redis_url=valkey.url, profiles=profiles)
        other = open_registry(StoreSettings(url=(tmp_path / "bucket").as_uri(), create_bucket=True), settings)
        with closing(other.parts.index):
            other.housekeeper().turn()
        return sorted(job.profile for job in Jobs(registry.parts.index).page("default", limit=10).found)

    assert jobs_after_start(*registry.parts.catalogue.required) == ["qwen3-tts-0.6b"]
    assert jobs_after_start("qwen3-tts-0.6b", "qwen3-tts-1.7b") == ["qwen3-tts-0.6b", "qwen3-tts-1.7b"]


def test_a_sweep_forgets_jobs_of_last_month(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    register(registry, "Alice")
    jobs = Jobs(registry.parts.index)
    StandIn(registry.parts).finish_all()
    now = registry.parts.clock.now()
    register(registry, "Bob")
    housekeeper.sweep()
    assert len(jobs.page("default", limit=10).found) == 2
    monkeypatch.setattr(registry.parts.clock, "now", lambda: now + KEPT_SECONDS + DAY)
    housekeeper.sweep()
    assert [job.name for job in jobs.page("default", limit=10).found] == ["Bob"]


def finish_long_ago(registry: OpenRegistry, namespace: str, state: str, many: int) -> None:
    """Make records of jobs that ended two months ago."""
    at = registry.parts.clock.now() - 2 * KEPT_SECONDS
    fields = {"ns": namespace, "state": state, "profile": "test"}
    with registry.parts.index.redis.pipeline(transaction=False) as pipeline:
        for number in range(many):
            job_id = f"job_{state}_{number}"
            pipeline.hset(f"sr:job:{job_id}", mapping=fields | {"id": job_id})
            pipeline.zadd(f"sr:jobs:{namespace}", {job_id: at})
            pipeline.zadd(f"sr:jobs:{namespace}:{state}", {job_id: at})
            pipeline.zadd(f"sr:jobs:{namespace}:{state}:test", {job_id: at})
        pipeline.execute()


def test_a_sweep_forgets_old_jobs_however_many_there_are(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis
):
    """A sweep forgets old jobs however many there are. Redis would otherwise grow for ever if more jobs end
    in a day than one sweep forgets.
    """
    register(registry, "Alice")
    for state in ("succeeded", "failed"):
        finish_long_ago(registry, "default", state, 450)
    housekeeper.sweep()
    assert list(redis_client.scan_iter("sr:job:job_*_*")) == []
    assert redis_client.zcard("sr:jobs:default") == 1, "the one that is wanted now"
    assert not redis_client.exists(*(f"sr:jobs:default:{one}:test" for one in ("succeeded", "failed")))


def test_forgetting_old_jobs_ends_when_its_time_is_up(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    """Forgetting old jobs ends when its time is up, because a sweep has more to do and holds a lock. The next
    sweep continues.
    """
    register(registry, "Alice")
    finish_long_ago(registry, "default", "failed", 450)
    monkeypatch.setattr(sweep, "_FORGET_SECONDS", -1.0)
    housekeeper.sweep()
    assert 0 < registry.parts.index.redis.zcard("sr:jobs:default:failed") < 450


def test_a_sweep_that_seems_to_lie_in_the_future_is_none(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis
):
    """A sweep with a time in the future counts as none. The clock that recorded it was ahead, and nothing
    would be swept until that time.
    """
    housekeeper.sweep()
    began = registry.parts.clock.now() + 365 * DAY
    asked = redis_client.get(sweep.SWEPT).partition(b":")[2]
    redis_client.set(sweep.SWEPT, b"%f:%s" % (began, asked))
    housekeeper.turn()
    assert float(redis_client.get(sweep.SWEPT).partition(b":")[0]) < began


def test_a_census_that_was_begun_is_ended_without_another_look_at_the_speaker(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
):
    """A census that was begun is finished without another look at the speaker. Every upload causes a look by
    housekeeping, and the data that it loads shows already if one was begun.
    """
    storage.ready("alice")
    storage.clock.sleep(4)  # what landed just now is not certain yet
    storage.raw.flushall()
    storage.index.redis.connection_pool.disconnect()
    storage.housekeeper.rebuild()
    assert storage.index.begin_census(speaker_id("alice"))
    looks = []
    monkeypatch.setattr(storage.operations.promoter, "promote", lambda speaker_id: None)
    monkeypatch.setattr(storage.index, "look", lambda *arguments: looks.append(arguments))
    storage.housekeeper.repairs.repair(speaker_id("alice"))
    assert not looks
    assert storage.index.load(speaker_id("alice")).census == "settled"
    assert storage.truth("alice").census.vuids == {storage.truth("alice").default.vuid}


def test_one_speaker_that_cannot_be_settled_does_not_keep_the_others_from_it(
    registry: OpenRegistry, housekeeper: Housekeeper, monkeypatch: pytest.MonkeyPatch
):
    """One speaker that cannot be settled does not keep the others from being settled, as after a bug in a
    release that wrote an unreadable record.
    """
    settled: set[str] = set()  # on a slow machine, Bob is settled twice: also because a look is due

    def promote(speaker_id: SpeakerId) -> None:
        if speaker_id == ALICE:
            raise ValueError("unexpected")
        settled.add(speaker_id.slug)

    register(registry, "Alice")
    register(registry, "Bob")
    monkeypatch.setattr(registry.operations.promoter, "promote", promote)
    housekeeper.sweep()
    assert settled == {"bob"}


def test_a_voice_that_cannot_be_read_costs_nobody_else_theirs(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis, tmp_path: Path
):
    """A voice with a damaged record costs no other voice anything. Its clip stays where it is, because an
    operator may repair the record.
    """
    register(registry, "Alice")
    register(registry, "Bob")
    record = record_of_alice(tmp_path / "bucket")
    record.write_bytes(b"")
    damaged = files(tmp_path / "bucket")
    registry.parts.store.put(SpeakerId("default", "bob").blob_key(uuid4().hex, "0" * 64), b"clip")
    age(tmp_path / "bucket", 2 * DAY)

    housekeeper.sweep()
    remember_longer(redis_client)
    housekeeper.sweep()
    assert files(tmp_path / "bucket") == damaged
    redis_client.flushall()
    assert names_of(registry) == ["Bob"]
    housekeeper.turn()
    assert registry.parts.index.complete()
    assert names_of(registry) == ["Bob"]
    assert registry.operations.speakers.find("default", "Bob").speaker.live


@pytest.mark.parametrize("which", [".ver.", ".json"])
def test_a_record_that_the_store_refuses_costs_nobody_else_theirs(
    registry: OpenRegistry,
    housekeeper: Housekeeper,
    redis_client: Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    which: str,
):
    """A record that the store refuses costs no other voice anything. An object that was archived, or a bad
    sector, once kept the gate closed for all voices.
    """
    make_ready(registry, "Alice", "Bob")
    age(tmp_path / "bucket", 2 * DAY)
    get = registry.parts.store.get

    def refuse(key: str) -> bytes:
        if key.startswith(ALICE.prefix) and which in key:
            raise ObjectUnavailable("archived")
        return get(key)

    with monkeypatch.context() as patched:
        patched.setattr(registry.parts.store, "get", refuse)
        housekeeper.repairs.repair(ALICE)
        assert registry.operations.speakers.find("default", "alice").speaker.live, "the index knows it"
        redis_client.flushall()
        with pytest.raises(VoiceUnreadable, match="'alice' cannot be read"):
            registry.operations.speakers.find("default", "alice")
        housekeeper.turn()
        assert registry.parts.index.gate_open()
        with pytest.raises(VoiceUnreadable, match="'alice' cannot be read"):
            registry.operations.speakers.find("default", "alice")
        with pytest.raises(VoiceUnreadable):
            register(registry, "Alice", words="other words")
        (bob,) = registry.operations.pages.page("default", limit=10).speakers
        assert bob.speaker.newest.record.name == "Bob"
        registry.operations.deletions.delete("default", "Bob")
        age(tmp_path / "bucket", 2 * DAY)
        housekeeper.sweep()
        assert len(registry.parts.store.list("default/v/bob/").objects) == 1, "only the tombstone"
        assert housekeeper.repairs.repair(ALICE) == pytest.approx(60)
    housekeeper.repairs.repair(ALICE)
    indexed = registry.operations.speakers.find("default", "alice")
    assert registry.operations.statuses.state(indexed, indexed.speaker.default) == "ready"


def archived(key: str) -> bytes:
    """Refuse a read, as a store does that keeps an object without returning it."""
    raise ObjectUnavailable("archived")


def emptied(key: str) -> bytes:
    """Return no bytes, as a store does that has lost an object's content."""
    return b""


@pytest.mark.parametrize("read", [archived, emptied])
def test_a_voice_that_cannot_be_read_can_be_deleted(
    registry: OpenRegistry,
    housekeeper: Housekeeper,
    redis_client: Redis,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[str], bytes],
):
    """A voice that cannot be read can be deleted, and its version numbers are not used again."""
    register(registry, "Alice")
    with monkeypatch.context() as patched:
        patched.setattr(registry.parts.store, "get", read)
        redis_client.flushall()
        housekeeper.turn()
        registry.operations.deletions.delete("default", "Alice")
    with pytest.raises(VoiceNotFound):
        registry.operations.speakers.find("default", "alice")
    register(registry, "Alice")
    assert registry.operations.speakers.find("default", "alice").speaker.default.number == 2


@pytest.mark.parametrize("read", [archived, emptied])
def test_what_was_published_stays_while_its_version_cannot_be_read(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, read: Callable[[str], bytes]
):
    """A published artifact stays while its version cannot be read. An index that could not read a version
    does not know it. That does not make it dead: an artifact that was deleted for that could have been served
    from the facts already, and came back with other bytes.
    """
    storage.register("alice")
    (work,) = storage.take("alice")
    get, put_in_force = storage.store.get, storage.index.apply_artifact

    def after_a_loss(*given: Any, **more: Any) -> object:
        storage.raw.flushall()
        storage.index.redis.connection_pool.disconnect()
        monkeypatch.setattr(storage.store, "get", lambda key: (read if ".ver." in key else get)(key))
        return put_in_force(*given, **more)

    monkeypatch.setattr(storage.index, "apply_artifact", after_a_loss)
    with pytest.raises(Unavailable, match=r"cannot be read|is damaged"):
        storage.publish(work)
    (stored,) = [key for key in storage.objects("alice") if key.endswith(".safetensors")]
    monkeypatch.undo()
    storage.sweep()
    storage.check_settled("alice")
    assert storage.served("alice") == (1, digest(storage.store.get(stored)))


@pytest.mark.parametrize("rebuilt", [True, False])
def test_a_damaged_voice_says_so_and_takes_nothing_new(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis, tmp_path: Path, *, rebuilt: bool
):
    register(registry, "Alice")
    register(registry, "Alice", words="other words")
    record = record_of_alice(tmp_path / "bucket")
    written = record.read_bytes()
    record.write_bytes(b"")
    redis_client.flushall()
    if rebuilt:
        housekeeper.turn()
    with pytest.raises(VoiceDamaged, match="'alice' is damaged"):
        registry.operations.speakers.find("default", "alice")
    assert registry.operations.pages.page("default", limit=10).entries == []
    if rebuilt:
        with pytest.raises(VoiceDamaged):
            register(registry, "Alice", words="once more")

    record.write_bytes(written)
    redis_client.flushall()
    housekeeper.turn()
    assert [one.number for one in registry.operations.speakers.find("default", "alice").speaker.versions] == [
        1,
        2,
    ]


def test_a_restored_record_is_found_by_the_next_sweep(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis, tmp_path: Path
):
    register(registry, "Alice")
    record = record_of_alice(tmp_path / "bucket")
    written = record.read_bytes()
    record.write_bytes(b"")
    redis_client.flushall()
    housekeeper.turn()
    record.write_bytes(written)
    housekeeper.sweep()
    assert registry.operations.speakers.find("default", "alice").speaker.default.number == 1


@pytest.mark.parametrize("found_by", ["a rebuild", "a request", "a sweep"])
def test_a_restored_record_is_found_without_a_sweep(
    registry: OpenRegistry, housekeeper: Housekeeper, redis_client: Redis, tmp_path: Path, found_by: str
):
    """A restored record is found without a sweep. Sweeps are a day apart, and until the next one the voice
    was reported as damaged.
    """
    make_ready(registry, "Alice")
    age(tmp_path / "bucket", 2 * DAY)
    housekeeper.repairs.repair(ALICE)
    record = record_of_alice(tmp_path / "bucket")
    written = record.read_bytes()
    record.write_bytes(b"")
    redis_client.delete(DIRTY)
    if found_by == "a sweep":
        housekeeper.sweep()
    else:
        redis_client.flushall()
    if found_by == "a rebuild":
        housekeeper.turn()
    with pytest.raises(VoiceDamaged):
        registry.operations.speakers.find("default", "alice")
    assert redis_client.zscore(DIRTY, str(ALICE)) is not None, "it is on the list of what is looked at"
    assert housekeeper.repairs.repair(ALICE) == pytest.approx(300)

    record.write_bytes(written)
    assert housekeeper.repairs.repair(ALICE) is None
    assert registry.operations.speakers.find("default", "alice").speaker.default.number == 1


def test_two_processes_do_not_rebuild_at_the_same_time(registry: OpenRegistry, redis_client: Redis):
    """Two processes do not rebuild at the same time. It would do no harm, but twice the work, and on a big
    bucket that is minutes.
    """
    redis_client.set(f"sr:lock:rebuild:{registry.parts.index.open()}", "another process", px=20_000)
    with pytest.raises(Unavailable):
        registry.housekeeper().turn()
    assert not registry.parts.index.complete()


def test_the_lock_of_a_dead_process_does_not_outlive_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The lock of a dead process does not outlive its server. If both were killed and started again together,
    as on one machine, no process is rebuilding any more.
    """
    with ValkeyServer(tmp_path / "redis", port=0) as server:
        registry = open_registry(
            StoreSettings(url=(tmp_path / "bucket").as_uri(), create_bucket=True),
            RegistrySettings(redis_url=server.url),
        )
        housekeeper = registry.housekeeper()

        def die(renew: RenewLock) -> None:
            registry.parts.index.ungated.waitaof(1, 0, 10_000)
            server.kill()
            raise InterruptedError

        with monkeypatch.context() as patch:
            patch.setattr(housekeeper, "rebuild", die)
            with pytest.raises(InterruptedError):
                housekeeper.turn()
        server.start()
        assert list(registry.parts.index.ungated.scan_iter("sr:lock:*")), "the lock came back with the log"
        housekeeper.turn()
        assert registry.parts.index.complete()
        registry.parts.close()


def test_trouble_ends_no_housekeeper(registry: OpenRegistry, monkeypatch: pytest.MonkeyPatch):
    stop, turns = threading.Event(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        if turns == 3:
            stop.set()
        raise Unavailable("no bucket", retry_after_seconds=1) if turns == 1 else ValueError("a bug")

    housekeeper = registry.housekeeper(turn_seconds=0.001)
    monkeypatch.setattr(housekeeper, "turn", turn)
    housekeeper.run(stop)
    assert turns == 3


# -- erasing what was deleted


def test_markers_of_folders_go_with_a_deleted_voice(
    moto_server: S3Server, valkey: ValkeyServer, redis_client: Redis
):
    """Markers of folders are deleted with their voice. Consoles make them when a user opens a folder, and
    their keys name the voice.
    """
    settings = bucket_settings(moto_server)
    registry = open_registry(settings, RegistrySettings(redis_url=valkey.url))
    with closing(registry.parts.index):
        housekeeper = registry.housekeeper(deleted_grace_seconds=0)
        housekeeper.turn()
        register(registry, "Alice")
        register(registry, "Bob")
        (vuid,) = [one.vuid for one in registry.operations.speakers.find("default", "alice").speaker.versions]
        prefixes = ["default/v/bob/", ALICE.prefix, f"{ALICE.prefix}d/", ALICE.data_prefix(vuid)]
        for prefix in prefixes:
            put_marker(settings, prefix)
        registry.operations.deletions.delete("default", "Alice")

        def left() -> list[str]:
            housekeeper.sweep()
            return [stored.key for stored in registry.parts.store.list(ALICE.prefix).objects]

        wait_until(lambda: len(left()) == 1)
        (tombstone,) = left()
        assert ".del." in tombstone
        bobs = registry.parts.store.list("default/v/bob/")
        assert "default/v/bob/" in {stored.key for stored in bobs.objects}


def put_marker(settings: StoreSettings, key: str) -> None:
    boto3.client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret,
        config=Config(s3={"addressing_style": "path"}),
    ).put_object(Bucket=settings.bucket, Key=f"{settings.prefix}/{key}", Body=b"")


@pytest.fixture
def storage(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[Storage]:
    """A storage whose time is advanced by the test."""
    with Storage(tmp_path / "bucket", valkey.url) as storage:
        yield storage


@pytest.fixture
def patient(storage: Storage) -> Housekeeper:
    """A housekeeper that keeps deleted data for a day, and has just swept: the next sweep is far away."""
    housekeeper = Housekeeper(
        storage.parts,
        storage.operations,
        HousekeepingSettings(sweep_seconds=100 * DAY),
        lambda: 0,
    )
    housekeeper.sweep()
    return housekeeper


def left_of(storage: Storage, name: str) -> list[str]:
    prefix = SpeakerId.of("default", parse_speaker_name(name)).prefix
    return [stored.key for stored in storage.store.list(prefix).objects]


def test_what_was_deleted_is_erased_when_its_grace_ends(storage: Storage, patient: Housekeeper):
    """Deleted data is erased when its grace period ends, not at the next daily sweep, which may be another
    day later.
    """
    storage.ready("Alice")
    storage.delete("Alice")
    for hours in (1, 12, 10.9):
        storage.clock.sleep(hours * 3600)
        patient.turn()
        assert len(left_of(storage, "Alice")) > 3
    storage.clock.sleep(600)
    patient.turn()
    (left,) = left_of(storage, "Alice")
    assert ".del." in left
    storage.clock.sleep(60)
    patient.turn()
    assert not storage.raw.exists(DIRTY), "and nobody looks at it any more"


def test_a_voice_that_was_registered_again_loses_only_what_was_deleted(
    storage: Storage, patient: Housekeeper
):
    storage.ready("Alice")
    storage.delete("Alice")
    before = set(left_of(storage, "Alice"))
    storage.ready("Alice", number=2)
    storage.clock.sleep(DAY + 60)
    patient.turn()
    assert storage.served("Alice")
    assert len(before & set(left_of(storage, "Alice"))) == 1


def test_an_erasure_is_due_in_time_also_when_redis_was_lost(storage: Storage, patient: Housekeeper):
    """An erasure is due in time also when Redis was lost. Redis knows when to look, and after a loss of it
    the sweep finds the time again.
    """
    storage.ready("Alice")
    storage.delete("Alice")
    patient.turn()
    storage.raw.flushall()
    patient.turn()
    storage.raw.delete(DIRTY)
    patient.sweep()
    storage.clock.sleep(DAY - 600)
    patient.turn()
    assert len(left_of(storage, "Alice")) > 3
    storage.clock.sleep(1200)
    patient.turn()
    assert len(left_of(storage, "Alice")) == 1
