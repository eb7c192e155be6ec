"""Tests of the metrics about faults: jobs that do not succeed, repairs, garbage, rebuilds."""

from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.extractor_worker.jobs.queue_maintenance import reap
from services.shared.configuration.settings import WorkerSettings
from services.shared.index.refusals import EpochOver
from services.shared.queue.rq_jobs import RETRIES, JobQueue, QueuedJob, enqueue, queue_name
from speaker_registry.errors import InvalidAudio, Unavailable
from tests.integration.storage import Storage
from tests.scraping import counted

JOBS = "registry_jobs_total"
REPAIRS = "registry_reconcile_repairs_total"
GARBAGE = "registry_gc_objects_total"
REBUILDS = "registry_index_rebuilds_total"


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(queue_name("test"), redis_client)


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
    registry = queue.started_job_registry.key
    for entry in queue.connection.zrange(registry, 0, -1):
        queue.connection.zadd(registry, {entry: 1})


def test_every_start_of_a_job_is_counted_by_its_end(queue: JobQueue):
    """Every start of a job is counted by its end. One of four is done, one fails for good, one may succeed
    later, and one is canceled meanwhile.
    """
    put(queue, "good", "bad", "passing", "canceled")
    outcomes: dict[str, Any] = {"good": "ok", "bad": InvalidAudio("no"), "passing": Unavailable("not now")}

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
    assert rises == [[2], [1], [1], [1]]


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


def forget_job(storage: Storage) -> str:
    """Let the queue lose its only job, and return its id."""
    [job] = storage.jobs(open_only=True)
    storage.raw.delete(f"rq:job:{job.id}")
    return job.id


def look_later(storage: Storage) -> None:
    storage.clock.sleep(20)
    storage.housekeeper.turn()


def test_repairs_are_counted_by_kind(storage: Storage):
    """Repairs are counted by kind. Each is a crash or a loss that went unnoticed, and many are a fault."""
    storage.register("lost")
    with counted(REPAIRS, kind="job_lost") as lost:
        forget_job(storage)
        look_later(storage)
    [work] = storage.take("lost")
    storage.publish(work)
    storage.register("given up", number=2)
    [job] = storage.jobs("given up", open_only=True)
    storage.raw.hset(f"rq:job:{job.id}", "status", "failed")
    with counted(REPAIRS, kind="job_given_up") as given_up:
        look_later(storage)
    storage.register("deleted", number=3)
    [job] = storage.jobs("deleted", open_only=True)
    storage.raw.delete(f"sr:job:{job.id}")
    storage.raw.delete(f"rq:job:{job.id}")
    with (
        counted(REPAIRS, kind="job_closed") as closed,
        counted(REPAIRS, kind="extraction_resumed") as resumed,
    ):
        look_later(storage)
    assert (lost, given_up, closed, resumed) == ([1], [1], [1], [1])


def test_repairs_are_counted_only_where_there_was_something_to_repair(storage: Storage):
    """Repairs are counted only where there was something to repair. Housekeeping looks after every voice, and
    one in order is no repair.
    """
    kinds = ("extraction_resumed", "job_lost", "job_given_up", "job_closed")
    with ExitStack() as stack:
        rises = [stack.enter_context(counted(REPAIRS, kind=kind)) for kind in kinds]
        storage.register("alice")
        look_later(storage)
        storage.finish_all()
        look_later(storage)
    assert rises == [[0]] * 4


def test_garbage_is_counted_by_what_it_was(storage: Storage):
    """Garbage is counted by its kind. A deleted voice leaves clip and rendition, artifact and its fact, and
    version. Its tombstone stays.
    """
    storage.ready("alice")
    storage.delete("alice")
    kinds = ("blob", "artifact", "record", "temporary")
    with ExitStack() as stack:
        rises = [stack.enter_context(counted(GARBAGE, kind=kind)) for kind in kinds]
        storage.sweep()
    assert rises == [[2], [2], [1], [0]]


@pytest.mark.parametrize("kind", ["version", "artifact"])
def test_a_record_that_cannot_be_read_is_an_integrity_failure(storage: Storage, tmp_path: Path, kind: str):
    """A record that cannot be read is an integrity failure. It alerts an operator, because the record has to
    be restored from a backup.
    """
    storage.ready("alice")
    ending = {"version": "r/*.ver.*", "artifact": "*.json"}[kind]
    [record] = (tmp_path / "bucket/default").rglob(ending)
    record.write_bytes(b"{")
    with counted("registry_integrity_failures_total", kind="record") as rise:
        storage.truth("alice")
    assert rise == [1]


def test_rebuilds_are_counted_by_their_end(storage: Storage, monkeypatch: pytest.MonkeyPatch):
    """Rebuilds are counted by their result. Repeated failures mean that lists are read from the bucket."""
    storage.raw.delete("sr:boot")
    with counted(REBUILDS, result="done") as done:
        storage.housekeeper.turn()
    for error, end in ((EpochOver(), "lost"), (Unavailable("gone"), "failed")):
        storage.raw.delete("sr:boot")

        def fail(*_: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(storage.index, "set_complete", fail)
        with counted(REBUILDS, result=end) as rise, suppress(Unavailable):
            storage.housekeeper.turn()
        assert rise == [1]
    assert done == [1]
