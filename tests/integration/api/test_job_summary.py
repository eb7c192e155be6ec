"""Tests of `GET /v1/jobs/summary`: jobs counted by state and profile, without looking at any of them."""

import time
from typing import Any

import pytest

from services.registry_api.pages.situation import Situation
from services.shared.view.job_records import KEPT_SECONDS
from services.shared.view.keys import jobs_key
from speaker_registry import RegistryClient
from speaker_registry.errors import InvalidAudio
from tests.integration.api.conftest import Start
from tests.integration.api.registry import PROFILE, WIDER, Registry
from tests.queue_workers import wait_until

STATES = ("queued", "processing", "succeeded", "failed", "canceled", "superseded")


def summary(registry: Registry) -> Any:
    return registry.client.get("/v1/jobs/summary").json()


def counted(**counts: int) -> dict[str, int]:
    return dict.fromkeys(STATES, 0) | counts


@pytest.fixture
def busy(start: Start) -> Registry:
    """A registry with jobs of two profiles, in every state."""
    registry = start(profiles=(PROFILE, WIDER))
    registry.ready("done")
    registry.upload("faulty")
    registry.worker.fail_all("faulty", InvalidAudio("No speech was found."))
    registry.upload("deleted")
    registry.client.delete("/v1/voices/deleted")
    called_off = registry.upload("called-off")["job_id"]
    registry.client.post(f"/v1/jobs/{called_off}/cancel")
    registry.upload("running")
    registry.worker.take_all("running")
    registry.upload("waiting")
    registry.upload("later")
    return registry


def test_jobs_are_counted_by_state_and_profile(busy: Registry):
    """A dashboard shows how long the queue is, and for which profile, without reading the queue."""
    found, jobs = summary(busy), busy.client.get("/v1/jobs", params={"limit": 100}).json()["data"]
    assert found["counts"] == counted(queued=5, processing=2, succeeded=2, failed=2, canceled=1, superseded=2)
    assert [one["profile"] for one in found["profiles"]] == sorted([PROFILE, WIDER])
    for one in found["profiles"]:
        ours = [job for job in jobs if job["profile"] == one["profile"]]
        assert one["counts"] == counted(
            **{state: sum(job["state"] == state for job in ours) for state in STATES}
        )
        for state in ("queued", "processing"):
            oldest = min(job["created_at"] for job in ours if job["state"] == state)
            assert one[f"oldest_{state}_at"] == oldest
            assert found[f"oldest_{state}_at"] <= oldest


def test_jobs_that_ended_are_counted_by_when_they_ended(start: Start, monkeypatch: pytest.MonkeyPatch):
    """A job that waited for days ends today, so rates by creation would say that nothing is done. The API's
    clock is an hour ahead, and does not count.
    """
    registry = start(profiles=(PROFILE,))
    jobs = {name: registry.upload(name)["job_id"] for name in ("minutes", "hours", "days", "faulty")}
    registry.worker.fail_all("faulty", InvalidAudio("No speech was found."))
    registry.worker.finish_all()
    now = time.time()
    monkeypatch.setattr(registry.opened.clock, "now", lambda: now + 3600)
    generation = registry.opened.generation.for_reading()
    for name, ago in (("minutes", 30), ("hours", 3_530), ("days", 83_530), ("faulty", 30)):
        state = "failed" if name == "faulty" else "succeeded"
        key = jobs_key(generation, "default", state, PROFILE)
        assert not registry.redis.zadd(key, {jobs[name]: now - ago}), "the job was there already"
    found = summary(registry)
    assert [(one["seconds"], one["succeeded"], one["failed"]) for one in found["rates"]] == [
        (60, 1, 1),
        (3600, 2, 1),
        (86_400, 3, 1),
    ]
    assert found["rates"][1]["per_second"] == pytest.approx(2 / 3600)
    assert found["profiles"][0]["rates"] == found["rates"]
    shown = Situation(registry.app.state.parts.services).jobs("default")
    assert [(one.succeeded, one.failed) for one in shown.rates] == [(1, 1), (2, 1), (3, 1)]


def test_no_job_is_looked_at_to_count_them(busy: Registry):
    """A dashboard asks every few seconds, and a registry keeps millions of jobs."""
    before = summary(busy)
    records = list(busy.redis.scan_iter("sr:*:job:*"))
    assert records
    busy.redis.delete(*records)
    assert summary(busy) == before


def test_a_namespace_without_jobs_has_a_summary(start: Start):
    """A dashboard of a new registry shows zeros, not an error."""
    found = summary(start())
    assert (found["counts"], found["profiles"]) == (counted(), [])
    assert found["oldest_queued_at"] is None
    assert [one["per_second"] for one in found["rates"]] == [0, 0, 0]


def test_forgotten_jobs_are_no_longer_counted(busy: Registry):
    """Counts that only grow would soon say nothing."""
    now = busy.opened.clock.now()
    while busy.opened.jobs.records.forget_before("default", now + KEPT_SECONDS):
        pass
    found = summary(busy)
    assert found["counts"] == counted(queued=5, processing=2)
    assert sum(one["rates"][-1]["failed"] for one in found["profiles"]) == 0


def test_the_sdk_counts_jobs(busy: Registry):
    """A program that scales workers reads two numbers, not a list."""
    with RegistryClient(busy.url) as client:
        found = client.jobs_summary()
    assert (found.counts.queued, found.counts.processing) == (5, 2)
    assert sum(one.counts.queued for one in found.profiles) == 5


def test_jobs_lost_with_redis_are_no_longer_counted(busy: Registry):
    """The counts are a view of the queue, and live and die with it."""
    busy.redis.flushall()
    busy.rebuild()
    busy.repair("waiting")
    wait_until(lambda: summary(busy)["counts"]["queued"] == 2)
    assert summary(busy)["counts"]["succeeded"] == 0
