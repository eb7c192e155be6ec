"""Jobs and queues as RQ stores them in Redis, without RQ's ability to run code that is named in Redis.

Unmodified RQ imports and calls any function that a job names, and the job's callbacks and webhooks, whichever
serializer is used. Here, a job is the name of a handler and some ids, as JSON, and nothing else is read. A
worker runs a job only through the handler that it registered for that name. So anyone with write access to
Redis can waste time, but cannot run code.

This module knows neither what a job does nor our own record of it (`jobs.py`). `batch_worker.py` runs jobs,
and `reaping.py` puts the jobs of dead workers back.
"""

import json
import re
import time
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NoReturn, cast

import structlog
from redis import Redis
from redis.client import Pipeline
from rq import Queue, Retry
from rq.defaults import RQ_KEY_PREFIX
from rq.exceptions import DuplicateJobError
from rq.job import Job
from rq.registry import FinishedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer
from rq.utils import as_text

from services.shared.configuration.values import LONGEST_DURATION_SECONDS
from services.shared.model.speaker import namespace_of

log = structlog.get_logger(__name__)

KEY_PREFIX = "rq"
"""RQ's keys begin with this and a colon. The rights in `redis_access.py` and KEDA's triggers rely on it."""

RETRIES = 3
"""Number of retries after the first start. Four starts are enough for a job even if two of its workers die
for unrelated reasons.
"""

RESULT_SECONDS = 300
FAILURE_SECONDS = 24 * 3600
"""Finished and failed jobs are kept for this long. Their ids cannot be used again before that."""

MAX_DATA_BYTES = 16 * 1024
MAX_ID_LENGTH = 200
MAX_ARGUMENTS = 16

QUARANTINE_KEY = "sr:quarantine"
QUARANTINE_LENGTH = 1000

QUEUE_NAME = re.compile(r"(?:extract|prepare)\.[a-z0-9][a-z0-9._-]{0,90}")
"""The form of a queue's name. It contains no comma, because RQ joins the names of a worker's queues with
commas, and no colon, because colons separate the parts of RQ's keys.
"""

_PREPARE = "prepare."
_FINGERPRINT_DIGITS = 16
"""Number of digits of a fingerprint that are in the name of a queue. Jobs carry the whole fingerprint."""

PICTURES_QUEUE = "draw.pictures"
"""The queue of jobs that draw pictures of clips. Every worker takes jobs from it, whichever profiles it
serves.
"""

FUNCTION_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]{0,99}")

STORED_FIELDS = frozenset(
    b"created_at data description ended_at enqueued_at last_heartbeat origin retries_left started_at status "
    b"timeout worker_name".split()
)
"""The fields of a job that are read. All other fields have no effect: callbacks, webhooks, meta (which tools
without our serializer pickle), dependencies, repeats and rate limits (which can make a job wait for ever),
intervals (which need a scheduler) and expiry.
"""

HAND_BACK = """
-- KEYS: intermediate list, queue, job.  ARGV: job id.
-- Puts a job back at the head of the queue if it still waits to be run, and forgets it otherwise. Only the
-- caller that removed it from the intermediate list pushes it.
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
if redis.pcall('HGET', KEYS[3], 'status') ~= 'queued' then return 0 end
redis.call('LPUSH', KEYS[2], ARGV[1])
return 1
"""

MOVE_TO_TURN = """
-- KEYS: queue, order (jobs that wait, scored by turn), turns (of each tenant's last job; ':' of the last one
-- taken).  ARGV: job id, tenant.  Moves a job from the end of the queue to its tenant's next turn.
-- Turns start at the last one taken, so a tenant gains nothing by having been idle. The order may still name
-- jobs that were removed from the queue.
if redis.call('LREM', KEYS[1], -1, ARGV[1]) == 0 then return 0 end
local taken, own = unpack(redis.call('HMGET', KEYS[3], ':', ARGV[2]))
local turn = math.max(tonumber(taken or 0), tonumber(own or 0)) + 1
redis.call('HSET', KEYS[3], ARGV[2], turn)
local behind
repeat
  behind = redis.call('ZRANGEBYSCORE', KEYS[2], '(' .. turn, '+inf', 'LIMIT', 0, 1)[1]
  local placed = behind and redis.call('LINSERT', KEYS[1], 'BEFORE', behind, ARGV[1]) ~= -1
  if behind and not placed then redis.call('ZREM', KEYS[2], behind) end
until placed or not behind
if not behind then redis.call('RPUSH', KEYS[1], ARGV[1]) end
redis.call('ZADD', KEYS[2], turn, ARGV[1])
return 1
"""

