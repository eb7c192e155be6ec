"""Tests of the rules of campaigns."""

import numpy as np
import pytest

from services.registry_api.campaigns.campaign import (
    MAX_WALKS,
    Progress,
    allowed,
    compared,
    paced,
)


def begun_within(rate: float, seconds: int, most: int = 64) -> int:
    """Return how many voices are begun if a turn comes ten times in each second."""
    until, total = 1000.0, 0
    for tenth in range(10 * seconds + 1):
        now = 1000.0 + tenth / 10
        begun = allowed(rate, until, now, most)
        until, total = paced(rate, until, now, begun), total + begun
    return total


@pytest.mark.parametrize("rate", [0.1, 1, 5, 7.5, 200])
def test_a_rate_is_reached_and_not_exceeded(rate: float):
    """An operator relies on it for the load that a campaign adds."""
    assert rate * 20 - 1 <= begun_within(rate, 20) <= rate * 20 + 1


def test_a_campaign_that_stood_still_does_not_catch_up_at_once():
    """After an hour of pause, a rate of 5 means 5 voices in the next second, not 18,000."""
    assert allowed(5, 0.0, 3600.0, 10**6) == 5
    assert allowed(None, 0.0, 3600.0, 64) == 64


def test_a_campaign_is_finished_after_a_walk_that_begins_nothing_or_after_the_last_one():
    """Voices that are registered all the time must not keep a campaign from its end."""
    walked = Progress(walk=1, walked=True, voices=3, ready=3)
    assert walked.finished
    assert walked.complete
    assert not walked.model_copy(update={"begun": 1}).finished
    assert walked.model_copy(update={"begun": 1, "walk": MAX_WALKS}).finished
    assert not walked.model_copy(update={"under_way": {"default/ada": ("1",)}}).finished
    assert not walked.model_copy(update={"failed": 1}).complete


def test_the_rate_and_the_rest_are_told_from_what_was_done():
    """An operator sees when a campaign will be over."""
    begun = Progress(voices=100).measured_now(1000.0)
    assert begun.eta_seconds is None
    later = begun.model_copy(update={"ready": 20}).measured_now(1010.0)
    assert (later.per_second, later.eta_seconds, later.coverage) == (2.0, 40.0, 0.2)
    assert later.model_copy(update={"ready": 30}).measured_now(1011.0).per_second == 2.0


def test_old_and_new_values_are_compared_by_kind():
    """Codes are equal or not, numbers may be near. Other lengths make a distance, and no error."""
    before = {"codes": np.array([[1, 2], [3, 4]], np.int32), "numbers": np.array([1.0, 0.0], np.float32)}
    same = list(compared(before, before))
    assert same == [("codes", "equal", 1.0), ("numbers", "cosine", pytest.approx(1.0))]
    after = {"codes": np.array([[1, 2], [3, 5], [6, 7]], np.int32), "numbers": np.array([0.0, 2.0, 0.0])}
    assert list(compared(before, after)) == [("codes", "equal", 0.5), ("numbers", "cosine", 0.0)]
    assert list(compared({"a": np.zeros(2)}, {"a": np.zeros(2)})) == [("a", "cosine", 1.0)]
