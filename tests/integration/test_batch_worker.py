"""Tests of the worker: what it does with jobs, what RQ's tools see of it, and that it loses nothing however
it ends.

The first tests run workers inside the test, which stop at the worst moment; the later ones run processes,
which are killed. rq-dashboard can't be installed beside us (it pins redis 5), so what it reads is checked
instead.
"""

import faulthandler
import inspect
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
import rq
from redis import Redis, UnixDomainSocketConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from rq import Queue, Worker
from rq.executions import Execution
from rq.job import Job
from rq.registry import BaseRegistry
from rq.results import Result
from rq.serializers import JSONSerializer
from rq.utils import now
from rq.worker.base import BaseWorker
from structlog.testing import capture_logs

from services.embedded.valkey import ValkeyServer
from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED
from services.shared.configuration.worker import WorkerSettings
from services.shared.queue.reaping import lease_key, reap
from services.shared.queue.rq_jobs import RETRIES, JobQueue, QueuedJob, enqueue, status_of
from services.shared.registry.fail import JobHandedBack
from services.shared.registry.publish import EncoderReplaced
from speaker_registry.errors import AudioTooShort, Unavailable
from tests.queue_workers import QUICK, put, runs, statuses, supervised, wait_until, worker_process

NAME = "extract.test"
OTHER = "extract.other"
QUOTED = "HSET rq:worker:private"
"""The beginning of a command that redis-py quotes in an error of a pipeline."""

Act = Callable[[Sequence[QueuedJob]], Sequence[object]]


@pytest.fixture
def queue(redis_client: Redis) -> JobQueue:
    return JobQueue(NAME, redis_client)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyServer]:
    """Yield a Redis server of the test's own, which the test may kill."""
    with ValkeyServer(tmp_path) as server:
        yield server


def own_queue(server: ValkeyServer) -> JobQueue:
    return JobQueue(NAME, Redis.from_url(server.url))


def echo(jobs: Sequence[QueuedJob]) -> list[object]:
    return [{"id": job.id, "attempt": job.attempt} for job in jobs]


def make(queue: JobQueue, act: Act = echo, **settings: Any) -> BatchWorker:
    options = WorkerSettings(**settings)
    return BatchWorker([NAME, OTHER], {"act": act}, connection=queue.connection, settings=options)


def job_of(queue: JobQueue, job_id: str) -> QueuedJob:
    return QueuedJob.fetch(job_id, connection=queue.connection)


def left(queue: JobQueue) -> list[int]:
    """Return how many jobs are queued, taken and started: all zero once everything has ended."""
    client = queue.connection
    keys = client.llen(queue.key), client.llen(queue.intermediate_queue_key)
    return [*keys, client.zcard(queue.started_job_registry.key)]


# -- batches --


def test_jobs_are_run_together_and_end_one_by_one(queue):
    """One pass over the GPU serves many clips, and one bad clip fails alone. This is the reason for a worker
    of our own.
    """
    batches = []

    def act(jobs):
        batches.append([job.id for job in jobs])
        return [AudioTooShort("0.2 s") if job.id == "b" else job.id.upper() for job in jobs]

    for job_id in "abc":
        put(queue, job_id)
    make(queue, act).work(burst=True)
    assert batches == [["a", "b", "c"]]
    assert statuses(queue, "abc") == ["finished", "failed", "finished"]
    assert [job_of(queue, job_id).return_value() for job_id in "ac"] == ["A", "C"]
    assert "0.2 s" in job_of(queue, "b").latest_result().exc_string
    assert left(queue) == [0, 0, 0]


def test_a_batch_is_of_one_queue_and_no_larger_than_allowed(queue):
    """A batch holds jobs of one queue, because one queue is one profile and its jobs share a model. The
    device determines how many fit.
    """
    batches = []

    def act(jobs):
        batches.append([job.id for job in jobs])
        return echo(jobs)

    other = JobQueue(OTHER, queue.connection)
    for job_id in ("x", "y"):
        put(other, job_id)
    for job_id in "abc":
        put(queue, job_id)
    make(queue, act, batch_size=2).work(burst=True)
    assert batches == [["a", "b"], ["x", "y"], ["c"]]


def test_queues_take_turns(queue):
    """The worker alternates between queues. Steady uploads for one profile must not keep other profiles'
    voices from becoming complete.
    """
    order = []

    def act(jobs):
        order.extend(job.id for job in jobs)
        if len(order) < 12:
            put(queue, f"more-{len(order)}")  # the first queue always holds one more job
        return echo(jobs)

    other = JobQueue(OTHER, queue.connection)
    for job_id in ("x", "y", "z"):
        put(other, job_id)
    put(queue, "a")
    make(queue, act, batch_size=1).work(burst=True)
    assert [one for one in order if one in "xyz"] == ["x", "y", "z"]
    assert order[:6] == ["a", "x", "more-1", "y", "more-2", "z"]


