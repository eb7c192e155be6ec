"""Makes spans with OpenTelemetry's SDK and sends them by OTLP over HTTP. This module is imported only if
traces are wanted.

The message of an exception never gets into a span, because it may quote names.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from services.shared.configuration.telemetry import TracesSettings
from services.shared.telemetry.tracing import NO_SPAN, Attributes, Kind, Span
from speaker_registry import __version__
from speaker_registry.errors import NotFound, SpeakerRegistryError

_KINDS: dict[Kind, SpanKind] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}
_W3C = TraceContextTextMapPropagator()


def sending(settings: TracesSettings, process: str) -> "OpenTelemetry":
    """Return a tracer whose spans a thread sends in batches. Spans that are not sent in time are dropped."""
    process_is = {"service.name": f"speaker-registry-{process}", "service.version": __version__}
    provider = TracerProvider(
        resource=Resource.create(process_is),
        sampler=ParentBased(TraceIdRatioBased(settings.ratio)),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.endpoint)))
    return OpenTelemetry(provider)


class OpenTelemetry:
    """A `tracing.Tracer`. Its provider is not shared, so spans that libraries make are not sent."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("speaker_registry", __version__)

    @contextmanager
    def span(self, name: str, kind: Kind, parent: str | None, attributes: Attributes) -> Iterator[Span]:
        """Start a span. Yields `NO_SPAN` if there is no trace to which the span could belong, unless its kind
        is `server`.
        """
        context = _W3C.extract({"traceparent": parent}) if parent else None
        current = trace.get_current_span(context).get_span_context()
        if kind != "server" and not current.is_valid:
            yield NO_SPAN
            return
        with self._tracer.start_as_current_span(
            name,
            context,
            _KINDS[kind],
            attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as made:
            span = _Span(made)
            try:
                yield span
            except (FileNotFoundError, NotFound):  # an answer like any other
                raise
            except Exception as error:
                span.fail(error.code if isinstance(error, SpeakerRegistryError) else type(error).__name__)
                raise

    def traceparent(self) -> str | None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        return carrier.get("traceparent")

    def stop(self, seconds: float) -> None:
        """Send the remaining spans for at most this long. A thread sends them, because the SDK retries for
        half a minute if no server accepts them.
        """
        sending = threading.Thread(target=self._provider.shutdown, name="last-spans", daemon=True)
        sending.start()
        sending.join(seconds)


class _Span:
    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def trace_id(self) -> str:
        return trace.format_trace_id(self._span.get_span_context().trace_id)

    def describe(self, name: str | None = None, attributes: Attributes | None = None) -> None:
        if name is not None:
            self._span.update_name(name)
        self._span.set_attributes(attributes or {})

    def fail(self, code: str) -> None:
        self._span.set_attribute("error.type", code)
        self._span.set_status(StatusCode.ERROR)
