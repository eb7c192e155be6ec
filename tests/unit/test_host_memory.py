"""Memory that was freed is used again, seen by the pages that the system had to find; and not too much of it
is kept.
"""

import subprocess
import sys

import pytest

PAGES = 64 * 2**20 // 4096


def printed(program: str) -> str:
    """Return what a process of its own prints."""
    imports = "import resource\nfrom services.extractor_worker.device import host_memory\n"
    run = subprocess.run(
        [sys.executable, "-c", imports + program], capture_output=True, check=True, text=True
    )
    return run.stdout


def pages_fetched_again(prepare: str) -> int:
    """Return how many pages the second allocation of 64 MiB fetches; the first has been freed by then."""
    program = f"""
{prepare}
b"x" * {64 * 2**20}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
b"x" * {64 * 2**20}
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    return int(printed(program))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("prepare", "least", "most"),
    [("", PAGES // 2, 2 * PAGES), ("assert host_memory.keep_freed_memory()", 0, PAGES // 20)],
    ids=["by default", "kept"],
)
def test_what_was_freed_is_not_fetched_anew(prepare: str, least: int, most: int) -> None:
    assert least <= pages_fetched_again(prepare) <= most


@pytest.mark.processes
def test_more_than_the_surplus_is_given_back() -> None:
    """Otherwise clips of ever other lengths would leave gaps until the machine has no memory left."""
    program = f"""
host_memory.keep_freed_memory()
b"x" * {256 * 2**20}
held = host_memory._resident_bytes()
print(host_memory.give_back_surplus())
print(host_memory.give_back_surplus(128 * 2**20), host_memory.give_back_surplus(128 * 2**20))
print(held - host_memory._resident_bytes())
"""
    by_default, more_than_half, given_back_bytes = printed(program).splitlines()
    assert by_default == "False"
    assert more_than_half == "True False", "the second time there is none left"
    assert int(given_back_bytes) >= 250 * 2**20
