"""Tests of what a process asks the system for before it promises connections."""

import subprocess
import sys

import pytest

ASK = """
import resource
from services.registry_api.serving.open_files import TooFewFiles, raise_limit_for
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
try:
    print(raise_limit_for({connections}), *resource.getrlimit(resource.RLIMIT_NOFILE))
except TooFewFiles as error:
    print(error)
"""


def said(soft: int, hard: int, connections: int = 2000) -> str:
    """Return the output of a process of its own, because a limit that was given up is not given back."""
    command = [sys.executable, "-c", ASK.format(soft=soft, hard=hard, connections=connections)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@pytest.mark.processes
@pytest.mark.parametrize(
    ("soft", "hard", "found"),
    [
        (1024, 4096, (2000, 2320, 4096)),
        (3000, 4096, (2000, 3000, 4096)),
        (512, 1024, (704, 1024, 1024)),
        (64, 128, (64, 128, 128)),
    ],
    ids=["few at first", "enough", "too few", "hardly any"],
)
def test_a_process_takes_the_files_that_its_connections_need(soft: int, hard: int, found: tuple[int, ...]):
    assert tuple(map(int, said(soft, hard).split())) == found


@pytest.mark.processes
def test_a_process_that_could_not_answer_health_checks_does_not_start():
    """Its connections would take all files, and every request would be cut off without a word."""
    refusal = "This process may open 63 files (ulimit -Hn); at least 64 are needed.\n"
    assert said(40, 63) == refusal
    assert said(40, 63, connections=1) == refusal
