"""Tests of how the benchmark of campaigns follows one: it must end, whatever goes wrong."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.campaign import Watch
from speaker_registry.errors import Unavailable
from tests.queue_workers import wait_until


def watch(look: Callable[[str, str], Any]) -> Watch:
    """Watch a campaign of which nothing is prepared, and which is looked at by this function."""
    client: Any = SimpleNamespace(campaign=look)
    campaign: Any = unprepared()
    worker: Any = None
    return Watch(client, campaign, worker)


def unprepared(*_: str) -> SimpleNamespace:
    return SimpleNamespace(id="campaign_1", over=False, progress=SimpleNamespace(ready=0))


def test_the_benchmark_ends_with_the_error_of_the_thread_that_follows_the_campaign():
    """Nobody else notices the end of the campaign, so the benchmark would go on for ever."""

    def fail(*_: str) -> None:
        raise Unavailable("the registry is away")

    with watch(fail) as watching, pytest.raises(Unavailable, match="the registry is away"):
        wait_until(lambda: watching.over)


def test_an_error_of_the_benchmark_ends_it_although_the_campaign_goes_on():
    """An error may leave the campaign paused, which is never over."""
    with pytest.raises(ZeroDivisionError), watch(unprepared):
        raise ZeroDivisionError
