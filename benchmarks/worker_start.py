"""Measures the start of a worker, from `exec` until it serves, beside an interpreter that imports the same
encoders with their libraries and does nothing else.

The worker has untrained weights and proofs that a first start has remembered; Valkey and the bucket are on
this machine. Each run starts both, one after the other. Environment: `START_PROFILES` (comma-separated).
"""

import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from subprocess import Popen

from services.extractor_worker.engines.catalogue import BUILT_IN
from tests.processes import RegistryProcesses

PROFILES = os.environ.get("START_PROFILES", "ecapa-voxceleb")
RUNS = 5
GOAL_SECONDS = 5.0
LIMIT_SECONDS = 300.0
_WORKER = ("-m", "services.extractor_worker")
_READY = "worker.ready"


@dataclass(frozen=True)
class StartTime:
    """The wall time and the processor time of a start, in seconds."""

    wall: float
    processor: float


def main() -> bool:
    """Print the table. Returns whether the worker serves soon enough."""
    with tempfile.TemporaryDirectory() as folder:
        registry = RegistryProcesses(Path(folder), apis=0, workers=0)
        registry.bucket.mkdir()
        registry.valkey.start()
        try:
            starts = _measured(Path(folder), registry)
        finally:
            registry.close()
    print(f"| median of {RUNS} | wall, s | processor, s |")
    print("|---|---|---|")
    for name, runs in starts.items():
        print(f"| {name} | {_median(runs).wall:.2f} | {_median(runs).processor:.2f} |")
    worker, reference = map(_median, starts.values())
    print(f"| ratio | {worker.wall / reference.wall:.2f} | {worker.processor / reference.processor:.2f} |")
    return worker.wall <= GOAL_SECONDS


def _measured(folder: Path, registry: RegistryProcesses) -> dict[str, list[StartTime]]:
    environment = os.environ | {
        "SPEAKER_STORE_URL": registry.bucket.as_uri(),
        "SPEAKER_REDIS_URL": registry.valkey.url,
        "SPEAKER_PROFILES": PROFILES,
        "SPEAKER_EXTRACTOR_WEIGHTS": "untrained",
        "SPEAKER_EXTRACTOR_CACHE": str(folder / "cache"),
        "SPEAKER_WORKER_BEAT_FILE": str(folder / "beat"),
    }
    modules = sorted({BUILT_IN[name].partition(":")[0] for name in PROFILES.split(",")})
    starts: dict[str, list[StartTime]] = {f"worker with {PROFILES}": [], "import of its encoders alone": []}
    worker, reference = starts.values()
    for number in range(RUNS + 1):
        served = _start(_WORKER, folder / "log", environment, _READY)
        imported = _start(("-c", f"import {', '.join(modules)}"), folder / "log", environment, "")
        if number:  # the first start makes the proofs and fills the machine's cache of files
            worker.append(served)
            reference.append(imported)
    return starts


def _start(words: tuple[str, ...], log: Path, environment: dict[str, str], ready: str) -> StartTime:
    """Run a process until it has logged `ready`, or has ended if that is empty, and end it."""
    with log.open("wb") as output:
        began = time.monotonic()
        process = Popen([sys.executable, *words], env=environment, stdout=output, stderr=output)
        while not (ended := _has_ended(process.pid)) and not (ready and ready in log.read_text()):
            if time.monotonic() - began > LIMIT_SECONDS:
                break
            time.sleep(0.01)
        wall = time.monotonic() - began
        os.kill(process.pid, signal.SIGKILL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if ended == bool(ready):
        raise RuntimeError(log.read_text())
    return StartTime(wall, usage.ru_utime + usage.ru_stime)


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended. It is not reaped, so that its processor time can still be read."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _median(runs: list[StartTime]) -> StartTime:
    return StartTime(median(run.wall for run in runs), median(run.processor for run in runs))


if __name__ == "__main__":
    main()
