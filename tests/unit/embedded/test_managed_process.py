"""Tests of when a child that ended is started again, and of what happens to its output."""

import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest

from services.embedded.managed_process import (
    LONGEST_PAUSE_SECONDS,
    STABLE_SECONDS,
    ManagedProcess,
    pause_before_restart,
)

ROOT = Path(__file__).parents[3]
FULL = Path("/dev/full")
"""A file to which every write fails with no space left."""


def test_a_child_that_keeps_ending_is_started_ever_more_rarely():
    """A wrong driver must not keep a core busy loading models for ever."""
    pauses = list(accumulate(range(7), lambda last, _: pause_before_restart(last, lived=0.5), initial=0.0))[
        1:
    ]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS]


def test_a_child_that_ran_well_is_started_again_at_once():
    """One kill after a day is no reason to wait."""
    assert pause_before_restart(LONGEST_PAUSE_SECONDS, lived=STABLE_SECONDS + 1) == 0.0


def test_a_child_is_listened_to():
    """A pipe that nobody empties would stop the child, and the registry with it."""
    heard: list[str] = []
    child = ManagedProcess("child", "this", dict(os.environ), lambda line, _: heard.append(line))
    child.start()
    child.failure_reason()
    child.kill()
    assert heard[0].startswith("The Zen of Python")
    assert len(heard) > 15


def test_what_a_child_is_at_is_no_line_of_the_access_log():
    """While a start takes long, the API is asked ten times a second whether it is up. These requests are not
    shown.
    """
    heard: list[str] = []
    child = ManagedProcess("api", "this", {}, lambda line, _: heard.append(line))
    child._handle_line('{"event": "view.rebuilt", "level": "info", "speakers": 7}')
    child._handle_line('{"event": "request.done", "level": "info", "route": "/v1/profiles", "status": 503}')
    assert "view.rebuilt" in child.last_line
    assert "request.done" not in child.failure_reason()
    assert len(heard) == 2, "shown are all"


@pytest.mark.processes
@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "program",
    [
        "commands._configure_logs(); structlog.get_logger().error('restart.failed', reason='x')",
        "commands._print('stopped; the data stays')",
        "EmbeddedRegistry(EmbeddedSettings(), show=0)._show('a line', 50)",
    ],
)
def test_a_terminal_that_takes_no_more_ends_nothing(program: str):
    """`make run > log` on a disk that is full: what was to be logged is lost, and nothing else."""
    imports = (
        "import structlog\nfrom services.embedded import commands\n"
        "from services.embedded.settings import EmbeddedSettings\n"
        "from services.embedded.supervisor import EmbeddedRegistry\n"
    )
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", f"{imports}{program}\nimport os; os._exit(7)"],
            cwd=ROOT,
            stdout=full,
            stderr=full,
            check=False,
        )
    assert done.returncode == 7
