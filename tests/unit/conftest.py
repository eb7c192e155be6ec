"""Shared parts of the unit tests: a registry in memory."""

import pytest

from tests.memory_registry import Registry, World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def registry(world: World) -> Registry:
    return world.process()
