"""Tests of enqueueing, and of the repairs after a crash: the ways in which stock RQ loses or doubles jobs."""

import json
import pickle
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Queue, Retry
from rq.job import Job
from rq.serializers import JSONSerializer

from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.extractor_worker.jobs.queue_maintenance import LOCK_SECONDS, QueueMaintenance
from services.shared.configuration.worker import WorkerSettings
from services.shared.queue.lost_jobs import LONGEST_SEARCHED, is_lost
from services.shared.queue.reaping import _reap_one, lease_key, reap
from services.shared.queue.rq_jobs import (
    QUARANTINE_KEY,
    QUARANTINE_LENGTH,
    RETRIES,
    JobQueue,
    QueuedJob,
    enqueue,
    status_of,
)
from services.shared.telemetry.metrics import JOBS
from tests.http_server import http_server

NAME = "extract.test"


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(NAME, redis_client)


def put(queue: JobQueue, job_id: str = "a") -> bool:
    return enqueue(queue, job_id, "act", {"speaker": "default/alice"})


def worker(queue: JobQueue, **arguments: Any) -> BatchWorker:
    handlers = {"act": lambda jobs: [None] * len(jobs)}
    return BatchWorker(
        [queue.name], handlers, connection=queue.connection, settings=WorkerSettings(), **arguments
    )


def start_and_die(queue: JobQueue) -> list[str]:
    """Let a worker start everything in the queue, a lease ago, and never be heard of again."""
    batch = worker(queue)._take()
    expire_leases(queue)
    return [job.id for job in batch.jobs]


def expire_leases(queue: JobQueue) -> None:
    for entry in queue.connection.zrange(queue.started_job_registry.key, 0, -1):
        queue.connection.delete(lease_key(entry))


def take_and_die(queue: JobQueue) -> None:
    """Let a worker die between taking a job from the queue and starting it."""
    queue.connection.lmove(queue.key, queue.intermediate_queue_key)


def places(queue: JobQueue) -> dict[str, int]:
    """Return where jobs are, without RQ's `count`, which cleans up as it looks."""
    return {
        "queued": queue.count,
        "taken": queue.connection.llen(queue.intermediate_queue_key),
        "started": queue.started_job_registry.get_job_count(cleanup=False),
        "finished": queue.finished_job_registry.get_job_count(cleanup=False),
        "failed": queue.failed_job_registry.get_job_count(cleanup=False),
    }


def at(**some: int) -> dict[str, int]:
    return {"queued": 0, "taken": 0, "started": 0, "finished": 0, "failed": 0} | some


