"""A test of the whole change of an encoder, with real processes. Workers of other encoders come and go beside
a fleet under load. One campaign is promoted half-way, another one at its end, and both promotions are rolled
back. Every process is killed before each rollback and after it.

`FLEET_VOICES` is the number of voices. `make soak` sets it to 200.
"""

import os
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self

import pytest

from services.embedded.managed_process import ManagedProcess
from services.shared.model.document import SpeakerDocument
from speaker_registry import RegistryClient
from tests.integration.test_campaign_processes import OTHER_DTYPE, TRAINED, Fleet, Reading
from tests.integration.test_worker_process import (
    OTHERS,
    fingerprint_of_a_new_voice,
    is_candidate,
    profile_of,
    with_valkey,
)
from tests.process_load import ready_voices
from tests.processes import PROFILE
from tests.queue_workers import START_SECONDS, wait_until

VOICES = int(os.environ.get("FLEET_VOICES", "24"))
UNLIMITED = 10**9
UNTRAINED = "weights.untrained"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900 + 10 * VOICES)]


class Limit:
    """The number of clips that a worker of the candidate may encode from its start on, before it waits."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "limit"
        self.environment = {**OTHER_DTYPE, "LIGHT_WORKER_LIMIT": str(self._file)}
        self.set(UNLIMITED)

    def set(self, clips: int) -> None:
        written = self._file.with_suffix(".new")
        written.write_text(str(clips))
        written.replace(self._file)  # a worker may be reading it


class Readers:
    """A reader for each API process. It fetches all voices from that one, or from the other if it is away."""

    def __init__(self, urls: Sequence[str], names: Sequence[str]) -> None:
        self.names = set(names)
        self._readers = [Reading([url, *(one for one in urls if one != url)], names) for url in urls]

    def __enter__(self) -> Self:
        with ExitStack() as entered:
            for reader in self._readers:
                entered.enter_context(reader)
            self._entered = entered.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._entered.close()

    def having(self, fingerprint: str) -> list[set[str]]:
        """Fetch every voice once more. Returns, for each reader, the voices that had this fingerprint."""
        for reader in self._readers:
            reader.go_round()
        return [
            {name for name, turns in one.turns.items() if turns[-1] == fingerprint} for one in self._readers
        ]

    def all_have(self, fingerprint: str, names: Set[str] | None = None) -> bool:
        """Return whether every reader now sees these voices with a fingerprint, and no others. By default,
        `names` are all voices.
        """
        expected = self.names if names is None else names
        return all(seen == expected for seen in self.having(fingerprint))

    def assert_exact(self, turns: Callable[[str], list[str]]) -> None:
        """See that every answer was 200 with the bytes of an artifact of its voice, the same from every API.

        Args:
            turns: returns the fingerprints that must have been served of a voice, in their order.
        """
        for reader in self._readers:
            assert reader.strange == []
            assert reader.etags == self._readers[0].etags
            assert reader.turns == {name: turns(name) for name in self.names}


def test_a_fleet_under_load_keeps_its_bytes_while_encoders_come_go_and_are_promoted(tmp_path: Path):
    """Whichever process is killed, every answer is 200 with the bytes of the current encoder, or of the
    former one while the current one has none. After a rollback, every voice has its former bytes again.
    """
    limit = Limit(tmp_path)
    with (
        with_valkey(tmp_path, TRAINED, apis=2, SPEAKER_JOB_SECONDS="600") as registry,
        RegistryClient(registry.urls[1], cache=None) as client,
    ):
        registry.workers[0].start()
        second, untrained = map(registry.another_worker, (limit.environment, OTHERS[UNTRAINED]))
        names = ready_voices(client, VOICES)
        with Readers(registry.urls, names) as readers:
            come_and_go(client, second, "dtype")
            come_and_go(client, untrained, UNTRAINED)
            second.start()
            wait_until(partial(is_live, client, second), START_SECONDS)
            assert is_candidate(client, "dtype")
            fleet = Fleet(registry, client, second, [*names, "dtype", UNTRAINED])
            assert readers.all_have(fleet.old)
            reached = promote_half_way_and_roll_back(fleet, readers, limit)
            promote_at_the_end_and_roll_back(fleet, readers, limit)
            fleet.assert_each_was_made_once()
            second.kill()
            come_and_go(client, untrained, "untrained-again")
            assert readers.all_have(fleet.old)
        there_and_back = [fleet.old, fleet.new, fleet.old]
        readers.assert_exact(
            lambda name: [*there_and_back, *there_and_back[1:]] if name in reached else there_and_back
        )
        assert (profile_of(client).fingerprint, profile_of(client).former) == (fleet.old, [fleet.new])


def come_and_go(client: RegistryClient, worker: ManagedProcess, voice: str) -> None:
    """Start a worker of another encoder, register a voice beside it, and kill it."""
    worker.start()
    wait_until(partial(is_live, client, worker), START_SECONDS)
    assert fingerprint_of_a_new_voice(client, voice) == profile_of(client).fingerprint
    worker.kill()


def is_live(client: RegistryClient, worker: ManagedProcess) -> bool:
    return any(f"-{worker.pid}-" in one.worker for one in profile_of(client).live_workers)


def promote_half_way_and_roll_back(fleet: Fleet, readers: Readers, limit: Limit) -> Set[str]:
    """Promote the encoder of the candidate when it has made half of the artifacts, kill every process while
    it makes another quarter, and roll back. Returns the voices whose new artifacts were served meanwhile.
    """
    client, old, new = fleet.client, fleet.old, fleet.new
    half, quarter = VOICES // 2, VOICES // 4
    limit.set(half)
    campaign = client.start_campaign(PROFILE, new)
    fleet.ready_of(campaign, half)
    assert readers.all_have(old)
    client.promote_encoder(PROFILE, new)
    reached = readers.names & made(fleet)
    assert readers.all_have(new, reached)
    kill_together(fleet, fleet.registry.workers[0], fleet.registry.apis[0])
    assert readers.all_have(new, reached)
    limit.set(quarter)
    kill_together(fleet, fleet.second, fleet.registry.apis[1])
    wait_until(lambda: len(made(fleet)) == half + quarter, START_SECONDS)
    reached = readers.names & made(fleet)
    wait_until(partial(readers.all_have, new, reached), START_SECONDS)
    assert fleet.until(campaign, "promoted").over
    client.promote_encoder(PROFILE, old)
    assert readers.all_have(old)
    kill_every_process(fleet)
    assert readers.all_have(old)
    return reached


def promote_at_the_end_and_roll_back(fleet: Fleet, readers: Readers, limit: Limit) -> None:
    """Prepare the other voices while every process and connection is killed, promote, and roll back."""
    client, old, new = fleet.client, fleet.old, fleet.new
    limit.set(1)
    campaign = client.start_campaign(PROFILE, new, sample=2)
    kill_every_process(fleet)
    fleet.registry.redis().client_kill_filter(skipme=True)
    limit.set(UNLIMITED)
    ended = fleet.until(campaign, "complete")
    assert (ended.coverage, ended.progress.failed, ended.sample.compared) == (1, 0, 2)
    assert readers.all_have(old)
    for promoted in (new, old):
        client.promote_encoder(PROFILE, promoted)
        assert readers.all_have(promoted)
        kill_every_process(fleet)
        assert readers.all_have(promoted)


def made(fleet: Fleet) -> set[str]:
    """Return the voices that have an artifact of the candidate's encoder in the bucket."""
    documents = (
        SpeakerDocument.parse(path.read_bytes()) for path in fleet.registry.bucket.glob("*/s/*.json")
    )
    return {one.key for one in documents if one.default.artifact(PROFILE, fleet.new) is not None}


def kill_every_process(fleet: Fleet) -> None:
    """Kill the first worker with one API process, and then the candidate's worker with the other one."""
    registry = fleet.registry
    for worker, api in zip((registry.workers[0], fleet.second), registry.apis, strict=True):
        kill_together(fleet, worker, api)


def kill_together(fleet: Fleet, worker: ManagedProcess, api: ManagedProcess) -> None:
    """Kill a worker and an API process, and wait until both are back. The other API process goes on."""
    worker.kill()
    fleet.restart(api)
    worker.start()
    wait_until(partial(is_live, fleet.client, worker), START_SECONDS)
