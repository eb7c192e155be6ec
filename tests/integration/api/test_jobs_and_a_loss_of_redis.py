"""Tests in which Redis is emptied while callers wait for an extraction. They wait for the artifact, not for a
record in Redis.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from services.registry_api.operations import precompute
from services.shared.model.speaker import OpenJob, SpeakerId
from services.shared.queue.seen_jobs import SeenJobs
from services.shared.registry.extract import extract
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import InvalidAudio, Unavailable
from speaker_registry.names import parse_speaker_name
from speaker_registry.schemas import FINISHED_STATES
from tests.integration.api.conftest import Start, empty
from tests.integration.api.registry import PROFILE, WIDER, Registry
from tests.queue_workers import wait_until


@pytest.fixture
def registry(start: Start) -> Registry:
    return start()


@contextmanager
def waiting(registry: Registry, ask: Callable[[], httpx.Response]) -> Iterator[Future[httpx.Response]]:
    """Start a request that is held open, and yield its future answer."""
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(ask)
        wait_until(lambda: registry.long_polls.waiting == 1 or answer.done())
        yield answer


def lose_redis(registry: Registry) -> None:
    registry.redis.flushdb()
    registry.plain_redis.connection_pool.disconnect()


def speaker_id(name: str) -> SpeakerId:
    return SpeakerId.of("default", parse_speaker_name(name))


def open_job(registry: Registry, name: str) -> OpenJob:
    [job] = registry.opened.speakers.read(speaker_id(name)).open_jobs
    return job


def work_until(registry: Registry, done: Callable[[], bool], name: str = "alice") -> None:
    """Let housekeeping repair what was lost and a worker take what is queued, until the condition holds."""
    registry.rebuild()
    registry.worker.announce()

    def work() -> bool:
        registry.repair(name)
        registry.worker.finish_all()
        return done()

    wait_until(work)


def test_a_job_that_is_waited_for_is_found_again(registry: Registry):
    """A job that a caller waits for is found again after a loss of Redis. It was 404 `job_not_found`, though
    the extraction then succeeded.
    """
    job_id = registry.upload("alice")["job_id"]

    def follow() -> httpx.Response:
        while True:
            answer = registry.client.get(f"/v1/jobs/{job_id}", params={"wait": 20})
            if answer.status_code != 200 or answer.json()["state"] in FINISHED_STATES:
                return answer

    with waiting(registry, follow) as answer:
        lose_redis(registry)
        work_until(registry, answer.done)
    assert answer.result().status_code == 200, answer.result().text
    assert (answer.result().json()["id"], answer.result().json()["state"]) == (job_id, "succeeded")


def test_a_job_can_be_asked_about_while_redis_knows_nothing(registry: Registry):
    """A job can be read while Redis has lost everything, before the view is rebuilt, and by a caller that
    has never read it before.
    """
    job_id = registry.upload("alice")["job_id"]
    lose_redis(registry)
    answer = registry.client.get(f"/v1/jobs/{job_id}")
    assert (answer.status_code, answer.json()["state"]) == (200, "queued")


def _state(registry: Registry, job_id: str) -> str:
    answer = registry.client.get(f"/v1/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return str(answer.json()["state"])


def _replace_lost_job(registry: Registry, name: str) -> None:
    """Let the queue lose a voice's job, and housekeeping start another in its place."""
    for key in registry.redis.scan_iter("rq:*"):
        registry.redis.delete(key)
    registry.repair(name)


def test_a_job_is_followed_though_its_successor_is_lost_as_well(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
):
    """A job is followed though its successor is lost as well, when Redis is emptied between two lookups for
    one answer. It was 404 `job_not_found`.
    """
    job_id = registry.upload("alice")["job_id"]
    _replace_lost_job(registry, "alice")
    read = registry.opened.speakers.read

    def read_before_the_loss(speaker: SpeakerId) -> FoundSpeaker:
        monkeypatch.undo()
        found = read(speaker)
        assert [job.job_id for job in found.open_jobs] != [job_id]
        lose_redis(registry)
        return found

    monkeypatch.setattr(registry.opened.speakers, "read", read_before_the_loss)
    assert _state(registry, job_id) == "queued"
    assert _state(registry, job_id) == "queued", "although the last that Redis said was that it is superseded"
    work_until(registry, lambda: _state(registry, job_id) == "succeeded")


