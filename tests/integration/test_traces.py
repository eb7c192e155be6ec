"""Tests of real processes' traces as a collector gets them: from an upload through the
worker to the fetch.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.http_server import http_server
from tests.process_load import noise_clip
from tests.processes import PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until

UPLOAD = "/v1/audio/voices"
FILE = "/v1/voices/{name}/versions/{ref}/artifacts/{profile}/file"
TRACE, CALLER = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
API, WORKER = "speaker-registry-api", "speaker-registry-worker"


@dataclass
class Collector:
    """A collector of traces. A `silent` one takes what is sent and never answers."""

    silent: bool = False
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""

    def spans(self, trace_id: str = TRACE) -> list[tuple[str, Span]]:
        """Return the spans with the service of each, in the order in which they began."""
        found = [
            (_service(of_process.resource), span)
            for body in self.bodies
            for of_process in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in of_process.scope_spans
            for span in scope.spans
            if span.trace_id.hex() == trace_id
        ]
        return sorted(found, key=lambda one: one[1].start_time_unix_nano)

    def one(self, name: str) -> Span:
        [span] = [span for _, span in self.spans() if span.name == name]
        return span


def _service(process: Resource) -> str:
    return next(one.value.string_value for one in process.attributes if one.key == "service.name")


@contextmanager
def collecting(collector: Collector) -> Iterator[Collector]:
    ended = threading.Event()

    def answer(_: object, body: bytes) -> tuple[int, bytes]:
        collector.bodies.append(body)
        if collector.silent:
            ended.wait()
        return 200, b""

    with http_server(answer) as url:
        collector.url = f"{url}/v1/traces"
        try:
            yield collector
        finally:
            ended.set()


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting(Collector()) as running:
        yield running


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[RegistryProcesses]:
    """A registry whose spans arrive within moments. The environment also configures FastAPI's own traces."""
    environment = {
        **QUICK,
        "SPEAKER_TRACES_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "FASTAPI_OTEL_AUTO_CONFIGURE": "true",
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": collector.url,
    }
    with RegistryProcesses(tmp_path_factory.mktemp("traces"), environment=environment) as running:
        yield running


@pytest.fixture(scope="module")
def played(registry: RegistryProcesses, collector: Collector) -> Collector:
    """A scenario of an upload, its extraction and the fetch of its artifact, requested by a client that
    traces, and a request of a client that does not.
    """
    traced = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
    clip = {"audio_sample": ("clip.wav", noise_clip(1)[0], "audio/wav")}
    with httpx.Client(base_url=registry.urls[0], timeout=30) as client:
        for path in ("/healthz", "/readyz", "/metrics"):
            client.get(path, headers=traced)
        said = {"name": "Zaunkoenig", "consent": "cons_1", "ref_text": "in confidence"}
        assert client.post(UPLOAD, data=said, files=clip, headers=traced).status_code == 200
        assert client.post(f"{UPLOAD}/zaunkoenig/cache").status_code == 200
        path = FILE.format(name="zaunkoenig", ref="default", profile=PROFILE)
        assert client.get(path, headers=traced).status_code == 200
        assert client.get("/v1/voices/zaunkoenig-two", headers=traced).status_code == 404
    last = {"publish", "GET /v1/voices/{name}"}  # of each process
    wait_until(lambda: last <= {span.name for _, span in collector.spans()})
    return collector


def test_a_trace_holds_every_step_from_the_upload_to_the_fetch(played: Collector):
    """A trace holds every step from the upload to the fetch. One picture shows where the time goes across
    three processes.
    """
    names = {(service, span.name) for service, span in played.spans()}
    assert names >= {
        (API, f"POST {UPLOAD}"),
        (API, "decode"),
        (API, "store.put"),
        (API, "store.swap"),
        (API, "view.announce"),
        (API, "view.apply"),
        (API, "view.claim"),
        (API, "enqueue"),
        (WORKER, "prepare"),
        (WORKER, "store.get"),
        (WORKER, "encode"),
        (WORKER, "publish"),
        (WORKER, "store.put"),
        (WORKER, "store.swap"),
        (WORKER, "view.apply"),
        (WORKER, "view.job"),
        (API, f"GET {FILE}"),
        (API, "store.get"),
        (API, "GET /v1/voices/{name}"),
    }


