"""Tests of the thread that looks at the generation of the view again and again."""

import threading

import pytest

from services.shared.view import generation as generation_module
from services.shared.view.generation import WATCHING, watched
from speaker_registry.errors import Unavailable
from tests.memory_records import Process
from tests.memory_registry import World
from tests.queue_workers import wait_until


def test_a_generation_is_looked_at_until_the_end_whatever_a_look_raises(monkeypatch: pytest.MonkeyPatch):
    """A process whose thread had ended would go on with a view that is not in use any more. A process that
    ends must not leave the thread behind.
    """
    monkeypatch.setattr(generation_module, "_SERVER_LOOK_SECONDS", 0.001)
    generation = Process(World()).generation
    looks, failures = [0], [Unavailable("Redis is away."), RuntimeError("a mistake of ours")]

    def look() -> None:
        looks[0] += 1
        if failures:
            raise failures.pop(0)

    monkeypatch.setattr(generation, "look", look)
    with watched(generation):
        wait_until(lambda: looks[0] > 3)
        [thread] = [one for one in threading.enumerate() if one.name == WATCHING]
    assert not thread.is_alive()
