"""An RQ worker that takes several jobs at once, keeps its models loaded, and loses no job.

RQ's tools see an ordinary worker. It differs in three ways: each step of a job happens completely or not at
all (`leases.py`); a worker that dies or hangs is noticed within its lease (`heartbeat.py`); and a job that
was started before runs alone, so that a clip that kills the process costs no other job. It knows nothing of
audio or models: `pipeline/extraction.py` decides which clips are encoded at once.

The process exits with 0 after SIGTERM, when it has finished its jobs. It exits with `EXIT_UNFINISHED` (75) if
a batch hung, if a handler failed as a whole or raised SystemExit with that status, or if it had to stop while
Redis was away and could not record results. The unfinished jobs return to their queues when their leases run
out.
"""

import json
import os
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import RedisError, WatchError
from redis.retry import Retry
from rq import worker_registration
from rq.connections import get_connection_kwargs
from rq.serializers import JSONSerializer
from rq.suspension import WORKERS_SUSPENDED
from rq.utils import now
from rq.worker.base import BaseWorker, WorkerStatus

from services.extractor_worker.jobs.heartbeat import EXIT_UNFINISHED, Heartbeat
from services.extractor_worker.jobs.leases import Batch, JobLeases, Recorded
from services.extractor_worker.jobs.queue_maintenance import QueueMaintenance
from services.shared.configuration.worker import WorkerSettings
from services.shared.queue.reaping import LatestAttempt, without_records
from services.shared.queue.rq_jobs import JobQueue, QueuedJob
from services.shared.view.redis_access import ANSWER_SECONDS, CONNECT_SECONDS, without_command

log = structlog.get_logger(__name__)

Handler = Callable[[Sequence[QueuedJob]], Sequence[object]]
"""A handler gets jobs of one function and one queue, and returns one result for each, in the same order:
JSON, or the exception that ended the job. An exception with `retryable = False` fails its job at once. One
with `counted = False` puts the job back without using up a retry. Any other uses up one of the job's retries.
One with `expected = True` is logged without a traceback. A handler that raises an exception itself, or
returns another number of results, ends the worker. A worker at fault would otherwise use up the attempts of
all jobs in a moment, while healthy workers stand by.
"""

MAX_RESULT_BYTES = 16 * 1024
UNLIMITED_JOB_SECONDS = 120.0
"""The time limit of jobs that have none of their own. All jobs of the registry have one."""
LONGEST_PAUSE_SECONDS = 5.0
STOP_SECONDS = 3.0
"""The time for which a stopping worker tries to record results while Redis is away."""


class HandlerContractError(Exception):
    """A handler did not return one JSON result or exception for each job."""


