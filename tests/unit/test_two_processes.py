"""Tests of two processes over one bucket, with a Redis that loses everything in between: no voice is lost,
none comes back, and none is served in a wrong version. Store and Redis are in memory; all else is real.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from speaker_registry.errors import Unavailable, VoiceDeleted, VoiceNotFound
from tests.faults import with_faults
from tests.memory_registry import CODEC, ECAPA, NS, Registry, World


@pytest.fixture
def first(world: World) -> Registry:
    return world.process()


@pytest.fixture
def second(world: World) -> Registry:
    return world.process()


def lose_redis(world: World, *noticed_by: Registry) -> None:
    world.lose_redis()
    for process in noticed_by:
        process.generation.check()


@pytest.mark.parametrize("exists", [False, True])
def test_a_delete_stops_an_upload_whose_announcement_was_lost(
    world: World, second: Registry, *, exists: bool
) -> None:
    """The one that deletes is told that nothing is left, so nothing may appear afterwards."""
    if exists:
        second.register("wren", 1)

    def lost_and_deleted() -> None:
        lose_redis(world, second)
        if exists:
            second.delete("wren")
        else:
            with pytest.raises(VoiceNotFound):
                second.delete("wren")

    late = with_faults(world, ("put", "after", lost_and_deleted))
    with pytest.raises(VoiceDeleted):
        late.register("wren", 2)
    assert not second.document("wren").live
    assert second.register("wren", 2).created


def test_a_process_that_had_read_a_voice_does_not_serve_it_after_its_delete(
    world: World, first: Registry, second: Registry
) -> None:
    """It has the parsed document, and the view that would tell of the delete is lost."""
    first.register("wren", 1)
    first.work()
    assert second.find_version("wren", "default")[1].number == 1
    first.delete("wren")
    lose_redis(world)
    with pytest.raises(VoiceNotFound):
        second.find("wren")
    first.register("wren", 2)
    lose_redis(world)
    assert second.find_version("wren", "default")[1].number == 2


def test_a_canceled_extraction_is_not_made_by_the_worker_of_a_lost_job(
    world: World, first: Registry, second: Registry
) -> None:
    """The worker took its job before Redis lost it. What the caller canceled is the job that replaced it."""
    job = first.register("wren", 1).jobs["ecapa"]
    attempt = first.start("wren", job, ECAPA)
    lose_redis(world, second)
    world.queue.waiting.clear()
    second.settle("wren")
    [other] = [one.job_id for one in second.find("wren").open_jobs if one.profile == "ecapa"]
    assert other != job
    second.cancel(other)
    assert attempt is not None
    assert not first.publish(attempt)
    assert second.document("wren").newest.artifacts == {}
    lose_redis(world, first)
    first.settle("wren")
    assert {one.profile for one in first.find("wren").open_jobs} == {"codec"}


def test_default_moves_once_although_its_artifacts_come_by_two_views(
    world: World, first: Registry, second: Registry
) -> None:
    """Each process publishes one of the last two artifacts, and Redis is lost between their commits."""
    jobs = first.register("wren", 1).jobs
    first.work()
    jobs = first.register("wren", 2).jobs
    ecapa, codec = first.start("wren", jobs["ecapa"], ECAPA), second.start("wren", jobs["codec"], CODEC)
    assert ecapa is not None
    assert codec is not None

    def published_by_the_other() -> None:
        lose_redis(world, second)
        assert second.publish(codec)
        assert second.document("wren").default.number == 1
        lose_redis(world, second)

    worker = with_faults(world, ("swap", "before", published_by_the_other))
    with pytest.raises(Unavailable):  # the view in which it began is gone
        worker.publish(ecapa)
    assert worker.publish(ecapa)
    for process in (first, second, worker):
        assert process.find_version("wren", "default")[1].number == 2
    assert all(len(made) == 1 for made in first.document("wren").default.artifacts.values())


@pytest.mark.parametrize("calls", range(1, 12))
def test_a_redis_that_is_lost_at_any_call_loses_no_voice(world: World, first: Registry, calls: int) -> None:
    """Whatever the upload of one process was told, a repeat by another one leads to one version that is
    served.
    """
    left = [calls]

    def weather(_: str, call: Callable[[], Any]) -> Any:
        left[0] -= 1
        if left[0] == 0:
            world.lose_redis()
        return call()

    process = world.process(weather=weather)
    acknowledged = None
    with suppress(Unavailable):
        acknowledged = process.register("wren", 1, idempotency_key="k").version.vuid
    again = first.register("wren", 1, idempotency_key="k")
    assert acknowledged in {None, again.version.vuid}
    first.settle("wren")
    first.work()
    [version] = first.document("wren").versions
    assert first.find_version("wren", "default")[1].vuid == version.vuid
    assert first.profiles.is_complete(*first.find_version("wren", "default"))
    first.rebuild()
    assert first.speakers.view.names(NS, limit=9) == ["wren"]
    assert first.speakers.usage_so_far(NS) == first.document("wren").counts
