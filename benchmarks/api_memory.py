"""Memory of one API process after its start and after uploads, and beside it that of the processes in which
it decodes clips. PSS counts what several processes share by its parts: only it may be added up.
"""

import sys
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
    """In MiB."""

    rss: float
    pss: float

    @classmethod
    def of(cls, *processes: psutil.Process) -> "Memory":
        """Summed. Adding up RSS counts shared pages several times."""
        full = [process.memory_full_info() for process in processes]
        return cls(sum(one.rss for one in full) / 2**20, sum(one.pss for one in full) / 2**20)


def look(pid: int) -> tuple[Memory, Memory, int]:
    """The API process, its decoding processes together, and how many those are."""
    time.sleep(SETTLED_SECONDS)
    api = psutil.Process(pid)
    decoders = api.children(recursive=True)
    return Memory.of(api), Memory.of(*decoders), len(decoders)


def main() -> bool:
    """Print the table. Returns whether the goal is reached, which is one of RSS after the start."""
    clip = CLIP.read_bytes()
    with (
        tempfile.TemporaryDirectory() as folder,
        RegistryProcesses(Path(folder), environment={}) as registry,
    ):
        pid = registry.apis[0].pid or 0
        seen = {"after its start": look(pid)}
        caller = Caller(registry.urls[0])
        for number in range(UPLOADS):
            upload(caller, f"voice-{number}", clip)
        seen[f"after {UPLOADS} uploads"] = look(pid)
    print("| MiB | API: RSS | PSS | decoding: RSS | PSS | processes |\n|---|---|---|---|---|---|")
    for when, (api, decoding, count) in seen.items():
        figures = (api.rss, api.pss, decoding.rss, decoding.pss, count)
        print(f"| {when} | {' | '.join(f'{figure:.0f}' for figure in figures)} |")
    started = seen["after its start"][0].rss
    print(f"\n{started:.0f} MiB after the start, goal ≤ {GOAL_MIB:.0f}: ", end="")
    print("reached" if started <= GOAL_MIB else "missed")
    return started <= GOAL_MIB


if __name__ == "__main__":
    sys.exit(not main())
