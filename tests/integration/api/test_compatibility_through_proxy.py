"""Tests that vLLM-Omni's clients also run unchanged against the registry as it is deployed. They are the
tests of `test_compatibility.py`, with two API processes and two workers behind the proxy, once undisturbed
and once while the API processes are killed and replaced again and again.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.integration.api import test_compatibility as compatibility
from tests.integration.api.proxied import ProxiedRegistry
from tests.integration.api.registry import Registry
from tests.queue_workers import wait_until

pytestmark = pytest.mark.slow

globals().update({name: test for name, test in vars(compatibility).items() if name.startswith("test_")})

STEADY, REPLACED = "steady", "while a replica is replaced"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that starts a registry with settings of its own only while a replica is replaced, because
    the start takes long.
    """
    weathers = [REPLACED] if "start" in metafunc.fixturenames else [STEADY, REPLACED]
    metafunc.parametrize("weather", weathers, scope="module")


KILLED_EACH = 4
"""At least one of this many tests has a replica killed just before it, and waits until that is possible."""


@pytest.fixture(scope="module")
def attempts() -> list[bool]:
    """Return a list that says test by test if a replica could be killed."""
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
    """Return the registry. A replica is killed just before the test, and comes back during it, if the
    previous one is back.
    """
    if weather == REPLACED:
        if len(attempts) % KILLED_EACH == KILLED_EACH - 1 and not any(attempts[1 - KILLED_EACH :]):
            wait_until(shared.composed.kill_a_replica, 60)
            attempts.append(True)
        else:
            attempts.append(shared.composed.kill_a_replica())
    return shared


@pytest.fixture
def start(shared: ProxiedRegistry, tmp_path: Path) -> Iterator[Callable[..., Registry]]:
    """Start registries for this test alone. Without settings, it is a namespace of the shared one, which is
    just as empty.
    """
    with ExitStack() as stack:

        def make(**settings: Any) -> Registry:
            if not settings:
                return stack.enter_context(shared.empty_namespace())
            running = stack.enter_context(ProxiedRegistry(tmp_path, **settings))
            wait_until(running.composed.kill_a_replica, 60)
            return running

        yield make
