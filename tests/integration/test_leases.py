"""Tests of leases: what a change waits for before it is acknowledged, and who is given a lease."""

from collections.abc import Callable

import pytest

from services.registry_api.keys.make import make
from services.shared.index.leases import TAKEN, WAIT_SECONDS, Renewal
from services.shared.index.speaker_index import EVENTS
from tests.integration.storage import NEXT_FINGERPRINT, Storage, speaker_id


class Process:
    """An API process that answers from memory, as far as leases know it."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._stamp = storage.index.open()
        self.applied = self._before = self.newest()

    def newest(self) -> str:
        [(position, _)] = self._storage.raw.xrevrange(EVENTS, count=1)
        return str(position)

    def apply_all(self) -> None:
        self.applied = self.newest()

    def renew(self) -> Renewal:
        answer = self._storage.parts.leases.renew(self._stamp, self._name, self.applied, self._before)
        self._before = self.applied
        return answer

    def end(self) -> None:
        self._storage.parts.leases.end(self._name)


@pytest.fixture
def process(storage: Storage) -> Process:
    """Return a process that has a lease. The voice `alice` is there."""
    storage.ready("alice")
    made = Process(storage, "one")
    assert made.renew() is Renewal.GRANTED
    return made


def waits_for_a_lease(storage: Storage, do: Callable[[], object]) -> bool:
    """Return whether something takes as long as any lease may last. False means that it does not sleep."""
    began, slept = storage.clock.monotonic(), storage.clock.ahead
    do()
    if storage.clock.ahead == slept:
        return False
    assert storage.clock.monotonic() - began >= WAIT_SECONDS
    return True


def when_asked_again(storage: Storage, monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Have something happen between the first look at the leases and the second."""
    sleep = storage.clock.sleep

    def sleep_and_do(seconds: float) -> None:
        sleep(seconds)
        do()

    monkeypatch.setattr(storage.clock, "sleep", sleep_and_do)


def test_a_change_waits_for_nothing_if_no_process_has_a_lease(storage: Storage):
    """A registry of one idle process is not slowed down."""
    storage.ready("alice")
    assert not waits_for_a_lease(storage, lambda: storage.delete("alice"))


def test_a_delete_is_acknowledged_when_every_process_has_applied_it(
    storage: Storage, process: Process, monkeypatch: pytest.MonkeyPatch
):
    """A process that has not applied the event would still serve the voice from memory."""
    seen = []

    def apply() -> None:
        seen.append(process.renew())
        process.apply_all()
        seen.append(process.renew())

    when_asked_again(storage, monkeypatch, apply)
    storage.delete("alice")
    assert seen == [Renewal.BEHIND, Renewal.GRANTED]


def test_a_delete_waits_for_a_stopped_process_until_its_lease_has_run_out(storage: Storage, process: Process):
    """The process may go on at any moment and answer until then. The next change does not wait for it."""
    storage.ready("bob")
    assert waits_for_a_lease(storage, lambda: storage.delete("alice"))
    assert not waits_for_a_lease(storage, lambda: storage.delete("bob"))


def test_a_lease_that_lacks_a_change_is_not_renewed(storage: Storage, process: Process):
    """It could outlast the time for which the change waits."""
    storage.delete("alice")
    assert process.renew() is Renewal.BEHIND
    assert storage.raw.hlen("sr:leases") == 0
    process.apply_all()
    assert process.renew() is Renewal.GRANTED


def test_a_lease_that_is_given_up_is_not_waited_for(storage: Storage, process: Process):
    """A process that is stopped in an orderly way delays no change."""
    process.end()
    assert not waits_for_a_lease(storage, lambda: storage.delete("alice"))


def test_a_change_is_acknowledged_in_time_while_redis_is_away(
    storage: Storage, process: Process, monkeypatch: pytest.MonkeyPatch
):
    """The delete is stored already. A lease is not renewed either, so it has run out by then."""
    settle = storage.parts.leases.settle

    def settle_without_redis() -> None:
        monkeypatch.setattr(storage.parts.leases, "_read_behind", lambda *_, **__: None)
        settle()

    monkeypatch.setattr(storage.parts.leases, "settle", settle_without_redis)
    assert waits_for_a_lease(storage, lambda: storage.delete("alice"))


def test_a_change_right_after_a_loss_of_redis_waits_for_leases_that_were_lost_with_it(
    storage: Storage, process: Process
):
    """The new server does not know them, and their processes still answer from memory."""
    storage.ready("bob")
    storage.raw.flushdb()
    storage.housekeeper.turn()
    assert storage.raw.exists("sr:young")
    assert waits_for_a_lease(storage, lambda: storage.delete("alice"))
    storage.raw.delete("sr:young")  # as time does
    assert not waits_for_a_lease(storage, lambda: storage.delete("bob"))


def test_a_process_that_trusts_a_lost_index_gets_no_lease(storage: Storage, process: Process):
    """It may not have heard of what happened in the index that is there now."""
    storage.raw.flushdb()
    storage.housekeeper.turn()
    assert process.renew() is Renewal.GATE


def test_a_process_that_events_were_trimmed_for_gets_no_lease(storage: Storage, process: Process):
    """It cannot know what they said, so it has to forget everything first."""
    storage.register("bob")
    process.apply_all()
    storage.raw.xtrim(EVENTS, maxlen=1, approximate=False)
    assert process.renew() is Renewal.TRIMMED
    assert process.renew() is Renewal.GRANTED


@pytest.mark.parametrize(
    ("change", "takes"),
    [
        ("register another voice", False),
        ("extract another voice", False),
        ("delete", True),
        ("promote", True),
        ("extract again", True),
        ("announce an encoder", True),
        ("make a key", True),
    ],
)
def test_changes_that_take_something_away_are_waited_for(storage: Storage, change: str, takes: bool):
    """Other changes need not wait: nothing that was served before them is wrong after them."""
    version = storage.ready("alice").version
    if change == "promote":
        storage.register("alice", number=2)
    if change == "extract another voice":
        storage.register("bob")
    before = storage.raw.get(TAKEN)
    match change:
        case "register another voice":
            storage.register("bob")
        case "delete":
            storage.delete("alice")
        case "extract again":
            storage.extract("alice", version, force=True)
            storage.finish_all("alice")
        case "announce an encoder":
            storage.announce(NEXT_FINGERPRINT)
        case "make a key":
            make(storage.keys, name="engines", namespace="default", scopes=["engine"], created_by="test")
        case _:
            storage.finish_all()
    assert (storage.raw.get(TAKEN) != before) is takes
    if change == "promote":
        assert storage.speaker("alice").default.number == 2
    if change == "delete":
        assert not storage.index.look(speaker_id("alice")).speaker.live


def test_a_job_is_shown_as_succeeded_when_no_process_serves_what_it_replaced(
    storage: Storage, process: Process
):
    """Workers end a job in the moment in which they replace an artifact, and do not wait themselves."""
    storage.register("alice", number=2)
    [job] = storage.jobs("alice", open_only=True)
    storage.finish_all("alice")
    assert waits_for_a_lease(storage, lambda: storage.operations.jobs.get("default", job.id))
