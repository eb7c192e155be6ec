"""An RQ worker that takes several jobs at once, keeps what it has loaded, and loses none of them.

To RQ's tools it is a worker like any other. What differs: a job is moved, never popped, so that it always is
in some structure; it is claimed in one transaction, under a lease; its end is recorded in one transaction, if
we hold it still; and one that was started before runs alone, so that a clip which kills the process costs
only itself. Knows nothing of audio or models: what jobs do is in the handlers.

How the process ends: 0 after SIGTERM, with all it had in hand finished. `EXIT_UNFINISHED` (75) if a batch
hung, or if it had to stop while Redis was away and could not record results: those jobs come back.
"""

import copy
import json
import os
import secrets
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, cast

import structlog
from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import RedisError, ResponseError, WatchError
from redis.retry import Retry
from rq import worker_registration
from rq.connections import get_connection_kwargs
from rq.executions import Execution
from rq.job import JobStatus
from rq.results import Result
from rq.serializers import JSONSerializer
from rq.suspension import WORKERS_SUSPENDED
from rq.utils import now, utcformat
from rq.worker.base import BaseWorker, WorkerStatus

from services.extractor_worker.heartbeat import EXIT_UNFINISHED, Heartbeat
from services.shared.queue import RESULT_SECONDS, JobRefusedError, SafeJob, SafeQueue, job_key
from services.shared.queue_maintenance import OnAbandoned, QueueMaintenance
from services.shared.settings import WorkerSettings

log = structlog.get_logger(__name__)

Handler = Callable[[Sequence[SafeJob]], Sequence[object]]
"""Gets jobs of one function and one queue; returns as many results in the same order: JSON, or the exception
that ended the job. One with `retryable = False` fails its job at once, any other uses up one of its retries.
What a handler raises counts for all of its jobs."""

MAX_RESULT_BYTES = 16 * 1024
MAX_TRACEBACK = 4000
LONGEST_PAUSE_SECONDS = 5.0
ANSWER_SECONDS = 4.0
"""What a command may take besides the waiting it asks for. So long, a stop may wait for a dead network."""

STOP_SECONDS = 3.0
"""How long results are offered to a Redis that is away, once we are told to stop."""


TAKE = """
-- KEYS: queue, intermediate list.  ARGV: how many, at most.  Each job is in one of the two at any time.
local taken = {}
for number = 1, ARGV[1] do
    local job_id = redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
    if not job_id then break end
    taken[number] = job_id
end
return taken
"""


class HandlerContractError(Exception):
    """A handler returned something else than one JSON result or exception per job."""