def test_a_queue_with_nothing_but_jobs_to_drop_costs_no_turn(queue):
    """A queue with nothing but jobs to drop costs no turn: its neighbour's jobs come at once, and its own
    next.
    """
    other = JobQueue(OTHER, queue.connection)
    for name in (queue, other):
        name.connection.rpush(name.key, "gone")
    put(other, "x")
    worker = make(queue)
    assert [job.id for job in worker._take().jobs] == ["x"]
    put(queue, "a"), put(other, "y")
    assert [job.id for job in worker._take().jobs] == ["a"]


def test_from_a_queue_that_is_not_served_nothing_is_taken_until_it_is(queue):
    """A worker takes nothing from a queue that it does not serve now. What it would make of those jobs is not
    wanted. As soon as it serves the queue, it takes them.
    """
    other, served = JobQueue(OTHER, queue.connection), {NAME}
    worker = BatchWorker(
        [NAME, OTHER],
        {"act": echo},
        connection=queue.connection,
        settings=WorkerSettings(),
        serves=served.__contains__,
    )
    put(queue, "a"), put(other, "x"), put(queue, "b")
    assert [job.id for job in worker._take().jobs] == ["a", "b"]
    assert worker._take() is None
    assert (other.job_ids, status_of(other, "x")) == (["x"], "queued")
    served.add(OTHER)
    assert [job.id for job in worker._take().jobs] == ["x"]


def test_a_worker_that_may_not_take_jobs_leaves_them_and_says_that_it_is_suspended(queue):
    """It cannot reach the bucket, and other workers may. RQ's tools show which worker stands aside."""
    may_take = iter([False, True])
    worker = BatchWorker(
        [NAME],
        {"act": echo},
        connection=queue.connection,
        settings=WorkerSettings(),
        may_take=lambda: next(may_take),
    )
    put(queue, "a")
    assert worker._take() is None
    assert (queue.job_ids, worker.get_state()) == (["a"], "suspended")
    assert [job.id for job in worker._take().jobs] == ["a"]


def test_a_queue_that_comes_last_waits_until_no_other_has_jobs(queue):
    """What is prepared in the background must not delay a voice that somebody waits for."""
    last = JobQueue(OTHER, queue.connection)
    worker = BatchWorker(
        [OTHER, NAME],
        {"act": echo},
        connection=queue.connection,
        settings=WorkerSettings(batch_size=1),
        comes_last=OTHER.__eq__,
    )
    put(last, "x"), put(last, "y"), put(queue, "a"), put(queue, "b")
    taken = [worker._take().jobs[0].id for _ in range(3)]
    put(queue, "c")
    taken += [worker._take().jobs[0].id for _ in range(2)]
    assert taken == ["a", "b", "x", "c", "y"]


def test_what_may_pass_is_tried_again_alone_and_the_handler_knows_which_try_it_is(queue):
    """A transient failure is retried alone, and the handler knows which attempt it is, because the last
    attempt has to record the failure.
    """
    tries = []

    def act(jobs):
        tries.extend((job.id, job.attempt, job.last_attempt, len(jobs)) for job in jobs if job.id == "flaky")
        return [OSError("reset by peer") if job.id == "flaky" else None for job in jobs]

    put(queue, "flaky"), put(queue, "fine")
    make(queue, act).work(burst=True)
    assert tries == [
        ("flaky", 1, False, 2),
        ("flaky", 2, False, 1),
        ("flaky", 3, False, 1),
        ("flaky", 4, True, 1),
    ]
    assert statuses(queue, ["flaky", "fine"]) == ["failed", "finished"]


def test_a_start_that_a_stopping_worker_broke_off_uses_up_no_retry(queue):
    """Restarts during one outage of the bucket would otherwise fail sound clips for good."""
    stopped = [JobHandedBack("away")] * 2
    outcomes = iter([*stopped, *[OSError("flaky")] * RETRIES, *stopped, "made"])
    put(queue, "a")
    worker = make(queue, lambda jobs: [next(outcomes)])
    worker.work(burst=True)
    assert job_of(queue, "a").return_value() == "made"
    assert left(queue) == [0, 0, 0]
    counts = queue.connection.hmget(worker.key, "successful_job_count", "failed_job_count")
    assert [*map(int, counts)] == [1, RETRIES], "what was handed back has not failed"


def test_what_is_tried_again_waits_for_its_tenant_s_turn_not_for_all_others(queue):
    """A retried job waits only for its tenant's next turn. At the end of the queue it would wait for every
    job of the largest tenant.
    """

    def act(jobs):
        return [OSError("no memory") if job.id == "a" and job.attempt == 1 else {} for job in jobs]

    enqueue(queue, "a", "act", {"speaker": "small/alice"})
    worker = make(queue, act, batch_size=1)
    batch = worker._next_batch(burst=True)
    for number in range(5):
        enqueue(queue, f"b{number}", "act", {"speaker": "large/bob"})
    worker._handle(batch)
    assert queue.job_ids == ["b0", "a", "b1", "b2", "b3", "b4"]