def test_each_step_is_a_part_of_what_asked_for_it(played: Collector):
    """Each step is a part of its cause: the worker's is a part of the upload, and the upload of what its
    caller began.
    """
    upload, fetch = played.one(f"POST {UPLOAD}"), played.one(f"GET {FILE}")
    assert upload.parent_span_id.hex() == fetch.parent_span_id.hex() == CALLER
    for name in ("decode", "enqueue", "prepare", "encode", "publish"):
        assert played.one(name).parent_span_id == upload.span_id, name
    reads = {(service, span.parent_span_id) for service, span in played.spans() if span.name == "store.get"}
    prepare, publish = played.one("prepare"), played.one("publish")
    unknown = played.one("GET /v1/voices/{name}")  # the bucket is asked for a voice that the view lacks
    of_api = {(API, one.span_id) for one in (upload, fetch, unknown)}
    assert reads == {(WORKER, prepare.span_id), (WORKER, publish.span_id)} | of_api
    order = [played.one(name) for name in ("decode", "enqueue", "prepare", "encode", "publish")]
    begins = [span.start_time_unix_nano for span in order]
    assert begins == sorted(begins)


def test_spans_say_what_they_are_about_by_ids_alone(played: Collector, registry: RegistryProcesses):
    """Spans use ids alone to say what they are about, because a collector is one more place that would have
    to be erased.
    """
    about = {one.key: one.value for one in played.one("encode").attributes}
    assert (about["profile"].string_value, about["clips"].int_value) == (PROFILE, 1)
    assert about["job.id"].string_value.startswith("job_")
    about = {one.key: one.value for one in played.one(f"POST {UPLOAD}").attributes}
    assert (about["http.route"].string_value, about["http.response.status_code"].int_value) == (UPLOAD, 200)
    assert f'"{about["request.id"].string_value}"' in registry.log()
    sent = b"".join(played.bodies).lower()
    assert b"zaunkoenig" not in sent
    assert b"confidence" not in sent


def test_log_lines_name_the_trace(played: Collector, registry: RegistryProcesses):
    """Log lines name the trace, which leads from a slow trace to what was logged meanwhile."""
    assert f'"trace_id": "{TRACE}"' in registry.log()


def test_a_request_without_a_traceparent_is_a_trace_of_its_own(played: Collector):
    """A request without a traceparent is a trace of its own, unconnected to the one before."""
    assert f"POST {UPLOAD}/{{name}}/cache" not in {span.name for _, span in played.spans()}
    assert b"/cache" in b"".join(played.bodies)


def test_health_and_metrics_are_not_traced(played: Collector):
    """Health checks and metrics are not traced, because they would be most of the traces."""
    assert not [span.name for _, span in played.spans() if "/readyz" in span.name or "/metrics" in span.name]


def test_the_jobs_record_holds_the_trace_and_no_more_of_it(played: Collector, registry: RegistryProcesses):
    """The job's record holds the trace and no more of it: ids only, of a known length."""
    with registry.opened() as opened:
        [job] = opened.jobs.records.page("default", limit=10).found
    upload = played.one(f"POST {UPLOAD}")
    assert job.traceparent == f"00-{TRACE}-{upload.span_id.hex()}-01"


@pytest.mark.slow
@pytest.mark.parametrize("silent", [False, True], ids=["answers", "is silent"])
def test_a_process_that_ends_sends_what_it_has_but_does_not_wait_for_ever(tmp_path: Path, silent: bool):
    """A process that ends sends the spans it has but does not wait for ever. Deployments stop processes all
    the time, and collectors hang.
    """
    with collecting(Collector(silent)) as collector:
        environment = {"SPEAKER_TRACES_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
        with RegistryProcesses(tmp_path, workers=0, environment={**QUICK, **environment}) as registry:
            traced = {"traceparent": f"00-{TRACE}-{CALLER}-01"}
            assert httpx.get(f"{registry.urls[0]}/v1/voices", headers=traced).status_code == 200
            assert collector.bodies == []
            [api] = registry.apis
            api.request_stop()
            wait_until(lambda: api.exit_status is not None)
            assert api.exit_status == 0
        assert next(span.name for _, span in collector.spans()) == "GET /v1/voices"