def in_threads(count: int, work: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- enqueueing --


def test_a_job_is_queued_once_however_often_it_is_asked_for(queue):
    """A job is queued once however often it is requested. Two API replicas may precompute the same artifact,
    or redis-py may repeat a command whose answer was lost.
    """
    assert [put(queue), put(queue), put(queue)] == [True, False, False]
    assert places(queue) == at(queued=1)


def test_asking_again_says_that_the_job_exists_until_it_is_forgotten(queue):
    """A repeated request reports that the job exists until it is forgotten. The caller reads its state, and
    must not start the work again without knowing.
    """
    put(queue)
    worker(queue).work(burst=True)
    assert (put(queue), status_of(queue, "a")) == (False, "finished")
    queue.connection.delete("rq:job:a")
    assert status_of(queue, "a") is None
    assert put(queue)


def test_a_job_carries_ids_its_limits_and_nothing_else(queue):
    """A job carries ids, its limits and nothing else, because data that is not written needs no erasing."""
    put(queue)
    stored = Job.fetch("a", connection=queue.connection, serializer=JSONSerializer)
    assert (stored.func_name, stored.args, stored.kwargs) == ("act", [], {"speaker": "default/alice"})
    assert (stored.retries_left, stored.result_ttl, stored.failure_ttl, stored.timeout) == (
        3,
        300,
        86_400,
        120,
    )
    assert (stored.description, stored.meta) == ("act a", {})


@pytest.mark.parametrize("job_id", ["a:b", "a b", "ä", "../a"])
def test_an_id_that_rq_cannot_hold_is_refused_by_the_caller_s_process(queue, job_id):
    """An id that RQ cannot hold is refused in the caller's process. A colon would make the start of one job
    look like another's.
    """
    with pytest.raises(ValueError, match="Job ID"):
        put(queue, job_id)
    assert places(queue) == at()


# -- tenants take turns --


def put_for(queue: JobQueue, tenant: str, job_id: str) -> None:
    enqueue(queue, job_id, "act", {"speaker": f"{tenant}/alice"})


def test_a_tenant_with_a_thousand_jobs_delays_another_s_one_by_no_more_than_one_batch(queue):
    """A tenant with a thousand jobs delays another tenant's single job by no more than one batch. In one
    order over all tenants, every other tenant would wait until the largest is done.
    """
    for number in range(1000):
        put_for(queue, "large", f"large-{number}")
    batch_size = WorkerSettings().batch_size
    queue.take(batch_size)  # a worker is busy with them
    put_for(queue, "small", "small-0")
    assert b"small-0" in queue.take(batch_size)


def test_jobs_of_several_tenants_are_taken_in_turn_and_each_tenant_s_in_their_order(queue):
    for tenant, jobs in {"a": 4, "b": 2, "c": 3}.items():
        for number in range(jobs):
            put_for(queue, tenant, f"{tenant}{number}")
    assert queue.take(100) == [b"a0", b"b0", b"c0", b"a1", b"b1", b"c1", b"a2", b"c2", b"a3"]
    assert not queue.connection.exists(f"{queue.key}:order", f"{queue.key}:turns")


def test_a_tenant_that_was_idle_gains_no_more_than_its_turn(queue):
    """A tenant that was idle gains no more than its turn. A tenant that saved up turns could otherwise keep
    the others waiting for as long.
    """
    for number in range(10):
        put_for(queue, "busy", f"busy{number}")
    assert len(queue.take(5)) == 5
    for number in range(3):
        put_for(queue, "idle", f"idle{number}")
    put_for(queue, "busy", "busy-late")
    assert queue.take(6) == [b"busy5", b"idle0", b"busy6", b"idle1", b"busy7", b"idle2"]
    assert queue.take(6) == [b"busy8", b"busy9", b"busy-late"]


def test_what_somebody_removed_from_the_queue_disturbs_no_turn(queue):
    """A canceled job, which was removed from the queue, disturbs no tenant's turn."""
    for number in range(4):
        put_for(queue, "a", f"a{number}")
    for job_id in ("a1", "a2"):
        queue.connection.lrem(queue.key, 1, job_id)
    put_for(queue, "b", "b0")
    put_for(queue, "b", "b1")
    assert queue.job_ids == ["a0", "b0", "b1", "a3"]
    assert queue.take(3) == [b"a0", b"b0", b"b1"]
    assert queue.connection.zrange(f"{queue.key}:order", 0, -1) == [b"a3"]


# -- jobs whose worker died --


def test_jobs_of_a_dead_worker_come_back(queue):
    """Jobs of a dead worker come back after kill -9, an out-of-memory kill or the loss of a machine. The
    queue forgets nothing.
    """
    put(queue, "a"), put(queue, "b")
    start_and_die(queue)
    assert reap(queue) == 2
    assert places(queue) == at(queued=2)
    assert QueuedJob.fetch("a", connection=queue.connection).retries_left == RETRIES - 1


def test_jobs_that_end_their_workers_delay_another_tenant_s_by_one_start_each(queue):
    """Jobs that end their workers delay another tenant's job by one start. They run alone, in their tenant's
    turn. If they went to the head of the queue, a tenant with many of them would keep the workers from all
    others.
    """
    for number in range(4):
        put_for(queue, "bad", f"bad{number}")
    assert len(start_and_die(queue)) == 4
    reap(queue)
    for number in range(4):
        put_for(queue, "good", f"good{number}")
        assert start_and_die(queue) == [f"bad{number}"]
        reap(queue)
        living = worker(queue)
        living._handle(batch := living._take())
        assert [job.id for job in batch.jobs] == [f"good{number}"]
    assert places(queue) == at(queued=4, finished=4)


def test_a_job_that_was_started_before_is_taken_alone(queue):
    """A job that was started before may be the one that ends the process, so no other job is with it when it
    does so again.
    """
    put(queue, "a")
    start_and_die(queue)
    put(queue, "b"), put(queue, "c")
    reap(queue)
    put(queue, "d")
    assert [queue.take(9) for _ in range(4)] == [[b"b", b"c"], [b"a"], [b"d"], []]


def test_a_job_whose_worker_still_beats_is_left_alone(queue):
    """A job whose worker still sends heartbeats is left alone, because a second start would compute
    everything twice.
    """
    put(queue)
    worker(queue)._take()
    assert reap(queue) == 0
    assert places(queue) == at(started=1)


def test_a_beat_between_the_look_and_the_verdict_counts(queue):
    """A heartbeat between the look and the decision counts. The worker was only slow, and
    its lease is valid again.
    """
    put(queue)
    worker(queue)._take()
    registry = queue.started_job_registry.key
    [start] = queue.connection.zrange(registry, 0, -1)
    assert not _reap_one(queue, registry, start)
    assert places(queue) == at(started=1)


def test_the_record_of_a_job_whose_worker_died_is_put_back(queue):
    """The record of a job whose worker died is put back, unless the job is given up. Callers would otherwise
    see `processing` until another worker takes the job. The record's attempt is read before the lease is
    looked at.
    """
    told = []

    def latest_attempt(speaker: str, job_id: str) -> Callable[[], None]:
        told.append(("read", speaker, job_id, places(queue)["started"]))
        return lambda: told.append(("put back", places(queue)["queued"]))

    maintenance = QueueMaintenance([queue], owner="me", latest_attempt=latest_attempt)
    put(queue)
    for _ in range(RETRIES + 1):
        start_and_die(queue)
        maintenance.run()
    read = ("read", "default/alice", "a", 1)
    assert told == [read, ("put back", 1)] * RETRIES + [read]


@pytest.mark.parametrize("ahead", [-3600, 3600])
def test_a_lease_ends_by_the_clock_of_redis(queue, monkeypatch, ahead):
    """A lease ends by the clock of Redis. A worker whose clock is fast does not keep its jobs when it dies,
    and one whose clock is slow does not lose them while it lives.
    """
    monkeypatch.setattr("rq.registry.current_timestamp", lambda: int(time.time()) + ahead)
    put(queue)
    worker(queue)._take()
    assert reap(queue) == 0
    expire_leases(queue)
    assert reap(queue) == 1
    assert places(queue) == at(queued=1)


def test_a_heartbeat_renews_the_lease_by_the_clock_of_redis(queue):
    """A heartbeat renews the lease in Redis, so a job of a worker that lives is not started again. RQ does
    so, and a release that no longer did would give each job to another worker after one lease.
    """
    put(queue)
    [(job_id, execution)] = worker(queue)._take().executions.items()
    key = lease_key(f"{job_id}:{execution.id}".encode())
    queue.connection.expire(key, 10)
    with queue.connection.pipeline() as pipeline:
        execution.heartbeat(queue.started_job_registry, 60, pipeline)
        pipeline.execute()
    assert queue.connection.ttl(key) > 10


def test_eight_reapers_at_once_bring_back_one_copy(queue, valkey):
    """Eight reapers at once bring back one copy. Stock RQ made five copies of one job with eight threads that
    only read a count.
    """
    for job_id in "abcdefgh":
        put(queue, job_id)
    start_and_die(queue)
    in_threads(8, lambda: reap(JobQueue(NAME, Redis.from_url(valkey.url))))
    assert sorted(queue.job_ids) == list("abcdefgh")
    assert QueuedJob.fetch("a", connection=queue.connection).retries_left == RETRIES - 1


def test_a_job_that_dies_in_every_attempt_fails(queue):
    """A job that dies in every attempt fails. Nothing else would ever touch it again."""
    put(queue)
    for _ in range(RETRIES + 1):
        start_and_die(queue)
        reap(queue)
    assert places(queue) == at(failed=1)
    stored = QueuedJob.fetch("a", connection=queue.connection)
    assert stored.get_status() == "failed"
    assert "died or hung in each of 4 attempts" in stored.latest_result().exc_string


def test_an_old_start_does_not_end_a_new_one(queue):
    """An old start does not end a new one. The first worker is late and forgotten, and the second one's start
    counts.
    """
    put(queue)
    start_and_die(queue)
    [old_start] = queue.connection.zrange(queue.started_job_registry.key, 0, -1)
    reap(queue)
    worker(queue)._take()
    queue.connection.zadd(queue.started_job_registry.key, {old_start: 1})
    reap(queue)
    assert places(queue) == at(started=1)
    assert status_of(queue, "a") == "started"


@pytest.mark.parametrize("status", ["finished", "failed", "canceled", "queued"])
def test_a_start_left_over_of_a_job_that_has_ended_is_only_removed(queue, status):
    """A leftover start of a job that has ended is only removed. Stock RQ turns a finished job into a failed
    one here.
    """
    put(queue)
    start_and_die(queue)
    queue.connection.hset("rq:job:a", "status", status)
    reap(queue)
    assert places(queue) == at()
    assert status_of(queue, "a") == status


@pytest.mark.parametrize("entry", [b"no-colon", b"\xff\xfe:start", b"gone:start", b"a:b:c"])
def test_odd_starts_are_removed(queue, entry):
    """Malformed starts are removed. RQ's own parsing raises on some of these, at every run."""
    queue.connection.zadd(queue.started_job_registry.key, {entry: 1})
    reap(queue)
    assert places(queue) == at()


# -- jobs whose worker died before it started them --


def test_a_job_taken_and_never_started_is_handed_back_without_losing_a_retry(queue):
    """A job that was taken and never started is handed back without losing a retry. Stock RQ, listening to
    two queues, has lost the job by then.
    """
    put(queue)
    take_and_die(queue)
    QueueMaintenance([queue], owner="me", stuck_seconds=0).run()
    assert places(queue) == at(queued=1)
    assert QueuedJob.fetch("a", connection=queue.connection).retries_left == RETRIES


def test_it_is_not_handed_back_while_its_worker_may_be_about_to_start_it(queue):
    """A job is not handed back while its worker may be about to start it, because taking and starting are two
    round trips.
    """
    maintenance = QueueMaintenance([queue], owner="me", stuck_seconds=0.2)
    put(queue)
    take_and_die(queue)
    maintenance.run()
    assert places(queue) == at(taken=1)
    time.sleep(0.25)
    maintenance.run()
    assert places(queue) == at(queued=1)


@pytest.mark.parametrize("status", ["started", "finished", "failed", "canceled"])
def test_a_stale_entry_of_a_job_that_went_on_is_only_dropped(queue, status):
    """A stale entry of a job that went on is only dropped. Stock RQ queues and runs a finished job again
    here, or fails it.
    """
    put(queue)
    take_and_die(queue)
    queue.connection.hset("rq:job:a", "status", status)
    QueueMaintenance([queue], owner="me", stuck_seconds=0).run()
    assert places(queue) == at()
    assert status_of(queue, "a") == status


def test_handing_back_twice_puts_it_into_the_queue_once(queue, valkey):
    """Handing a job back twice puts it into the queue once, because several workers see
    the same stuck entry.
    """
    put(queue)
    take_and_die(queue)

    def sweep() -> None:
        own = JobQueue(NAME, Redis.from_url(valkey.url))
        QueueMaintenance([own], owner="me", stuck_seconds=0)._sweep(own)

    in_threads(6, sweep)
    assert places(queue) == at(queued=1)


# -- what a stranger who can write to Redis may try --


def inject(queue: JobQueue, job_id: str, call: list[object], **fields: Any) -> None:
    """Put a job into the queue without any of the registry's checks, as redis-cli would."""
    stored = {
        "data": json.dumps(call),
        "origin": NAME,
        "status": "queued",
        "created_at": "2026-01-01T00:00:00.000000Z",
    }
    queue.connection.hset(f"rq:job:{job_id}", mapping=stored | fields)
    queue.connection.rpush(queue.key, job_id)


def test_no_name_in_redis_is_imported_or_called(queue, tmp_path):
    """No name in Redis is imported or called. RQ's JSON serializer does not prevent this: a stock worker
    makes the file.
    """
    canary = tmp_path / "ran"
    inject(queue, "system", ["os.system", None, [f"touch {canary}"], {}])
    inject(queue, "keywords", ["os.system", None, [], {"command": f"touch {canary}"}])
    inject(queue, "eval", ["builtins.eval", None, [f"open({str(canary)!r}, 'w')"], {}])
    inject(queue, "instance", ["touch", f"pathlib.Path({str(canary)!r})", [], {}])
    put(queue, "pickle")
    queue.connection.hset("rq:job:pickle", "data", zlib.compress(pickle.dumps(Touch(canary))))
    worker(queue).work(burst=True)
    assert not canary.exists()
    assert queue.connection.llen(QUARANTINE_KEY) == 5
    assert places(queue) == at()


def test_callbacks_and_webhooks_of_a_job_are_ignored(queue, tmp_path):
    """Callbacks and webhooks of a job are ignored. Stock RQ calls the first with its own arguments and
    fetches the second from inside the network.
    """
    hits: list[str] = []
    with http_server(lambda request, _: (hits.append(request.path) or 200, b"")) as url:
        hooks = json.dumps([{"url": url, "job_status": status} for status in ("finished", "failed")])
        extras = {f"{event}_callback_name": "os.system" for event in ("success", "failure", "stopped")}
        extras |= {"webhooks": hooks, "meta": pickle.dumps(Touch(tmp_path / "ran"))}
        inject(queue, "fine", ["act", None, [], {}], **extras)
        worker(queue).work(burst=True)
        inject(queue, "died", ["act", None, [], {}], **extras)
        start_and_die(queue)
        in_threads(1, lambda: reap(queue))  # where the signal that limits a stock callback's time would raise
    assert (status_of(queue, "fine"), status_of(queue, "died"), hits) == ("finished", "failed", [])
    assert not (tmp_path / "ran").exists()


class Touch:
    """An object that makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self.path,)


# -- what cannot be read --


@pytest.mark.parametrize(
    "damage",
    [
        lambda client: client.hset("rq:job:bad", "data", "not JSON"),
        lambda client: client.hset("rq:job:bad", "data", '["act", null, [], {"how": ""}]'.encode("utf-16")),
        lambda client: client.hset("rq:job:bad", "timeout", "soon"),
        lambda client: client.hset("rq:job:bad", "timeout", "9" * 30),
        lambda client: client.hdel("rq:job:bad", "data"),
        lambda client: (client.delete("rq:job:bad"), client.set("rq:job:bad", "a string")),
        lambda client: (client.delete("rq:job:bad"), client.rpush("rq:job:bad", "a list")),
    ],
    ids=["data", "UTF-16", "timeout", "endless", "no data", "a string", "a list"],
)
def test_an_unreadable_job_is_put_away_and_the_next_one_runs(queue, damage):
    """An unreadable job is quarantined and the next one runs. With stock RQ every worker dies on it, then at
    every start, and maintenance is locked for 15 minutes.
    """
    counted = JOBS.labels("test", "quarantined")._value.get()
    put(queue, "bad")
    damage(queue.connection)
    put(queue, "good")
    worker(queue).work(burst=True)
    assert status_of(queue, "good") == "finished"
    assert places(queue) == at(finished=1)
    [entry] = map(json.loads, queue.connection.lrange(QUARANTINE_KEY, 0, -1))
    assert (entry["queue"], entry["job_id"]) == (NAME, "bad")
    assert JOBS.labels("test", "quarantined")._value.get() == counted + 1


def test_a_started_job_that_became_unreadable_does_not_stop_the_reaper(queue):
    """A started job that became unreadable does not stop the reaper. The job behind it
    must come back all the same.
    """
    put(queue, "bad"), put(queue, "good")
    start_and_die(queue)
    queue.connection.hset("rq:job:bad", "data", "not JSON")
    reap(queue)
    assert places(queue) == at(queued=1)
    assert status_of(queue, "bad") == "failed"


def test_the_quarantine_is_bounded_and_its_jobs_expire(queue):
    """The quarantine is bounded and its jobs expire. A client with write access to Redis must not be able to
    fill it through the registry.
    """
    queue.connection.rpush(QUARANTINE_KEY, *range(QUARANTINE_LENGTH))
    put(queue)
    queue.connection.hset("rq:job:a", "data", "not JSON")
    worker(queue).work(burst=True)
    assert queue.connection.llen(QUARANTINE_KEY) == QUARANTINE_LENGTH
    assert queue.connection.ttl("rq:job:a") > 0


# -- the lock --


def test_a_job_is_lost_while_no_list_names_it(queue):
    put(queue)
    assert not is_lost(queue.connection, "a")
    queue.take(1)
    assert not is_lost(queue.connection, "a"), "a worker is about to start it"
    queue.connection.delete(queue.intermediate_queue_key)
    assert is_lost(queue.connection, "a")
    assert not is_lost(queue.connection, "unknown")


def test_a_job_that_runs_is_not_lost(queue):
    put(queue)
    worker(queue)._take()
    assert not is_lost(queue.connection, "a")


def test_a_long_queue_is_not_searched(queue):
    put(queue)
    queue.connection.delete(queue.key)
    queue.connection.rpush(queue.key, *map(str, range(LONGEST_SEARCHED + 1)))
    assert not is_lost(queue.connection, "a")
    queue.connection.lpop(queue.key)
    assert is_lost(queue.connection, "a")


def test_only_one_process_at_a_time_does_the_work(queue):
    """One process at a time does the maintenance. This is not needed for safety, but a hundred workers
    sweeping at once would be a load of its own.
    """
    queue.connection.set(f"sr:maintenance:{NAME}", "another", ex=LOCK_SECONDS)
    put(queue)
    start_and_die(queue)
    QueueMaintenance([queue], owner="me").run()
    assert places(queue) == at(started=1)
    assert queue.connection.get(f"sr:maintenance:{NAME}") == b"another"


def test_a_process_killed_in_the_middle_stops_the_others_for_seconds_only(queue, monkeypatch):
    """A process that is killed in the middle of maintenance stops the others for seconds only. Stock RQ's
    lock stays for 15 minutes, and so does everything that a crash left.
    """
    monkeypatch.setattr(QueueMaintenance, "_maintain", lambda *_: 1 / 0)
    monkeypatch.setattr("services.extractor_worker.jobs.queue_maintenance.release_lock", lambda *_: None)
    with pytest.raises(ZeroDivisionError):
        QueueMaintenance([queue], owner="me").run()
    assert 0 < queue.connection.ttl(f"sr:maintenance:{NAME}") <= 5


def test_what_has_expired_leaves_the_registries(queue):
    """Expired entries leave the registries. Dashboards would otherwise show thousands of
    jobs that are gone.
    """
    put(queue)
    worker(queue).work(burst=True)
    queue.connection.zadd("rq:finished:extract.test", {"a": 1})
    queue.connection.zadd("rq:failed:extract.test", {"b": 1})
    queue.connection.sadd("rq:workers:extract.test", "rq:worker:dead")
    QueueMaintenance([queue], owner="me").run()
    assert places(queue) == at()
    assert queue.connection.smembers("rq:workers:extract.test") == set()


def test_a_job_that_runs_does_not_expire(queue):
    """A running job does not expire. Its hash would vanish during the work, and with it the place where its
    end is recorded.
    """
    put(queue)
    queue.connection.expire("rq:job:a", 100)
    worker(queue)._take()
    assert queue.connection.ttl("rq:job:a") == -1


def test_a_stock_client_s_options_do_not_get_a_job_stuck(queue):
    """A stock client's options do not get a job stuck. Delays need a scheduler, dependents need a parent that
    succeeds, and a TTL deletes the job while the worker runs it.
    """
    stock = Queue(NAME, connection=queue.connection, serializer=JSONSerializer)
    stock.enqueue("act", kwargs={}, job_id="late", retry=Retry(max=1, interval=3600), ttl=2)
    attempts = []

    def fail(jobs):
        attempts.extend(job.attempt for job in jobs)
        return [OSError("flaky")] * len(jobs)

    BatchWorker([NAME], {"act": fail}, connection=queue.connection, settings=WorkerSettings()).work(
        burst=True
    )
    assert attempts == [1, 2]
    assert places(queue) == at(failed=1)