def test_a_handler_that_raises_ends_its_worker_and_its_jobs_come_back(queue):
    """A worker that cannot do anything any more would fail the jobs of everybody for good, in a moment and
    while a healthy worker stands by.
    """

    def act(jobs):
        ref_text = "spoken words"
        raise MemoryError(len(ref_text))

    put(queue, "a"), put(queue, "b")
    with capture_logs() as logs, pytest.raises(SystemExit) as ending:
        make(queue, act).work(burst=True)
    assert ending.value.code == EXIT_UNFINISHED
    [line] = [one for one in logs if one["event"] == "handler.failed"]
    assert (line["log_level"], line["jobs"]) == ("critical", ["a", "b"])
    assert "MemoryError: 12" in line["traceback"]
    assert "spoken words'" not in line["traceback"]
    assert statuses(queue, "ab") == ["started", "started"]
    expire_leases(queue)
    assert reap(queue) == 2
    make(queue).work(burst=True)
    assert [job_of(queue, one).return_value()["attempt"] for one in "ab"] == [2, 2]


def test_a_worker_that_is_refused_its_watchdog_takes_no_job(queue, monkeypatch):
    """It would use up an attempt of each job at every start."""

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("unable to start watchdog thread")

    monkeypatch.setattr(faulthandler, "dump_traceback_later", refuse)
    put(queue, "a")
    with pytest.raises(RuntimeError, match="watchdog"):
        make(queue).work(burst=True)
    assert status_of(queue, "a") == "queued"


def test_a_worker_that_is_refused_its_watchdog_later_finishes_its_jobs(queue, monkeypatch):
    """The heartbeat's own deadline remains, and the jobs of the batch are not at fault."""
    arm, calls = faulthandler.dump_traceback_later, iter([True])

    def refuse(*options: Any, **more: Any) -> None:
        if not next(calls, False):  # it is granted at the start
            raise RuntimeError("unable to start watchdog thread")
        arm(*options, **more)

    monkeypatch.setattr(faulthandler, "dump_traceback_later", refuse)
    put(queue, "a")
    with capture_logs() as logs:
        make(queue).work(burst=True)
    assert status_of(queue, "a") == "finished"
    assert "watchdog.refused" in {one["event"] for one in logs}


def test_a_failed_job_s_traceback_shows_no_values(queue, capsys):
    """A failed job's traceback shows no values. A handler's local variables are transcripts and samples,
    which must reach neither Redis nor the log.
    """

    def act(jobs):
        ref_text = "spoken words"
        try:
            raise ValueError(len(ref_text))
        except ValueError as error:
            return [error]

    put(queue, "a")
    make(queue, act).work(burst=True)
    assert "job.failed" in (logged := capsys.readouterr().out)
    assert "ValueError: 12" in logged
    assert "spoken words'" not in logged


def test_an_error_that_is_expected_is_logged_without_a_traceback(queue):
    """An expected error is logged without a traceback. A job that another worker has to run is no fault."""
    put(queue, "a")
    worker = make(queue, lambda jobs: [EncoderReplaced("for another encoder")] * len(jobs))
    with capture_logs() as logs:
        worker._handle(worker._take())
    [line] = [one for one in logs if one["event"] == "job.retried"]
    assert (line["log_level"], line["reason"]) == ("info", "for another encoder")
    assert "traceback" not in line


# -- one job, two workers --


def interrupt(worker: BatchWorker, look: str, meanwhile: Callable[[], object]) -> None:
    """Make something happen once, between this look at the jobs and the decision that follows it."""
    claims, todo = worker._leases, [meanwhile]
    original = getattr(claims, look)

    def looking(*arguments):
        seen = original(*arguments)
        if todo:
            todo.pop()()
        return seen

    setattr(claims, look, looking)


def test_of_two_workers_that_took_the_same_job_one_starts_it(queue):
    """Only one of two workers that took the same job starts it. A retried command can put an id into the list
    twice; computing it twice would waste a GPU, but do no other harm.
    """
    put(queue, "a")
    queue.connection.rpush(queue.key, "a")
    first, second = make(queue, batch_size=1), make(queue, batch_size=1)
    interrupt(second, "_read", first._take)
    assert second._take() is None
    assert left(queue) == [0, 0, 1]
    assert job_of(queue, "a").worker_name == first.name


def test_a_job_that_was_given_to_another_is_not_finished_by_the_first(queue):
    """A worker whose lease ran out cannot finish a job that was given to another. Two results for one job,
    perhaps of different code versions, must not race.
    """

    second, taken = make(queue), []

    def act(jobs):
        expire_leases(queue)
        reap(queue)
        taken.append(second._take())
        return ["too late"] * len(jobs)

    put(queue, "a")
    first = make(queue, act)
    first._handle(first._take())
    assert status_of(queue, "a") == "started"
    second._handle(taken[0])
    assert [result.return_value for result in job_of(queue, "a").results()] == [{"id": "a", "attempt": 2}]


def test_not_even_if_that_happens_between_the_last_look_and_the_end(queue):
    """A worker cannot finish a job that was given away between its last look and its write. Looking and
    writing are two steps that only a transaction makes one.
    """

    def reaped() -> None:
        expire_leases(queue)
        reap(queue)

    put(queue, "a")
    first = make(queue)
    interrupt(first, "_still_owned", reaped)
    first._handle(first._take())
    assert (status_of(queue, "a"), queue.job_ids) == ("queued", ["a"])
    assert job_of(queue, "a").results() == []


