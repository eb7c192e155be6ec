"""Tests of the rule that begins an index after every place that was assigned before (`lua/open.lua`), on a
real Valkey whose index is lost again and again. Nothing that is reserved here ever lands, so no fact can
help.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import pytest
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.bucket.keys import LAST_SEQ, SpeakerId
from services.shared.index.gate import BOOT, ClockWrong
from services.shared.index.refusals import CensusDue
from services.shared.index.speaker_index import SpeakerIndex, speaker_key
from services.shared.model.domain import Speaker
from tests.integration.storage import NoEpochs

ALICE = SpeakerId("default", "alice")
NOON = 1_800_000_000.5
HOUR = 3600


@dataclass
class Registry:
    """A registry's processes on one server, whose clocks show the same time."""

    url: str
    raw: Redis
    now: float = NOON

    def __post_init__(self) -> None:
        self.given: list[int] = []
        """Every place that was assigned, in that order."""
        self._opened: list[SpeakerIndex] = []

    def process(self) -> SpeakerIndex:
        """Return a process that knows nothing yet."""
        index = SpeakerIndex(self.url, "a bucket", lambda _: Speaker(), NoEpochs(), clock=lambda: self.now)
        self._opened.append(index)
        return index

    def reserve(self, index: SpeakerIndex, count: int) -> None:
        for number in range(count):
            self.given.append(self._reserve(index, f"{len(self.given)}-{number}"))

    def _reserve(self, index: SpeakerIndex, vuid: str) -> int:
        try:
            return index.reserve_version(ALICE, max_speakers=9, immutable=False, vuid=vuid).seq
        except CensusDue:
            begun = index.begin_census(ALICE)
            assert begun
            index.end_census(ALICE, begun[0])
            return self._reserve(index, vuid)

    def check(self) -> None:
        """Check that no place was assigned twice and later ones come later, which a census relies on."""
        assert all(before < after for before, after in pairwise(self.given))

    def close(self) -> None:
        for index in self._opened:
            index.close()


@pytest.fixture
def registry(valkey: ValkeyServer, redis_client: Redis) -> Iterator[Registry]:
    registry = Registry(valkey.url, redis_client)
    yield registry
    registry.close()


@pytest.mark.parametrize(("seconds", "places", "finally_new"), [(0.05, 3, False), (1, 90, True)])
def test_losses_in_quick_succession_give_no_place_twice(
    registry: Registry, seconds: float, places: int, finally_new: bool
):
    """Losses in quick succession assign no place twice. Of several losses within one second, the process that
    begins the next index knows. Losses one second apart leave the epoch at the clock, so a new process that
    knows of none of them begins after all of them too.
    """
    index = registry.process()
    for _ in range(40):
        registry.reserve(index, places)
        registry.raw.flushall()
        registry.now += seconds
    registry.reserve(registry.process() if finally_new else index, 3)
    registry.check()


@pytest.mark.parametrize("hours", [0.01, 1, 24])
@pytest.mark.parametrize("known_to", ["caller", "server"])
def test_a_clock_that_was_set_back_gives_no_place_twice(registry: Registry, hours: float, known_to: str):
    """A clock that was set back assigns no place twice. The epoch of the last index is ahead of the clock,
    and that index may have assigned many places.
    """
    index = registry.process()
    registry.reserve(index, 250)
    for _ in range(3):
        registry.now -= hours * HOUR
        if known_to == "caller":
            registry.raw.flushall()
        else:  # a server that was restarted, and a process that was too
            registry.raw.delete(BOOT, speaker_key(ALICE))
            index = registry.process()
        registry.reserve(index, 250)
    registry.check()


def test_an_epoch_that_only_the_caller_knows_counts(registry: Registry):
    """An epoch that only the caller knows counts: the server was rolled back to before it, and the clock was
    set back.
    """
    index = registry.process()
    registry.reserve(index, 3)
    older = int(registry.raw.get("sr:base") or 0)
    registry.now += HOUR
    registry.raw.flushall()
    registry.reserve(index, 3)
    registry.now -= HOUR
    registry.raw.flushall()
    registry.raw.set("sr:base", older)
    registry.reserve(index, 3)
    registry.check()
    assert index.epoch > older + 100 * HOUR


def test_a_clock_beyond_the_last_place_begins_no_index(registry: Registry):
    """A clock beyond the last place begins no index. One process whose clock is centuries ahead would
    otherwise leave no place for the others, for good.
    """
    registry.now, noon = LAST_SEQ / 100, registry.now
    with pytest.raises(ClockWrong, match="centuries ahead"):
        registry.process().open()
    with pytest.raises(ClockWrong):
        registry.reserve(registry.process(), 1)
    registry.now = noon
    index = registry.process()
    registry.reserve(index, 1)
    assert index.epoch == int(noon) * 100
