"""Defines every Prometheus metric of API and workers: its name, its description and its labels. Metrics are
counted where things happen, and served at `/metrics` and on a port of their own.

The values of labels are bounded: routes as templates, profiles of the catalogue, codes and words of our own.
Labels never hold names, ids, paths or texts, because more people read metrics than voices.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from wsgiref.types import StartResponse, WSGIEnvironment

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.shared.configuration.listening import CannotListen, why_not_listening
from services.shared.configuration.telemetry import MetricsSettings
from speaker_registry import __version__

prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # they would add a series to each of ours

REGISTRY = CollectorRegistry()
"""The registry's metrics, and those of the interpreter: memory, processor time, open files and garbage
collections.
"""
_before_scrapes: list[Callable[[], None]] = []


class _BeforeScrapes(Collector):
    """A collector without metrics. It is called before all others, and adds the counts of batches to their
    metrics.
    """

    def collect(self) -> Iterable[Metric]:
        for add in _before_scrapes:
            add()
        return ()


REGISTRY.register(_BeforeScrapes())
prometheus_client.ProcessCollector(registry=REGISTRY)
prometheus_client.PlatformCollector(registry=REGISTRY)
prometheus_client.GCCollector(registry=REGISTRY)


def _counter(name: str, says: str, *labels: str, known: tuple[str, ...] = ()) -> Counter:
    """Make a counter.

    Args:
        known: all values of its only label. Their series start with the value 0. If a series began with its
            first event, Prometheus would not see the increase.
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
    """A gauge that stores no values. They are fetched from their source at every scrape, and left out if the
    source does not answer.
    """

    name: str
    says: str
    labels: tuple[str, ...] = ()

    def family(self) -> GaugeMetricFamily:
        """Return an empty family of this gauge, for one scrape."""
        return GaugeMetricFamily(self.name, self.says, labels=self.labels)


class Batch:
    """Counts quick events in plain numbers, and adds them to metrics at each scrape.

    This takes a tenth of the time of ordinary metrics. Only one thread may count, and each combination of
    labels needs a batch of its own.

    Args:
        counters: counters that are increased by one for each event.
        histogram: a histogram whose first bucket gets the events. Longer events must be observed in the
            ordinary way.
    """

    __slots__ = ("_added", "_added_seconds", "_counters", "_histogram", "count", "seconds")

    def __init__(self, counters: Iterable[Counter], histogram: Histogram) -> None:
        self.count = 0
        """The number of events."""
        self.seconds = 0.0
        """The total duration of the events."""
        self._counters = tuple(counters)
        self._histogram = histogram
        self._added, self._added_seconds = 0, 0.0
        _before_scrapes.append(self._add)

    def _add(self) -> None:
        count, seconds = self.count, self.seconds
        for counter in self._counters:
            counter.inc(count - self._added)
        # This is what `observe` does, but that takes one event at a time.
        self._histogram._sum.inc(seconds - self._added_seconds)
        self._histogram._buckets[0].inc(count - self._added)
        self._added, self._added_seconds = count, seconds


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
    "Answered requests. route: the path in the OpenAPI document; busy: the request was refused because there "
    "were too many requests or connections; none: there is no such path, or the request was refused before "
    "the path was looked up; docs: the documentation.",
    "route",
    "method",
    "status",
)
HTTP_SECONDS = _histogram(
    "http_request_duration_seconds",
    "Time from a request's head to the last byte of its answer, waiting included.",
    "route",
    "method",
    buckets=_QUICK,
)
KEYS_REFUSED = _counter(
    "keys_refused",
    "Requests and sign-ins without a valid key, and those that were refused because their address had sent "
    "too many of them in the same minute.",
)
HTTP_IN_PROGRESS = _gauge("http_requests_in_progress", "Requests whose answer has not ended yet.")
UPLOADS = _counter(
    "uploads",
    "Uploads of voices. result: created, repeated (the version existed), refused, failed.",
    "result",
    known=("created", "repeated", "refused", "failed"),
)
UPLOADS_REJECTED = _counter(
    "upload_rejected", "Uploads refused or failed. reason: the code of the error in the answer.", "reason"
)
ARTIFACT_REQUESTS = _counter(
    "artifact_requests",
    "Requests for the file of an artifact. result: hit (served), not_modified (304), redirected (to the "
    "bucket), pending (202), miss (there is no artifact to serve), failed (the extraction failed), error "
    "(the registry failed). profile: unknown if there is no such profile.",
    "profile",
    "result",
)
EVENT_LISTENERS = _gauge("event_listeners", "Clients that listen to events at this process now.")
EVENTS_SENT = _counter("events_sent", "Events sent to listeners, once for each listener.")
EVENT_RESETS = _counter(
    "event_resets",
    "Listeners that were told to read everything again, because events were missing: too old, too many, or "
    "of a former view.",
)

