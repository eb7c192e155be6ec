"""Tests of the loop of housekeeping and of what it does on a real store and a real Valkey: rebuilds of the
view, jobs that were lost, sweeps, and that trouble with one speaker stays with that speaker.
"""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis
from structlog.testing import capture_logs

from services.embedded.valkey import ValkeyServer
from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.registry_api.maintenance.housekeeping import Housekeeping, Stopped, listing_is_due
from services.registry_api.maintenance.locks import RenewLock, only_one
from services.registry_api.maintenance.rebuild import rebuild
from services.registry_api.maintenance.sweep import SWEPT, ask_for_sweep
from services.shared.bucket.documents import Base
from services.shared.bucket.durable_folder import TEMPORARY
from services.shared.bucket.layout import profile_key
from services.shared.bucket.pictures import store_pictures
from services.shared.configuration.worker import WorkerSettings
from services.shared.model.pictures import Picture
from services.shared.model.speaker import SpeakerId
from services.shared.queue.dispatch import EXTRACT
from services.shared.queue.reaping import lease_key
from services.shared.queue.rq_jobs import JobQueue, status_of
from services.shared.view.copies import Listed
from services.shared.view.job_records import KEPT_SECONDS
from services.shared.view.keys import agenda_key
from speaker_registry.errors import Unavailable
from tests.opened_registry import NS, OpenedRegistry, folder_settings, id_of
from tests.queue_workers import wait_until

