"""Random histories of the registry of documents, with all that a store, Redis, clocks and processes do wrong.

`SIMULATION_SEEDS` says how many; `python -m tests.simulation.documents SEED` replays one.
"""

import os
from collections import Counter

import pytest

from tests.simulation.documents.history import run

SEEDS = int(os.environ.get("SIMULATION_SEEDS", "6"))
"""`make test` runs these few on every change, always the same ones; `make soak` a thousand or more."""
SHARES = 2
"""The seeds are dealt to so many tests, so that none runs into its time limit."""


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_history_breaks_a_promise(share: int) -> None:
    """Acknowledged data stays, deleted data stays deleted, nothing that is served ever changes, and at rest
    the view equals the documents.
    """
    happened: Counter[str] = Counter()
    for seed in range(share, SEEDS, SHARES):
        happened.update(run(seed).counts)
    assert happened["commits"]
    assert happened["register done"]