def expire_leases(queue: JobQueue) -> None:
    for entry in queue.connection.zrange(queue.started_job_registry.key, 0, -1):
        queue.connection.delete(lease_key(entry))


def test_a_job_canceled_while_it_runs_stays_canceled(queue):
    """A job canceled while it runs stays canceled. Stock RQ finishes it, and lists it as canceled too."""

    def act(jobs):
        job_of(queue, "a").cancel()
        return echo(jobs)

    put(queue, "a")
    make(queue, act).work(burst=True)
    assert status_of(queue, "a") == "canceled"
    assert queue.finished_job_registry.get_job_count(cleanup=False) == 0
    assert left(queue) == [0, 0, 0]


@pytest.mark.parametrize("outcome", ["fine", OSError("flaky")])
def test_a_job_deleted_while_it_runs_is_not_created_again(queue, outcome):
    """A job deleted while it runs is not created again. Its voice was erased, so nothing a worker does may
    bring a trace of it back.
    """

    def act(jobs):
        job_of(queue, "a").delete()
        return [outcome] * len(jobs)

    put(queue, "a")
    make(queue, act).work(burst=True)
    assert not queue.connection.exists("rq:job:a")
    assert not queue.connection.exists("rq:results:a")
    assert left(queue) == [0, 0, 0]


def test_a_job_deleted_and_queued_anew_while_it_runs_is_the_new_one(queue):
    """A job deleted and queued anew while it runs is the new one: the id is the same, the start is not."""

    def act(jobs):
        if jobs[0].attempt == 1 and not queue.connection.exists("again"):
            queue.connection.set("again", 1)
            job_of(queue, "a").delete()
            put(queue, "a")
            return ["of the deleted job"]
        return ["of the new job"]

    put(queue, "a")
    make(queue, act).work(burst=True)
    assert [result.return_value for result in job_of(queue, "a").results()] == ["of the new job"]


# -- answers that get lost --


def lose_an_answer() -> None:
    raise RedisConnectionError("reset by peer")


@pytest.mark.parametrize(
    ("outcome", "results"), [("fine", 1), (AudioTooShort("0.2 s"), 1), (OSError("flaky"), 0)]
)
def test_an_end_whose_answer_was_lost_is_recorded_once(queue, outcome, results):
    """The end of a job is recorded once although the answer was lost. A network that drops an answer must
    neither double a result nor use up two retries.
    """
    put(queue, "a")
    worker = make(queue, lambda jobs: [outcome])
    interrupt(worker, "record", lose_an_answer)
    worker._handle(worker._take())
    assert len(job_of(queue, "a").results()) == results
    assert (
        queue.count
        + queue.connection.zcard("rq:finished:" + NAME)
        + queue.connection.zcard("rq:failed:" + NAME)
        == 1
    )
    counts = queue.connection.hmget(worker.key, "successful_job_count", "failed_job_count")
    assert sum(map(int, counts)) == 1
    assert job_of(queue, "a").retries_left == RETRIES - (not results)


def test_a_retry_is_counted_once_when_its_recording_has_to_be_repeated(queue):
    """A retry is counted once even if its recording is repeated. RQ's functions change the job as they go, so
    the second round must start from the same job.
    """
    put(queue, "a")
    worker = make(queue, lambda jobs: [OSError("flaky")])
    interrupt(
        worker, "_still_owned", lambda: queue.connection.hset("rq:job:a", "worker_name", worker.name + "!")
    )
    worker._handle(worker._take())
    assert (queue.job_ids, job_of(queue, "a").retries_left) == (["a"], RETRIES - 1)


# -- what RQ's tools see --


def test_the_names_of_rq_that_we_lean_on_are_as_they_were():
    """The names of RQ that we rely on are unchanged. Some are private, so a new RQ must fail here, with a
    name, and not in the middle of a transaction.
    """
    assert rq.VERSION.startswith("3.")
    start = {"worker_name", "execution_id", "execution_started_at", "execution_ended_at"}
    expected = {
        Result.create: {"job", "type", "ttl", "return_value", "exc_string", "pipeline"} | start,
        BaseRegistry.add: {"job", "ttl", "pipeline", "xx"},
        Job._handle_failure: {"exc_string", "pipeline"} | start,
        Job.retry: {"queue", "pipeline"},
        Job.prepare_for_execution: {"worker_name", "pipeline"},
        Job.restore: {"raw_data"},
        Execution.create: {"job", "ttl", "pipeline", "worker_name"},
        Execution.heartbeat: {"started_job_registry", "ttl", "pipeline"},
        Execution.delete: {"job", "pipeline"},
        BaseWorker.set_state: {"state", "pipeline"},
        BaseWorker.register_death: set(),
        BaseWorker.serialize: set(),
        BaseWorker.executions_key.fget: set(),
    }
    for function, names in expected.items():
        assert set(inspect.signature(function).parameters) - {"self", "cls"} == names, function
    assert {"retries_left", "retry_intervals"} <= set(vars(Job("a", connection=Redis())))
    assert {"_state", "_stop_requested", "birth_date", "last_heartbeat"} <= set(
        vars(Worker([], connection=Redis(), prepare_for_work=False))
    )