TAKE = """
-- KEYS: queue, intermediate list, order, turns.  ARGV: how many, at most; what the keys of jobs begin with.
-- Each job is in one of the two lists at any time. A job that was started before is taken alone, because it
-- may have ended its worker. Jobs behind it stay where they are: handed back, they would be before all turns.
local taken = {}
for number = 1, ARGV[1] do
  local job_id = redis.call('LINDEX', KEYS[1], 0)
  if not job_id then break end
  local was_started = type(redis.pcall('HGET', ARGV[2] .. job_id, 'attempt')) == 'string'
  if was_started and number > 1 then break end
  redis.call('LMOVE', KEYS[1], KEYS[2], 'LEFT', 'RIGHT')
  taken[number] = job_id
  if was_started then break end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[3], KEYS[4])
elseif #taken > 0 then
  local last
  for _, turn in ipairs(redis.call('ZMSCORE', KEYS[3], unpack(taken))) do last = turn or last end
  if last then
    redis.call('HSET', KEYS[4], ':', last)
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', '(' .. last)
    redis.call('ZREM', KEYS[3], unpack(taken))
  end
end
return taken
"""


REMOVE = """
-- KEYS: queue, job.  ARGV: job id.  The order may still name it: see MOVE_TO_TURN.
if redis.call('LREM', KEYS[1], 1, ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[2])
return 1
"""


class JobRefusedError(ValueError):
    """The data under a job's id in Redis is not a valid job. The message says why."""


def queue_name(profile: str) -> str:
    """Return the name of the queue of one profile's extractions.

    A worker listens to the queues of the profiles that it has loaded.
    """
    return _checked_name(f"extract.{profile}")


def preparation_queue(profile: str, fingerprint: str) -> str:
    """Return the name of the queue for extractions by one encoder ahead of its promotion.

    Only workers with this encoder listen to the queue, and they take jobs from their other queues first.
    """
    return _checked_name(f"{_PREPARE}{profile}.{fingerprint.removeprefix('sha256:')[:_FINGERPRINT_DIGITS]}")


def is_queue_name(name: str) -> bool:
    """Return whether a queue of this name is one of the registry's."""
    return name == PICTURES_QUEUE or QUEUE_NAME.fullmatch(name) is not None


def is_preparation(queue: str) -> bool:
    """Return whether a queue holds extractions ahead of a promotion, see `preparation_queue`."""
    return queue.startswith(_PREPARE)


def profile_of(queue: str) -> str:
    """Return the profile of a queue. This is the inverse of `queue_name` and of `preparation_queue`."""
    if is_preparation(queue):
        return queue.removeprefix(_PREPARE).rpartition(".")[0]
    return queue.partition(".")[2]


def _checked_name(name: str) -> str:
    if not QUEUE_NAME.fullmatch(name):
        raise ValueError(f"no queue can be named {name!r}: a-z, 0-9, '.', '_' and '-' are accepted")
    return name


class QueuedJob(Job):
    """A job that cannot carry code and that counts its starts."""

    attempt = 0
    """The number of the current start, from 1, or 0 before the first. Starts during which the worker died
    count, too.
    """

    execution = ""
    """The id of the current start. A worker whose start has another id has lost the job."""

    def __init__(
        self, id: str | None = None, connection: Redis | None = None, serializer: Any = None
    ) -> None:
        del serializer  # regardless of the caller's serializer
        super().__init__(id, connection, JSONSerializer)

    @cached_property
    def started_job_registry(self) -> StartedJobRegistry:
        """Return the registry that a queue's jobs share.

        RQ would create a new registry on each use, which costs several commands.
        """
        return StartedJobRegistry(self.origin, connection=self.connection, serializer=JSONSerializer)

    @cached_property
    def finished_job_registry(self) -> FinishedJobRegistry:
        return FinishedJobRegistry(self.origin, connection=self.connection, serializer=JSONSerializer)

    @property
    def function(self) -> str:
        """The name of the handler that runs the job."""
        return str(self.func_name)

    @property
    def tenant(self) -> str:
        """The namespace of the speaker that the job is about. Tenants take turns in a queue."""
        return _tenant_of(self.kwargs)

    @property
    def last_attempt(self) -> bool:
        """True if a failure of this start is final."""
        return not self.retries_left

    @property
    def func(self) -> NoReturn:
        raise JobRefusedError(f"{self.func_name!r} is run by the handler of that name, never by import")

    def restore(self, raw_data: Mapping[bytes, bytes]) -> None:
        """Load the fields of a job that are read. Raises `JobRefusedError` for anything but a name and
        ids.
        """
        fields = {name: value for name, value in raw_data.items() if name in STORED_FIELDS}
        fields[b"data"] = _checked_call(fields.get(b"data", b""))
        super().restore(fields)
        if self.timeout and self.timeout > LONGEST_DURATION_SECONDS:
            raise JobRefusedError(f"a time limit beyond the accepted {LONGEST_DURATION_SECONDS} s")
        self.retries_left = min(max(0, self.retries_left or 0), RETRIES)
        self.result_ttl, self.failure_ttl = RESULT_SECONDS, FAILURE_SECONDS
        self.attempt = int(raw_data.get(b"attempt", 0))
        self.execution = raw_data.get(b"execution", b"").decode()