@dataclass(frozen=True)
class Plan:
    """What becomes of jobs taken from the queue."""

    start: list[SafeJob] = field(default_factory=list)
    hand_back: list[bytes] = field(default_factory=list)
    drop: list[bytes] = field(default_factory=list)
    refuse: dict[bytes, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Jobs in hand, all of one queue, and the start of each by job id."""

    queue: SafeQueue
    jobs: Sequence[SafeJob]
    executions: Mapping[str, Execution]


class BatchWorker(BaseWorker):
    """Load models first: `work` is where the worker appears to others.

    Args:
        queues: names, the more important first.
        handlers: name of a job's function -> what runs it. All that can be run.
        connection: Redis, answering in bytes. Only its address and credentials are used.
        settings: see there.
        name: unique among workers, also among those of the past minutes; made up if not given.
        on_beat: called after each heartbeat, in its thread.
        on_abandoned: called with (job id, reason) when a job is given up without a handler having said so.

    """

    def __init__(
        self,
        queues: Sequence[str],
        handlers: Mapping[str, Handler],
        *,
        connection: Redis,
        settings: WorkerSettings,
        name: str | None = None,
        on_beat: Callable[[], None] | None = None,
        on_abandoned: OnAbandoned | None = None,
    ) -> None:
        self.settings = settings
        redis = _impatient(connection, settings.poll_seconds)
        self._safe_queues = [SafeQueue(queue, redis) for queue in queues]
        super().__init__(
            self._safe_queues,
            name=name or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}",
            connection=redis,
            job_class=SafeJob,
            queue_class=SafeQueue,
            serializer=JSONSerializer,
            prepare_for_work=False,  # it would need Redis, which may not be there yet
        )
        self.hostname, self.pid, self.ip_address = socket.gethostname(), os.getpid(), ""
        self._handlers = dict(handlers)
        self._on_abandoned = on_abandoned
        self._heartbeat = Heartbeat(
            redis,
            self._announce,
            lease_seconds=settings.lease_seconds,
            beat_seconds=settings.beat_seconds,
            on_beat=on_beat,
        )
        self._maintenance = QueueMaintenance(
            self._safe_queues,
            owner=self.name,
            stuck_seconds=settings.stuck_seconds,
            on_abandoned=on_abandoned,
        )
        self._next_maintenance = 0.0
        self._woken: dict[Any, Any] = {queue.wake_key: "0" for queue in self._safe_queues}

    # -- life --

    @property
    def connection_timeout(self) -> int:
        """Below our client's own: RQ would raise that to seven minutes."""
        return 0

    @property
    def stopping(self) -> bool:
        """Told to stop: what is in hand is finished, nothing else is taken."""
        return bool(self._stop_requested)

    def progress(self) -> None:
        """For handlers that work through their jobs in steps: gives the batch its full time again."""
        self._heartbeat.progress()

    def work(self, burst: bool = False) -> bool:  # type: ignore[override]
        """Run jobs until SIGTERM or SIGINT; with `burst`, until no queue has any. Returns whether any ran.

        Raises:
            SystemExit: with `EXIT_UNFINISHED`, see the module.

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
        """Only set a flag. RQ's handlers raise wherever we are: between a command and its answer, say."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._request_stop)

    def _request_stop(self, *_signal: object) -> None:
        self._stop_requested = True

    def _announce(self, pipeline: Pipeline) -> None:
        """All that makes us a worker to RQ, every time: Redis may have lost it, others may have tidied."""
        self.ip_address = self.ip_address or self._own_address()
        self.last_heartbeat = now()
        pipeline.hset(self.key, mapping=self.serialize())
        pipeline.hsetnx(self.key, "state", self.get_state())
        pipeline.expire(self.key, 2 * self.settings.lease_seconds)
        worker_registration.register(self, pipeline)

    def _own_address(self) -> str:
        try:
            return str(self.connection.client_info()["addr"])
        except ResponseError:
            return "unknown"  # the server's access rules do not let us ask

    def _pause(self, seconds: float) -> None:
        """Sleep, in pieces: a signal sets our flag but does not end a sleep."""
        end = time.monotonic() + seconds
        while not self._stop_requested and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    # -- taking jobs --

    def _next_batch(self, burst: bool) -> Batch | None:
        """Wait for one; None when told to stop, or if none is left in a `burst`. Outlives a loss of Redis."""
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
                log.warning("redis.failed", error=str(error), seconds=pause)
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
            log.exception("maintenance.failed")  # what it found odd must not keep us from working

    def _take(self) -> Batch | None:
        """From the first queue that has jobs."""
        with self.connection.pipeline(transaction=False) as pipeline:
            pipeline.exists(WORKERS_SUSPENDED)
            for queue in self._safe_queues:
                pipeline.llen(queue.key)
            suspended, *lengths = pipeline.execute()
        self._show(WorkerStatus.SUSPENDED if suspended else WorkerStatus.IDLE)
        if suspended:
            return None
        for queue, length in zip(self._safe_queues, lengths, strict=True):
            while length and (taken := self._move(queue, min(length, self.settings.batch_size))):
                if batch := self._claim(queue, taken):
                    return batch
        return None

    def _show(self, state: WorkerStatus) -> None:
        if state != self.get_state():
            self.set_state(state)

    def _move(self, queue: SafeQueue, count: int) -> list[bytes]:
        keys = (queue.key, queue.intermediate_queue_key)
        return cast(list[bytes], self.connection.eval(TAKE, len(keys), *keys, count))

    def _wait(self) -> None:
        """For a job to be put into any of our queues, a moment at most."""
        if self.get_state() == WorkerStatus.SUSPENDED:
            return self._pause(self.settings.poll_seconds)
        block = int(self.settings.poll_seconds * 1000)
        news: Any = self.connection.xread(self._woken, count=1, block=block)
        for key, entries in news or []:
            self._woken[key.decode()] = entries[-1][0]
        return None

    def _claim(self, queue: SafeQueue, taken: Sequence[bytes]) -> Batch | None:
        """Start those that still wait for it. Under WATCH: of two workers that hold a job, one starts it."""
        with self.connection.pipeline() as pipeline:
            while True:
                pipeline.watch(*map(job_key, taken))  # type: ignore[no-untyped-call]
                stored = self._read(taken)
                plan = sort_out(queue, taken, stored, self._handlers)
                pipeline.multi()
                for job_id in plan.drop:
                    pipeline.lrem(queue.intermediate_queue_key, 1, cast(str, job_id))
                for job_id in reversed(plan.hand_back):  # each goes to the head: the first must come last
                    queue.hand_back(job_id, pipeline)
                for job_id, reason in plan.refuse.items():
                    queue.quarantine(job_id, stored[job_id], reason, pipeline)
                batch = self._start(queue, plan.start, pipeline)
                try:
                    pipeline.execute()
                except WatchError:
                    continue
                break
        for job_id, reason in plan.refuse.items():
            self._tell_abandoned(job_id.decode(errors="replace"), reason)
        return batch

    def _read(self, job_ids: Sequence[bytes]) -> dict[bytes, Any]:
        with self.connection.pipeline(transaction=False) as pipeline:
            for job_id in job_ids:
                pipeline.hgetall(job_key(job_id))
            return dict(zip(job_ids, pipeline.execute(raise_on_error=False), strict=True))

    def _start(self, queue: SafeQueue, jobs: Sequence[SafeJob], pipeline: Pipeline) -> Batch | None:
        executions = {}
        for job in jobs:
            execution = Execution.create(job, self.settings.lease_seconds, pipeline, worker_name=self.name)
            job.prepare_for_execution(self.name, pipeline=pipeline)
            job.attempt, job.execution = job.attempt + 1, execution.id
            pipeline.hset(job.key, mapping={"attempt": job.attempt, "execution": job.execution})
            pipeline.persist(job.key)
            pipeline.lrem(queue.intermediate_queue_key, 1, job.id)
            executions[job.id] = execution
        if jobs:
            self.set_state(WorkerStatus.BUSY, pipeline=pipeline)
        return Batch(queue, jobs, executions) if jobs else None

    def _tell_abandoned(self, job_id: str, reason: str) -> None:
        try:
            if self._on_abandoned:
                self._on_abandoned(job_id, reason)
        except Exception:
            log.exception("job.on_abandoned_failed", job_id=job_id)

    # -- running and recording --

    def _handle(self, batch: Batch) -> None:
        self._heartbeat.hold((job, batch.executions[job.id]) for job in batch.jobs)
        try:
            results = self._run(batch.jobs)
            self._finish(batch, results)
        finally:
            self._heartbeat.hold(())

    def _run(self, jobs: Sequence[SafeJob]) -> dict[str, object]:
        """Job id -> its result or exception."""
        results: dict[str, object] = {}
        for name in dict.fromkeys(job.function for job in jobs):
            group = [job for job in jobs if job.function == name]
            self._heartbeat.watch(max(_seconds(job, self.settings.job_seconds) for job in group))
            try:
                outcomes = call(self._handlers[name], group)
            finally:
                self._heartbeat.unwatch()
            results |= {job.id: outcome for job, outcome in zip(group, outcomes, strict=True)}
        return results

    def _finish(self, batch: Batch, results: Mapping[str, object]) -> None:
        """Record the results. While Redis is away: as long as leases last; then the jobs are for others."""
        ended, pause = now(), 0.1
        deadline = time.monotonic() + self.settings.lease_seconds
        while True:
            try:
                return self._record(batch, results, ended)
            except WatchError:
                continue
            except RedisError as error:
                log.warning("results.not_recorded", error=str(error), jobs=list(results))
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

    def _record(self, batch: Batch, results: Mapping[str, object], ended: datetime) -> None:
        with self.connection.pipeline() as pipeline:
            pipeline.watch(*(job.key for job in batch.jobs))  # type: ignore[no-untyped-call]
            ours = self._still_ours(batch.jobs)
            pipeline.multi()
            for job in batch.jobs:
                batch.executions[job.id].delete(job=job, pipeline=pipeline)
                if job.id in ours:
                    # A copy: RQ's functions change the job, and all of this may have to be done again.
                    self._end(batch, copy.copy(job), results[job.id], ended, pipeline)
            self._count(batch, ours, results, ended, pipeline)
            pipeline.execute()
        _report(batch.jobs, ours, results)

    def _still_ours(self, jobs: Sequence[SafeJob]) -> set[str]:
        """Not those that were canceled, deleted, or given to another worker when our lease had run out."""
        with self.connection.pipeline(transaction=False) as pipeline:
            for job in jobs:
                pipeline.hmget(job.key, "status", "execution")
            held = zip(jobs, pipeline.execute(), strict=True)
            return {job.id for job, by in held if by == [b"started", job.execution.encode()]}

    def _end(self, batch: Batch, job: SafeJob, result: object, ended: datetime, pipeline: Pipeline) -> None:
        job.ended_at, execution = ended, batch.executions[job.id]
        start: dict[str, Any] = {
            "worker_name": self.name,
            "execution_id": execution.id,
            "execution_started_at": execution.created_at,
            "execution_ended_at": ended,
        }
        if not isinstance(result, Exception):
            # What RQ's `_handle_success` writes, less the fields that stay as they are: that halves the time.
            pipeline.hset(job.key, mapping={"status": JobStatus.FINISHED, "ended_at": utcformat(ended)})
            pipeline.expire(job.key, RESULT_SECONDS)
            Result.create(
                job, Result.Type.SUCCESSFUL, RESULT_SECONDS, return_value=result, pipeline=pipeline, **start
            )
            job.finished_job_registry.add(job, RESULT_SECONDS, pipeline)
        elif fails_for_good(job, result):
            job.set_status(JobStatus.FAILED, pipeline=pipeline)
            job._handle_failure(_traceback(result), pipeline, **start)
        else:
            job.retry(batch.queue, pipeline)

    def _count(
        self,
        batch: Batch,
        ours: set[str],
        results: Mapping[str, object],
        ended: datetime,
        pipeline: Pipeline,
    ) -> None:
        """What dashboards show of a worker."""
        failed = sum(isinstance(results[job_id], Exception) for job_id in ours)
        started = min(execution.created_at for execution in batch.executions.values())
        pipeline.hincrby(self.key, "successful_job_count", len(ours) - failed)
        pipeline.hincrby(self.key, "failed_job_count", failed)
        pipeline.hincrbyfloat(self.key, "total_working_time", (ended - started).total_seconds())
        self.set_state(WorkerStatus.IDLE, pipeline=pipeline)


def _impatient(connection: Redis, poll_seconds: float) -> Redis:
    """A client of the same server that reports every failure at once: waiting and repeating is decided here.

    redis-py's own ten retries would keep a stopping worker for a minute.
    """
    pool = connection.connection_pool
    options = get_connection_kwargs(connection) | {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": poll_seconds + ANSWER_SECONDS,
        "socket_connect_timeout": ANSWER_SECONDS,
    }
    return Redis(connection_pool=ConnectionPool(connection_class=pool.connection_class, **options))


def sort_out(
    queue: SafeQueue,
    taken: Sequence[bytes],
    stored: Mapping[bytes, Mapping[bytes, bytes] | Exception],
    functions: Mapping[str, object],
) -> Plan:
    """Decide about jobs taken from the queue, in its order. One that was started before is started alone."""
    plan = Plan()
    for job_id in dict.fromkeys(taken):
        plan.drop.extend([job_id] * (taken.count(job_id) - 1))
        if not stored[job_id]:
            plan.drop.append(job_id)
            continue
        try:
            job = queue.load(job_id, stored[job_id])
            if job.function not in functions:
                raise JobRefusedError(f"this worker has no handler {job.function!r}")
        except JobRefusedError as error:
            plan.refuse[job_id] = str(error)
            continue
        if job.get_status(refresh=False) != JobStatus.QUEUED:
            plan.drop.append(job_id)
        else:
            plan.start.append(job)
    return _isolated(plan)


def _isolated(plan: Plan) -> Plan:
    """If the first was started before, it alone; else all that were not. The rest goes back."""
    jobs = plan.start
    start = jobs[:1] if jobs and jobs[0].attempt else [job for job in jobs if not job.attempt]
    back = [job.id.encode() for job in jobs if job not in start]
    return Plan(start=start, hand_back=back, drop=plan.drop, refuse=plan.refuse)


def call(handler: Handler, jobs: Sequence[SafeJob]) -> list[object]:
    """One JSON result or exception per job, in order, whatever the handler does."""
    try:
        results = list(handler(jobs))
        if len(results) != len(jobs):
            raise HandlerContractError(f"{len(results)} results for {len(jobs)} jobs")
    except Exception as error:  # noqa: BLE001  recorded with each of its jobs
        return [error] * len(jobs)
    return [result if isinstance(result, Exception) else _checked(result) for result in results]


def _checked(result: object) -> object:
    """RQ would replace what is not JSON by a sentence saying so, and call the job finished."""
    try:
        size = len(json.dumps(result))
    except (TypeError, ValueError, RecursionError) as error:
        return HandlerContractError(f"a result is not JSON: {error}")
    if size > MAX_RESULT_BYTES:
        return HandlerContractError(f"a result has {size} bytes, at most {MAX_RESULT_BYTES} go through Redis")
    return result


def fails_for_good(job: SafeJob, error: Exception) -> bool:
    """Whether trying again is pointless, or was done often enough."""
    return job.last_attempt or not getattr(error, "retryable", True)


def _seconds(job: SafeJob, otherwise: float) -> float:
    return job.timeout if job.timeout and job.timeout > 0 else otherwise


def _traceback(error: Exception) -> str:
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]


def _report(jobs: Sequence[SafeJob], ours: set[str], results: Mapping[str, object]) -> None:
    for job in jobs:
        result = results[job.id]
        if job.id not in ours:
            log.warning("job.lost", job_id=job.id, attempt=job.attempt)
        elif isinstance(result, Exception):
            event = "job.failed" if fails_for_good(job, result) else "job.retried"
            # As text: a renderer that prints local variables would print transcripts.
            log.warning(event, job_id=job.id, attempt=job.attempt, traceback=_traceback(result))
