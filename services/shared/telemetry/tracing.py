"""Traces: what took how long on a voice's way, from the request through store, index and queue to the worker.

Off unless the settings say where to send them. Until then a span costs next to nothing, and OpenTelemetry is
not imported: `trace_export` imports it. A trace begins with a request: what nobody asked for has none.

Spans hold routes, codes and ids. Never names, texts, audio or keys.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Literal, Protocol

Kind = Literal["internal", "server", "client", "producer", "consumer"]
"""What a span is to the one it belongs to, in OpenTelemetry's words."""
Attributes = Mapping[str, str | int | float]


class Span(Protocol):
    """Something that takes time."""

    @property
    def trace_id(self) -> str:
        """32 hex digits; empty where there is no trace."""
        ...

    def describe(self, name: str | None = None, attributes: Attributes = ...) -> None:
        """What it is, once that is known."""

    def fail(self, code: str) -> None:
        """It went wrong, by the code of an error."""


class Tracer(Protocol):
    """Makes spans."""

    def span(
        self, name: str, kind: Kind, parent: str | None, attributes: Attributes
    ) -> AbstractContextManager[Span]: ...

    def traceparent(self) -> str | None: ...

    def stop(self, seconds: float) -> None: ...


class _NoSpan:
    """Nothing, as often as wanted."""

    trace_id = ""

    def describe(self, name: str | None = None, attributes: Attributes | None = None) -> None:
        pass

    def fail(self, code: str) -> None:
        pass

    def __enter__(self) -> Span:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


NO_SPAN = _NoSpan()
_NONE: Attributes = {}
_tracer: Tracer | None = None


def use(tracer: Tracer | None) -> None:
    """For the whole process; None: off."""
    global _tracer  # noqa: PLW0603 - like the log: everything has spans, nothing should have to hand it on
    _tracer = tracer


def is_on() -> bool:
    return _tracer is not None


def span(
    name: str, *, kind: Kind = "internal", parent: str | None = None, attributes: Attributes = _NONE
) -> AbstractContextManager[Span]:
    """A part of what is under way in this thread or task; nothing where that has no trace.

    Args:
        kind: a `server` span begins a trace where there is none.
        parent: what it is a part of instead, as a W3C `traceparent`: of another process.
    """
    return NO_SPAN if _tracer is None else _tracer.span(name, kind, parent, attributes)


def traceparent() -> str | None:
    """What is under way here, for another process to go on with: W3C Trace Context, 55 characters."""
    return None if _tracer is None else _tracer.traceparent()


def current() -> Tracer | None:
    """Return the tracer in use, or None while traces are off."""
    return _tracer