def test_what_a_job_left_behind_reads_as_any_rq_job_s_end(queue):
    """A finished job reads like any RQ job's end, because scripts and dashboards use RQ's own classes, with
    JSON.
    """
    put(queue, "a")
    make(queue).work(burst=True)
    job = Job.fetch("a", connection=queue.connection, serializer=JSONSerializer)
    assert job.get_status() == "finished"
    assert job.return_value() == {"id": "a", "attempt": 1}
    assert job.ended_at >= job.started_at >= job.enqueued_at
    [result] = job.results()
    assert result.worker_name == job.worker_name
    assert 0 < queue.connection.ttl("rq:job:a") <= 300
    assert 0 < queue.connection.ttl("rq:results:a") <= 300
    assert not queue.connection.keys("rq:execution*")


def test_dashboards_see_the_worker_while_it_works(queue, valkey):
    """Dashboards see the worker while it works, because rq-dashboard reads workers and queues this way."""
    put(queue, "a", seconds=1)
    with worker_process(valkey.url, [NAME, OTHER]) as process:
        wait_until(lambda: status_of(queue, "a") == "started")
        # The first heartbeat, which registers the worker, may come just after the job was taken.
        wait_until(lambda: Worker.all(connection=queue.connection, serializer=JSONSerializer))
        [worker] = Worker.all(connection=queue.connection, serializer=JSONSerializer)
        assert (worker.pid, worker.queue_names(), worker.get_state()) == (process.pid, [NAME, OTHER], "busy")
        assert worker.get_current_job().id == "a"
        [shown] = Queue.all(connection=queue.connection, serializer=JSONSerializer)
        assert (shown.name, len(shown.started_job_registry)) == (NAME, 1)
        wait_until(lambda: status_of(queue, "a") == "finished")
        wait_until(lambda: Worker.all(connection=queue.connection)[0].get_state() == "idle")
        [worker] = Worker.all(connection=queue.connection)
        assert (worker.successful_job_count, worker.failed_job_count) == (1, 0)
        assert worker.total_working_time > 0.9


def test_a_heartbeat_keeps_the_list_of_what_a_worker_has_in_hand(queue):
    """RQ's tools read a worker's jobs from this list. A batch may take longer than the list would last."""
    put(queue, "a")
    worker = make(queue)
    assert worker._take()
    queue.connection.expire(worker.executions_key, 1)
    worker.birth_date = now()
    with queue.connection.pipeline() as pipeline:
        worker._announce(pipeline)
        pipeline.execute()
    assert queue.connection.ttl(worker.executions_key) > 1


