"""Measures what metrics, a log line and a trace add to a request, compared with a request to a FastAPI route
that does nothing. Requests are made in process, without sockets, and log lines go to /dev/null.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable

from fastapi import FastAPI
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from starlette.types import ASGIApp, Message, Scope

from services.registry_api.protocol.signals import RequestSignals
from services.registry_api.serving.limits import RequestIds
from services.shared.telemetry import tracing
from services.shared.telemetry.logs import configure_logs
from services.shared.telemetry.open_telemetry import OpenTelemetry

REQUESTS = 1000
ROUNDS = 15
GOAL_RATIO = 0.5
"""Largest share of the request that metrics and log may add. All routes of the registry do more."""
BARE, METRICS, LOG, TRACE = "nothing else", "with metrics", "… and a line in the log", "… and a span"


class DiscardingProcessor(SpanProcessor):
    """Drops finished spans. Another thread would send them."""

    def on_end(self, span: ReadableSpan) -> None:
        pass


def main() -> bool:
    """Print the table. Returns whether metrics and log together cost no more than the goal."""
    seconds = {what: measure_in_new_process(what) for what in (BARE, METRICS, LOG, TRACE)}
    print("| a request to a route that does nothing | µs | added | ratio |\n|---|---|---|---|")
    for what, one in seconds.items():
        added, ratio = (one - seconds[BARE]) * 1e6, one / seconds[BARE]
        print(f"| {what} | {one * 1e6:.1f} | {added:.1f} | {ratio:.2f} |")
    off = best(lambda: seconds_of_calls(empty_span))
    print(f"\nA span where traces are off: {off * 1e6:.2f} µs.")
    return seconds[LOG] / seconds[BARE] <= 1 + GOAL_RATIO


def measure_in_new_process(what: str) -> float:
    """Measure in a new process, because the log can be configured only once in a process."""
    command = [sys.executable, "-m", "benchmarks.signals", what]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    return float(done.stdout)


def measure(what: str) -> float:
    """Return the processor time of one request, in seconds."""
    configure_logs("INFO" if what in {LOG, TRACE} else "WARNING")
    if what == TRACE:
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(DiscardingProcessor())
        tracing.use(OpenTelemetry(provider))
    route = plain_route()
    app = RequestIds(route if what == BARE else RequestSignals(route))
    return best(lambda: asyncio.run(one_round(app)))


def plain_route() -> ASGIApp:
    app = FastAPI()

    @app.get("/voices")
    async def nothing() -> dict[str, str]:
        return {}

    return app


async def one_round(app: ASGIApp) -> float:
    began = time.process_time()
    for _ in range(REQUESTS):
        await app(request_scope(), receive, send)
    return (time.process_time() - began) / REQUESTS


def request_scope() -> Scope:
    headers = [(b"host", b"registry"), (b"accept", b"*/*"), (b"user-agent", b"bench")]
    target = {"path": "/voices", "raw_path": b"/voices", "query_string": b"", "root_path": ""}
    kind = {"type": "http", "method": "GET", "http_version": "1.1", "scheme": "http"}
    return {**kind, **target, "headers": headers}


async def receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def send(_: Message) -> None:
    pass


def empty_span() -> None:
    with tracing.span("store.get", kind="client"):
        pass


def seconds_of_calls(call: Callable[[], None], calls: int = 50_000) -> float:
    began = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - began) / calls


def best(measured: Callable[[], float]) -> float:
    return min(measured() for _ in range(ROUNDS))


if __name__ == "__main__":
    print(measure(sys.argv[1]))
