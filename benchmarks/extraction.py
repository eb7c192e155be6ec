"""Compares our extractors with the code with which engines themselves encode a voice: time, memory, and the
share of what the machine could do. It runs only by name (`python -m benchmarks extraction`), because it takes
hours on a CPU.

Environment:
    REFERENCE_PYTHON: an interpreter with the reference packages, as the docstrings of tools/make_*_goldens.py
        say. Without it only our extractors are measured.
    REFERENCE_PYTHON_QWEN: an interpreter for qwen-tts, which needs another transformers than the rest.
    EXTRACTION_*: `Settings`.
"""

import fcntl
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from benchmarks.encoder_timing import MARK, TURN, Load
from services.extractor_worker.engines.catalogue import BUILT_IN as EXTRACTORS
from services.shared.model.profiles import BUILT_IN

ROOT = Path(__file__).parents[1]
TURNS = Path(__file__)
"""The file that processes lock while they load or measure. Any file would do."""
SEED = 1
ONE_SECONDS = 10.0
SHORTEST_SECONDS = 1.0
GOALS_ONE = {"cpu": 1.15, "cuda": 2.0}
"""Goal for the speed of one clip, for those profiles that have such a goal."""
GOALS_MIXED = {"cpu": 1.1, "cuda": 4.0}
WITH_GOAL_FOR_ONE = ("qwen3-tts-0.6b", "qwen3-tts-1.7b")
NOT_MEASURED = "not measured"


class Settings(BaseSettings):
    """The profiles, clips and limits of a run. Environment: EXTRACTION_*."""

    model_config = SettingsConfigDict(env_prefix="EXTRACTION_", env_ignore_empty=True, frozen=True)

    profiles: str = ""
    """Comma-separated profiles. By default, all that have an extractor."""
    device: str = Field("cpu", pattern="cpu|cuda")
    clips: int = Field(64, gt=0)
    """Number of clips of mixed length."""
    seconds: float = Field(30.0, ge=SHORTEST_SECONDS)
    """Length of the longest clip."""
    limit_seconds: float = Field(3600.0, gt=0)
    """Time limit for one side of one profile. What was measured by then counts."""
    loaded_at_once: int = Field(1, gt=0)
    """Number of processes that load their encoders side by side. Each is measured alone nevertheless, when
    none of the others loads or measures, and its time limit includes the waiting."""
    reference_python: Path | None = Field(None, validation_alias="REFERENCE_PYTHON")
    reference_python_qwen: Path | None = Field(None, validation_alias="REFERENCE_PYTHON_QWEN")

    @property
    def names(self) -> list[str]:
        return self.profiles.split(",") if self.profiles else list(EXTRACTORS)

    def load(self, profile: str) -> Load:
        """Return the clips for a profile. Only their sample rate depends on the profile."""
        lengths = random.Random(SEED)
        return Load(
            sample_rate=BUILT_IN[profile].sample_rate,
            one_seconds=min(ONE_SECONDS, self.seconds),
            mixed_seconds=tuple(lengths.uniform(SHORTEST_SECONDS, self.seconds) for _ in range(self.clips)),
            device=self.device,
        )

    def reference_for(self, profile: str) -> Path | None:
        return self.reference_python_qwen if profile.startswith("qwen3-tts") else self.reference_python


@dataclass(frozen=True)
class Measured:
    """The measurements of one encoder. None means not measured; `problem` may say why."""

    one_seconds: float | None = None
    mixed_seconds: float | None = None
    peak_mib: float | None = None
    gflop: float | None = None
    """Arithmetic that the one clip takes."""
    problem: str = ""


def child(
    python: Path | str, limit_seconds: float, module: str, *arguments: str
) -> tuple[dict[str, Any], str]:
    """Measure in a process of its own. The result says what went wrong, if anything.

    The process inherits a shared lock, which all hold that load, and exchanges it for an exclusive one before
    it measures (`encoder_timing.wait_for_turn`). The lock ends with the process.
    """
    command = [str(python), "-m", f"benchmarks.{module}", *arguments]
    with TURNS.open() as turns:
        fcntl.flock(turns, fcntl.LOCK_SH)
        return _ran(command, limit_seconds, turns.fileno())


def _ran(command: Sequence[str], limit_seconds: float, turn: int) -> tuple[dict[str, Any], str]:
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            capture_output=True,
            timeout=limit_seconds,
            check=False,
            pass_fds=[turn],
            env={**os.environ, TURN: str(turn)},
        )
    except subprocess.TimeoutExpired as error:
        return results_in(error.stdout or b""), f"took longer than {limit_seconds:.0f} s"
    except OSError as error:
        return {}, f"{command[0]} does not start: {error.strerror}"
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    problem = (lines[-1:] or [f"exit status {done.returncode}"])[0] if done.returncode else ""
    return results_in(done.stdout), problem


def results_in(output: bytes) -> dict[str, Any]:
    """Return the results in all complete lines that hold one."""
    results: dict[str, Any] = {}
    for line in output.decode(errors="replace").splitlines(keepends=True):
        if line.startswith(MARK) and line.endswith("\n"):
            results |= json.loads(line.removeprefix(MARK))
    return results