def rq_info(url: str) -> str:
    command = [
        Path(sys.executable).with_name("rq"),
        "info",
        "--raw",
        "-u",
        url,
        "-S",
        "rq.serializers.JSONSerializer",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def test_rq_info_shows_the_worker_and_its_queue(queue, tmp_path):
    """`rq info` shows the worker and its queue. It is the first command that an operator types."""
    with ValkeyServer(tmp_path, port=0) as server:  # rq's command knows no unix sockets
        own = own_queue(server)
        put(own, "a", seconds=20), put(own, "b")
        with worker_process(server.url, [NAME], batch_size=1) as process:
            wait_until(lambda: status_of(own, "a") == "started")
            shown = rq_info(server.url)
            name = Worker.all(connection=own.connection)[0].name
            assert f"queue {NAME} 1, 1 executing, 0 finished, 0 failed" in " ".join(shown.split())
            assert re.search(rf"worker {name} \(\S+ 127.0.0.1:\d+ {process.pid}\) busy {NAME}", shown)


@pytest.mark.slow
def test_a_worker_that_was_killed_is_not_shown_for_long(queue, valkey):
    """A killed worker disappears from the list soon, because a dashboard that lists dead workers misleads an
    operator at night.
    """
    with worker_process(valkey.url, [NAME]) as process:
        wait_until(lambda: Worker.all(connection=queue.connection))
        process.kill()
        wait_until(lambda: not Worker.all(connection=queue.connection), seconds=6)


def test_a_redis_that_was_emptied_knows_the_worker_again_after_a_beat(queue, valkey):
    """A worker is registered again one heartbeat after Redis was emptied. It lives and works; only its entry
    is gone.
    """
    with worker_process(valkey.url, [NAME]):
        wait_until(lambda: Worker.all(connection=queue.connection))
        queue.connection.flushall()
        wait_until(lambda: Worker.all(connection=queue.connection), seconds=3)
        put(queue, "a")
        wait_until(lambda: status_of(queue, "a") == "finished", seconds=3)
        assert Worker.count(queue=queue) == 1


def test_rq_suspend_is_honoured(queue, valkey):
    """The worker honours `rq suspend`, with which an operator stops everything for a moment."""
    with worker_process(valkey.url, [NAME]):
        wait_until(lambda: Worker.all(connection=queue.connection))
        rq.suspension.suspend(queue.connection)
        wait_until(lambda: Worker.all(connection=queue.connection)[0].get_state() == "suspended")
        put(queue, "a")
        time.sleep(0.5)
        assert status_of(queue, "a") == "queued"
        rq.suspension.resume(queue.connection)
        wait_until(lambda: status_of(queue, "a") == "finished")


def test_every_queue_wakes_an_idle_worker_at_once(queue, valkey):
    """Every queue wakes an idle worker at once. Redis can wait for only one list without losing what it hands
    out, and polling the others takes a second.
    """
    other = JobQueue(OTHER, queue.connection)
    with worker_process(valkey.url, [NAME, OTHER], poll_seconds=300) as process:
        wait_until(lambda: Worker.all(connection=queue.connection))
        time.sleep(0.5)
        for number, each in enumerate([other, queue, other]):
            put(each, f"job-{number}")
            wait_until(lambda: status_of(queue, f"job-{number}") == "finished")  # noqa: B023
        before = cpu_seconds(process.pid)
        time.sleep(1)
        assert cpu_seconds(process.pid) - before < 0.4, "an idle worker is busy waiting"


def cpu_seconds(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@pytest.mark.parametrize(
    ("error", "is_traced"),
    [
        (KeyError("profile"), True),
        (Unavailable("The view is away."), False),
        (ResponseError(f"Command # 1 ({QUOTED}) of pipeline caused error: NOPERM no rights"), False),
    ],
)
def test_each_beat_tells_its_owner_and_survives_what_that_does(queue, monkeypatch, error, is_traced):
    """Each heartbeat calls its owner and survives an error there. The registry announces loaded profiles in
    it, and a mistake there must not cost the leases. Only such a mistake is logged with a traceback, and no
    line quotes a command.
    """
    beats = []

    def beat() -> None:
        beats.append(Worker.count(connection=queue.connection))
        raise error

    handlers = {"act": lambda jobs: [wait_until(lambda: len(beats) > 3)]}
    monkeypatch.setattr(WorkerSettings, "beat_seconds", 0.1)
    settings = WorkerSettings(**QUICK)
    worker = BatchWorker([NAME], handlers, connection=queue.connection, settings=settings, on_beat=beat)
    put(queue, "a")
    with capture_logs() as logs:
        worker.work(burst=True)
    assert status_of(queue, "a") == "finished"
    assert set(beats) == {1}
    failed = [line for line in logs if line["event"] == "heartbeat.failed"]
    assert {bool(line["traceback"]) for line in failed} == {is_traced}
    assert QUOTED not in str(failed)


# -- processes that end --


def test_sigterm_stops_an_idle_worker_at_once(queue, valkey):
    """SIGTERM stops an idle worker at once, because deployments replace workers all day."""
    with worker_process(valkey.url, [NAME], poll_seconds=1) as process:
        wait_until(lambda: Worker.all(connection=queue.connection))
        process.terminate()
        assert process.wait(3) == 0
        assert Worker.all(connection=queue.connection) == []


def test_sigterm_lets_a_batch_finish_and_takes_no_other(queue, valkey):
    """SIGTERM lets a batch finish, and no other is taken. The running batch is nearly done; giving it up
    would make another worker start from nothing.
    """
    for job_id in "abcd":
        put(queue, job_id)
    with worker_process(valkey.url, [NAME], batch_size=2, pause_seconds=1) as process:
        wait_until(lambda: status_of(queue, "a") == "started")
        process.terminate()
        process.terminate()
        assert process.wait(30) == 0
    assert statuses(queue, "abcd") == ["finished", "finished", "queued", "queued"]
    assert left(queue) == [2, 0, 0]


@pytest.mark.slow
def test_jobs_of_a_killed_worker_are_running_again_soon_after_their_lease(queue, valkey):
    """The jobs of a killed worker run again soon after their lease: after kill -9, the out-of-memory killer
    or a lost node. Stock RQ takes four to twenty minutes.
    """
    put(queue, "a", seconds=1)
    with worker_process(valkey.url, [NAME]) as first, worker_process(valkey.url, [NAME]) as second:
        wait_until(lambda: runs(queue.connection, "a") == 1)
        name = job_of(queue, "a").worker_name
        next(process for process in (first, second) if str(process.pid) in name.split("-")).kill()
        wait_until(lambda: runs(queue.connection, "a") == 2)
        wait_until(lambda: status_of(queue, "a") == "finished")
    assert job_of(queue, "a").return_value() == {"attempt": 2}


@pytest.mark.slow
def test_a_job_that_takes_longer_than_its_lease_is_not_started_again(queue, valkey):
    """A job that takes longer than its lease is not started again. The lease is short so that a death is
    noticed soon; a live worker renews it.
    """
    put(queue, "a", seconds=4)
    with worker_process(valkey.url, [NAME]), worker_process(valkey.url, [NAME]):
        wait_until(lambda: status_of(queue, "a") == "finished")
    assert runs(queue.connection, "a") == 1


@pytest.mark.slow
def test_leases_are_renewed_where_the_path_of_the_socket_has_a_blank():
    """Leases are renewed even if the socket's path contains a blank. redis-py cannot read what such a server
    says of our connection, which is only informational.
    """
    with TemporaryDirectory(prefix="my data ") as folder, ValkeyServer(Path(folder)) as server:
        own = own_queue(server)
        put(own, "a", seconds=4)
        with worker_process(server.url, [NAME]), worker_process(server.url, [NAME]):
            wait_until(lambda: len(Worker.all(connection=own.connection)) == 2)
            wait_until(lambda: status_of(own, "a") == "finished")
        assert runs(own.connection, "a") == 1


@pytest.mark.slow
def test_a_job_that_kills_its_worker_costs_only_itself(queue, valkey):
    """A job that kills its worker costs only itself. Some clip will crash some codec, and nine others in the
    same batch must not fail with it.
    """
    innocent = [f"job-{number}" for number in range(9)]
    for job_id in [*innocent[:5], "poison", *innocent[5:]]:
        put(queue, job_id, how="segfault" if job_id == "poison" else "")
    with supervised(valkey.url, [NAME], count=2) as fleet:
        wait_until(lambda: fleet.tend() or status_of(queue, "poison") == "failed", seconds=40)
        wait_until(lambda: fleet.tend() or set(statuses(queue, innocent)) == {"finished"})
        assert fleet.ended.count(-signal.SIGSEGV) == RETRIES + 1
    assert left(queue) == [0, 0, 0]
    error = QueuedJob.fetch("poison", connection=queue.connection).latest_result().exc_string
    assert error == "AbandonedJobError: its worker died or hung in each of 4 attempts"


def test_a_worker_that_stood_still_past_its_lease_does_not_finish_what_was_given_away(queue, valkey):
    """A worker that stood still past its lease cannot finish a job that was given away. A suspended virtual
    machine may wake up hours later with a result.
    """
    put(queue, "a", seconds=1)
    with worker_process(valkey.url, [NAME]) as sleeper:
        wait_until(lambda: runs(queue.connection, "a") == 1)
        sleeper.send_signal(signal.SIGSTOP)
        with worker_process(valkey.url, [NAME]):
            wait_until(lambda: status_of(queue, "a") == "finished")
        sleeper.send_signal(signal.SIGCONT)
        put(queue, "next")
        wait_until(lambda: status_of(queue, "next") == "finished")
    assert [result.return_value for result in job_of(queue, "a").results()] == [{"attempt": 2}]
    assert left(queue) == [0, 0, 0]


def test_a_worker_that_hangs_ends_itself_and_its_job_comes_back(queue, valkey):
    """A worker that hangs ends itself, and its job comes back. Python cannot interrupt a call into C, so
    without a watchdog a hung driver would hold its GPU.
    """
    put(queue, "a", how="hang", timeout_seconds=1)
    with worker_process(valkey.url, [NAME], lease_seconds=48) as process:
        wait_until(lambda: runs(queue.connection, "a") == 1)
        assert process.wait(50) == EXIT_UNFINISHED  # the handler hangs for 60 s
    expire_leases(queue)
    assert reap(queue) == 1
    assert status_of(queue, "a") == "queued"


def test_a_worker_that_hangs_holding_the_interpreter_s_lock_ends_as_well(queue, valkey):
    """A worker that hangs while it holds the interpreter's lock ends too. No thread of ours runs then, so the
    last watchdog is not written in Python.
    """
    put(queue, "a", how="hang holding the lock", timeout_seconds=1)
    with worker_process(valkey.url, [NAME], last_resort_seconds=1) as process:
        assert process.wait(50) == 1


@pytest.mark.slow
def test_a_handler_that_reports_progress_may_take_longer(queue, valkey):
    """A handler that reports progress may take longer, because a batch of long clips is slow and not hung."""
    put(queue, "a", how="work in steps", seconds=4, timeout_seconds=1)
    with worker_process(valkey.url, [NAME]):
        wait_until(lambda: status_of(queue, "a") == "finished")
    assert runs(queue.connection, "a") == 1


# -- Redis that goes away --


@pytest.mark.slow
def test_an_idle_worker_outlives_redis(server):
    """An idle worker outlives Redis. Fail-overs and upgrades happen, and a fleet that has to load its models
    again would make them worse.
    """
    queue = own_queue(server)
    with worker_process(server.url, [NAME]) as process:
        wait_until(lambda: Worker.all(connection=queue.connection))
        server.kill()
        time.sleep(1.5)
        server.start()
        put(queue, "a")
        wait_until(lambda: status_of(queue, "a") == "finished", seconds=10)
        assert process.poll() is None


def test_a_worker_waits_for_a_redis_that_is_not_there_yet(tmp_path):
    """A worker waits for an absent Redis, because everything starts at once after a power cut."""
    server = ValkeyServer(tmp_path)
    with worker_process(server.url, [NAME]) as process:
        time.sleep(1)
        assert process.poll() is None
        with server:
            put(own_queue(server), "a")
            wait_until(lambda: status_of(own_queue(server), "a") == "finished")


def test_results_are_kept_for_a_redis_that_comes_back(server):
    """Results are kept for a Redis that was away when the batch ended. The work is done, and only the record
    is missing.
    """
    queue = own_queue(server)
    put(queue, "a", seconds=1)
    with worker_process(server.url, [NAME], lease_seconds=20):
        wait_until(lambda: runs(queue.connection, "a") == 1)
        server.kill()
        time.sleep(2)
        server.start()
        wait_until(lambda: status_of(queue, "a") == "finished")
    assert runs(queue.connection, "a") == 1


def test_a_worker_stops_within_seconds_though_redis_is_away(server):
    """A worker stops within seconds although Redis is away. Kubernetes kills what does not stop, and `make
    run` would hang on Ctrl-C.
    """
    with worker_process(server.url, [NAME]) as process:
        wait_until(lambda: Worker.all(connection=own_queue(server).connection))
        server.kill()
        time.sleep(1)
        process.terminate()
        assert process.wait(30) == 0


def test_its_client_reports_a_failure_at_once(tmp_path, monkeypatch):
    """The worker's client reports a failure at once. By default redis-py repeats a command ten times, for a
    minute, and ignores the signal to stop.
    """
    nowhere = Redis(unix_socket_path=str(tmp_path / "none.sock"))
    worker = BatchWorker([NAME], {}, connection=nowhere, settings=WorkerSettings())
    attempts: list[UnixDomainSocketConnection] = []

    def refuse(connection: UnixDomainSocketConnection) -> None:
        attempts.append(connection)
        raise FileNotFoundError

    monkeypatch.setattr(UnixDomainSocketConnection, "_connect", refuse)
    with pytest.raises(RedisConnectionError):
        worker.connection.ping()
    assert len(attempts) == 1


@pytest.mark.slow
def test_a_worker_that_has_to_stop_with_results_it_cannot_record_says_so(server):
    """A worker that must stop with results it cannot record reports that. Its jobs are still open and come
    back by their lease, so the stop must not look like success.
    """
    queue = own_queue(server)
    put(queue, "a", seconds=1)
    with worker_process(server.url, [NAME]) as process:
        wait_until(lambda: runs(queue.connection, "a") == 1)
        server.kill()
        time.sleep(1.5)
        process.terminate()
        assert process.wait(8) == EXIT_UNFINISHED
    server.start()
    with worker_process(server.url, [NAME]):
        wait_until(lambda: status_of(queue, "a") == "finished")


# -- all of it at once --


@pytest.mark.slow
def test_nothing_is_lost_while_everything_is_killed(server):
    """Every job ends exactly once although workers die at random, Redis dies, poison jobs kill their worker
    and ids come twice.

    QUEUE_SOAK_JOBS and QUEUE_SOAK_SECONDS make the test longer, and QUEUE_SOAK_SEED repeats a run.
    """
    count = int(os.environ.get("QUEUE_SOAK_JOBS", "400"))
    chaos_seconds = float(os.environ.get("QUEUE_SOAK_SECONDS", "8"))
    seed = int(os.environ.get("QUEUE_SOAK_SEED", random.randrange(10**6)))
    print("seed", seed)
    chance = random.Random(seed)
    queues = [own_queue(server), JobQueue(OTHER, Redis.from_url(server.url))]
    poison = {f"job-{count // 2}"}
    bad = {f"job-{number}" for number in range(5, count, 50)} - poison
    for number in range(count):
        job_id = f"job-{number}"
        put(
            queues[number % 2],
            job_id,
            how="segfault" if job_id in poison else "raise" if job_id in bad else "",
        )
        if chance.random() < 0.05:
            queues[number % 2].connection.rpush(queues[number % 2].key, job_id)
    with supervised(server.url, [NAME, OTHER], count=3, batch_size=8, pause_seconds=0.1) as fleet:
        kills = torment(fleet, server, chance, seconds=chaos_seconds)
        wait_until(lambda: fleet.tend() or all_ended(queues[0].connection, count), seconds=60 + count / 50)
        wait_until(lambda: fleet.tend() or left(queues[0]) + left(queues[1]) == [0] * 6)
    print("kills", kills, "workers ended", fleet.ended)
    ended = {f"job-{number}": status_of(queues[0], f"job-{number}") for number in range(count)}
    assert {job_id for job_id, status in ended.items() if status == "failed"} == poison | bad
    assert {job_id for job_id, status in ended.items() if status == "finished"} == ended.keys() - poison - bad
    assert all(len(job_of(queues[0], job_id).results()) == 1 for job_id in ended)
    assert kills >= 4


def all_ended(client: Redis, count: int) -> bool:
    """Return whether all jobs have ended, by the jobs themselves. A job on its way between two lists is in
    neither while both are counted.
    """
    with client.pipeline(transaction=False) as pipeline:
        for number in range(count):
            pipeline.hget(f"rq:job:job-{number}", "status")
        return set(pipeline.execute()) <= {b"finished", b"failed"}


def torment(fleet: Any, server: ValkeyServer, chance: random.Random, *, seconds: float) -> int:
    """Kill a worker about every half second, and the server once every eight. Return how many workers were
    killed.
    """
    kills, start = 0, time.monotonic()
    next_kill, next_crash = start + 1, start + 4
    while (moment := time.monotonic()) < start + seconds:
        fleet.tend()
        if moment > next_kill:
            chance.choice(fleet.processes).send_signal(
                chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
            )
            kills, next_kill = kills + 1, moment + chance.uniform(0.5, 1.2)
        if moment > next_crash:
            server.kill()
            time.sleep(chance.uniform(0.1, 1))
            server.start()
            next_crash = time.monotonic() + 8
        time.sleep(0.05)
    return kills