# -- jobs and workers

JOBS = _counter(
    "jobs",
    "Attempts at extraction jobs that ended. result: finished, failed, retried (the job goes back to the "
    "queue), lost (the job was canceled or superseded, or went to another worker), abandoned (the worker "
    "died, and the job goes back), given_up (a worker died in each attempt), quarantined (the entry is no "
    "job of ours).",
    "profile",
    "result",
)
REAPED = ("abandoned", "given_up", "quarantined")
"""Results of jobs that any process may take from a dead worker."""
WORKED = ("finished", "failed", "retried", "lost", *REAPED)
"""Results of jobs in a worker."""
COMPUTE_SECONDS = _histogram(
    "artifact_compute_seconds",
    "Time for one clip. step: prepare (read and resample), encode (share of the device's time), publish.",
    "profile",
    "step",
    buckets=_SLOW,
)
BATCH_SIZE = _histogram(
    "batch_size", "Clips encoded at the same time.", "profile", buckets=(1, 2, 4, 8, 16, 32, 64)
)
DEVICE_MEMORY = _gauge(
    "device_memory_bytes",
    "Memory of a worker's device. kind: used (by the worker; on a CPU, its resident memory), total (of the "
    "device).",
    "device",
    "kind",
)
WORKER_BEAT = _gauge(
    "worker_last_beat_timestamp_seconds",
    "Time of the worker's last heartbeat. Before the first, the time when it had loaded its profiles. 0 "
    "while it loads them, and in API processes.",
)


def show_jobs(profiles: Iterable[str], results: Iterable[str]) -> None:
    """Start the counts of jobs with these results at 0, for the reason given at `_counter`. Call this before
    the first job ends.
    """
    for profile, result in product(profiles, results):
        JOBS.labels(profile, result)


# -- gauges that are the same in all API processes that use the same Redis, fetched from it at every scrape

REDIS_UP = _scraped_gauge(
    "redis_up", "1: Redis answered this scrape. 0: it did not, and the gauges that come from it are missing."
)
VIEW_IN_USE = _scraped_gauge(
    "view_in_use",
    "1: this process can use the view in Redis. 0: its Redis has no usable one, or takes no writes; its "
    "writes wait.",
)
VIEW_COMPLETE = _scraped_gauge(
    "view_complete",
    "1: the view knows every voice. 0: it is being rebuilt; lists are read from the bucket meanwhile.",
)
QUEUE_DEPTH = _scraped_gauge(
    "queue_depth",
    "Jobs in a profile's queue. state: queued, moving (taken, not started yet), running.",
    "profile",
    "state",
)
OLDEST_JOB = _scraped_gauge(
    "queue_oldest_job_age_seconds",
    "Time for which the longest waiting job has been in the queue; 0 if no job waits.",
    "profile",
)
PICTURES_QUEUE_DEPTH = _scraped_gauge(
    "pictures_queue_depth",
    "Jobs that ask for pictures of clips. state: queued, moving (taken, not started yet), running.",
    "state",
)
OLDEST_PICTURES_JOB = _scraped_gauge(
    "pictures_queue_oldest_job_age_seconds",
    "Time for which the longest waiting job for pictures has been in the queue; 0 if no job waits.",
)
WORKERS = _scraped_gauge("workers", "Live workers that serve a profile.", "profile")
PROOF_FAILED_WORKERS = _scraped_gauge(
    "proof_failed_workers",
    "Workers that do not serve a profile because its encoder failed its proof within the last ten minutes.",
    "profile",
)
PROFILE_REQUIRED = _scraped_gauge(
    "profile_required", "1: every voice must have the profile's artifact. 0: only on request.", "profile"
)
PROFILE_WEIGHTS = _scraped_gauge(
    "profile_weights",
    "1: artifacts of the profile are made with these weights. weights: published, custom (they differ from "
    "the published ones on purpose), untrained, none (the engine has no weights). Missing until a worker has "
    "announced the profile.",
    "profile",
    "weights",
)
CAMPAIGN_STATE = _scraped_gauge(
    "campaign_state",
    "1: the newest campaign of a profile is in this state. state: running, waiting (it runs, and no live "
    "worker has its encoder), paused, complete, promoted, canceled.",
    "profile",
    "state",
)
CAMPAIGN_VOICES = _scraped_gauge(
    "campaign_voices",
    "Voices of the newest campaign of a profile. state: ready, failed, skipped (no artifact is needed, or "
    "there can be none), under_way, left (nothing was begun yet).",
    "profile",
    "state",
)
CAMPAIGN_RATE = _scraped_gauge(
    "campaign_voices_per_second",
    "Voices that the campaign of a profile ended with each second, over the last seconds; 0 if it is not "
    "known, or the campaign is over.",
    "profile",
)
QUARANTINED = _scraped_gauge(
    "quarantined_jobs",
    "Queue entries that were put away because they are no jobs of the registry, up to a thousand.",
)
APPEND_LOG_OK = _scraped_gauge(
    "redis_append_log_ok", "0: Redis could not write its append-only file. Missing if it keeps none."
)

