"""Spans, made by the SDK and kept in memory; and what it costs to have none."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from services.shared.bucket.folder_store import FolderStore
from services.shared.bucket.store import Moved
from services.shared.configuration.telemetry import TracesSettings
from services.shared.telemetry import trace_export, tracing
from services.shared.telemetry.open_telemetry import OpenTelemetry
from speaker_registry.errors import Unavailable, VoiceNotFound

CALLER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
UNSAMPLED = CALLER[:-2] + "00"


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    """Traces are on; ended spans are found here."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(OpenTelemetry(provider))
    yield exporter
    tracing.use(None)


def named(spans: InMemorySpanExporter, name: str) -> ReadableSpan:
    [found] = [span for span in spans.get_finished_spans() if span.name == name]
    return found


@pytest.mark.processes
def test_without_settings_nothing_is_made_and_nothing_imported():
    """Most registries have no collector: they must not pay for one. (redis-py imports what it finds.)"""
    program = """
import sys
from services.shared.telemetry import trace_export, tracing
from services.shared.configuration.telemetry import TracesSettings
trace_export.start(TracesSettings(), "api")
with tracing.span("a", kind="server") as span:
    assert span is tracing.NO_SPAN and not span.trace_id
    span.describe("b", {"c": 1})
    span.fail("d")
assert tracing.traceparent() is None and not tracing.is_on()
trace_export.stop()
import services.shared.registry.opening, services.shared.registry.publish
import services.extractor_worker.process
for name in ("services.shared.telemetry.open_telemetry", "opentelemetry.sdk.trace", "opentelemetry.exporter"):
    assert name not in sys.modules, name
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_where_the_packages_are_missing_the_process_says_which_extra_has_them(
    monkeypatch: pytest.MonkeyPatch,
):
    """They are no part of what is needed."""
    monkeypatch.setitem(sys.modules, "services.shared.telemetry.open_telemetry", None)
    with pytest.raises(trace_export.TracesUnavailable, match="Install the extra `traces`"):
        trace_export.start(TracesSettings(endpoint="http://localhost:4318/v1/traces"), "api")


def test_a_trace_goes_on_where_the_caller_began_it(spans: InMemorySpanExporter):
    """The trace continues within the process, and in the next one by `traceparent`."""
    with tracing.span("request", kind="server", parent=CALLER) as request:
        with tracing.span("store.put", kind="client"):
            pass
        handed_on = tracing.traceparent()
    with tracing.span("encode", kind="consumer", parent=handed_on):
        pass
    server, inner, worker = (named(spans, name) for name in ("request", "store.put", "encode"))
    assert request.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert server.parent is not None
    assert f"{server.parent.span_id:016x}" == "b7ad6b7169203331"
    for part in (inner, worker):
        assert part.context.trace_id == server.context.trace_id
        assert part.parent is not None
        assert part.parent.span_id == server.context.span_id
    kinds = (server.kind, inner.kind, worker.kind)
    assert kinds == (SpanKind.SERVER, SpanKind.CLIENT, SpanKind.CONSUMER)


@pytest.mark.parametrize("given", [None, "", "no traceparent", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_request_without_a_trace_of_its_own_begins_one(spans: InMemorySpanExporter, given: str | None):
    """Also one whose header is none."""
    with tracing.span("request", kind="server", parent=given):
        pass
    assert named(spans, "request").parent is None


def test_what_nobody_asked_for_has_no_trace(spans: InMemorySpanExporter):
    """Housekeeping looks at the store all day."""
    with tracing.span("store.list", kind="client") as span:
        assert tracing.traceparent() is None
    assert span is tracing.NO_SPAN
    with tracing.span("prepare", kind="consumer", parent=None):
        pass
    assert spans.get_finished_spans() == ()


def test_the_caller_decides_whether_its_trace_is_kept(spans: InMemorySpanExporter):
    """The next process is told the decision."""
    with tracing.span("request", kind="server", parent=UNSAMPLED):
        handed_on = tracing.traceparent()
        with tracing.span("store.put"):
            pass
    assert handed_on is not None
    assert handed_on.endswith("-00")
    assert spans.get_finished_spans() == ()


def test_a_swap_that_lost_a_race_has_not_failed(spans: InMemorySpanExporter, tmp_path: Path):
    """Another writer was first, which is normal, and the change is decided again."""
    store = FolderStore(tmp_path)
    with tracing.span("request", kind="server"), pytest.raises(Moved):
        store.swap("n/x", b"1", etag="of another state")
    lost = named(spans, "store.swap")
    assert lost.status.status_code == StatusCode.UNSET
    assert "error.type" not in (lost.attributes or {})


def test_a_span_says_that_something_failed_and_never_what_an_exception_says(spans: InMemorySpanExporter):
    """Its text may quote a name; so may its traceback."""
    for name, error in (
        ("ours", Unavailable("Alice cannot be reached")),
        ("other", RuntimeError("Alice")),
        ("answer", VoiceNotFound("Voice 'Alice' not found")),
        ("missing", FileNotFoundError("Alice")),
    ):
        with pytest.raises(type(error)), tracing.span(name, kind="server"):
            raise error
    codes = {span.name: (span.attributes or {}).get("error.type") for span in spans.get_finished_spans()}
    assert codes == {"ours": "unavailable", "other": "RuntimeError", "answer": None, "missing": None}
    states = {span.name: span.status.status_code for span in spans.get_finished_spans()}
    assert (states["ours"], states["answer"]) == (StatusCode.ERROR, StatusCode.UNSET)
    assert "Alice" not in "".join(span.to_json() for span in spans.get_finished_spans())
