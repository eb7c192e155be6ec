"""vLLM-Omni's clients run unchanged against the registry as it is deployed, too: the tests of
`test_compatibility.py`, with two API processes and two workers behind the proxy; and the same while again and
again one of the API processes is killed and replaced.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api import test_compatibility as compatibility
from tests.integration.api.proxied import ProxiedRegistry
from tests.queue_workers import wait_until

pytestmark = pytest.mark.slow

globals().update({name: test for name, test in vars(compatibility).items() if name.startswith("test_")})

STEADY, REPLACED = "steady", "while a replica is replaced"


@pytest.fixture(scope="module", params=[STEADY, REPLACED])
def weather(request: pytest.FixtureRequest) -> str:
    weather: str = request.param
    return weather


KILLED_EACH = 4
"""Of so many tests at least one has a replica killed just before it, and waits until that can be."""


@pytest.fixture(scope="module")
def attempts() -> list[bool]:
    """Whether a replica could be killed, test by test."""
    return []


@pytest.fixture(scope="module")
def shared(
    weather: str, attempts: list[bool], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxiedRegistry]:
    attempts.clear()
    with ProxiedRegistry(tmp_path_factory.mktemp("composed")) as running:
        if weather == REPLACED:
            wait_until(running.composed.kill_a_replica, 60)
        yield running
        assert running.composed.denied() == [], "Redis' own user lacks a right"
        assert sum(attempts) >= len(attempts) // KILLED_EACH, "hardly a replica was killed: nothing is shown"


@pytest.fixture
def registry(shared: ProxiedRegistry, weather: str, attempts: list[bool]) -> ProxiedRegistry:
    """A replica is killed just before the test, and comes back during it, if the last one is back."""
    if weather == REPLACED:
        if len(attempts) % KILLED_EACH == KILLED_EACH - 1 and not any(attempts[1 - KILLED_EACH :]):
            wait_until(shared.composed.kill_a_replica, 60)
            attempts.append(True)
        else:
            attempts.append(shared.composed.kill_a_replica())
    return shared


@pytest.fixture
def start(weather: str, tmp_path: Path) -> Iterator[Callable[..., ProxiedRegistry]]:
    """Starts registries with nothing in them, for this test alone."""
    numbers = count()
    with ExitStack() as stack:

        def make(**settings: Any) -> ProxiedRegistry:
            folder = tmp_path / str(next(numbers))
            folder.mkdir()
            running = stack.enter_context(ProxiedRegistry(folder, **settings))
            if weather == REPLACED:
                wait_until(running.composed.kill_a_replica, 60)
            return running

        yield make