class BatchWorker(BaseWorker):
    """Runs jobs from several queues. Load models before `work`, which makes the worker visible to others.

    Args:
        queues: names of the queues, which take turns.
        handlers: the handlers by the name of a job's function. Other functions are not run.
        connection: a client of Redis that answers in bytes. Only its address and credentials are used.
        name: the worker's name, which no other worker of the past minutes may have had. By default RQ
            generates one.
        on_beat: is called after each heartbeat, in the heartbeat's thread.
        serves: takes the name of a queue, and returns whether jobs may be taken from it now. Jobs that were
            already taken are finished.
        comes_last: takes the name of a queue, and returns whether its jobs are taken only while no other
            queue has any.
        latest_attempt: puts back the record of a job whose worker died.
        may_take: returns whether jobs may be taken now at all. If not, the worker shows itself as suspended,
            and asks again after `poll_seconds`.
    """

    def __init__(
        self,
        queues: Sequence[str],
        handlers: Mapping[str, Handler],
        *,
        connection: Redis,
        settings: WorkerSettings,
        name: str | None = None,
        on_beat: Callable[[], None] = lambda: None,
        serves: Callable[[str], bool] = lambda _queue: True,
        comes_last: Callable[[str], bool] = lambda _queue: False,
        latest_attempt: LatestAttempt = without_records,
        may_take: Callable[[], bool] = lambda: True,
    ) -> None:
        self.settings = settings
        redis = _without_retries(connection, settings.poll_seconds)
        self._job_queues = [JobQueue(queue, redis) for queue in queues]
        """The queues in the order of their turns. Only the worker's main thread changes the order."""
        self._serves, self._comes_last, self._may_take = serves, comes_last, may_take
        super().__init__(
            self._job_queues,
            name=name,
            connection=redis,
            job_class=QueuedJob,
            queue_class=JobQueue,
            serializer=JSONSerializer,
            prepare_for_work=False,  # it would need Redis, which may not be up yet
        )
        self.hostname, self.pid, self.ip_address = socket.gethostname(), os.getpid(), ""
        self._handlers = dict(handlers)
        self._heartbeat = Heartbeat(
            redis,
            self._announce,
            lease_seconds=settings.lease_seconds,
            beat_seconds=settings.beat_seconds,
            on_beat=on_beat,
            beat_file=settings.beat_file,
        )
        self._leases = JobLeases(
            redis, worker=self.name, lease_seconds=settings.lease_seconds, functions=self._handlers
        )
        self._maintenance = QueueMaintenance(
            self._job_queues,
            owner=self.name,
            stuck_seconds=settings.stuck_seconds,
            latest_attempt=latest_attempt,
        )
        self._next_maintenance = 0.0
        self._last_wake_ids: dict[Any, Any] = {queue.wake_key: "0" for queue in self._job_queues}

    # -- lifecycle --

    @property
    def connection_timeout(self) -> int:
        """Return 0, so that RQ keeps the timeout of our client. Otherwise it would raise it to 7 minutes."""
        return 0

    @property
    def stopping(self) -> bool:
        """Return whether the worker was told to stop. It finishes its jobs and takes no others."""
        return bool(self._stop_requested)

    def progress(self) -> None:
        """Restart the time limit of the running batch. Handlers that work in steps call this after each."""
        self._heartbeat.progress()

    def work(self, burst: bool = False) -> bool:  # type: ignore[override]
        """Run jobs until SIGTERM or SIGINT; with `burst`, until no queue has any. Returns whether any ran.

        Raises:
            SystemExit: jobs are left unfinished; the status is `EXIT_UNFINISHED`.
        """
        self._stop_on_signals()
        self.birth_date, self._state = now(), WorkerStatus.IDLE
        self._heartbeat.start()
        log.info("worker.started", worker=self.name, queues=self.queue_names())
        batches = 0
        try:
            while (batch := self._next_batch(burst)) is not None:
                self._handle(batch)
                batches += 1
        finally:
            self._heartbeat.stop()
            with suppress(RedisError):
                self.register_death()  # type: ignore[no-untyped-call]
            log.info("worker.stopped", worker=self.name, batches=batches)
        return batches > 0

    def _stop_on_signals(self) -> None:
        """Set only a flag on signals. RQ's handlers would raise anywhere, even between a command and its
        answer.
        """
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._request_stop)

    def _request_stop(self, *_signal: object) -> None:
        self._stop_requested = True

    def _announce(self, pipeline: Pipeline) -> None:
        """Register this process as a worker of RQ. Each heartbeat repeats this, because Redis may have lost
        the registration, or RQ may have cleaned it up.
        """
        self.ip_address = self.ip_address or self._own_address()
        self.last_heartbeat = now()
        pipeline.hset(self.key, mapping=self.serialize())
        pipeline.hsetnx(self.key, "state", self.get_state())
        for key in (self.key, self.executions_key):
            pipeline.expire(key, 2 * self.settings.lease_seconds)
        worker_registration.register(self, pipeline)

    def _own_address(self) -> str:
        """Return the address that RQ's tools show. Errors are ignored, so that none prevents a heartbeat."""
        try:
            return str(self.connection.client_info()["addr"])
        except Exception:  # noqa: BLE001  it may be forbidden; redis-py cannot parse a path with a blank
            return "unknown"

    def _pause(self, seconds: float) -> None:
        """Sleep in short pieces, because a signal sets the flag but does not end a sleep."""
        end = time.monotonic() + seconds
        while not self._stop_requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    # -- taking jobs --

    def _next_batch(self, burst: bool) -> Batch | None:
        """Wait for a batch, and go on waiting while Redis is away. Returns None if the worker is to stop, or
        in a `burst` if no job is left.
        """
        pause = 0.1
        while not self._stop_requested:
            try:
                self._maintain()
                if batch := self._take():
                    return batch
                if burst:
                    return None
                self._wait()
                pause = 0.1
            except RedisError as error:
                log.warning("redis.failed", error=without_command(error), seconds=pause)
                self._pause(pause)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
        return None

    def _maintain(self) -> None:
        if time.monotonic() < self._next_maintenance:
            return
        self._next_maintenance = time.monotonic() + self.settings.maintenance_seconds
        try:
            self._maintenance.run()
        except RedisError:
            raise
        except Exception:
            log.exception("maintenance.failed")  # jobs are run even if maintenance fails

    def _take(self) -> Batch | None:
        """Take jobs from the first queue that has any. That queue comes last the next time, so that a busy
        queue does not starve the others.
        """
        queues = self._served
        with self.connection.pipeline(transaction=False) as pipeline:
            pipeline.exists(WORKERS_SUSPENDED)
            for queue in queues:
                pipeline.llen(queue.key)
            suspended, *lengths = pipeline.execute()
        suspended = suspended or not self._may_take()
        self._set_state_if_changed(WorkerStatus.SUSPENDED if suspended else WorkerStatus.IDLE)
        if suspended:
            return None
        for queue, length in zip(queues, lengths, strict=True):
            if batch := self._take_from(queue, length):
                following = self._job_queues.index(queue) + 1
                self._job_queues = self._job_queues[following:] + self._job_queues[:following]
                return batch
        return None

    def _take_from(self, queue: JobQueue, length: int) -> Batch | None:
        while length and (taken := queue.take(min(length, self.settings.batch_size))):
            if batch := self._leases.claim(queue, taken, self._set_busy):
                return batch
        return None

    @property
    def _served(self) -> list[JobQueue]:
        served = (queue for queue in self._job_queues if self._serves(queue.name))
        return sorted(served, key=lambda queue: self._comes_last(queue.name))

    def _set_busy(self, pipeline: Pipeline) -> None:
        self.set_state(WorkerStatus.BUSY, pipeline=pipeline)

    def _set_state_if_changed(self, state: WorkerStatus) -> None:
        if state != self.get_state():
            self.set_state(state)

    def _wait(self) -> None:
        """Wait until a job is put into one of the queues, for `poll_seconds` at most."""
        if self.get_state() == WorkerStatus.SUSPENDED:
            return self._pause(self.settings.poll_seconds)
        block = int(self.settings.poll_seconds * 1000)
        seen: dict[Any, Any] = {queue.wake_key: self._last_wake_ids[queue.wake_key] for queue in self._served}
        if not seen:
            return self._pause(self.settings.poll_seconds)
        wakes: Any = self.connection.xread(seen, count=1, block=block)
        for key, entries in wakes or []:
            self._last_wake_ids[key.decode()] = entries[-1][0]
        return None

    # -- running and recording --

    def _handle(self, batch: Batch) -> None:
        self._heartbeat.hold((job, batch.executions[job.id]) for job in batch.jobs)
        try:
            results = self._run(batch.jobs)
            self._finish(batch, results)
        finally:
            self._heartbeat.hold(())

    def _run(self, jobs: Sequence[QueuedJob]) -> dict[str, object]:
        """Return, by job id, the result or the exception of each job."""
        results: dict[str, object] = {}
        for name in dict.fromkeys(job.function for job in jobs):
            group = [job for job in jobs if job.function == name]
            self._heartbeat.watch(max(_seconds(job) for job in group))
            try:
                outcomes = call(self._handlers[name], group)
            finally:
                self._heartbeat.unwatch()
            results |= {job.id: outcome for job, outcome in zip(group, outcomes, strict=True)}
        return results

    def _finish(self, batch: Batch, results: Mapping[str, object]) -> None:
        """Record the results. While Redis is away, try until the leases run out, because other workers take
        the jobs then.
        """
        ended, pause = now(), 0.1
        deadline = time.monotonic() + self.settings.lease_seconds
        while True:
            try:
                self._leases.record(batch, results, ended, partial(self._count, batch, ended))
                return None
            except WatchError:
                continue
            except RedisError as error:
                log.warning("results.not_recorded", error=without_command(error), jobs=list(results))
            if self._stop_requested:
                deadline = min(deadline, time.monotonic() + STOP_SECONDS)
            if time.monotonic() > deadline:
                return self._give_up(results)
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _give_up(self, results: Mapping[str, object]) -> None:
        log.error("results.lost", jobs=list(results))
        if self._stop_requested:
            raise SystemExit(EXIT_UNFINISHED)

    def _count(self, batch: Batch, ended: datetime, pipeline: Pipeline, recorded: Recorded) -> None:
        """Count the batch in the worker's statistics, which dashboards show."""
        started = min(execution.created_at for execution in batch.executions.values())
        pipeline.hincrby(self.key, "successful_job_count", len(recorded.finished))
        pipeline.hincrby(self.key, "failed_job_count", len(recorded.failed))
        pipeline.hincrbyfloat(self.key, "total_working_time", (ended - started).total_seconds())
        self.set_state(WorkerStatus.IDLE, pipeline=pipeline)