def _checked_call(data: bytes) -> bytes:
    """Check RQ's (function, instance, args, kwargs) and return it as plain JSON in UTF-8."""
    try:
        plain = zlib.decompressobj().decompress(data, MAX_DATA_BYTES + 1)
    except zlib.error:
        plain = data
    if len(plain) > MAX_DATA_BYTES:
        raise JobRefusedError(f"more than {MAX_DATA_BYTES} bytes")
    try:
        # RQ reads UTF-8 only, and not before the job runs; from bytes `json` would take UTF-16 as well.
        call = json.loads(plain.decode())
    except (ValueError, RecursionError):
        raise JobRefusedError("not JSON in UTF-8") from None
    match call:
        case [str(name), None, [], dict(kwargs)] if FUNCTION_NAME.fullmatch(name):
            _refuse_all_but_ids(kwargs)
            return plain
    raise JobRefusedError("not a function's name with keyword arguments")


def _refuse_all_but_ids(kwargs: Mapping[str, Any]) -> None:
    if len(kwargs) > MAX_ARGUMENTS:
        raise JobRefusedError(f"{len(kwargs)} arguments, at most {MAX_ARGUMENTS} are accepted")
    for name, value in kwargs.items():
        short = len(value) <= MAX_ID_LENGTH if isinstance(value, str) else isinstance(value, int | None)
        if not short:
            raise JobRefusedError(
                f"argument {name[:50]!r} is not an id: a number, or at most {MAX_ID_LENGTH} characters"
            )