DAY = 86_400
WREN = id_of("wren")


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def registry(bucket: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[OpenedRegistry]:
    with closing(OpenedRegistry(folder_settings(bucket), valkey.url)) as registry:
        yield registry


@pytest.fixture
def housekeeping(registry: OpenedRegistry) -> Housekeeping:
    """A housekeeping whose first turn has rebuilt the view and swept."""
    housekeeping = registry.housekeeping()
    housekeeping.turn()
    return housekeeping


def age(bucket: Path, seconds: float) -> None:
    """Make every file look as if it had been written this long ago."""
    then = time.time() - seconds
    for path in bucket.rglob("*"):
        os.utime(path, (then, then))


def look_now(registry: OpenedRegistry, housekeeping: Housekeeping, name: str) -> None:
    registry.speakers.agenda.check_within({id_of(name): 0})
    housekeeping.turn()


def lose_the_view(registry: OpenedRegistry) -> None:
    """Have another generation begin, as after a fail-over. What the last one had stays in Redis."""
    registry.opened.generation.begin_replacement(registry.opened.generation.for_reading())


def generations(client: Redis) -> set[str]:
    keys = (key.decode() for key in client.scan_iter("sr:*"))
    return {parts[1] for key in keys if len((parts := key.split(":"))[1]) == 32}


# Rebuilds


def test_the_first_turn_makes_the_view_complete(registry: OpenedRegistry) -> None:
    assert not registry.view.is_complete()
    registry.housekeeping().turn()
    assert registry.view.is_complete()


@pytest.mark.parametrize(
    ("first", "last", "due"),
    [
        (59, 59, False),
        (61, 61, True),
        (61, 0, False),
        (3599, 3539, False),
        (3601, 3541, True),
        (3601, 0, False),
        (2 * DAY, DAY - 1, False),
        (2 * DAY, DAY, True),
    ],
)
def test_the_bucket_is_listed_again_after_a_minute_an_hour_and_then_daily(
    first: float, last: float, due: bool
) -> None:
    """What a node of the store that was behind showed, or a lost `apply`, would stay wrong otherwise."""
    assert listing_is_due(None)
    assert listing_is_due(Listed(first, last)) is due


def test_a_rebuild_takes_over_what_the_last_generation_had(
    registry: OpenedRegistry, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of Redis a million voices must not cost a million reads."""
    registry.make_ready("wren", "robin")
    housekeeping.rebuild()  # notes how the files look
    lose_the_view(registry)
    read: list[str] = []
    documents = registry.speakers.documents.stored
    original = documents.read

    def noted(key: str) -> Base:
        read.append(key)
        return original(key)

    monkeypatch.setattr(documents, "read", noted)
    assert housekeeping.rebuild() == 2
    assert [key for key in read if key.startswith(f"{NS}/s/")] == []
    assert registry.view.names(NS, limit=9) == ["robin", "wren"]
    assert registry.find("wren").document == registry.document("wren")


def test_a_rebuild_reads_what_has_changed_since_the_last_generation(
    registry: OpenedRegistry, housekeeping: Housekeeping, valkey: ValkeyServer, bucket: Path
) -> None:
    registry.make_ready("wren")
    housekeeping.rebuild()
    before = registry.redis.get("sr:view")
    lose_the_view(registry)
    registry.register("wren", 7)
    assert registry.redis.get("sr:view") != before
    lose_the_view(registry)
    housekeeping.rebuild()
    assert registry.find("wren").document == registry.document("wren")
    assert registry.newest("wren").number == 2


def test_what_older_generations_left_is_removed(
    registry: OpenedRegistry, housekeeping: Housekeeping, redis_client: Redis
) -> None:
    registry.make_ready("wren")
    housekeeping.rebuild()
    lose_the_view(registry)
    assert len(generations(redis_client)) == 2
    housekeeping.rebuild()
    assert generations(redis_client) == {registry.opened.generation.for_reading()}


@pytest.mark.parametrize("later", ["wren", "robin"])
def test_a_bucket_that_was_restored_begins_another_generation(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path, later: str
) -> None:
    """The view is ahead of a restored bucket, and keeps the newer copy for good."""
    registry.make_ready("wren")
    backup = bucket.parent / "backup"
    shutil.copytree(bucket / NS / "s", backup)
    registry.register(later, 5)
    before = registry.opened.generation.for_reading()
    shutil.rmtree(bucket / NS / "s")
    shutil.copytree(backup, bucket / NS / "s")
    with pytest.raises(Unavailable):
        housekeeping.rebuild()
    assert registry.opened.generation.for_reading() != before
    housekeeping.rebuild()
    assert registry.view.names(NS, limit=9) == ["wren"]
    assert registry.newest("wren").number == 1


def test_an_older_document_of_a_profile_that_was_put_back_begins_another_generation(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path
) -> None:
    registry.make_ready("wren")
    records, profile = registry.opened.profile_records, registry.opened.profiles.required[0].name
    document = bucket / profile_key(profile)
    older, known = document.read_bytes(), records.read_uncached(profile)
    registry.worker.announce("sha256:" + "2" * 64)
    assert records.read_uncached(profile) != known
    document.write_bytes(older)
    with capture_logs() as logs, pytest.raises(Unavailable):
        housekeeping.rebuild()
    assert [line["profiles"] for line in logs if line["event"] == "bucket.restored"] == [[profile]]
    housekeeping.rebuild()
    assert records.read_uncached(profile) == known


@pytest.mark.parametrize(
    ("compared", "lasting"),
    [([["a", "b"], ["b"], ["a", "b"], ["b"]], ["b"]), ([["a"], ["b"], ["a"], ["a"]], [])],
)
def test_only_what_contradicts_the_bucket_each_time_counts(
    registry: OpenedRegistry, housekeeping: Housekeeping, compared: list[list[str]], lasting: list[str]
) -> None:
    """An outdated node of the store may answer any single comparison. The log names what lasted, and compares
    nothing again for it.
    """
    before, comparisons = registry.opened.generation.for_reading(), iter(compared)
    with capture_logs() as logs:
        rebuild(registry.opened.store, registry.speakers, put_back=lambda: next(comparisons))
    restored = [line for line in logs if line["event"] == "bucket.restored"]
    assert [(line["speakers"], line["profiles"]) for line in restored] == ([(0, lasting)] if lasting else [])
    assert (registry.opened.generation.last_used != before) is bool(lasting)


def test_two_processes_do_not_rebuild_at_the_same_time(registry: OpenedRegistry) -> None:
    generation, clock = registry.opened.generation, registry.opened.clock
    with only_one(generation, clock, "rebuild"), pytest.raises(Unavailable, match="working on the rebuild"):
        registry.housekeeping().turn()
    registry.housekeeping().turn()
    assert registry.view.is_complete()


# Speakers that are due


def test_a_job_whose_place_in_the_queue_was_lost_is_replaced(
    registry: OpenedRegistry, housekeeping: Housekeeping, redis_client: Redis
) -> None:
    registry.worker.announce()
    [lost] = registry.register("wren").jobs.values()
    look_now(registry, housekeeping, "wren")
    assert registry.jobs.record(NS, lost).state == "queued"
    redis_client.delete(JobQueue(registry.jobs.record(NS, lost).queue, redis_client).key)
    look_now(registry, housekeeping, "wren")
    assert registry.jobs.record(NS, lost).state == "superseded"
    registry.worker.finish_all()
    assert registry.newest("wren").served


def test_a_job_whose_worker_died_waits_again_though_no_worker_lives(
    registry: OpenedRegistry, housekeeping: Housekeeping, redis_client: Redis
) -> None:
    """Only workers took jobs from those that died. Without any, jobs said `processing` for ever."""
    registry.worker.announce()
    [job] = registry.register("wren").jobs.values()
    queue = JobQueue(registry.jobs.record(NS, job).queue, redis_client)
    BatchWorker([queue.name], {EXTRACT: list}, connection=redis_client, settings=WorkerSettings())._take()
    [attempt] = registry.worker.take_all("wren")
    housekeeping.turn()
    assert (registry.jobs.record(NS, job).state, status_of(queue, job)) == ("processing", "started")
    [entry] = redis_client.zrange(queue.started_job_registry.key, 0, -1)
    redis_client.delete(lease_key(entry))
    housekeeping.turn()
    record = registry.jobs.record(NS, job)
    assert (record.state, record.stage, status_of(queue, job)) == ("queued", "queued", "queued")
    assert record.error == {**(record.error or {}), "code": "lease_expired", "attempt": 1}
    assert "longer than SPEAKER_JOB_SECONDS" in str(record.error)
    assert [one.processing for one in registry.find("wren").open_jobs] == [False]
    assert registry.jobs.records.page(NS, state="processing", limit=9).found == []
    # The worker was only frozen, and nobody has taken over.
    registry.jobs.report(attempt.speaker_id, attempt.job, attempt.number, "encoding")
    assert registry.jobs.record(NS, job).state == "processing"
    assert registry.worker.publish(attempt)
    assert registry.jobs.record(NS, job).state == "succeeded"


def test_a_job_that_was_begun_after_it_went_back_to_its_queue_is_put_back(
    registry: OpenedRegistry, housekeeping: Housekeeping, redis_client: Redis
) -> None:
    """Its worker was frozen while it took the job, and died after it began. No execution is listed then."""
    registry.worker.announce()
    [job] = registry.register("wren").jobs.values()
    [attempt] = registry.worker.take_all("wren")
    assert registry.jobs.record(NS, job).state == "processing"
    look_now(registry, housekeeping, "wren")
    assert registry.jobs.record(NS, job).state == "queued"
    assert registry.worker.publish(attempt), "it was frozen only"


def test_a_job_that_another_worker_has_taken_meanwhile_is_not_put_back(registry: OpenedRegistry) -> None:
    """Nor does the first worker's late report change what is told of the second one's work."""
    registry.worker.announce()
    [job] = registry.register("wren").jobs.values()
    [first] = registry.worker.take_all("wren")
    put_back = registry.jobs.latest_attempt(str(WREN), job)
    assert registry.worker.take(WREN, job, first.profile) is not None
    put_back()
    registry.jobs.report(WREN, first.job, first.number, "publishing")
    record = registry.jobs.record(NS, job)
    assert (record.state, record.attempt, record.stage) == ("processing", 2, "loading")


def test_a_lost_job_that_was_to_make_an_artifact_anew_is_opened_again(
    registry: OpenedRegistry, housekeeping: Housekeeping
) -> None:
    registry.make_ready("wren")
    profile, version = registry.opened.profiles.required[0].name, registry.newest("wren")
    fingerprint = registry.opened.profiles.fingerprint(profile)
    lost = registry.jobs.open(WREN, version, profile, fingerprint, forced=True)
    registry.jobs.remove(lost)
    look_now(registry, housekeeping, "wren")
    [job] = registry.find("wren").open_jobs
    assert registry.jobs.record(NS, job.job_id).forced
    registry.worker.finish_all()
    assert registry.newest("wren").highest_build(profile, fingerprint) == 2


def test_what_is_missing_after_a_promotion_is_made(
    registry: OpenedRegistry, housekeeping: Housekeeping
) -> None:
    registry.make_ready("wren")
    other = "sha256:" + "2" * 64
    registry.worker.announce(other)
    registry.opened.profile_records.clear_cache()
    housekeeping.turn()  # sweeps, because the profile is made with another encoder
    registry.worker.finish_all()
    profile = registry.opened.profiles.required[0].name
    assert registry.newest("wren").artifact(profile, other) is not None


def test_one_speaker_that_cannot_be_settled_does_not_keep_the_others_from_it(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path
) -> None:
    registry.worker.announce()
    registry.register("wren", 1)
    [lost] = registry.register("robin", 2).jobs.values()
    registry.opened.dispatcher.remove(lost, registry.jobs.record(NS, lost).queue)
    (bucket / NS / "s" / "wren.json").write_bytes(b"{")
    registry.speakers.agenda.check_within({WREN: 0})
    look_now(registry, housekeeping, "robin")
    assert registry.find("robin").open_jobs[0].job_id != lost


def test_trouble_ends_no_housekeeping(registry: OpenedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    housekeeping, stop, turns = registry.housekeeping(turn_seconds=0.01), threading.Event(), list[int]()

    def turn() -> None:
        turns.append(1)
        if len(turns) == 3:
            stop.set()
        raise [Unavailable("away"), ValueError("odd"), KeyError("odd")][len(turns) - 1]

    monkeypatch.setattr(housekeeping, "turn", turn)
    housekeeping.run(stop)
    assert len(turns) == 3


def test_a_view_that_was_lost_is_filled_before_the_next_turn_is_due(registry: OpenedRegistry) -> None:
    registry.make_ready("wren")
    stop = threading.Event()
    thread = threading.Thread(
        target=registry.housekeeping(turn_seconds=3600).run, args=[stop], name="housekeeping"
    )
    thread.start()
    try:
        wait_until(registry.view.is_complete, 60)
        lose_the_view(registry)
        wait_until(registry.view.is_complete, 60)
    finally:
        stop.set()
        thread.join()


# Deleted voices


def test_an_erasure_is_due_also_when_redis_was_lost(registry: OpenedRegistry, redis_client: Redis) -> None:
    registry.make_ready("wren")
    registry.delete("wren")
    redis_client.flushall()
    registry.opened.generation.check()
    housekeeping = registry.housekeeping(deleted_grace_seconds=3600)
    housekeeping.rebuild()
    due = agenda_key(registry.opened.generation.for_reading())
    at = registry.redis.zscore(due, str(WREN))
    assert at is not None
    assert float(at) / 1000 - time.time() == pytest.approx(3600, abs=60)


# Sweeps


def test_a_sweep_drops_the_records_of_jobs_that_ended_long_ago(
    registry: OpenedRegistry, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis would fill with jobs that nobody asks for any more. A job that is open stays."""
    registry.make_ready("wren")
    registry.register("robin", 2)
    now = registry.speakers.now()

    def states() -> set[str]:
        return {one.state for one in registry.jobs.records.page(NS, limit=100).found}

    housekeeping.sweep()
    assert states() == {"succeeded", "queued"}
    monkeypatch.setattr(registry.speakers, "now", lambda: now + KEPT_SECONDS + 60)
    housekeeping.sweep()
    assert states() == {"queued"}


def test_a_sweep_takes_what_crashed_writers_left_and_nothing_else(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path
) -> None:
    registry.make_ready("wren")
    store_pictures(registry.opened.store, WREN, registry.newest("wren").vuid, {Picture.MEL: b"png"})
    kept = registry.files("wren")
    unnamed = ["0" * 32, "1" * 32]
    registry.opened.blobs.store_upload(WREN, unnamed[0], b"left")
    registry.opened.blobs.store_upload(id_of("never"), unnamed[1], b"left")
    foreign = bucket / NS / "d" / "wren" / "notes.txt"
    foreign.write_text("mine")
    temporary = bucket / TEMPORARY / "left"
    temporary.parent.mkdir(exist_ok=True)
    temporary.write_bytes(b"half")
    housekeeping.sweep()
    assert len(registry.files("wren")) == len(kept) + 2
    age(bucket, 2 * DAY)
    housekeeping.sweep()
    assert sorted(registry.files("wren")) == sorted([*kept, f"{NS}/d/wren/notes.txt"])
    assert registry.files("never") == []
    assert not temporary.exists()
    assert foreign.read_text() == "mine"
    assert unnamed[0] in registry.document("wren").swept


def test_a_sweep_is_made_once_a_day_and_when_it_is_asked_for(
    registry: OpenedRegistry, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps: list[int] = []
    sweep = housekeeping.sweep

    def counted(renew: RenewLock) -> None:
        sweeps.append(1)
        sweep(renew)

    monkeypatch.setattr(housekeeping, "sweep", counted)
    housekeeping.turn()
    assert sweeps == []
    ask_for_sweep(registry.redis)
    ask_for_sweep(registry.redis)
    housekeeping.turn()
    housekeeping.turn()
    assert len(sweeps) == 1
    began, rest = str(registry.redis.get(SWEPT)).split(":", 1)
    registry.redis.set(SWEPT, f"{int(began) - DAY - 10}:{rest}")
    housekeeping.turn()
    assert len(sweeps) == 2
    registry.redis.set(SWEPT, f"{int(began) + DAY}:{rest}")  # by a clock that has been set back since
    housekeeping.turn()
    assert len(sweeps) == 3


def test_a_start_with_other_profiles_looks_at_every_voice(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path, valkey: ValkeyServer
) -> None:
    registry.make_ready("wren")
    both = ("qwen3-tts-0.6b", "qwen3-tts-1.7b")
    with closing(OpenedRegistry(folder_settings(bucket), valkey.url, profiles=both)) as other:
        other.housekeeping().turn()
        assert [job.profile for job in other.find("wren").open_jobs] == ["qwen3-tts-1.7b"]


def test_a_sweep_that_was_stopped_goes_on_where_it_was(
    registry: OpenedRegistry, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.make_ready("heron", "robin", "wren")
    swept: list[str] = []
    monkeypatch.setattr(Housekeeping, "_sweep_one", lambda _, speaker_id: swept.append(speaker_id.slug))
    ask_for_sweep(registry.redis)
    told_to_stop = threading.Event()
    told_to_stop.set()
    stopped = registry.housekeeping(sweep_threads=1)
    stopped.stop_when(told_to_stop)
    with pytest.raises(Stopped):
        stopped.turn()
    assert swept == ["heron"]
    housekeeping.turn()
    assert swept == ["heron", "robin", "wren"]


def test_a_sweep_gives_way_to_a_rebuild_and_goes_on_after_it(
    registry: OpenedRegistry, housekeeping: Housekeeping, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep may take hours. Lists would come from the bucket for as long after a loss of Redis."""
    for name in ("owl", "robin", "wren"):
        registry.register(name)
    swept: list[str] = []

    def sweep_one(_: Housekeeping, speaker_id: SpeakerId) -> None:
        swept.append(speaker_id.slug)
        if len(swept) == 1:
            lose_the_view(registry)

    monkeypatch.setattr(Housekeeping, "_sweep_one", sweep_one)
    housekeeping = registry.housekeeping(sweep_threads=1, turn_seconds=1e-9)
    ask_for_sweep(registry.redis)
    housekeeping.turn()
    assert (swept, registry.view.is_complete()) == (["owl"], False)
    housekeeping.turn()
    assert (swept, registry.view.is_complete()) == (["owl", "robin", "wren"], True)


def test_two_processes_do_not_sweep_at_the_same_time(
    registry: OpenedRegistry, housekeeping: Housekeeping
) -> None:
    ask_for_sweep(registry.redis)
    generation, clock = registry.opened.generation, registry.opened.clock
    with only_one(generation, clock, "sweep"), pytest.raises(Unavailable, match="working on the sweep"):
        housekeeping.turn()
    housekeeping.turn()


def test_a_sweep_that_redis_has_lost_is_none_for_other_profiles(
    registry: OpenedRegistry, housekeeping: Housekeeping
) -> None:
    """Operators would look for a difference between processes that there is not."""
    registry.make_ready("wren")
    housekeeping.turn()
    registry.redis.delete(SWEPT)
    with capture_logs() as logs:
        housekeeping.turn()
    assert [line["event"] for line in logs if line["event"].startswith("sweep.")] == ["sweep.done"]


def test_no_sweep_follows_from_a_document_of_a_profile_that_cannot_be_read(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path
) -> None:
    """Once it can be read again, other processes would call the encoder of that sweep a different setting."""
    registry.make_ready("wren")
    housekeeping.turn()
    records, path = registry.opened.profile_records, profile_key(registry.opened.profiles.required[0].name)
    sound = (bucket / path).read_bytes()
    with capture_logs() as logs:
        for body in (b"{", sound):
            (bucket / path).write_bytes(body)
            records._shared.copies.forget([path])
            records.clear_cache()
            housekeeping.turn()
    events = [line["event"] for line in logs]
    assert "profile.unreadable" in events
    assert not [event for event in events if event.startswith("sweep.")]


def test_processes_with_other_profiles_do_not_sweep_in_turns(
    registry: OpenedRegistry, housekeeping: Housekeeping, bucket: Path, valkey: ValkeyServer
) -> None:
    """Each sweeps once for its own profiles, also after it was restarted with others and with those of
    before. Without that, the registry was swept all the time while a setting was rolled out.
    """
    registry.make_ready("wren")
    both = ("qwen3-tts-0.6b", "qwen3-tts-1.7b")
    housekeeping.turn()
    with (
        closing(OpenedRegistry(folder_settings(bucket), valkey.url, profiles=both)) as other,
        capture_logs() as logs,
    ):
        others = other.housekeeping()
        for _ in range(5):
            others.turn()
            housekeeping.turn()
        assert [line["event"] for line in logs if line["event"].startswith("sweep.")] == [
            "sweep.done",
            "sweep.profiles_differ",
        ]
        logs.clear()
        restarted = registry.housekeeping()
        for _ in range(5):
            restarted.turn()
            others.turn()
            housekeeping.turn()
        assert [line["event"] for line in logs if line["event"].startswith("sweep.")] == [
            "sweep.done",
            "sweep.profiles_differ",
        ]
