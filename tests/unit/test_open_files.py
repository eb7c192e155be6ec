"""Tests of what a process asks the system for before it promises connections."""

import subprocess
import sys

import pytest

ASK = """
import resource
from services.registry_api.serving.open_files import raise_limit_for
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
print(raise_limit_for(2000), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


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
    """The test uses a process of its own, because a limit that was given up is not given back."""
    command = [sys.executable, "-c", ASK.format(soft=soft, hard=hard)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert tuple(map(int, said.split())) == found