def _without_retries(connection: Redis, poll_seconds: float) -> Redis:
    """Return a client of the same server that reports each failure at once.

    redis-py's own ten retries would delay a stopping worker by a minute. This module decides about retries.
    """
    pool = connection.connection_pool
    options = get_connection_kwargs(connection) | {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": poll_seconds + ANSWER_SECONDS,  # in addition to the wait of a blocking command
        "socket_connect_timeout": CONNECT_SECONDS,
    }
    return Redis(connection_pool=ConnectionPool(connection_class=pool.connection_class, **options))


def call(handler: Handler, jobs: Sequence[QueuedJob]) -> list[object]:
    """Return one JSON result or exception per job, in order.

    Raises:
        SystemExit: the handler has failed as a whole. Its jobs stay open, and each has used up one attempt.
    """
    try:
        results = list(handler(jobs))
        if len(results) != len(jobs):
            raise HandlerContractError(f"the handler returned {len(results)} results for {len(jobs)} jobs")
    except Exception as error:
        # The traceback is text, because a renderer that prints local variables would print transcripts.
        log.critical("handler.failed", jobs=[job.id for job in jobs], traceback=traceback.format_exc())
        raise SystemExit(EXIT_UNFINISHED) from error
    return [result if isinstance(result, Exception) else _checked(result) for result in results]


def _checked(result: object) -> object:
    """Return the result if it is JSON of an accepted size, and otherwise an error.

    RQ itself would record a job with any other result as finished.
    """
    try:
        size = len(json.dumps(result))
    except (TypeError, ValueError, RecursionError) as error:
        return HandlerContractError(f"a result is not JSON: {error}")
    if size > MAX_RESULT_BYTES:
        return HandlerContractError(f"a result has {size} bytes; at most {MAX_RESULT_BYTES} are accepted")
    return result


def _seconds(job: QueuedJob) -> float:
    """Return how long a job may take before its worker counts as hung."""
    return job.timeout if job.timeout and job.timeout > 0 else UNLIMITED_JOB_SECONDS
