"""The fault simulation: random histories of crashes, lost replies, late writes and losses of Redis against
the real code.

`SIMULATION_SEEDS` says how many; `python -m tests.simulation SEED` replays one.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from services.embedded.valkey import ValkeyServer
from tests.simulation.history import Broken, run
from tests.simulation.mistakes import MISTAKES, Mistake
from tests.simulation.overlap import PAIRS, Moment, live_through, moments
from tests.simulation.process import Parts
from tests.simulation.server import ModelledServer, RestartedServer

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "16"))
"""`make test` runs these few on every change, always the same ones; `make soak` a thousand or more."""
SHARES = 8
"""The seeds are dealt to so many tests, so that a failure names a part and none runs into its time limit."""
REALLY_KILLED = 10
"""The number of seeds that see another server really start."""

MOMENTS = 12
"""The number of moments at which Redis is lost in two operations. With as many seeds as `make soak` asks for,
all moments are tried.
"""
SOAKED = SEEDS >= 1000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """One of its own: the histories empty it all the time."""
    with ValkeyServer(tmp_path_factory.mktemp("simulation")) as running:
        yield running


def _live_through(
    seeds: range, server: ValkeyServer, parts: Parts | None = None, odds: Mapping[str, float] | None = None
) -> None:
    """Raises `Broken`, with the seed and what led to it."""
    for seed in seeds:
        run(seed, ModelledServer(server.url), parts, odds)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_history_breaks_a_promise(server: ValkeyServer, share: int) -> None:
    """Acknowledged data stays, deleted data stays deleted, nothing that is served ever changes, and at rest
    all work is done.
    """
    _live_through(range(share, SEEDS, SHARES), server)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nor_where_redis_often_takes_no_writes(server: ValkeyServer) -> None:
    """Its memory is full, or it is a read-only replica: what is refused then was not acknowledged."""
    _live_through(range(max(SEEDS // 10, 8)), server, odds={"redis_takes_no_writes": 0.01})


@pytest.mark.timeout(3600)
def test_nor_is_anything_answered_from_memory_that_was_taken_away(server: ValkeyServer) -> None:
    """Processes hang, die and lose renewals, and Redis is lost, while they answer from memory."""
    answered = 0
    for seed in range(max(SEEDS // 4, 8)):
        answered += run(seed, ModelledServer(server.url), Parts(remembers=True))["answered from memory"]
    assert answered > 20


@pytest.mark.slow
def test_nor_with_a_server_that_is_really_killed(tmp_path: Path) -> None:
    """The model of a replaced server is no kinder than a Valkey that starts on its log, on an old copy of it,
    or on nothing."""
    killed = 0
    for seed in range(REALLY_KILLED):
        with ValkeyServer(tmp_path / str(seed)) as server:
            killed += run(seed, RestartedServer(server))["redis_is_replaced"]
    assert killed >= REALLY_KILLED


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("pair", PAIRS)
def test_redis_may_be_lost_at_every_step_of_two_operations_that_overlap(
    server: ValkeyServer, pair: str
) -> None:
    """Random histories seldom meet the one step at which a loss would do harm."""
    every = list(moments(pair, lambda: ModelledServer(server.url)))
    assert len(every) >= 60  # else one of the operations did nothing
    stride = 1 if SOAKED else len(every) // MOMENTS | 1  # an odd one tries both kinds of loss
    for moment in every[::stride]:
        live_through(moment, ModelledServer(server.url))


def _is_broken(moment: Moment, server: ValkeyServer, wrong: Mistake) -> bool:
    """Return whether a mistake shows at that moment as what it is."""
    try:
        live_through(moment, ModelledServer(server.url), wrong.parts)
    except Broken as broken:
        return re.search(wrong.found_as, str(broken.violation)) is not None
    return False


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", ["numbers are given out again", "what the census does not count is told"])
def test_a_loss_at_a_step_of_two_operations_shows_a_mistake(server: ValkeyServer, mistake: str) -> None:
    """Two operations that overlap would prove as little if nothing could go wrong in them."""
    wrong = MISTAKES[mistake]
    every = moments("an upload and another one", lambda: ModelledServer(server.url))
    # Just before the second one begins.
    emptied = [moment for moment in every if moment.loss == moment.stop and not moment.rolled_back]
    assert any(_is_broken(moment, server, wrong) for moment in emptied)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_seeded_mistake_is_caught(server: ValkeyServer, mistake: str) -> None:
    """A simulation that finds nothing proves nothing: it must find what we know to be wrong, as what it is.
    Other promises that the mistake breaks on the way do not count.
    """
    wrong = MISTAKES[mistake]
    others: list[str] = []
    with ExitStack() as replaced:
        for name, other in wrong.replaced.items():
            replaced.enter_context(patch(name, other))
        for seed in dict.fromkeys([wrong.soonest, *range(wrong.within)]):
            try:
                _live_through(range(seed, seed + 1), server, wrong.parts, wrong.odds)
            except Broken as broken:
                if re.search(wrong.found_as, str(broken.violation)):
                    return
                others.append(f"{seed}: {broken.violation}")
    pytest.fail(f"not found as {wrong.found_as!r}, but as {others}")
