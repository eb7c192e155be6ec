"""Tests of leases on a real Valkey: what a change waits for before it is acknowledged, and who is given a
lease.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.bucket.opening import open_store
from services.shared.configuration.store import StoreSettings
from services.shared.view.away import ViewAway
from services.shared.view.keys import events_key, leases_key
from services.shared.view.leases import WAIT_SECONDS, Renewal
from tests.integration.test_rooms import MovableClock, World
from tests.memory_registry import Registry


class Process:
    """An API process that answers from memory, as far as leases know it."""

    def __init__(self, registry: Registry, redis: Redis, name: str) -> None:
        self._registry = registry
        self._redis = redis
        self._name = name
        self._generation = registry.generation.for_reading()
        self.applied = self._before = self.newest()

    def newest(self) -> str:
        newest = self._redis.xrevrange(events_key(self._generation), count=1)
        if not newest:
            return "0-0"
        [(position, _)] = newest
        return position.decode() if isinstance(position, bytes) else str(position)

    def apply_all(self) -> None:
        self.applied = self.newest()

    def renew(self) -> Renewal:
        leases = self._registry.speakers.leases
        answer = leases.renew(self._generation, self._name, self.applied, self._before)
        self._before = self.applied
        return answer

    def end(self) -> None:
        self._registry.speakers.leases.end(self._name)


@pytest.fixture
def world(tmp_path: Path, redis_client: Redis, valkey: ValkeyServer) -> Iterator[World]:
    started = World(open_store(StoreSettings(url=f"file://{tmp_path}/store")), valkey.url)
    yield started
    started.close()


@pytest.fixture
def registry(world: World) -> Registry:
    """Return a process whose view is old enough for no lease of before to last. The voice `wren` is there."""
    process = world.process()
    process.register("wren", 1)
    process.work()
    process.clock.sleep(60.0)
    return process


@pytest.fixture
def process(registry: Registry, redis_client: Redis) -> Process:
    """Return a process that has a lease."""
    made = Process(registry, redis_client, "one")
    assert made.renew() is Renewal.GRANTED
    return made


def waits(registry: Registry, do: Callable[[], object]) -> bool:
    """Return whether something takes as long as any lease may last. False means that it does not sleep."""
    clock = registry.clock
    assert isinstance(clock, MovableClock)
    began, ahead = clock.monotonic(), clock.ahead
    do()
    if clock.ahead == ahead:
        return False
    assert clock.monotonic() - began >= WAIT_SECONDS
    return True


def when_asked_again(registry: Registry, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Have something happen between the first look at the leases and the second."""
    sleep = registry.clock.sleep

    def sleep_and_do(seconds: float) -> None:
        sleep(seconds)
        do()

    monkeypatch.setattr(registry.clock, "sleep", sleep_and_do)


def test_a_change_waits_for_nothing_if_no_process_has_a_lease(registry: Registry) -> None:
    """A registry of one idle process is not slowed down."""
    assert not waits(registry, lambda: registry.delete("wren"))


def test_a_delete_is_acknowledged_when_every_process_has_applied_it(
    registry: Registry, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has not applied the event would still serve the voice from memory."""
    seen = []

    def apply() -> None:
        seen.append(process.renew())
        process.apply_all()
        seen.append(process.renew())

    when_asked_again(registry, monkeypatch, apply)
    registry.delete("wren")
    assert seen == [Renewal.BEHIND, Renewal.GRANTED]


def test_a_delete_waits_for_a_stopped_process_until_its_lease_has_run_out(
    registry: Registry, process: Process
) -> None:
    """The process may go on at any moment and answer until then. The next change does not wait for it."""
    registry.register("robin", 2)
    assert waits(registry, lambda: registry.delete("wren"))
    assert not waits(registry, lambda: registry.delete("robin"))


def test_a_lease_that_lacks_a_change_is_not_renewed(
    registry: Registry, process: Process, redis_client: Redis
) -> None:
    """It could outlast the time for which the change waits."""
    registry.delete("wren")
    assert process.renew() is Renewal.BEHIND
    assert redis_client.hlen(leases_key(registry.generation.for_reading())) == 0
    process.apply_all()
    assert process.renew() is Renewal.GRANTED


def test_a_lease_that_is_given_up_is_not_waited_for(registry: Registry, process: Process) -> None:
    """A process that is stopped in an orderly way delays no change."""
    process.end()
    assert not waits(registry, lambda: registry.delete("wren"))


def test_a_change_is_acknowledged_in_time_while_redis_is_away(
    registry: Registry, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The delete is stored already. A lease is not renewed either, so it has run out by then."""
    monkeypatch.setattr(registry.speakers.leases, "_behind", lambda *_, **__: None)
    assert waits(registry, lambda: registry.delete("wren"))


def test_a_change_right_after_a_loss_of_redis_waits_for_leases_that_were_lost_with_it(
    world: World, registry: Registry, process: Process, redis_client: Redis
) -> None:
    """The new server does not know them, and their processes still answer from memory."""
    registry.register("robin", 2)
    redis_client.flushdb()
    anew = world.process()
    assert waits(anew, lambda: anew.delete("wren"))
    anew.clock.sleep(60.0)
    assert not waits(anew, lambda: anew.delete("robin"))


def test_a_process_that_trusts_a_lost_view_gets_no_lease(process: Process, redis_client: Redis) -> None:
    """It may not have heard of what happened in the view that is there now."""
    redis_client.flushdb()
    with pytest.raises(ViewAway):
        process.renew()


def test_a_process_that_events_were_trimmed_for_gets_no_lease(
    registry: Registry, process: Process, redis_client: Redis
) -> None:
    """It cannot know what they said, so it has to forget everything first."""
    registry.register("robin", 2)
    process.apply_all()
    redis_client.xtrim(events_key(registry.generation.for_reading()), maxlen=1, approximate=False)
    assert process.renew() is Renewal.TRIMMED
    assert process.renew() is Renewal.GRANTED


def test_a_process_that_followed_from_before_the_first_event_has_missed_nothing(
    world: World, redis_client: Redis
) -> None:
    """Its position is older than every event of the stream, and none was trimmed."""
    process = Process(world.process(), redis_client, "one")
    world.process().register("robin", 2)
    process.apply_all()
    assert process.renew() is Renewal.GRANTED


def _extract_again(registry: Registry) -> None:
    speaker, version = registry.find_version("wren", "default")
    registry.jobs.open(speaker.id, version, "ecapa", "f1", forced=True)
    registry.work()


def _promote(registry: Registry) -> None:
    registry.register("wren", 2)
    registry.work()


CHANGES: dict[str, tuple[Callable[[Registry], object], bool]] = {
    "register another voice": (lambda registry: registry.register("robin", 2), False),
    "register another version": (lambda registry: registry.register("wren", 2), False),
    "delete": (lambda registry: registry.delete("wren"), True),
    "promote": (_promote, True),
    "extract again": (_extract_again, True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_that_take_something_away_are_waited_for(
    registry: Registry, process: Process, change: str
) -> None:
    """Other changes need not wait: nothing that was served before them is wrong after them."""
    do, takes = CHANGES[change]
    assert waits(registry, lambda: do(registry)) == takes
