"""A worker program for the queue's tests, and what starts, signals and restarts it.

Its one handler does to the process what a job's `how` says: real clips do these things by accident.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redis import Redis

from services.extractor_worker.jobs import heartbeat
from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.shared.configuration.worker import WorkerSettings
from services.shared.queue.rq_jobs import JobQueue, QueuedJob, enqueue, status_of

FUNCTION = "act"
QUICK: dict[str, Any] = {
    "lease_seconds": 2,
    "poll_seconds": 0.2,
}
"""Seconds instead of half minutes. RQ counts leases in whole seconds, so one of 2 lasts 1 to 2."""
START_SECONDS = 150
"""The time for which tests wait until our processes have started. On a busy machine importing torch alone can
take more than a minute. It is less than pytest's `timeout`, so that a failed start shows what the process
said.
"""


def wait_until(true: Callable[[], object], seconds: float = 60) -> float:
    """Wait until the condition holds, and return how many seconds that took."""
    started = time.monotonic()
    while not true():
        assert time.monotonic() - started < seconds, f"not within {seconds} s"
        time.sleep(0.02)
    return time.monotonic() - started


def put(queue: JobQueue, job_id: str, how: str = "", seconds: int = 0, timeout_seconds: int = 20) -> None:
    kwargs = {"how": how, "seconds": seconds}
    assert enqueue(queue, job_id, FUNCTION, kwargs, timeout_seconds=timeout_seconds)


def statuses(queue: JobQueue, job_ids: Sequence[str]) -> list[str | None]:
    return [status_of(queue, job_id) for job_id in job_ids]


def runs(client: Redis, job_id: str) -> int:
    """Return how often the handler has started this job."""
    return int(client.hget("test:runs", job_id) or 0)


@contextmanager
def worker_process(url: str, queues: Sequence[str], **settings: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs a worker until the block ends. Its output goes to ours, so a failed test shows it."""
    command = [
        sys.executable,
        "-m",
        "tests.queue_workers",
        url,
        ",".join(queues),
        json.dumps(QUICK | settings),
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        print(process.communicate()[0])


@contextmanager
def supervised(url: str, queues: Sequence[str], count: int, **settings: Any) -> Iterator["Fleet"]:
    fleet = Fleet(url, queues, count, settings)
    try:
        yield fleet
    finally:
        fleet.close()


class Fleet:
    """Workers that are started again when they end, as a supervisor does. Call `tend` often."""

    def __init__(self, url: str, queues: Sequence[str], count: int, settings: Mapping[str, Any]) -> None:
        self._start = lambda: worker_process(url, queues, **settings)
        self._contexts = [self._start() for _ in range(count)]
        self.processes = [context.__enter__() for context in self._contexts]
        self.ended: list[int] = []
        """Exit statuses so far; negative: the signal."""

    def tend(self) -> None:
        for place, process in enumerate(self.processes):
            if process.poll() is not None:
                self.ended.append(process.returncode)
                self._contexts[place].__exit__(None, None, None)
                self._contexts[place] = self._start()
                self.processes[place] = self._contexts[place].__enter__()

    def close(self) -> None:
        for context in self._contexts:
            context.__exit__(None, None, None)


def act(job: QueuedJob, client: Redis, progress: Callable[[], None]) -> object:
    client.hincrby("test:runs", job.id, 1)
    match job.kwargs["how"]:
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            ctypes.CDLL(None).sleep(60)
        case "hang holding the lock":
            ctypes.PyDLL(None).sleep(60)
        case "work in steps":
            for _ in range(job.kwargs["seconds"] * 2):
                time.sleep(0.5)
                progress()
        case "raise":
            return OSError("as a flaky store would")
        case _:
            time.sleep(job.kwargs["seconds"])
    return {"attempt": job.attempt}


def main(url: str, queues: str, settings: str) -> None:
    options = json.loads(settings)
    heartbeat.LAST_RESORT_SECONDS = options.pop("last_resort_seconds", heartbeat.LAST_RESORT_SECONDS)
    pause = options.pop("pause_seconds", 0)
    poll_seconds = options.pop("poll_seconds")  # tests may wait for longer than production does
    client = Redis.from_url(url)

    def handler(jobs: Sequence[QueuedJob]) -> list[object]:
        time.sleep(pause)
        return [act(job, client, worker.progress) for job in jobs]

    worker = BatchWorker(
        queues.split(","),
        {FUNCTION: handler},
        connection=client,
        settings=WorkerSettings(**options).model_copy(update={"poll_seconds": poll_seconds}),
    )
    worker.work()


if __name__ == "__main__":
    main(*sys.argv[1:])