def test_a_job_has_not_ended_while_housekeeping_starts_its_successor(registry: Registry):
    """A job has not ended while housekeeping starts its successor. Housekeeping closes the record before it
    claims the extraction anew.
    """
    job_id = registry.upload("alice")["job_id"]
    registry.opened.jobs.replace(speaker_id("alice"), open_job(registry, "alice"))
    assert _state(registry, job_id) == "queued"


def test_a_job_that_was_withdrawn_stays_so_whatever_becomes_of_its_artifact(registry: Registry):
    """A withdrawn job stays superseded, as events and lists say, though another job makes its artifact later.
    It was shown as succeeded then.
    """
    registry.worker.announce()
    job_id = registry.upload("alice")["job_id"]
    registry.opened.jobs.end(speaker_id("alice"), open_job(registry, "alice"), "superseded")
    assert _state(registry, job_id) == "superseded"
    registry.repair("alice")
    registry.worker.finish_all()
    assert registry.file("alice").status_code == 200
    assert _state(registry, job_id) == "superseded"
    lose_redis(registry)
    assert _state(registry, job_id) == "superseded"


def test_a_job_that_nobody_starts_again_has_ended(registry: Registry):
    """A job that is not started again has ended. Housekeeping does not make an artifact that no voice must
    have, and the job was `queued` for ever.
    """
    registry.upload("alice")
    asked = registry.client.post("/v1/voices/alice/versions/1/extractions", json={"profiles": [WIDER]})
    job_id = asked.headers["Location"].rpartition("/")[2]
    lose_redis(registry)
    registry.rebuild()  # until the view has the voice, nobody knows which of its jobs are open
    assert _state(registry, job_id) == "superseded"
    first, second = (registry.client.get(f"/v1/jobs/{job_id}") for _ in range(2))
    assert (first.json()["reason"], first.json()["finished_at"]) == ("lost with Redis", None)
    assert first.headers["ETag"] == second.headers["ETag"], "no time is made anew at each read"


def test_a_job_that_succeeded_stays_so_whatever_becomes_of_its_artifact(registry: Registry):
    job_id = registry.ready("alice")["job_id"]
    assert _state(registry, job_id) == "succeeded"
    for file in registry.folder.rglob("*.safetensors"):
        file.unlink()
    assert registry.file("alice").status_code != 200
    lose_redis(registry)
    assert _state(registry, job_id) == "succeeded"


def test_a_job_whose_voice_was_deleted_has_ended(registry: Registry):
    """A job whose voice was deleted has ended, because its result is no longer wanted."""
    job_id = registry.upload("alice")["job_id"]
    registry.client.delete("/v1/voices/alice")
    lose_redis(registry)
    assert registry.client.get(f"/v1/jobs/{job_id}").json()["state"] == "superseded"


def test_a_job_that_failed_or_was_canceled_is_shown_as_that(registry: Registry):
    """A job that failed or was canceled keeps that state after a loss of Redis, because both are recorded in
    the bucket.
    """
    failed, canceled = (registry.upload(name)["job_id"] for name in ("alice", "bob"))
    registry.worker.fail_all("alice", InvalidAudio("no sound"))
    assert registry.client.post(f"/v1/jobs/{canceled}/cancel").status_code == 200
    lose_redis(registry)
    shown = registry.client.get(f"/v1/jobs/{failed}").json()
    assert (shown["state"], shown["error"]["code"]) == ("failed", "invalid_audio")
    assert registry.client.get(f"/v1/jobs/{canceled}").json()["state"] == "canceled"