# -- storage and housekeeping

STORE_SECONDS = _histogram(
    "store_seconds",
    "Time of operations of the object store. result: ok, missing (there is no such object), moved (somebody "
    "else changed the document first), failed.",
    "op",
    "result",
    buckets=_QUICK,
)
REBUILDS = _counter(
    "view_rebuilds",
    "Listings of the bucket that bring the view up to it. result: done, stopped (the process ended), lost "
    "(Redis was lost meanwhile), failed.",
    "result",
    known=("done", "stopped", "lost", "failed"),
)
REBUILD_SECONDS = _histogram(
    "view_rebuild_seconds", "Time of the rebuilds of the view that were completed.", buckets=_SLOW
)
LAST_SWEEP = _scraped_gauge(
    "last_sweep_timestamp_seconds",
    "Start time of the last completed sweep of all voices; 0 if none was completed.",
)
REPAIRS = _counter(
    "reconcile_repairs",
    "Repairs, by housekeeping or by a request that found lost bytes. kind: extraction_resumed (no job was "
    "pending), job_lost (the queue did not have the job), job_given_up (a worker died in each attempt), "
    "job_closed (the job had ended, but not its record), artifact_void (its bytes were lost, and it is "
    "extracted again), rendition_restored (the clip was decoded again), clip_restored (uploaded again).",
    "kind",
    known=(
        *("extraction_resumed", "job_lost", "job_given_up", "job_closed"),
        *("artifact_void", "rendition_restored", "clip_restored"),
    ),
)
GARBAGE = _counter(
    "gc_objects",
    "Deleted objects that no document names. kind: blob (a clip, its rendition or a picture), artifact, "
    "temporary (left by an interrupted write).",
    "kind",
    known=("blob", "artifact", "temporary"),
)
FOREIGN = _counter(
    "foreign_objects",
    "Objects in the folders of voices that the registry did not write. They are kept, and each sweep counts "
    "them.",
)
INTEGRITY_FAILURES = _counter(
    "integrity_failures",
    "Failures of the bucket to return what it should hold. kind: missing (bytes), damaged (bytes without "
    "the right digest), record (a document is damaged).",
    "kind",
    known=("missing", "damaged", "record"),
)

BUILD_INFO = _gauge("build_info", "Always 1. version: the version of this process.", "version")
BUILD_INFO.labels(__version__).set(1)


_ODD_VERSION = re.compile(r"version=(?!\s*\d{1,9}(\.\d{1,9})*\s*([;,]|$))")
"""Matches a version that is not made of numbers. prometheus_client compares it with numbers, which raises
TypeError.
"""


def listen(settings: MetricsSettings) -> None:
    """Serve the metrics on a port of their own, from a thread, if the settings name one.

    Raises:
        CannotListen: the port cannot be opened.
    """
    if settings.port is None:
        return
    try:
        server, _ = start_http_server(settings.port, addr=settings.host, registry=REGISTRY)
    except OSError as error:
        reason = why_not_listening(error, settings.host, settings.port, "SPEAKER_METRICS_")
        raise CannotListen(reason) from None
    answer = server.get_app()
    assert answer is not None

    def answer_readable(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        environ["HTTP_ACCEPT"] = _readable(environ.get("HTTP_ACCEPT", ""))
        return answer(environ, start_response)

    server.set_app(answer_readable)


def exposition(accept: str) -> tuple[bytes, str]:
    """Return all metrics in the form that the `Accept` header asks for, and the media type of that form."""
    encode, media_type = choose_encoder(_readable(accept))
    return encode(REGISTRY), media_type


def _readable(accept: str) -> str:
    """Return the `Accept` header, or an empty one, which stands for plain text, if it has an odd version."""
    return "" if _ODD_VERSION.search(accept) else accept
