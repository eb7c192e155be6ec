"""Memory that was freed is used again: seen by the pages that the system had to find."""

import subprocess
import sys

import pytest

PAGES = 64 * 2**20 // 4096


def pages_fetched_again(prepare: str) -> int:
    """By the second allocation of 64 MiB, in a process of its own; the first has been freed by then."""
    program = f"""
import resource
from services.extractor_worker.host_memory import keep_freed_memory
{prepare}
b"x" * {64 * 2**20}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * {64 * 2**20}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    run = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, check=True, text=True)
    return int(run.stdout)


@pytest.mark.parametrize(
    ("prepare", "least", "most"),
    [("", PAGES // 2, 2 * PAGES), ("assert keep_freed_memory()\nkeep_freed_memory()", 0, PAGES // 20)],
    ids=["by default", "kept"],
)
def test_what_was_freed_is_not_fetched_anew(prepare: str, least: int, most: int) -> None:
    assert least <= pages_fetched_again(prepare) <= most
