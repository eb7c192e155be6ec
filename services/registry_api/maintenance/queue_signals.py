"""Metrics of queues, workers and the view, read from Redis at every scrape.

A scrape must end even if Redis does not answer, so Redis is read on a thread for at most `ANSWER_SECONDS`.
Without an answer by then, the scrape reports that Redis is down, and omits these metrics.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as ResultTimeout
from dataclasses import dataclass
from typing import Any

import redis
import structlog
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from rq.utils import utcparse

from services.registry_api.maintenance.sweep import SWEPT
from services.shared.model.encoders import Encoder
from services.shared.model.profiles import ProfileCatalogue
from services.shared.queue.rq_jobs import PICTURES_QUEUE, QUARANTINE_KEY, JobQueue, job_key, queue_name
from services.shared.registry.profile_records import ProfileRecords
from services.shared.telemetry import metrics
from services.shared.view.copies import SpeakerView
from services.shared.view.generation import milliseconds
from services.shared.view.workers import Workers
from speaker_registry.engine import kind_of_weights
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

ANSWER_SECONDS = 2.0
"""Prometheus' own timeout is 10 seconds."""
_NEXT_JOBS = 100
"""The number of jobs at the head of each queue that are examined for the age of the oldest."""


@dataclass(frozen=True, slots=True)
class _Queue:
    queued: int
    moving: int
    running: int
    next_jobs: Sequence[bytes]
    """Ids of the first jobs. Tenants take turns in the queue, so each tenant's first job is among them."""


@dataclass(frozen=True, slots=True)
class _Answer:
    view_in_use: bool
    view_complete: bool
    queues: Mapping[str, _Queue]
    """Profile -> its queue."""
    pictures: _Queue
    """The queue of the pictures of clips."""
    waited: Mapping[str, float]
    """Profile, or `PICTURES_QUEUE` -> for how many seconds the longest waiting job has waited. Queues without
    waiting jobs are omitted.
    """
    workers: Mapping[str, int]
    """Profile -> how many workers have its current encoder."""
    failed_proofs: Mapping[str, int]
    """Profile -> how many workers failed the proof of its encoder."""
    encoders: Mapping[str, Encoder]
    """Profile -> its current encoder. Profiles without one are omitted."""
    quarantined: int | None
    append_log_ok: bool | None
    swept_at: float | None
    further: Sequence[GaugeMetricFamily]


class RedisSignals(Collector):
    """The Prometheus collector of these metrics. API processes that use the same Redis report the
    same values.

    Args:
        connection: a connection to Redis that answers in bytes.
        further: returns the metrics that other modules read from Redis. It does not raise while Redis
            answers.
    """

    def __init__(
        self,
        view: SpeakerView,
        records: ProfileRecords,
        workers: Workers,
        catalogue: ProfileCatalogue,
        connection: redis.Redis,
        further: Callable[[], Sequence[GaugeMetricFamily]] = tuple,
    ) -> None:
        self._view = view
        self._records = records
        self._workers = workers
        self._required = frozenset(catalogue.required)
        self._redis = connection
        self._further = further
        self._queues = {name: JobQueue(queue_name(name), connection) for name in sorted(catalogue.names)}
        self._pictures = JobQueue(PICTURES_QUEUE, connection)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="redis-signals")
        self._asking: Future[_Answer] | None = None

    def collect(self) -> Iterable[GaugeMetricFamily]:
        answer = self._answer_in_time()
        yield _single(metrics.REDIS_UP, answer is not None)
        yield _by_profile(metrics.PROFILE_REQUIRED, {name: name in self._required for name in self._queues})
        if answer is not None:
            yield from _families(answer)
            yield from answer.further

    def _answer_in_time(self) -> _Answer | None:
        """Return the answer, or None if it does not arrive in time.

        Only one question is under way at a time, so that a Redis that hangs does not pile up threads.
        """
        if self._asking is None or self._asking.done():
            self._asking = self._pool.submit(self._ask)
        try:
            return self._asking.result(ANSWER_SECONDS)
        except (ResultTimeout, redis.RedisError, Unavailable) as error:
            log.warning("metrics.redis_silent", reason=type(error).__name__)
            return None

    def _ask(self) -> _Answer:
        queues, pictures, persistence = self._lengths()
        quarantined, swept_at = self._quarantined_and_swept_at()
        encoders = self._encoders(queues)
        view_in_use, complete, workers, failed = self._of_view(queues)
        serving = {
            name: counts[encoders[name].fingerprint] if name in encoders else 0
            for name, counts in workers.items()
        }
        return _Answer(
            view_in_use=view_in_use,
            view_complete=complete,
            queues=queues,
            pictures=pictures,
            waited=self._waited({**queues, PICTURES_QUEUE: pictures}),
            workers=serving,
            failed_proofs=failed,
            encoders=encoders,
            quarantined=quarantined,
            append_log_ok=_append_log_ok(persistence),
            swept_at=swept_at,
            further=self._further(),
        )

    def _encoders(self, profiles: Iterable[str]) -> dict[str, Encoder]:
        """Return the current encoders of the profiles whose documents Redis has copies of.

        The bucket is not read, because a slow bucket would then look like a Redis that is down.
        """
        try:
            documents = self._records.copied(profiles)
        except Unavailable:
            return {}
        return {name: one.current for name, one in documents.items() if one.current is not None}

    def _of_view(
        self, profiles: Iterable[str]
    ) -> tuple[bool, bool, Mapping[str, Counter[str]], Mapping[str, int]]:
        """Return whether the view can be used, also for writes, and whether it is complete. For each profile,
        also return the live workers by fingerprint and the number of workers that failed the proof.
        """
        names = list(profiles)
        try:
            failed = {name: len(proofs) for name, proofs in self._workers.failed(names).items()}
            complete, workers = self._view.is_complete(), self._workers.of(names)
            return self._view.takes_writes, complete, workers, failed
        except Unavailable:  # Redis answers, but this process cannot write its first word there
            return False, False, {name: Counter() for name in names}, dict.fromkeys(names, 0)

    def _quarantined_and_swept_at(self) -> tuple[int | None, float | None]:
        """Return the number of quarantined jobs and the time of the last sweep. Returns None for both if
        Redis, which is up, does not let this process read them.
        """
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                pipeline.llen(QUARANTINE_KEY)
                pipeline.get(SWEPT)
                quarantined, swept = pipeline.execute()
        except redis.ResponseError:
            return None, None
        return quarantined, float(swept.partition(b":")[0]) if swept else 0

    def _lengths(self) -> tuple[dict[str, _Queue], _Queue, Mapping[str, Any]]:
        """Read the lengths of the queues directly, because RQ's own counts clean up first, and write."""
        with self._redis.pipeline(transaction=False) as pipeline:
            for queue in (*self._queues.values(), self._pictures):
                pipeline.llen(queue.key)
                pipeline.llen(queue.intermediate_queue_key)
                pipeline.zcard(queue.started_job_registry.key)
                pipeline.lrange(queue.key, 0, _NEXT_JOBS - 1)
            pipeline.info("persistence")
            *answers, persistence = pipeline.execute()
        *found, pictures = (_Queue(*answers[at : at + 4]) for at in range(0, len(answers), 4))
        return dict(zip(self._queues, found, strict=True)), pictures, persistence

    def _waited(self, queues: Mapping[str, _Queue]) -> dict[str, float]:
        """Return for how many seconds the longest waiting job of each queue has waited, by Redis' clock."""
        waiting = [(name, job_id) for name, queue in queues.items() for job_id in queue.next_jobs]
        with self._redis.pipeline(transaction=False) as pipeline:
            for _, job_id in waiting:
                # `created_at` would be wrong: a job that is tried again has not waited since then.
                pipeline.hget(job_key(job_id), "enqueued_at")
            enqueued: Sequence[object] = pipeline.execute(raise_on_error=False)
        now = milliseconds(self._redis.time()) / 1000
        oldest: dict[str, float] = {}
        for (name, _), time in zip(waiting, map(_time, enqueued), strict=True):
            if time is not None:
                oldest[name] = min(time, oldest.get(name, time))
        return {name: max(0.0, now - time) for name, time in oldest.items()}


