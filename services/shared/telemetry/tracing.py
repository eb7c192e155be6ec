"""Traces of a voice's processing: how long each step took, from the request through store, view and queue to
the worker.

They are off unless the settings say where to send them. While they are off, a span costs next to nothing, and
OpenTelemetry is not imported; `trace_export` imports it. A trace begins with a request, so work that no
request caused has no trace.

Spans hold routes, codes and ids. They never hold names, texts, audio or keys.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Literal, Protocol

Kind = Literal["internal", "server", "client", "producer", "consumer"]
"""The relation of a span to its parent, in OpenTelemetry's words."""
Attributes = Mapping[str, str | int | float]


class Span(Protocol):
    """One operation of a trace, with the time that it takes."""

    @property
    def trace_id(self) -> str:
        """The id of the trace, 32 hex digits. It is empty if there is no trace."""
        ...

    def describe(self, name: str | None = None, attributes: Attributes = ...) -> None:
        """Set the name and attributes of the span, once they are known."""

    def fail(self, code: str) -> None:
        """Mark the span as failed, with the code of an error."""


class Tracer(Protocol):
    """Makes spans."""

    def span(
        self, name: str, kind: Kind, parent: str | None, attributes: Attributes
    ) -> AbstractContextManager[Span]: ...

    def traceparent(self) -> str | None: ...

    def stop(self, seconds: float) -> None: ...


class _NoSpan:
    """A span that does nothing. It can be entered any number of times."""

    trace_id = ""

    def describe(self, name: str | None = None, attributes: Attributes | None = None) -> None:
        pass

    def fail(self, code: str) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None:
        pass


NO_SPAN = _NoSpan()
_NONE: Attributes = {}
_tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """Set the tracer of the whole process. None turns traces off."""
    global _tracer  # noqa: PLW0603 - like the log: everything has spans, nothing should have to hand it on
    _tracer = tracer


def is_on() -> bool:
    return _tracer is not None


def span(
    name: str, *, kind: Kind = "internal", parent: str | None = None, attributes: Attributes = _NONE
) -> AbstractContextManager[Span]:
    """Start a span as a part of the current span of this thread or task. Without a trace it does nothing.

    Args:
        kind: a `server` span begins a trace if there is none.
        parent: the span of another process to be a part of instead, as a W3C `traceparent`.
    """
    return NO_SPAN if _tracer is None else _tracer.span(name, kind, parent, attributes)


def traceparent() -> str | None:
    """Return the current span as a W3C Trace Context, 55 characters, so that another process can continue its
    trace. Returns None if there is none.
    """
    return None if _tracer is None else _tracer.traceparent()


def current() -> Tracer | None:
    """Return the tracer in use, or None while traces are off."""
    return _tracer
