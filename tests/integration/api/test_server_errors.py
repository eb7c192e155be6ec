"""Tests of the errors of the API that the overview counts, over HTTP."""

import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from services.registry_api.pages.activity import Activity
from services.registry_api.serving.server_errors import HOUR, KEPT_SECONDS
from services.shared.view.generation import Generation
from services.shared.view.job_records import JobRecords
from services.shared.view.keys import server_errors_key
from speaker_registry.errors import Unavailable
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, key
from tests.integration.api.conftest import empty
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import Registry

HEADING = "Requests that the API failed to answer"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory, valkey: Any, decoder: Any) -> Iterator[Registry]:
    """A registry that requires keys."""
    with Registry(tmp_path_factory.mktemp("errors"), empty(valkey, 12), decoder, access=CLOSED) as registry:
        yield registry


@pytest.fixture(autouse=True)
def failing(closed: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every list of jobs fail."""

    def fail(*_: object, **__: object) -> None:
        raise Unavailable("Redis does not answer.")

    monkeypatch.setattr(JobRecords, "page", fail)


def errors(registry: Registry, namespace: str, later: float = 0) -> int:
    """Return how many errors the chart of a namespace has."""
    now = registry.opened.clock.now() + later
    chart = Activity(registry.opened.jobs.records, registry.app.state.parts.server_errors, lambda: now)
    return chart.errors(namespace).totals["failed"]


def ask(registry: Registry, namespace: str, times: int = 1) -> None:
    """Ask for the list that fails, and have the errors written."""
    for _ in range(times):
        answer = registry.client.get("/v1/jobs", headers=bearer(BOOTSTRAP, namespace))
        assert answer.status_code == 503
    registry.app.state.parts.server_errors.write()


def test_the_overview_counts_the_errors_of_its_namespace_alone(closed: Registry):
    """A tenant sees whether its programs are failed, and nothing of what happens to others."""
    ask(closed, "unlucky", times=3)
    with Visitor(closed, key(closed, namespace="unlucky")) as visitor:
        page = visitor.get().text
        assert HEADING in page
        assert "3 failed" in page
    with Visitor(closed, key(closed, namespace="lucky")) as visitor:
        assert HEADING not in visitor.get().text, "there is no empty card"
    with Visitor(closed, key(closed, "voices:read", namespace="unlucky")) as visitor:
        assert HEADING not in visitor.get().text, "the charts of jobs need the same scope"


def test_neither_pages_nor_what_clients_did_wrong_count(closed: Registry):
    """An open page asks every few seconds, and would make one failure look like many."""
    with Visitor(closed, key(closed, namespace="open-pages")) as visitor:
        assert visitor.get("/jobs").status_code == 503
    missing = closed.client.get("/v1/voices/nobody", headers=bearer(BOOTSTRAP, "open-pages"))
    assert missing.status_code == 404
    closed.app.state.parts.server_errors.write()
    assert errors(closed, "open-pages") == 0


def test_a_crash_counts_once(closed: Registry, monkeypatch: pytest.MonkeyPatch):
    """It is answered outside all middleware."""

    def crash(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(JobRecords, "page", crash)
    # The client of the registry would say that the OpenAPI document has no such answer.
    answer = httpx.get(f"{closed.url}/v1/jobs", headers=bearer(BOOTSTRAP, "crashing"))
    assert answer.status_code == 500
    closed.app.state.parts.server_errors.write()
    assert errors(closed, "crashing") == 1


@pytest.mark.parametrize("error", [Unavailable("Redis does not answer."), ZeroDivisionError()], ids=type)
def test_errors_are_kept_if_they_cannot_be_written(
    closed: Registry, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    """While Redis is away most errors happen. A fault of ours must not end the thread either."""
    namespace = type(error).__name__.lower()
    with monkeypatch.context() as away:

        def fail(*_: object) -> None:
            raise error

        away.setattr(Generation, "read", fail)
        closed.app.state.parts.server_errors.note(namespace)
        closed.app.state.parts.server_errors.write()
    closed.app.state.parts.server_errors.note(namespace)
    closed.app.state.parts.server_errors.write()
    assert errors(closed, namespace) == 2


def test_errors_are_forgotten_after_an_hour(closed: Registry):
    """The chart is of the last hour, and what is older takes no place in Redis."""
    ask(closed, "former")
    assert errors(closed, "former") == 1
    assert errors(closed, "former", later=HOUR + 120) == 0
    hour = int(closed.opened.clock.now()) // HOUR
    names = [server_errors_key(closed.generation(), "former", one) for one in (hour, hour - 1)]
    assert 0 < max(closed.redis.ttl(name) for name in names) <= KEPT_SECONDS


def test_errors_are_written_again_and_again_and_at_the_end(closed: Registry):
    """Nobody has to ask for it, and a process that ends takes nothing with it."""
    closed.app.state.parts.server_errors.note("last")
    stop = threading.Event()
    stop.set()
    closed.app.state.parts.server_errors.run(stop)
    assert errors(closed, "last") == 1