def _time(enqueued_at: object) -> float | None:
    """Parse a time as RQ writes it into Unix seconds. Returns None for anything else."""
    try:
        return utcparse(enqueued_at.decode()).timestamp() if isinstance(enqueued_at, bytes) else None
    except ValueError:
        return None


def _append_log_ok(persistence: Mapping[str, Any]) -> bool | None:
    if not persistence.get("aof_enabled"):
        return None
    said = (persistence.get("aof_last_write_status"), persistence.get("aof_last_bgrewrite_status"))
    return said == ("ok", "ok")


def _families(answer: _Answer) -> Iterator[GaugeMetricFamily]:
    yield _single(metrics.VIEW_IN_USE, answer.view_in_use)
    yield _single(metrics.VIEW_COMPLETE, answer.view_complete)
    if answer.quarantined is not None:
        yield _single(metrics.QUARANTINED, answer.quarantined)
    if answer.swept_at is not None:
        yield _single(metrics.LAST_SWEEP, answer.swept_at)
    if answer.append_log_ok is not None:
        yield _single(metrics.APPEND_LOG_OK, answer.append_log_ok)
    yield from _queue_families(answer)
    yield _by_profile(metrics.WORKERS, answer.workers)
    yield _by_profile(metrics.PROOF_FAILED_WORKERS, answer.failed_proofs)
    weights = metrics.PROFILE_WEIGHTS.family()
    for name, encoder in answer.encoders.items():
        weights.add_metric([name, _weights(encoder)], 1)
    yield weights


def _queue_families(answer: _Answer) -> Iterator[GaugeMetricFamily]:
    depth, pictures = metrics.QUEUE_DEPTH.family(), metrics.PICTURES_QUEUE_DEPTH.family()
    for state in ("queued", "moving", "running"):
        for name, queue in answer.queues.items():
            depth.add_metric([name, state], getattr(queue, state))
        pictures.add_metric([state], getattr(answer.pictures, state))
    yield depth
    yield _by_profile(metrics.OLDEST_JOB, {name: answer.waited.get(name, 0) for name in answer.queues})
    yield pictures
    yield _single(metrics.OLDEST_PICTURES_JOB, answer.waited.get(PICTURES_QUEUE, 0))


def _weights(encoder: Encoder) -> str:
    weights = encoder.extractor.get("weights")
    return kind_of_weights(weights, untrained=encoder.untrained, custom=encoder.custom_weights)


def _by_profile(gauge: metrics.ScrapedGauge, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = gauge.family()
    for name, value in values.items():
        family.add_metric([name], value)
    return family


def _single(gauge: metrics.ScrapedGauge, value: float) -> GaugeMetricFamily:
    family = gauge.family()
    family.add_metric([], value)
    return family