def test_a_cancellation_that_left_an_artifact_in_service_is_shown_as_that(start: Start, valkey: Any):
    """The voice counts as ready, so its document has no failure that tells of the cancellation."""
    url = empty(valkey, 12)
    one = start(url)
    one.ready("alice")
    forced = {"profiles": [PROFILE], "force": True}
    asked = one.client.post("/v1/voices/alice/versions/1/extractions", json=forced)
    job_id = asked.json()["data"][0]["job_id"]
    other = start(url, folder=one.folder)
    wait_until(lambda: other.opened.jobs.seen.get(job_id) is not None)
    assert one.client.post(f"/v1/jobs/{job_id}/cancel").json()["state"] == "canceled"
    lose_redis(one)
    assert (_state(one, job_id), _state(other, job_id)) == ("canceled", "canceled")


@pytest.mark.parametrize("started", ["before", "after"])
def test_another_process_finds_a_job_that_was_claimed_elsewhere(start: Start, valkey: Any, started: str):
    """A replica that never saw a job finds it though another one claimed it, because a proxy sends callers to
    any replica.
    """
    url = empty(valkey, 12)
    one = start(url)
    others = [start(url, folder=one.folder)] if started == "before" else []
    job_id = one.upload("alice")["job_id"]
    (other,) = others or [start(url, folder=one.folder)]
    wait_until(lambda: other.opened.jobs.seen.get(job_id) is not None)
    lose_redis(one)
    assert _state(other, job_id) == "queued"


def test_a_process_remembers_a_job_that_it_joined(registry: Registry):
    """A process remembers a job that it joined. Another process claimed it, and its event
    may be lost with Redis.
    """
    job_id = registry.upload("alice")["job_id"]
    registry.opened.jobs.seen = SeenJobs()
    asked = registry.client.post("/v1/voices/alice/versions/1/extractions", json={"profiles": [PROFILE]})
    assert asked.headers["Location"].endswith(job_id)
    lose_redis(registry)
    assert _state(registry, job_id) == "queued"


@pytest.mark.parametrize("known", [True, False])
def test_a_job_that_nobody_has_seen_is_not_found(registry: Registry, *, known: bool):
    """A job that does not exist is not found, and neither is another namespace's job."""
    if known:
        registry.upload("alice")
    assert registry.client.get("/v1/jobs/job_none").status_code == 404


def test_a_cache_call_waits_on_for_the_artifact(registry: Registry):
    """A cache call goes on waiting for the artifact after a loss of Redis, whichever job makes it."""
    registry.upload("alice")
    with waiting(
        registry, lambda: registry.client.post("/v1/audio/voices/alice/cache", params={"wait": 20})
    ) as answer:
        lose_redis(registry)
        work_until(registry, answer.done)
    assert answer.result().status_code == 200, answer.result().text
    assert answer.result().json()["cache_status"] == "ready"


@pytest.mark.slow
def test_an_extraction_that_no_voice_must_have_is_started_again_for_those_who_wait(registry: Registry):
    """An extraction that no voice must have is started again for the callers that wait for it, because
    housekeeping starts only the others.
    """
    registry.ready("alice")
    asked = {"wait": 20, "profile": WIDER}
    with waiting(
        registry, lambda: registry.client.post("/v1/audio/voices/alice/cache", params=asked)
    ) as answer:
        lose_redis(registry)
        work_until(registry, answer.done)
    assert answer.result().status_code == 200, answer.result().text
    assert answer.result().json()["cache_status"] == "ready"


@pytest.mark.slow
@pytest.mark.parametrize("refused", [0, 1])
def test_a_forced_extraction_that_was_lost_is_started_again(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, refused: int
):
    """A forced extraction that was lost is started again by its caller. Housekeeping would not start it,
    because an artifact exists, and that one must not pass for the new one. For a few seconds after a loss it
    may be refused.
    """
    registry.ready("alice")
    before = registry.file("alice").headers["ETag"]
    refusals = [Unavailable("Too early.")] * refused

    def extract_later(*asked: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return extract(*asked, **options)

    forced = {"wait": 20, "force": "true"}
    with waiting(
        registry, lambda: registry.client.post("/v1/audio/voices/alice/cache", params=forced)
    ) as answer:
        monkeypatch.setattr(precompute, "extract", extract_later)
        lose_redis(registry)
        work_until(registry, answer.done)
    assert answer.result().status_code == 200, answer.result().text
    assert registry.file("alice").headers["ETag"] != before
