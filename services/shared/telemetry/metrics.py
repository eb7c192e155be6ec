"""Defines every Prometheus metric of API and workers: its name, its description and its labels. Metrics are
counted where things happen, and served at `/metrics` and on a port of their own.

The values of labels are bounded: routes as templates, profiles of the catalogue, codes and words of our own.
Labels never hold names, ids, paths or texts, because more people read metrics than voices.
"""

from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily

from services.shared.configuration.settings import MetricsSettings
from speaker_registry import __version__

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would add a series to each of ours

REGISTRY = CollectorRegistry()
"""The registry's metrics, and those of the interpreter: memory, processor time, open files and garbage
collections.
"""
prometheus_client.ProcessCollector(registry=REGISTRY)
prometheus_client.PlatformCollector(registry=REGISTRY)
prometheus_client.GCCollector(registry=REGISTRY)


def _counter(name: str, says: str, *labels: str, known: tuple[str, ...] = ()) -> Counter:
    """Make a counter.

    Args:
        known: all values of its one label. Their series exist from the start, with the value 0. If a series
            began with its first event, Prometheus would not see the rise.
    """
    counter = Counter(f"registry_{name}", says, labels, registry=REGISTRY)
    for value in known:
        counter.labels(value)
    return counter


def _gauge(name: str, says: str, *labels: str) -> Gauge:
    return Gauge(f"registry_{name}", says, labels, registry=REGISTRY)


def _histogram(name: str, says: str, *labels: str, buckets: tuple[float, ...]) -> Histogram:
    return Histogram(f"registry_{name}", says, labels, registry=REGISTRY, buckets=buckets)


@dataclass(frozen=True, slots=True)
class ScrapedGauge:
    """A gauge that holds no values itself. They are fetched from their source at every scrape, and left out
    if the source does not answer.
    """

    name: str
    says: str
    labels: tuple[str, ...] = ()

    def family(self) -> GaugeMetricFamily:
        """Return an empty family of this gauge, for one scrape."""
        return GaugeMetricFamily(self.name, self.says, labels=self.labels)


SCRAPED_GAUGES: list[ScrapedGauge] = []


def _scraped_gauge(name: str, says: str, *labels: str) -> ScrapedGauge:
    SCRAPED_GAUGES.append(ScrapedGauge(f"registry_{name}", says, labels))
    return SCRAPED_GAUGES[-1]