def ours(profile: str, settings: Settings) -> Measured:
    load = settings.load(profile).to_json()
    results, problem = child(sys.executable, settings.limit_seconds, "own_encoders", profile, load)
    return Measured(**results, problem=problem)


def reference(profile: str, settings: Settings) -> Measured:
    python, load = settings.reference_for(profile), settings.load(profile).to_json()
    if python is None:
        return Measured()
    results, problem = child(python, settings.limit_seconds, "reference_encoders", profile, load)
    return Measured(**results, problem=problem)


# --- the table


HEAD = """\
| profile | one clip, ms: ours | reference | ratio | mixed, clips/s: ours | reference | ratio \
| MiB: ours | reference | of the machine's rate | goal |
|---|---|---|---|---|---|---|---|---|---|---|"""


def ratio(own: float | None, theirs: float | None) -> float | None:
    """Return how many times as fast as the reference we are."""
    return theirs / own if own and theirs else None


def verdict(profile: str, device: str, own: Measured, theirs: Measured) -> str:
    """Return `reached` or `missed`, if everything that has a goal was measured."""
    held = [(ratio(own.mixed_seconds, theirs.mixed_seconds), GOALS_MIXED[device])]
    if profile in WITH_GOAL_FOR_ONE:
        held.append((ratio(own.one_seconds, theirs.one_seconds), GOALS_ONE[device]))
    if any(found is not None and found < goal for found, goal in held):
        return "missed"
    return NOT_MEASURED if any(found is None for found, _ in held) else "reached"


def share_of_floor(own: Measured, gflops: float | None) -> float | None:
    """Return the time that the arithmetic needs at the machine's rate, divided by the time that it took."""
    return own.gflop / gflops / own.one_seconds if own.gflop and gflops and own.one_seconds else None


def row(profile: str, settings: Settings, own: Measured, theirs: Measured, gflops: float | None) -> str:
    def rate(measured: Measured) -> float | None:
        return settings.clips / measured.mixed_seconds if measured.mixed_seconds else None

    share = share_of_floor(own, gflops)
    cells = [
        profile,
        shown(own.one_seconds, scale=1e3),
        shown(theirs.one_seconds, scale=1e3),
        shown(ratio(own.one_seconds, theirs.one_seconds), digits=2, absent="–"),
        shown(rate(own), digits=2),
        shown(rate(theirs), digits=2),
        shown(ratio(own.mixed_seconds, theirs.mixed_seconds), digits=2, absent="–"),
        shown(own.peak_mib),
        shown(theirs.peak_mib),
        "–" if share is None else f"{share:.0%}",
        verdict(profile, settings.device, own, theirs),
    ]
    return f"| {' | '.join(cells)} |"


def shown(value: float | None, *, scale: float = 1.0, digits: int = 0, absent: str = NOT_MEASURED) -> str:
    return absent if value is None else f"{value * scale:,.{digits}f}"


def heading(settings: Settings, machine: Mapping[str, Any]) -> str:
    load = settings.load(settings.names[0])
    return (
        f"One clip of {load.one_seconds:g} s; {settings.clips} clips of {SHORTEST_SECONDS:g} to "
        f"{settings.seconds:g} s, {sum(load.mixed_seconds):.0f} s in all. Random weights, float32, "
        f"{settings.device}, torch {machine.get('torch')}, {machine.get('threads')} threads; the machine "
        f"attains {machine.get('gflops', 0):,.0f} GFLOP/s.\n"
    )


def measured(settings: Settings) -> Iterator[tuple[str, Measured, Measured]]:
    """Measure both sides of each profile, and yield them in the order of the profiles."""
    with ThreadPoolExecutor(settings.loaded_at_once) as pool:
        sides = [
            (name, pool.submit(ours, name, settings), pool.submit(reference, name, settings))
            for name in settings.names
        ]
        for name, own, theirs in sides:
            yield name, own.result(), theirs.result()


def main() -> bool:
    """Print the table. Returns False if a goal was missed. A goal without its reference is not missed."""
    settings = Settings()
    machine, problem = child(sys.executable, settings.limit_seconds, "encoder_timing", settings.device)
    problems = [f"the machine's rate: {problem}"] if problem else []
    good = not problem
    print(f"{heading(settings, machine)}\n{HEAD}", flush=True)
    for profile, own, theirs in measured(settings):
        print(row(profile, settings, own, theirs, machine.get("gflops")), flush=True)
        good &= not own.problem and verdict(profile, settings.device, own, theirs) != "missed"
        problems += problems_of(profile, own, theirs)
    print("".join(f"\n{problem}" for problem in problems))
    return good


def problems_of(profile: str, own: Measured, theirs: Measured) -> Sequence[str]:
    sides = {"ours": own, "reference": theirs}
    return [f"{profile}, {side}: {one.problem}" for side, one in sides.items() if one.problem]
