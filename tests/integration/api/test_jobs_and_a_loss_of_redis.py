"""Redis is emptied while callers wait for an extraction: they wait for the artifact, not for a record."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from speaker_registry.errors import InvalidAudio
from tests.integration.api.conftest import Start
from tests.integration.api.registry import Registry, until


@pytest.fixture
def registry(start: Start) -> Registry:
    return start()


@contextmanager
def waiting(registry: Registry, ask: Callable[[], httpx.Response]) -> Iterator[Future[httpx.Response]]:
    """A request that is held back."""
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(ask)
        until(lambda: registry.changes.waiting == 1 or answer.done())
        yield answer


def lose_redis(registry: Registry) -> None:
    registry.redis.flushdb()
    registry.registrar.index.redis.connection_pool.disconnect()


def work_until_done(registry: Registry, answer: Future[httpx.Response]) -> None:
    """Housekeeping repairs what was lost, and a worker takes what is queued."""
    registry.worker.announce()

    def done() -> bool:
        registry.housekeeper.turn()
        registry.worker.finish_all()
        return answer.done()

    until(done)


def test_a_job_that_is_waited_for_is_found_again(registry: Registry):
    """It was 404 `job_not_found`, though the extraction then succeeded."""
    job_id = registry.upload("alice")["job_id"]

    def follow() -> httpx.Response:
        while True:
            answer = registry.client.get(f"/v1/jobs/{job_id}", params={"wait": 20})
            if answer.status_code != 200 or answer.json()["finished_at"]:
                return answer

    with waiting(registry, follow) as answer:
        lose_redis(registry)
        work_until_done(registry, answer)
    assert answer.result().status_code == 200, answer.result().text
    assert (answer.result().json()["id"], answer.result().json()["state"]) == (job_id, "succeeded")


def test_a_job_can_be_asked_about_while_redis_knows_nothing(registry: Registry):
    """Before the index is rebuilt, and by whoever has never asked before."""
    job_id = registry.upload("alice")["job_id"]
    lose_redis(registry)
    answer = registry.client.get(f"/v1/jobs/{job_id}")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")
    registry.client.delete("/v1/voices/alice")


def test_a_job_whose_voice_was_deleted_has_ended(registry: Registry):
    """Nobody wants it any more."""
    job_id = registry.upload("alice")["job_id"]
    registry.client.delete("/v1/voices/alice")
    lose_redis(registry)
    registry.housekeeper.turn()
    assert registry.client.get(f"/v1/jobs/{job_id}").json()["state"] == "superseded"


def test_a_job_that_failed_or_was_canceled_is_shown_as_that(registry: Registry):
    """Both are facts in the bucket."""
    failed, canceled = (registry.upload(name)["job_id"] for name in ("alice", "bob"))
    registry.worker.fail_all("alice", InvalidAudio("no sound"))
    assert registry.client.post(f"/v1/jobs/{canceled}/cancel").status_code == 200
    lose_redis(registry)
    registry.housekeeper.turn()
    shown = registry.client.get(f"/v1/jobs/{failed}").json()
    assert (shown["state"], shown["error"]["code"]) == ("failed", "invalid_audio")
    assert registry.client.get(f"/v1/jobs/{canceled}").json()["state"] == "canceled"


@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_nobody_has_seen_is_not_found(registry: Registry, *, known: bool):
    """Also if it is another namespace's."""
    if known:
        registry.upload("alice")
    assert registry.client.get("/v1/jobs/job_none").status_code == 404


def test_a_cache_call_waits_on_for_the_artifact(registry: Registry):
    """Whichever job makes it."""
    registry.upload("alice")
    with waiting(
        registry, lambda: registry.client.post("/v1/audio/voices/alice/cache", params={"wait": 20})
    ) as answer:
        lose_redis(registry)
        work_until_done(registry, answer)
    assert answer.result().status_code == 200, answer.result().text
    assert answer.result().json()["cache_status"] == "ready"


def test_a_forced_extraction_that_was_lost_is_started_again(registry: Registry):
    """Nobody else would: there is an artifact. And that one must not pass for the new one."""
    registry.ready("alice")
    before = registry.file("alice").headers["ETag"]
    forced = {"wait": 20, "force": "true"}
    with waiting(
        registry, lambda: registry.client.post("/v1/audio/voices/alice/cache", params=forced)
    ) as answer:
        lose_redis(registry)
        work_until_done(registry, answer)
    assert answer.result().status_code == 200, answer.result().text
    assert registry.file("alice").headers["ETag"] != before
