"""Measures the memory of one API process, and of the processes in which it decodes clips, after its start and
after uploads. PSS divides shared memory among the processes that share it, so only PSS may be added up.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.upload_to_ready import CLIP, Caller, upload
from tests.processes import RegistryProcesses

UPLOADS = 200
SETTLED_SECONDS = 2.0
GOAL_MIB = 120.0


@dataclass(frozen=True)
class Memory:
    """Memory in MiB."""

    rss: float
    pss: float

    @classmethod
    def of(cls, *processes: psutil.Process) -> "Memory":
        """Return the sums over some processes. The sum of RSS counts shared pages several times."""
        full = [process.memory_full_info() for process in processes]
        return cls(sum(one.rss for one in full) / 2**20, sum(one.pss for one in full) / 2**20)


def memory_now(pid: int) -> tuple[Memory, Memory, int]:
    """Return the memory of the API process, that of its decoding processes together, and their number."""
    time.sleep(SETTLED_SECONDS)
    api = psutil.Process(pid)
    decoders = api.children(recursive=True)
    return Memory.of(api), Memory.of(*decoders), len(decoders)


def main() -> bool:
    """Print the table. Returns whether the goal is reached. The goal is for RSS after the start."""
    clip = CLIP.read_bytes()
    with (
        tempfile.TemporaryDirectory() as folder,
        RegistryProcesses(Path(folder), environment={}) as registry,
    ):
        pid = registry.apis[0].pid or 0
        seen = {"after its start": memory_now(pid)}
        caller = Caller(registry.urls[0])
        for number in range(UPLOADS):
            upload(caller, f"voice-{number}", clip)
        seen[f"after {UPLOADS} uploads"] = memory_now(pid)
    print("| MiB | API: RSS | PSS | decoding: RSS | PSS | processes |\n|---|---|---|---|---|---|")
    for when, (api, decoding, count) in seen.items():
        figures = (api.rss, api.pss, decoding.rss, decoding.pss, count)
        print(f"| {when} | {' | '.join(f'{figure:.0f}' for figure in figures)} |")
    started = seen["after its start"][0].rss
    print(f"\n{started:.0f} MiB after the start, goal ≤ {GOAL_MIB:.0f}: ", end="")
    print("reached" if started <= GOAL_MIB else "missed")
    return started <= GOAL_MIB
