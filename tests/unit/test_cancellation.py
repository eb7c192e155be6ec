"""Tests of canceling jobs. What is canceled stays canceled, and what was served is still served. Store and
Redis are in memory; all else is real.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from services.shared.bucket.layout import document_key
from services.shared.registry.extract import extract
from services.shared.registry.fail import fail
from speaker_registry.errors import ExtractorFailed, JobFinished, Unavailable, VoiceDamaged
from tests.faults import with_faults
from tests.memory_registry import ECAPA, NS, Registry, World, id_of

WREN = id_of("wren")


def state(registry: Registry) -> str:
    """Return the state of the newest version's embedding."""
    speaker = registry.find("wren")
    return registry.profiles.status(speaker, speaker.document.newest, ECAPA).state


def ask(registry: Registry, *, force: bool = False) -> str | None:
    """Ask for the embedding of the newest version. Returns the job, if one was needed."""
    speaker = registry.find("wren")
    newest = speaker.document.newest
    return extract(registry.jobs, registry.profiles, speaker, newest, ["ecapa"], force=force).get("ecapa")


def open_jobs(registry: Registry) -> set[str]:
    return {job.profile for job in registry.find("wren").open_jobs}


def test_a_job_that_waits_leaves_the_queue(world: World, registry: Registry) -> None:
    """No worker ever sees it, and the other jobs are left."""
    jobs = registry.register("wren", 1).jobs
    registry.cancel(jobs["ecapa"])
    assert world.queue.waiting.keys() == {jobs["codec"]}
    assert (state(registry), open_jobs(registry)) == ("failed", {"codec"})
    assert registry.work() == 1


def test_to_cancel_twice_is_to_cancel_once(world: World, registry: Registry) -> None:
    """A client that got no answer asks again."""
    job = registry.register("wren", 1).jobs["ecapa"]
    first = registry.cancel(job)
    assert registry.jobs.seen.get(job) == first, "it is still canceled if Redis is lost"
    revision = registry.document("wren").revision
    world.pass_time(5)
    assert registry.cancel(job) == first
    assert registry.document("wren").revision == revision


def test_it_stays_canceled_when_redis_is_lost(world: World, registry: Registry) -> None:
    """The job's record goes with Redis, and the document keeps the cancellation."""
    registry.cancel(registry.register("wren", 1).jobs["ecapa"])
    world.lose_redis()
    world.queue.waiting.clear()
    registry.generation.check()
    registry.settle("wren")
    assert (state(registry), open_jobs(registry)) == ("failed", {"codec"})


def test_a_canceled_job_that_fails_stays_canceled(registry: Registry) -> None:
    """The result of its worker does not matter any more."""
    job = registry.register("wren", 1).jobs["ecapa"]
    attempt = registry.start("wren", job, ECAPA)
    registry.cancel(job)
    assert attempt is not None
    error = ExtractorFailed("a defect")
    error.retryable = False
    fail(registry.speakers, registry.jobs, registry.profiles, attempt, error)
    assert registry.jobs.record(NS, job).state == "canceled"
    assert registry.document("wren").newest.failures["ecapa"][-1].code == "canceled"


def test_it_is_too_late_once_the_artifact_is_in_the_document(world: World, registry: Registry) -> None:
    """A caller whose cancellation was acknowledged must not find the artifact in service. Here the worker has
    not told the view or ended the job when the caller cancels it.
    """
    job = registry.register("wren", 1).jobs["ecapa"]
    refused: list[str] = []

    def canceled() -> None:
        with pytest.raises(JobFinished, match="succeeded"):
            registry.cancel(job)
        refused.append(job)

    worker = with_faults(world, ("swap", "after", canceled))
    attempt = worker.start("wren", job, ECAPA)
    assert attempt is not None
    assert worker.publish(attempt)
    assert refused == [job]
    assert state(registry) == "ready"


def test_an_artifact_that_a_cancellation_overtakes_is_refused(world: World, registry: Registry) -> None:
    """The worker has stored its bytes already. The document decides who was first."""
    job = registry.register("wren", 1).jobs["ecapa"]
    worker = with_faults(world, ("swap", "before", lambda: registry.cancel(job) and None))
    attempt = worker.start("wren", job, ECAPA)
    assert attempt is not None
    assert not worker.publish(attempt)
    assert registry.jobs.record(NS, job).state == "canceled"
    assert state(registry) == "failed"


def test_it_is_not_said_to_be_canceled_while_its_voice_cannot_be_read(
    world: World, registry: Registry
) -> None:
    """A worker that runs the job would publish all the same."""
    job = registry.register("wren", 1).jobs["ecapa"]
    other = world.process()
    for key in [key for key in world.server.data if ":s:" in key]:
        del world.server.data[key]
    data, at = world.store.objects[document_key(WREN)]
    world.store.objects[document_key(WREN)] = (data[:-20], at)
    with pytest.raises(VoiceDamaged):
        other.cancel(job)
    assert registry.jobs.record(NS, job).state == "queued"


