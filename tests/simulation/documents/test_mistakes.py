"""Each rule that is broken on purpose must be found by a history, as what it is."""

import re

import pytest

from tests.simulation.documents.history import Broken, run
from tests.simulation.documents.mistakes import MISTAKES


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_seeded_mistake_is_caught(mistake: str) -> None:
    """A simulation that finds nothing proves nothing. Other promises that the mistake breaks on the way do
    not count.
    """
    wrong = MISTAKES[mistake]
    others: list[str] = []
    with wrong.made():
        for seed in dict.fromkeys([wrong.soonest, *range(wrong.within)]):
            try:
                run(seed, theme=wrong.theme, steps=wrong.steps)
            except Broken as broken:
                if re.search(wrong.found_as, str(broken.violation)):
                    return
                others.append(f"{seed}: {broken.violation}")
    pytest.fail(f"not found as {wrong.found_as!r}, but as {others}")
