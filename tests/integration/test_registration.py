"""Tests of uploads that come at once, on a real store and a real Valkey. What needs no threads is tested in
memory.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.operations.cancel import cancel
from services.shared.model.clock import Clock
from services.shared.queue.rq_jobs import queue_name
from speaker_registry.errors import IdempotencyKeyReused, QuotaExceeded, VoiceExists
from tests.opened_registry import NS, ROOMY, OpenedRegistry, folder_settings, id_of


@pytest.fixture
def registry(tmp_path: Path, valkey: ValkeyServer, redis_client: Redis) -> Iterator[OpenedRegistry]:
    """A registry whose pauses are real, because threads that wait must let others go on."""
    with closing(OpenedRegistry(folder_settings(tmp_path / "bucket"), valkey.url, clock=Clock())) as registry:
        registry.worker.announce()
        yield registry


def at_once(count: int, do: Callable[[int], Any]) -> list[Any]:
    """Do something in several threads that begin together."""
    begin = threading.Barrier(count)

    def together(number: int) -> Any:
        begin.wait(60)
        return do(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(together, range(count)))


def test_uploads_of_one_voice_at_the_same_time_lose_none(registry: OpenedRegistry) -> None:
    """Each gets a version of its own, in one order, with its own clip."""
    made = at_once(8, lambda number: registry.register("wren", number))
    versions = registry.document("wren").versions
    assert [version.number for version in versions] == list(range(1, 9))
    assert all(before.created_at < after.created_at for before, after in pairwise(versions))
    assert {one.version.vuid for one in made} == {version.vuid for version in versions}
    for number, registered in enumerate(made):
        assert registry.opened.blobs.clip(id_of("wren"), registered.version) == b"clip %d" % number
    assert registry.find("wren").document == registry.document("wren")


def test_one_request_sent_many_times_at_once_makes_one_version(registry: OpenedRegistry) -> None:
    """Before the first one is stored, only its key identifies it."""
    made = at_once(8, lambda _: registry.register("wren", idempotency_key="k"))
    assert len({one.version.vuid for one in made}) == 1
    assert [one.created for one in made].count(True) == 1
    assert len(registry.document("wren").versions) == 1
    assert len(registry.worker.queued("wren")) == 1


def test_one_key_for_different_requests_at_once_is_good_for_one_of_them(registry: OpenedRegistry) -> None:
    """The others must not be answered with its version: two clips would stand for one."""

    def upload(number: int) -> bool:
        try:
            return registry.register("wren", number, idempotency_key="k").created
        except IdempotencyKeyReused:
            return False

    assert at_once(8, upload).count(True) == 1
    assert len(registry.document("wren").versions) == 1


def test_of_many_first_registrations_of_an_immutable_voice_one_succeeds(registry: OpenedRegistry) -> None:
    def upload(number: int) -> bool:
        try:
            return registry.register("wren", number, limits=replace(ROOMY, immutable=True)).created
        except VoiceExists:
            return False

    assert at_once(8, upload).count(True) == 1
    assert len(registry.document("wren").versions) == 1


def test_new_voices_that_come_at_once_are_no_more_than_allowed(registry: OpenedRegistry) -> None:
    """Of 16 uploads that came together, 7 were once admitted where 5 were allowed."""

    def upload(number: int) -> bool:
        try:
            return registry.register(f"voice-{number}", limits=replace(ROOMY, voices=5)).created
        except QuotaExceeded:
            return False

    assert at_once(16, upload).count(True) == 5
    assert registry.speakers.usage_so_far(NS).voices == 5


def test_a_canceled_job_leaves_the_queue(registry: OpenedRegistry, redis_client: Redis) -> None:
    """No worker takes it, and the jobs of other voices are left."""
    jobs = [job for name in ("wren", "robin", "owl") for job in registry.register(name).jobs.values()]
    cancel(
        registry.speakers, registry.jobs, registry.opened.profiles, NS, jobs[1], by="key", is_operator=False
    )
    queue = f"rq:queue:{queue_name(registry.opened.profiles.required[0].name)}"
    assert redis_client.lrange(queue, 0, -1) == [jobs[0].encode(), jobs[2].encode()]
    assert [job.id for job in registry.worker.queued()] == [jobs[0], jobs[2]]
