"""When a child that ended is started again."""

from itertools import accumulate

from services.embedded.children import LONGEST_PAUSE_SECONDS, STEADY_SECONDS, pause_before_restart


def test_a_child_that_keeps_ending_is_started_ever_more_rarely():
    """A wrong driver must not keep a core busy loading models for ever."""
    pauses = list(accumulate(range(7), lambda last, _: pause_before_restart(last, lived=0.5), initial=0.0))[
        1:
    ]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_a_child_that_ran_well_is_started_again_at_once():
    """One kill after a day is no reason to wait."""
    assert pause_before_restart(LONGEST_PAUSE_SECONDS, lived=STEADY_SECONDS + 1) == 0.0
