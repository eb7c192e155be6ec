"""Telemetry of every request: its metrics, one log line, and a span if traces are on.

Pure ASGI. This module knows routes by their templates, and which of them take uploads.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPMethod
from time import perf_counter

import structlog
from prometheus_client import Counter, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.routing import MONITORING_PATHS, PAGES, clip_field_of
from services.shared.telemetry import metrics, tracing
from services.shared.telemetry.tracing import Span

log = structlog.get_logger()

BUSY = "busy"
"""Label of requests that were refused because there were too many, and the key that marks their scopes."""
NO_ROUTE = "none"
"""Label of requests without a route: the path has none, or the request was refused before routing."""
DOCUMENTATION = "docs"
OTHER_METHOD = "other"
ERROR_CODE = "error_code"
"""Key in a request's scope that holds the code of the error it was answered with."""

_METHODS = frozenset(map(str, HTTPMethod))


@dataclass(slots=True)
class _Answer:
    """The part of the answer to a request that this middleware has seen so far."""

    status: int = 500
    """The status of a crash until the answer begins, because a crash is answered outside this middleware."""
    begun: bool = False
    replayed: bool = False

    def observe_message(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
            self.replayed = any(name == b"idempotent-replayed" for name, _ in message.get("headers", ()))


class RequestSignals:
    """Middleware that counts, times and logs each request once its answer is sent.

    Args:
        note_error: called with the namespace of each request that the API answered with a status of 500 or
            above. It must not block.
    """

    def __init__(self, app: ASGIApp, note_error: Callable[[str], None] | None = None) -> None:
        self._app = app
        self._note_error = note_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, answer = perf_counter(), _Answer()

        async def send_and_note(message: Message) -> None:
            answer.observe_message(message)
            if message["type"] == "http.response.start":
                self._note(scope, answer.status)
            await send(message)

        metrics.HTTP_IN_PROGRESS.inc()
        with _span(scope) as span:
            try:
                return await self._app(scope, receive, send_and_note)
            except Exception:
                if not answer.begun:
                    self._note(scope, answer.status)
                raise
            finally:
                metrics.HTTP_IN_PROGRESS.dec()
                _record(scope, answer, perf_counter() - began, span)

    def _note(self, scope: Scope, status: int) -> None:
        """Count an error before its answer is sent, so that a client that has the answer finds the error
        counted.
        """
        if status < 500 or self._note_error is None or "namespace" not in scope:
            return
        # Open pages send requests every few seconds, so their failures would outnumber those of programs.
        if not route_of(scope).startswith(PAGES):
            self._note_error(scope["namespace"])


def _span(scope: Scope) -> AbstractContextManager[Span]:
    """Return the span of a request, which continues the caller's trace if there is one."""
    if not tracing.is_on() or scope["path"] in MONITORING_PATHS:
        return tracing.NO_SPAN
    given = next((value for name, value in scope["headers"] if name == b"traceparent"), b"")
    return tracing.span(_method(scope), kind="server", parent=given.decode("latin-1") or None)


def _record(scope: Scope, answer: _Answer, seconds: float, span: Span) -> None:
    route, method, error = route_of(scope), _method(scope), _error_code(scope, answer.status)
    counter, histogram = metrics_of(route, method, answer.status)
    counter.inc()
    histogram.observe(seconds)
    if clip_field_of(scope) is not None:
        _count_upload(answer, error)
    write_line = log.debug if route in MONITORING_PATHS else log.info
    fields = {"error": error} if error else {}
    if span.trace_id:
        fields["trace_id"] = span.trace_id
        _describe(span, scope, route, answer.status)
    write_line(
        "request.done",
        route=route,
        method=method,
        status=answer.status,
        seconds=round(seconds, 6),
        **fields,
    )


@lru_cache(maxsize=1000)
def metrics_of(route: str, method: str, status: int) -> tuple[Counter, Histogram]:
    """Return the counter and the histogram of requests with these labels.

    Cached, because looking up labels takes longer than counting.
    """
    counter = metrics.HTTP_REQUESTS.labels(route, method, str(status))
    return counter, metrics.HTTP_SECONDS.labels(route, method)


def _describe(span: Span, scope: Scope, route: str, status: int) -> None:
    """Describe a span by OpenTelemetry's attribute names."""
    attributes: dict[str, str | int] = {
        "http.request.method": _method(scope),
        "http.route": route,
        "http.response.status_code": status,
        "request.id": str(scope.get("request_id")),
    }
    span.describe(f"{_method(scope)} {route}", attributes)
    if status >= 500:
        span.fail(str(_error_code(scope, status)))


def route_of(scope: Scope) -> str:
    """Return the template of a request's route, because actual paths contain voice names and are unlimited in
    number.
    """
    if "route" in scope:
        return str(scope["route"].path)
    if BUSY in scope:
        return BUSY
    return DOCUMENTATION if "endpoint" in scope else NO_ROUTE


def _method(scope: Scope) -> str:
    """Return the method, or a fixed label for unknown methods, because clients could invent any number of
    them.
    """
    method: str = scope["method"]
    return method if method in _METHODS else OTHER_METHOD


def _error_code(scope: Scope, status: int) -> str | None:
    """Return the code of the error that the request was answered with, or None."""
    if status < 400:
        return None
    return str(scope.get(ERROR_CODE, "internal_error" if status >= 500 else "invalid_request"))


def _count_upload(answer: _Answer, error: str | None) -> None:
    if error is None:
        metrics.UPLOADS.labels("repeated" if answer.replayed else "created").inc()
        return
    metrics.UPLOADS.labels("failed" if answer.status >= 500 else "refused").inc()
    metrics.UPLOADS_REJECTED.labels(error).inc()
