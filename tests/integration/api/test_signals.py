"""Tests of metrics about requests that never reach a route, and about labels that any client could invent."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from services.registry_api.serving.connections import HttpConnection
from services.shared.telemetry.metrics import REGISTRY
from tests.integration.api import raw
from tests.integration.api.registry import Registry
from tests.queue_workers import wait_until


@contextmanager
def counted(by: int, **labels: str) -> Iterator[None]:
    """Check that the code inside makes this many requests. Each is counted a moment after
    its answer is sent.
    """

    def value() -> float:
        return REGISTRY.get_sample_value("registry_http_requests_total", labels) or 0

    before = value()
    yield
    wait_until(lambda: value() >= before + by)
    assert value() == before + by


def test_what_is_no_http_is_counted_as_refused(registry: Registry):
    """A request that is no HTTP is counted as refused, so that repeated probing of the port is visible."""
    with counted(1, route="none", method="other", status="400"):
        assert raw.ask(registry.port, b"knock knock\r\n\r\n").status == 400


def test_a_connection_too_many_is_counted_as_unavailable(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    """A connection beyond the limit is counted as unavailable, because operators watch
    the error rate for overload.
    """
    kind = registry._config.http_protocol_class
    assert issubclass(kind, HttpConnection)
    monkeypatch.setattr(kind.table, "admit", lambda *_: False)
    with counted(1, route="busy", method="GET", status="503"):
        answer = raw.ask(registry.port, raw.head("GET", "/v1/voices"))
        assert (answer.status, answer.error["code"]) == (503, "unavailable")


def test_a_method_that_somebody_made_up_makes_no_series(registry: Registry):
    """An invented method makes no series. There is no end of such methods, and each series would stay for as
    long as the process.
    """
    with counted(3, route="none", method="other", status="400"):
        for number in range(3):
            assert raw.ask(registry.port, raw.head(f"MADE{number}", "/v1/voices")).status == 400
    with counted(2, route="/v1/voices", method="other", status="405"):
        for method in ("PURGE", "PROPFIND"):
            assert raw.ask(registry.port, raw.head(method, "/v1/voices")).status == 405


def test_the_documentation_has_a_name_of_its_own(registry: Registry):
    """The documentation has a route label of its own, because its files have no templates."""
    with counted(2, route="docs", method="GET", status="200"):
        for path in ("/openapi.json", "/static-offline-docs/swagger-ui.css"):
            assert registry.client.get(path).status_code == 200
