"""Tests of `cache` calls while versions and encoders change: a call keeps the version that it began with."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.integration.api.conftest import Start
from tests.integration.api.registry import OTHER_CLIP, WIDER, Registry
from tests.queue_workers import wait_until

NEWER = "sha256:" + "7" * 64


def cache(registry: Registry, name: str, **params: Any) -> httpx.Response:
    return registry.client.post(f"/v1/audio/voices/{name}/cache", params=params)


@contextmanager
def waiting(registry: Registry, name: str, **params: Any) -> Iterator[Future[httpx.Response]]:
    """Start a `cache` call that waits, and yield its future answer."""
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(cache, registry, name, wait=60, **params)
        wait_until(lambda: registry.long_polls.waiting == 1 or answer.done())
        yield answer


def test_a_call_is_about_the_version_that_it_began_with(registry: Registry, name: str):
    """The name moves on to version 2 while the call waits for an artifact of version 1. An answer about
    version 2 would name a job of version 1, and a state that nobody asked about.
    """
    registry.ready(name)
    registry.upload(name, clip=OTHER_CLIP)
    with waiting(registry, name, profile=WIDER) as answer:
        registry.worker.finish_all(name)
    assert answer.result().json() == {"voice": name, "cache_status": "ready", "version": 1}
    assert registry.client.get(f"/v1/voices/{name}").json()["version"] == 2


def test_a_call_can_wait_for_the_version_that_an_upload_returned(registry: Registry, name: str):
    """The bare name stands for the old version, which is ready, so a recipe that only names the voice would
    go on with the old clip.
    """
    registry.ready(name)
    version = registry.upload(name, clip=OTHER_CLIP)["version"]
    assert cache(registry, name).json()["version"] == 1
    with waiting(registry, name, version=version) as answer:
        registry.worker.finish_all(name)
    assert answer.result().json() == {"voice": name, "cache_status": "ready", "version": 2}


@pytest.mark.parametrize(
    ("version", "status", "reason"),
    [("7", 404, "version_not_found"), ("prod", 404, "alias_not_found"), ("@", 400, "invalid_reference")],
)
def test_a_version_that_is_not_there_is_named(
    registry: Registry, name: str, version: str, status: int, reason: str
):
    """A call about no version must neither wait nor be about another version."""
    registry.ready(name)
    for method in ("GET", "POST"):
        path = f"/v1/audio/voices/{name}/cache"
        answer = registry.client.request(method, path, params={"version": version})
        assert (answer.status_code, answer.json()["error"]["reason"]) == (status, reason)
        assert answer.json()["error"]["param"] == "version"
        assert f"'{version}'" in answer.json()["error"]["message"] or version == "7"


def test_a_call_ends_when_its_job_is_canceled(start: Start, name: str):
    """The encoder has changed since, so the cancellation is no failure of the new one, and nothing would ever
    end the wait.
    """
    registry = start()
    job_id = registry.upload(name)["job_id"]
    with waiting(registry, name) as answer:
        registry.worker.announce(NEWER)
        assert registry.client.post(f"/v1/jobs/{job_id}/cancel").status_code == 200
        response = answer.result(timeout=30)
    assert response.status_code == 409
    assert f"job {job_id} was canceled" in response.json()["error"]["message"]


def test_a_call_ends_when_its_job_made_the_artifact_of_a_replaced_encoder(start: Start, name: str):
    """The job has ended, and nobody has started another one. What it made is served until then."""
    registry = start()
    registry.upload(name)
    with waiting(registry, name) as answer:
        [attempt] = registry.worker.take_all(name)
        registry.worker.announce(NEWER)
        registry.worker.publish(attempt)
        response = answer.result(timeout=30)
    assert (response.status_code, response.json()["cache_status"]) == (200, "ready")