_QUICK = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Histogram buckets in seconds. Long polls take up to five minutes, so they end in the last bucket."""
_SLOW = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)

# -- the API

HTTP_REQUESTS = _counter(
    "http_requests",
    "Requests answered. route: as in the OpenAPI document; none: there is no such, or the request was "
    "refused before it was looked for; docs: the documentation.",
    "route",
    "method",
    "status",
)
HTTP_SECONDS = _histogram(
    "http_request_duration_seconds",
    "From a request's head to the last byte of its answer, waiting included.",
    "route",
    "method",
    buckets=_QUICK,
)
HTTP_IN_PROGRESS = _gauge("http_requests_in_progress", "Requests that wait for the end of their answer.")
UPLOADS = _counter(
    "uploads",
    "Uploads of voices. result: created, repeated (the version was there), refused, failed.",
    "result",
    known=("created", "repeated", "refused", "failed"),
)
UPLOADS_REJECTED = _counter(
    "upload_rejected", "Uploads refused or failed. reason: the code of the error in the answer.", "reason"
)
ARTIFACT_REQUESTS = _counter(
    "artifact_requests",
    "Requests for the file of an artifact. result: hit (served), not_modified (304), pending (202), miss "
    "(there is none to serve), failed (it could not be extracted), error (ours). profile: unknown where "
    "there is no such.",
    "profile",
    "result",
)

# -- jobs and workers

JOBS = _counter(
    "jobs",
    "Starts of extraction jobs that ended. result: finished, failed, retried (it goes back to the queue), "
    "lost (canceled, or another worker's by then), abandoned (its worker died; it goes back), given_up (its "
    "workers died over it), quarantined (it is no job of ours).",
    "profile",
    "result",
)
COMPUTE_SECONDS = _histogram(
    "artifact_compute_seconds",
    "Time of one clip. step: prepare (read and resample), encode (its share of the device's time), publish.",
    "profile",
    "step",
    buckets=_SLOW,
)
BATCH_SIZE = _histogram(
    "batch_size", "Clips encoded at the same time.", "profile", buckets=(1, 2, 4, 8, 16, 32, 64)
)
DEVICE_MEMORY = _gauge(
    "device_memory_bytes",
    "Memory of a worker's device. kind: used (by the worker; on a CPU what is resident of it), total (of the "
    "device).",
    "device",
    "kind",
)
WORKER_BEAT = _gauge("worker_last_beat_timestamp_seconds", "When the worker last said that it lives.")

# -- gauges that are the same in all API processes, fetched from Redis at every scrape

REDIS_UP = _scraped_gauge("redis_up", "1: Redis answered this scrape. 0: what it knows is missing.")
GATE_OPEN = _scraped_gauge(
    "index_gate_open", "1: the index can be used. 0: Redis does not accept one, and writes wait."
)
INDEX_COMPLETE = _scraped_gauge(
    "index_complete",
    "1: the index knows every voice. 0: it is being rebuilt; lists are read from the bucket meanwhile.",
)
QUEUE_DEPTH = _scraped_gauge(
    "queue_depth",
    "Jobs in a profile's queue. state: queued, moving (taken, not started yet), running.",
    "profile",
    "state",
)
OLDEST_JOB = _scraped_gauge(
    "queue_oldest_job_age_seconds",
    "Since when the next job in the queue has waited; 0 where none does.",
    "profile",
)
WORKERS = _scraped_gauge("workers", "Live workers that serve a profile.", "profile")
PROOF_FAILED_WORKERS = _scraped_gauge(
    "proof_failed_workers",
    "Workers that do not serve a profile because its encoder failed its proof within the last ten minutes.",
    "profile",
)
PROFILE_REQUIRED = _scraped_gauge(
    "profile_required", "1: every voice must have it. 0: only those for which it was asked.", "profile"
)
PROFILE_WEIGHTS = _scraped_gauge(
    "profile_weights",
    "1: the profile is made with such weights. weights: published, custom (meant to differ from the "
    "published ones), untrained. Missing while no worker has announced the profile.",
    "profile",
    "weights",
)
QUARANTINED = _scraped_gauge(
    "quarantined_jobs", "What was put away because it is no job of ours, up to a thousand."
)
APPEND_LOG_OK = _scraped_gauge(
    "redis_append_log_ok", "0: Redis could not write its append-only file. Missing where it keeps none."
)

# -- storage and housekeeping

STORE_SECONDS = _histogram(
    "store_seconds",
    "Operations of the object store. result: ok, missing (there is no such object), failed.",
    "op",
    "result",
    buckets=_QUICK,
)
REBUILDS = _counter(
    "index_rebuilds",
    "Rebuilds of the index. result: done, stopped (the process ended), lost (Redis was lost again), failed.",
    "result",
    known=("done", "stopped", "lost", "failed"),
)
REBUILD_SECONDS = _histogram("index_rebuild_seconds", "Rebuilds of the index that were done.", buckets=_SLOW)
LAST_SWEEP = _scraped_gauge(
    "last_sweep_timestamp_seconds", "When the last sweep of all voices began that was finished; 0: none was."
)
REPAIRS = _counter(
    "reconcile_repairs",
    "What was put right, by housekeeping or by whoever met lost bytes. kind: extraction_resumed (nothing was "
    "on its way), job_lost (the queue did not know it), job_given_up (its workers died), job_closed (it had "
    "ended, its record had not), artifact_void (its bytes were lost, it is extracted again), "
    "rendition_restored (decoded again), clip_restored (uploaded again).",
    "kind",
    known=(
        *("extraction_resumed", "job_lost", "job_given_up", "job_closed"),
        *("artifact_void", "rendition_restored", "clip_restored"),
    ),
)
GARBAGE = _counter(
    "gc_objects",
    "Objects deleted that nobody could reach. kind: blob, artifact, record, temporary (left by a write that "
    "was interrupted), foreign (not ours, in the folder of a deleted voice).",
    "kind",
    known=("blob", "artifact", "record", "temporary", "foreign"),
)
FOREIGN = _counter(
    "foreign_objects",
    "Objects in the folders of voices that are not ours. They are left alone, and every sweep counts them.",
)
INTEGRITY_FAILURES = _counter(
    "integrity_failures",
    "What the bucket should hold and does not. kind: missing (bytes), damaged (they are not "
    "those of their digest), record (a fact is damaged), unreadable (a fact is listed and not handed out).",
    "kind",
    known=("missing", "damaged", "record", "unreadable"),
)

BUILD_INFO = _gauge("build_info", "1. version: of this process.", "version")
BUILD_INFO.labels(__version__).set(1)


class CannotListen(Exception):
    """The port for metrics cannot be opened. The message names the port."""


def listen(settings: MetricsSettings) -> None:
    """Serve the metrics on a port of their own, from a thread, if the settings name one.

    Raises:
        CannotListen: the port cannot be opened.
    """
    if settings.port is None:
        return
    try:
        start_http_server(settings.port, addr=settings.host, registry=REGISTRY)
    except OSError as error:
        raise CannotListen(
            f"Metrics cannot be served on port {settings.port} of {settings.host} ({error.strerror}). "
            "Set SPEAKER_METRICS_PORT to a free one."
        ) from None


def exposition(accept: str) -> tuple[bytes, str]:
    """Return all metrics in the form that the `Accept` header asks for, and the media type of that form."""
    encode, media_type = choose_encoder(accept)
    return encode(REGISTRY), media_type
