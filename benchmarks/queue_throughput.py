"""Compares the jobs a second of our worker with those of RQ's fastest worker, for jobs that do nothing.

In each turn every worker empties a full queue on the same Valkey. The figures are medians over the turns. The
ratios are taken within a turn, so that other load on the machine slows both sides.
"""

import logging
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import structlog
from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from services.embedded.valkey import ValkeyServer
from services.extractor_worker.jobs.batch_worker import BatchWorker
from services.shared.configuration.worker import WorkerSettings
from services.shared.queue.rq_jobs import JobQueue, QueuedJob

QUEUE = "extract.benchmark"
FUNCTION = "benchmarks.queue_throughput.no_op"
STOCK = "rq SimpleWorker"
BATCH_SIZES = (1, 8, 32, 128)
JOBS = 2000
TURNS = 5
GOAL = 4.0

Work = Callable[[Redis], object]


def no_op(**_ids: object) -> None:
    """Do nothing. RQ's worker imports and calls this function."""


def no_ops(jobs: Sequence[QueuedJob]) -> list[None]:
    return [None] * len(jobs)


def fill(client: Redis) -> None:
    """Enqueue jobs of four tenants as `services.shared.queue` would, by the faster call."""
    client.flushall()
    jobs = [
        Queue.prepare_data(FUNCTION, kwargs={"n": n}, job_id=f"job-{n}", timeout=120, result_ttl=300)
        for n in range(JOBS)
    ]
    Queue(QUEUE, connection=client, serializer=JSONSerializer).enqueue_many(jobs)
    queue, pipeline = JobQueue(QUEUE, client), client.pipeline(transaction=False)
    for n in reversed(range(JOBS)):  # a job is looked for from the end
        queue.move_to_turn(f"job-{n}", f"tenant-{n % 4}", pipeline)
    pipeline.execute()


def simple_worker(client: Redis) -> None:
    queue = Queue(QUEUE, connection=client, serializer=JSONSerializer)
    worker = SimpleWorker([queue], connection=client, serializer=JSONSerializer)
    worker.work(burst=True, logging_level="ERROR")


def batch_worker(client: Redis, batch_size: int) -> None:
    settings = WorkerSettings(batch_size=batch_size)
    BatchWorker([QUEUE], {FUNCTION: no_ops}, connection=client, settings=settings).work(burst=True)


def jobs_per_second(client: Redis, work: Work) -> float:
    fill(client)
    started = time.perf_counter()
    work(client)
    seconds = time.perf_counter() - started
    finished = JobQueue(QUEUE, client).finished_job_registry.get_job_count(cleanup=False)
    assert finished == JOBS, f"{finished} of {JOBS} jobs finished"
    return JOBS / seconds


def measure(client: Redis) -> list[dict[str, float]]:
    """Return for each turn: worker -> jobs per second."""
    workers: dict[str, Work] = {STOCK: simple_worker}
    workers |= {
        f"BatchWorker, {size} at a time": partial(batch_worker, batch_size=size) for size in BATCH_SIZES
    }
    return [{name: jobs_per_second(client, work) for name, work in workers.items()} for _ in range(TURNS)]


def main() -> bool:
    """Print the table. Returns whether the goal is reached."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(Path(folder)) as server:
        turns = measure(Redis.from_url(server.url))
    ratios = {name: median(turn[name] / turn[STOCK] for turn in turns) for name in turns[0]}
    print("| worker | jobs/s | ratio |\n|---|---|---|")
    for name, ratio in ratios.items():
        print(f"| {name} | {median(turn[name] for turn in turns):,.0f} | {ratio:.2f} |")
    best = max(ratios.values())
    print(f"\nbest ratio {best:.2f}, goal {GOAL}: {'reached' if best >= GOAL else 'missed'}")
    return best >= GOAL
