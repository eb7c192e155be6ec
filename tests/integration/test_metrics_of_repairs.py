"""Tests of the metrics about faults: jobs that do not succeed, repairs, garbage, rebuilds."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.extractor_worker.jobs.leases import SUPERSEDED
from services.registry_api.maintenance.garbage_sweep import sweep
from services.shared.configuration.worker import WorkerSettings
from services.shared.queue.reaping import lease_key, reap
from services.shared.queue.rq_jobs import RETRIES, JobQueue, QueuedJob, enqueue, queue_name
from services.shared.view.away import ViewAway
from services.shared.view.keys import record_key
from speaker_registry.errors import InvalidAudio, Unavailable, VoiceDamaged
from tests.opened_registry import NS, OpenedRegistry, folder_settings, id_of
from tests.scraping import counted

JOBS = "registry_jobs_total"
REPAIRS = "registry_reconcile_repairs_total"
GARBAGE = "registry_gc_objects_total"
REBUILDS = "registry_view_rebuilds_total"


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(queue_name("test"), redis_client)


@pytest.fixture
def registry(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[OpenedRegistry]:
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url)) as registry:
        registry.worker.announce()
        yield registry


def put(queue: JobQueue, *job_ids: str) -> None:
    for job_id in job_ids:
        enqueue(queue, job_id, "act", {"speaker": "default/alice"})


def work(queue: JobQueue, handler: Callable[[Any], list[object]]) -> None:
    settings = WorkerSettings()
    BatchWorker([queue.name], {"act": handler}, connection=queue.connection, settings=settings).work(
        burst=True
    )


def die_over_it(queue: JobQueue) -> None:
    """Let a worker take all jobs, a lease ago, and never be heard of again."""
    idle = BatchWorker([queue.name], {"act": list}, connection=queue.connection, settings=WorkerSettings())
    assert idle._take()
    for entry in queue.connection.zrange(queue.started_job_registry.key, 0, -1):
        queue.connection.delete(lease_key(entry))


def test_every_start_of_a_job_is_counted_by_its_end(queue: JobQueue):
    """Every start of a job is counted by its end. One of five is done, one fails for good, one may succeed
    later, one is canceled meanwhile, and one is not wanted any more when it starts.
    """
    put(queue, "good", "bad", "passing", "canceled", "unwanted")
    outcomes: dict[str, Any] = {
        "good": "ok",
        "bad": InvalidAudio("no"),
        "passing": Unavailable("not now"),
        "unwanted": SUPERSEDED,
    }

    def act(jobs: list[QueuedJob]) -> list[object]:
        for job in jobs:
            if job.id == "canceled":
                queue.connection.hset(job.key, "status", "canceled")
        results = [outcomes.get(job.id) for job in jobs]
        outcomes["passing"] = "ok"
        return results

    ends = ("finished", "failed", "retried", "lost")
    with ExitStack() as stack:
        rises = [stack.enter_context(counted(JOBS, profile="test", result=end)) for end in ends]
        work(queue, act)
    assert rises == [[2], [1], [1], [2]]


def test_a_job_whose_workers_die_is_counted_until_it_is_given_up(queue: JobQueue):
    """A job whose workers die is counted until it is given up, because a clip that kills
    workers shows here first.
    """
    put(queue, "deadly")
    with (
        counted(JOBS, profile="test", result="abandoned") as abandoned,
        counted(JOBS, profile="test", result="given_up") as given_up,
    ):
        for _ in range(RETRIES + 1):
            die_over_it(queue)
            reap(queue)
    assert (abandoned, given_up) == ([RETRIES], [1])


def test_what_is_no_job_of_ours_is_counted_wherever_it_is_found(queue: JobQueue):
    """A job that is not the registry's own is counted wherever it is found, because it shows that another
    program writes to its Redis.
    """
    put(queue, "odd", "spoilt")
    queue.connection.hset("rq:job:odd", "data", "no job")
    with counted(JOBS, profile="test", result="quarantined") as found:
        die_over_it(queue)
        queue.connection.hset("rq:job:spoilt", "data", "no job")
        reap(queue)
    assert found == [2]


def forget_job(registry: OpenedRegistry, name: str) -> str:
    """Let the queue lose the only job of a voice, and return its id."""
    [job] = registry.worker.queued(name)
    registry.redis.delete(f"rq:job:{job.id}")
    return job.id


def look_later(registry: OpenedRegistry) -> None:
    """Look at every voice, as housekeeping does when it is due."""
    housekeeping = registry.housekeeping()
    for name in registry.view.names(NS, limit=100):
        housekeeping.check(id_of(name))


def test_repairs_are_counted_by_kind(registry: OpenedRegistry):
    """Repairs are counted by kind. Each is a crash or a loss that went unnoticed, and many are a fault."""
    registry.register("lost", 1)
    with counted(REPAIRS, kind="job_lost") as lost:
        forget_job(registry, "lost")
        look_later(registry)
    registry.worker.finish_all("lost")
    registry.register("given up", 2)
    [job] = registry.worker.queued("given up")
    registry.redis.hset(f"rq:job:{job.id}", "status", "failed")
    with counted(REPAIRS, kind="job_given_up") as given_up:
        look_later(registry)
    registry.register("deleted", 3)
    job_id = forget_job(registry, "deleted")
    registry.redis.delete(record_key(registry.opened.generation.for_reading(), job_id))
    with (
        counted(REPAIRS, kind="job_closed") as closed,
        counted(REPAIRS, kind="extraction_resumed") as resumed,
    ):
        look_later(registry)
    assert (lost, given_up, closed, resumed) == ([1], [1], [1], [1])


def test_repairs_are_counted_only_where_there_was_something_to_repair(registry: OpenedRegistry):
    """Repairs are counted only where there was something to repair. Housekeeping looks after every voice, and
    one in order is no repair.
    """
    kinds = ("extraction_resumed", "job_lost", "job_given_up", "job_closed")
    with ExitStack() as stack:
        rises = [stack.enter_context(counted(REPAIRS, kind=kind)) for kind in kinds]
        registry.register("alice")
        look_later(registry)
        registry.worker.finish_all()
        look_later(registry)
    assert rises == [[0]] * 4


def test_garbage_is_counted_by_what_it_was(registry: OpenedRegistry):
    """Garbage is counted by its kind. An upload that died leaves its clip, and a late artifact its file."""
    registry.make_ready("alice")
    left, store = "0" * 32, registry.opened.blobs
    store.store_clip(id_of("alice"), left, b"uploaded", b"decoded")
    store.store_artifact(id_of("alice"), left, "1" * 32, b"late")
    with ExitStack() as stack:
        rises = [stack.enter_context(counted(GARBAGE, kind=kind)) for kind in ("blob", "artifact")]
        sweep(registry.speakers, store, id_of("alice"), grace=timedelta(seconds=-5))
    assert rises == [[2], [1]]


def test_a_document_that_cannot_be_read_is_an_integrity_failure(registry: OpenedRegistry, tmp_path: Path):
    """It alerts an operator, because the document has to be restored from a backup."""
    registry.make_ready("alice")
    (tmp_path / "bucket" / NS / "s" / "alice.json").write_bytes(b"{")
    with counted("registry_integrity_failures_total", kind="record") as rise, suppress(VoiceDamaged):
        registry.speakers.refresh(id_of("alice"))
    assert rise == [1]


def test_rebuilds_are_counted_by_their_end(registry: OpenedRegistry, monkeypatch: pytest.MonkeyPatch):
    """Rebuilds are counted by their result. Repeated failures mean that lists are read from the bucket."""
    with counted(REBUILDS, result="done") as done:
        registry.housekeeping().rebuild()
    for error, end in ((ViewAway(), "lost"), (Unavailable("gone"), "failed")):

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(registry.view, "complete", fail)
        with counted(REBUILDS, result=end) as rise, suppress(Unavailable):
            registry.housekeeping().rebuild()
        assert rise == [1]
    assert done == [1]
