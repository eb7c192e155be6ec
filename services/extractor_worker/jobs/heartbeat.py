"""A thread that renews a worker's entry in Redis and the leases of its jobs.

The same thread is the watchdog. Python cannot interrupt a C function that hangs. So the process ends, its
leases run out, and its jobs are started again one by one. This module knows neither queues nor what jobs do.
"""

import faulthandler
import math
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path

import structlog
from redis import Redis
from redis.client import Pipeline
from redis.exceptions import RedisError
from rq.executions import Execution
from rq.job import Job

from services.extractor_worker.jobs.beat_file import write_beat
from services.shared.view.redis_access import without_command
from speaker_registry.errors import Unavailable

log = structlog.get_logger(__name__)

EXIT_UNFINISHED = 75
"""The exit status EX_TEMPFAIL: the process left jobs unfinished, which return to their queues when their
leases run out. Start another process.
"""

CHECK_SECONDS = 1.0
"""The time between two checks of the watchdog's deadline. Setting a deadline does not wake the thread."""

JOIN_SECONDS = 5
"""The time for which `stop` waits for a last heartbeat. In a network that drops packets, a heartbeat may take
longer, and is then abandoned when the process ends.
"""

LAST_RESORT_SECONDS = 10
"""A function that hangs while it holds the global interpreter lock stops this thread, too. In that case
faulthandler's watchdog, which needs no lock, ends the process with status 1 this many seconds later.
"""

_EXPECTED = (RedisError, Unavailable)
"""The errors of a Redis that does not answer, or of a view that cannot be used now. They come at every
heartbeat while that lasts, and a traceback would tell nothing.
"""


class Heartbeat:
    """Sends heartbeats from `start` to `stop`.

    Args:
        redis: the client that sends them.
        announce: adds the commands that keep the worker itself registered.
        lease_seconds: how long a job belongs to the worker after a heartbeat.
        beat_seconds: the time between two heartbeats.
        on_beat: is called after each heartbeat, in its thread.
        beat_file: the file that is written at each heartbeat, even while Redis does not answer, if there is
            one.
    """

    def __init__(
        self,
        redis: Redis,
        announce: Callable[[Pipeline], None],
        *,
        lease_seconds: int,
        beat_seconds: float,
        on_beat: Callable[[], None],
        beat_file: Path | None,
    ) -> None:
        self._redis = redis
        self._announce = announce
        self._lease_seconds = lease_seconds
        self._beat_seconds = beat_seconds
        self._on_beat = on_beat
        self._beat_file = beat_file
        self._held: tuple[tuple[Job, Execution], ...] = ()
        self._limit_seconds = math.inf
        self._deadline = math.inf
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system refuses this thread, or that of faulthandler's watchdog. A worker without
                them would take jobs and could finish none.
        """
        _end_process_after(LAST_RESORT_SECONDS)
        try:
            self._thread.start()
        finally:
            self.unwatch()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(JOIN_SECONDS)

    def hold(self, held: Iterable[tuple[Job, Execution]]) -> None:
        """Renew the leases of these jobs from now on, and no others."""
        self._held = tuple(held)

    def watch(self, seconds: float) -> None:
        """End the process unless `watch`, `progress` or `unwatch` is called again within this time."""
        self._limit_seconds = seconds
        self.progress()

    def progress(self) -> None:
        """Restart the time limit of the running batch."""
        if math.isinf(self._limit_seconds):
            return
        self._deadline = time.monotonic() + self._limit_seconds
        last_resort = self._limit_seconds + self._beat_seconds + LAST_RESORT_SECONDS
        try:
            _end_process_after(last_resort)
        except RuntimeError as error:  # no thread now: the deadline holds nevertheless
            log.warning("watchdog.refused", error=str(error))

    def unwatch(self) -> None:
        """End the time limit that `watch` began."""
        self._limit_seconds = self._deadline = math.inf
        faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        next_beat = time.monotonic()
        while not self._stopped.wait(min(CHECK_SECONDS, max(0.0, next_beat - time.monotonic()))):
            if time.monotonic() >= self._deadline:
                self._exit_hung()
            if time.monotonic() >= next_beat:
                self._beat()
                next_beat = time.monotonic() + self._beat_seconds

    def _beat(self) -> None:
        try:
            write_beat(self._beat_file)
            with self._redis.pipeline(transaction=False) as pipeline:
                self._announce(pipeline)
                for job, execution in self._held:
                    execution.heartbeat(job.started_job_registry, self._lease_seconds, pipeline=pipeline)
                pipeline.execute()
            self._on_beat()
        except Exception as error:  # noqa: BLE001  without this thread, every lease would run out
            trace = None if isinstance(error, _EXPECTED) else traceback.format_exc()
            log.warning("heartbeat.failed", error=without_command(error), traceback=trace)

    def _exit_hung(self) -> None:
        log.critical("worker.hung", jobs=[job.id for job, _ in self._held], seconds=self._limit_seconds)
        faulthandler.dump_traceback(file=sys.__stderr__ or sys.stderr, all_threads=True)
        sys.stdout.flush()
        os._exit(EXIT_UNFINISHED)


def _end_process_after(seconds: float) -> None:
    """Have faulthandler's watchdog end the process, unless it is canceled or set again within this time.

    Raises RuntimeError if the system refuses its thread.
    """
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or sys.stderr)