def test_what_was_served_serves_on(registry: Registry) -> None:
    """A canceled forced extraction leaves the artifact that was served before."""
    registry.register("wren", 1)
    registry.work()
    served = registry.document("wren").newest.artifacts
    job = ask(registry, force=True)
    assert job is not None
    registry.cancel(job)
    assert registry.document("wren").newest.artifacts == served
    assert state(registry) == "ready"
    assert registry.settle("wren") is None


def test_force_makes_what_was_canceled(registry: Registry) -> None:
    """Without force a canceled extraction stays canceled, as a failed one stays failed."""
    registry.cancel(registry.register("wren", 1).jobs["ecapa"])
    assert ask(registry) is None
    assert ask(registry, force=True)
    registry.work()
    assert state(registry) == "ready"


def test_a_newer_encoder_makes_what_was_canceled(registry: Registry) -> None:
    """Only the older computation was canceled."""
    registry.cancel(registry.register("wren", 1).jobs["ecapa"])
    registry.work()
    registry.fingerprints.current["ecapa"] = "f2"
    registry.settle("wren")
    registry.work()
    assert state(registry) == "ready"


def test_a_job_for_which_there_never_was_a_worker_is_canceled(registry: Registry) -> None:
    """No worker has said with what its artifact would be made, so it stays canceled until a caller forces
    it.
    """
    registry.fingerprints.current["ecapa"] = ""
    registry.cancel(registry.register("wren", 1).jobs["ecapa"])
    registry.settle("wren")
    assert not registry.register("wren", 1).created
    assert ask(registry) is None
    assert (state(registry), open_jobs(registry)) == ("failed", {"codec"})
    assert ask(registry, force=True)
    assert state(registry) == "pending"


class Weathered:
    """A store of which every call may fail."""

    def __init__(self, store: Any, weather: Callable[[str, Callable[[], Any]], Any]) -> None:
        self._store = store
        self._weather = weather

    def __getattr__(self, method: str) -> Any:
        does = getattr(self._store, method)
        return lambda *args, **options: self._weather(method, lambda: does(*args, **options))


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("where", ["redis", "store"])
def test_whichever_call_fails_asking_again_cancels_it(when: str, where: str) -> None:
    """In between nothing is half canceled: the job goes on, or it is canceled for good."""
    for failing in range(1, 40):
        world = World()
        worker = world.process()
        job = worker.register("wren", 1).jobs["ecapa"]
        attempt = worker.start("wren", job, ECAPA)
        assert attempt is not None
        left = [failing]

        def weather(what: str, call: Callable[[], Any], left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] == 0 and when == "before":
                raise Unavailable(f"not {what}")
            found = call()
            if left[0] == 0:
                raise Unavailable(f"{what} without an answer")
            return found

        caller = world.process(weather=weather) if where == "redis" else world.process()
        if where == "store":
            caller.speakers.documents.stored._store = Weathered(world.store, weather)  # type: ignore[assignment]
        with suppress(Unavailable):
            assert caller.cancel(job).state == "canceled"
        if left[0] > 0:
            assert failing > 2, "the test did not reach any call"
            return
        assert worker.cancel(job).state == "canceled"
        assert not worker.publish(attempt)
        assert "ecapa" not in worker.document("wren").newest.artifacts
        assert open_jobs(worker) == {"codec"}
        assert worker.find("wren").document == worker.document("wren")
    raise AssertionError("canceling makes too many calls")


@pytest.mark.parametrize("notices", ["publish", "start", "settle", "fail"])
def test_whoever_notices_a_cancellation_first_says_that_the_job_was_canceled(
    world: World, registry: Registry, notices: str
) -> None:
    """The document holds the cancellation before the job is ended. A worker or housekeeping may end the job
    in between, and the older artifact that serves on is not what the job was to make.
    """
    registry.register("wren", 1)
    registry.work()
    served = registry.document("wren").newest.artifacts
    job = ask(registry, force=True)
    assert job is not None
    attempt = None if notices in ("start", "settle") else registry.start("wren", job, ECAPA)

    def notice() -> None:
        registry.speakers.refresh(WREN)
        if notices == "start":
            assert registry.start("wren", job, ECAPA) is None
        elif notices == "settle":
            world.queue.waiting.clear()
            registry.settle("wren")
        elif notices == "publish":
            assert attempt is not None
            assert not registry.publish(attempt)
        else:
            assert attempt is not None
            error = ExtractorFailed("a defect")
            error.retryable = False
            fail(registry.speakers, registry.jobs, registry.profiles, attempt, error)

    caller = with_faults(world, ("swap", "after", notice))
    assert caller.cancel(job).state == "canceled"
    assert registry.jobs.record(NS, job).state == "canceled"
    assert registry.document("wren").newest.artifacts == served


class Killed(BaseException):
    """The process ends here."""


def test_a_forced_extraction_is_canceled_by_the_next_request_if_the_process_is_killed(
    world: World, registry: Registry
) -> None:
    """The document holds the cancellation, and the older artifact is not what the job was to make."""
    registry.register("wren", 1)
    registry.work()
    job = ask(registry, force=True)
    assert job is not None

    def killed() -> None:
        raise Killed

    with pytest.raises(Killed):
        with_faults(world, ("swap", "after", killed)).cancel(job)
    assert registry.jobs.record(NS, job).state == "queued"
    assert registry.cancel(job).state == "canceled"