class JobQueue(Queue):
    """A queue of `QueuedJob`s. Like all of RQ, it needs a client that returns bytes."""

    job_class = QueuedJob

    def __init__(self, name: str, connection: Redis, **_rq: object) -> None:
        if connection.get_encoder().decode_responses:
            raise ValueError("RQ needs a client without decode_responses: its job data is not text")
        if RQ_KEY_PREFIX != KEY_PREFIX:
            raise ValueError(
                f"RQ_KEY_PREFIX is {RQ_KEY_PREFIX!r}, and must be unset: all processes and autoscalers find"
                f" jobs under {KEY_PREFIX + ':'!r} only"
            )
        super().__init__(name, connection=connection, job_class=QueuedJob, serializer=JSONSerializer)
        self._started, self._finished = self.started_job_registry, self.finished_job_registry

    @property
    def wake_key(self) -> str:
        """The key of a stream whose only entry is replaced with every enqueue. Workers wait for the stream,
        because waiting for a list would also take an entry from it.
        """
        return f"{self.key}:wake"

    def wake(self) -> None:
        """Wake the workers that wait for jobs. A worker that misses this checks the queue within a second
        anyway.
        """
        self.connection.xadd(self.wake_key, {"woken": 1}, maxlen=1, approximate=False)

    def load(self, job_id: bytes, stored: Mapping[bytes, bytes] | Exception) -> QueuedJob:
        """Return a stored job. Raises `JobRefusedError` if anything is wrong with it."""
        if isinstance(stored, Exception):
            raise JobRefusedError(f"its key holds something else ({stored})")
        try:
            job = QueuedJob(job_id.decode(), connection=self.connection)
            job.restore(stored)
        except JobRefusedError:
            raise
        except Exception as error:
            raise JobRefusedError(f"{type(error).__name__}: {error}"[:200]) from error
        job.origin = self.name  # the queue in which it was found, because RQ derives keys from it
        job.started_job_registry, job.finished_job_registry = self._started, self._finished
        return job

    def move_to_turn(self, job_id: str, tenant: str, client: Redis | Pipeline) -> None:
        """Move a job that was just put at the end to its tenant's next turn.

        The queue stays one list in the order in which jobs are taken: first the first job of each tenant,
        then the second of each, and so on. A tenant with 1,000 jobs delays another tenant's job by one job.
        """
        client.eval(MOVE_TO_TURN, 3, self.key, self._order_key, self._turns_key, job_id, tenant)

    def take(self, count: int) -> list[bytes]:
        """Move up to `count` jobs to the intermediate list, but only one if it was started before.
        Maintenance puts back the jobs that no worker starts.
        """
        keys = (self.key, self.intermediate_queue_key, self._order_key, self._turns_key)
        prefix = QueuedJob.redis_job_namespace_prefix
        return cast(list[bytes], self.connection.eval(TAKE, len(keys), *keys, count, prefix))

    def put_back(self, job: QueuedJob, pipeline: Pipeline, *, counted: bool = True) -> None:
        """Queue a job for its next start, and use up one of its retries if the last start is `counted`. It
        takes its tenant's next turn, as a new job does: a clip that ends its workers must not come before the
        clips of others each time.
        """
        if not counted:
            job.retries_left = (job.retries_left or 0) + 1  # RQ takes one
        job.retry(self, pipeline)
        self.move_to_turn(job.id, job.tenant, pipeline)

    @property
    def _order_key(self) -> str:
        return f"{self.key}:order"

    @property
    def _turns_key(self) -> str:
        return f"{self.key}:turns"

    def remove_waiting(self, job_id: str) -> None:
        """Remove a job that still waits in the queue. A job that a worker has taken is not touched."""
        self.connection.eval(REMOVE, 2, self.key, job_key(job_id.encode()), job_id)

    def hand_back(self, job_id: bytes, pipeline: Pipeline) -> None:
        """Put back a job that was taken but not started. Nothing happens if another process has already done
        so.
        """
        keys = (self.intermediate_queue_key, self.key, job_key(job_id))
        pipeline.eval(HAND_BACK, len(keys), *keys, job_id)

    def quarantine(self, job_id: bytes, stored: object, reason: str, pipeline: Pipeline) -> None:
        """Move a job that cannot be run to the failed jobs, where operators find it and no worker does."""
        entry = {
            "queue": self.name,
            "job_id": job_id.decode(errors="replace")[:200],
            "reason": reason,
            "at": time.time(),
        }
        pipeline.lrem(
            self.intermediate_queue_key, 1, cast(str, job_id)
        )  # redis-py's types know no bytes here
        pipeline.rpush(QUARANTINE_KEY, json.dumps(entry))
        pipeline.ltrim(QUARANTINE_KEY, -QUARANTINE_LENGTH, -1)
        if isinstance(stored, Mapping) and stored:
            pipeline.hset(job_key(job_id), "status", "failed")
            pipeline.expire(job_key(job_id), FAILURE_SECONDS)
        log.error("job.quarantined", **entry)


def job_key(job_id: bytes) -> bytes:
    """Return the key of a job, even for ids that RQ would not accept."""
    return QueuedJob.redis_job_namespace_prefix.encode() + job_id


def _tenant_of(kwargs: Mapping[str, Any]) -> str:
    return namespace_of(str(kwargs.get("speaker", "")))


def enqueue(
    queue: JobQueue,
    job_id: str,
    func_name: str,
    kwargs: Mapping[str, str | int | None],
    *,
    timeout_seconds: int = 120,
) -> bool:
    """Put a job into the queue if no job of that id exists. Safe to repeat.

    Args:
        queue: the queue that the job is put into.
        job_id: letters, digits, `_` and `-`.
        func_name: the name under which workers registered the handler.
        kwargs: ids, but no content.
        timeout_seconds: a worker that runs the job for longer counts as hung.

    Returns:
        False if a job with that id exists. It may be the same job, if the answer to a first attempt was lost.
    """
    _checked_call(json.dumps([func_name, None, [], dict(kwargs)]).encode())
    try:
        queue.enqueue_call(
            func_name,
            kwargs=dict(kwargs),
            job_id=job_id,
            unique=True,
            timeout=timeout_seconds,
            retry=Retry(max=RETRIES),
            result_ttl=RESULT_SECONDS,
            failure_ttl=FAILURE_SECONDS,
            description=f"{func_name} {job_id}",
        )
    except DuplicateJobError:
        created = False
    else:
        created = True
        queue.move_to_turn(job_id, _tenant_of(kwargs), queue.connection)
    queue.wake()
    return created


def status_of(queue: JobQueue, job_id: str) -> str | None:
    """Return RQ's status of a job, or None if the job is unknown or forgotten."""
    status = queue.connection.hget(QueuedJob.key_for(job_id), "status")
    return as_text(status) if status else None
