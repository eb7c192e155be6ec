"""Tests of the limit on names without a voice, without a server and without Redis."""

import pytest

from services.registry_api.access.rate_limits import RateLimits
from services.registry_api.access.unknown_names import UnknownNames
from services.registry_api.protocol.callers import Caller
from services.shared.configuration.access import RateSettings
from speaker_registry.errors import RateLimited

GREEDY, MODEST = (Caller(name, "default", frozenset()) for name in ("greedy", "modest"))


class Counted:
    """Counts in a time that the test gives."""

    def __init__(self, per_minute: int | None) -> None:
        self.time = 6_000.0
        rates = RateLimits(None, RateSettings(), now=lambda: self.time)
        self.names = UnknownNames(rates, per_minute)

    def is_refused(self, caller: Caller) -> bool:
        try:
            self.names.check(caller)
        except RateLimited:
            return True
        return False


def test_a_key_that_asks_for_many_unknown_names_is_refused_until_the_next_minute() -> None:
    """Each of them is a look into the bucket, which serves other callers as well."""
    counted = Counted(2)
    for name in ("a", "b"):
        assert not counted.is_refused(GREEDY)
        counted.names.note(GREEDY, name)
    assert (counted.is_refused(GREEDY), counted.is_refused(MODEST)) == (True, False)
    counted.time += 60
    assert not counted.is_refused(GREEDY)


@pytest.mark.parametrize(("pause", "refused"), [(4.0, False), (6.0, True)])
def test_the_same_name_counts_again_once_it_is_looked_for_again(pause: float, refused: bool) -> None:
    """A client that waits for a voice may ask often: the process remembers for a while that there is none."""
    counted = Counted(2)
    counted.names.note(GREEDY, "a")
    counted.time += pause
    counted.names.note(GREEDY, "a")
    assert counted.is_refused(GREEDY) == refused


def test_nobody_is_limited_where_no_keys_are_required() -> None:
    counted = Counted(None)
    for number in range(5):
        counted.names.note(GREEDY, str(number))
    assert not counted.is_refused(GREEDY)
