"""Sends two API processes twice the requests that they can serve, and half of that for ten minutes.

The requests are a mix of those of engines, dashboards and uploaders. The callers run on the same two cores.
Afterwards every acknowledged upload must be there.
"""

import asyncio
import itertools
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.http_load import Answer, Ask, Load, stream
from benchmarks.upload_to_ready import FORM, form, p99
from tests.processes import PROFILE, RegistryProcesses
from tests.unit.audio import clips

VOICES = 200
SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "20"))
"""Length of each phase."""
MINUTES = float(os.environ.get("OVERLOAD_MINUTES", "10"))
"""Length of the mixed load."""
UPLOAD_SHARE = 0.02
GOAL_REFUSAL_SECONDS = 0.05
"""Time within which 99 of 100 refusals must come."""
GOAL_RECOVERED = 0.98
"""Least share of half the load that must be served directly after twice the load."""
GOAL_GROWTH = 1.05
"""Largest growth of memory after the first third of the minutes."""
SERVED, REFUSED = (200, 202, 304), (429, 503)
CLIP = clips.wav(1.2)
MIB = 1024**2


def mix(tags: dict[str, str], phase: str) -> Any:
    """Return a function that makes requests. Each upload is of a new voice."""
    numbers = itertools.count()

    def next_ask(lucky: random.Random) -> Ask:
        name, draw = f"voice-{lucky.randrange(VOICES)}", lucky.random()
        path = f"/v1/voices/{name}/versions/default/artifacts/{PROFILE}"
        if draw < UPLOAD_SHARE:
            body = form(f"load-{phase}-{next(numbers)}", CLIP)
            content_type = f"Content-Type: {FORM['Content-Type']}\r\n"
            return Ask("upload", "POST /v1/audio/voices", content_type, body, keep=True)
        if draw < 0.5:
            return Ask("revalidate", f"GET {path}/file", f"If-None-Match: {tags[name]}\r\n")
        if draw < 0.8:
            return Ask("file", f"GET {path}/file")
        if draw < 0.95:
            return Ask("descriptor", f"GET {path}")
        return Ask("page", "GET /v1/voices?limit=20")

    return next_ask


def prepare(registry: RegistryProcesses) -> dict[str, str]:
    """Make voices with artifacts. Returns the ETags of their files."""
    tags = {}
    with httpx.Client(base_url=registry.urls[0], timeout=60) as client:
        for number in range(VOICES):
            name = f"voice-{number}"
            client.post("/v1/audio/voices", content=form(name, CLIP), headers=FORM).raise_for_status()
        for number in range(VOICES):
            path = f"/v1/voices/voice-{number}/versions/default/artifacts/{PROFILE}/file?wait=60"
            tags[f"voice-{number}"] = client.get(path).headers["ETag"]
    return tags


class Generator:
    """Sends requests from a process of its own. This process reads the logs of the registry's processes,
    which would stop if their logs were not read.
    """

    def __init__(self, urls: Sequence[str], tags: dict[str, str]) -> None:
        self._urls = tuple(urls)
        self._tags = tags
        self._phases = itertools.count()

    def run(self, per_second: float, seconds: float, connections: int) -> Load:
        phase = str(next(self._phases))
        arguments = (self._urls, self._tags, phase, per_second, seconds, connections)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
            return process.submit(_generate, *arguments).result()


def _generate(
    urls: Sequence[str],
    tags: dict[str, str],
    phase: str,
    per_second: float,
    seconds: float,
    connections: int,
) -> Load:
    return asyncio.run(
        stream(urls, mix(tags, phase), per_second=per_second, seconds=seconds, connections=connections)
    )


def lost(registry: RegistryProcesses, load: Load) -> list[str]:
    """Return the voices whose upload was acknowledged and that are missing."""
    acknowledged = [
        json.loads(answer.body)["voice"]["name"]
        for answer in load.of(200)
        if answer.kind == "upload" and answer.body
    ]
    with httpx.Client(base_url=registry.urls[0], timeout=60) as client:
        return [name for name in acknowledged if client.get(f"/v1/voices/{name}").status_code != 200]


def milliseconds(answers: Sequence[Answer]) -> str:
    if len(answers) < 2:
        return "– | –"
    median = statistics.median(answer.seconds for answer in answers)
    return f"{1e3 * median:.1f} | {1e3 * p99_seconds(answers):.1f}"


def row(name: str, offered: float, load: Load) -> str:
    return (
        f"| {name} | {offered:,.0f} | {load.rate(*SERVED):,.0f} | {milliseconds(load.of(*SERVED))} "
        f"| {load.rate(*REFUSED):,.0f} | {milliseconds(load.of(*REFUSED))} | {_other(load)} |"
    )


def family(registry: RegistryProcesses) -> list[psutil.Process]:
    """Return the API processes and the processes that decode for them."""
    apis = [psutil.Process(child.pid) for child in registry.apis]
    return [process for api in apis for process in (api, *api.children(recursive=True))]


def of_family(registry: RegistryProcesses, measure: Callable[[psutil.Process], float]) -> float:
    """Return the sum over all of these processes that still run."""
    total = 0.0
    for process in family(registry):
        with suppress(psutil.NoSuchProcess):
            total += measure(process)
    return total


def resident(registry: RegistryProcesses) -> float:
    """Return the memory of all of these processes in MiB."""
    return of_family(registry, lambda process: process.memory_info().rss) / MIB


def processor_seconds(registry: RegistryProcesses) -> float:
    """Return the processor time of all of these processes, including those that have ended."""
    return of_family(registry, lambda process: sum(process.cpu_times()[:4]))


def overload(registry: RegistryProcesses, generator: Generator) -> tuple[float, list[str]]:
    """Return the capacity in requests a second, and the goals that were missed."""
    print("| phase | offered/s | served/s | median ms | p99 ms | refused/s | median ms | p99 ms | other |")
    print("|---|---|---|---|---|---|---|---|---|")
    before = processor_seconds(registry)
    full = generator.run(float("inf"), SECONDS, 32)
    taken = processor_seconds(registry) - before
    capacity = full.rate(*SERVED)
    print(row("as fast as answers come, 32 callers", capacity, full), flush=True)
    half = generator.run(capacity / 2, SECONDS, 256)
    print(row("half of that", capacity / 2, half), flush=True)
    twice = generator.run(capacity * 2, SECONDS, 1000)
    print(row("twice that", capacity * 2, twice), flush=True)
    after = generator.run(capacity / 2, SECONDS, 256)
    print(row("half of that again, directly afterwards", capacity / 2, after), flush=True)
    missing = [name for load in (full, half, twice, after) for name in lost(registry, load)]
    print(f"\nAcknowledged uploads that are missing afterwards: {len(missing)}.")
    refused = twice.of(*REFUSED)
    soon = sum(answer.seconds <= GOAL_REFUSAL_SECONDS for answer in refused)
    print(f"Of {len(refused)} refusals at twice the rate, {soon} came within {GOAL_REFUSAL_SECONDS} s.")
    print(f"The API takes {1e3 * taken / len(full.answers):.2f} ms of a processor for a request.")
    return capacity, [
        what
        for what, missed in {
            "refusals take too long": p99_seconds(twice.of(*REFUSED)) > GOAL_REFUSAL_SECONDS,
            "an acknowledged upload is missing": bool(missing),
            "some requests are neither served nor refused": any(
                _other(load) for load in (half, twice, after)
            ),
            "it does not recover": after.rate(*SERVED) < GOAL_RECOVERED * capacity / 2,
        }.items()
        if missed
    ]


def _other(load: Load) -> int:
    """Return the number of requests that were neither served nor refused: 5xx, broken connections, unsent."""
    return len(load.answers) - len(load.of(*SERVED)) - len(load.of(*REFUSED)) + load.unsent


def p99_seconds(answers: Sequence[Answer]) -> float:
    """Return the 99th percentile, or 0 if nothing was measured."""
    return p99([answer.seconds for answer in answers]) if len(answers) > 1 else 0.0


def soak(registry: RegistryProcesses, generator: Generator, capacity: float) -> list[str]:
    """Measure memory minute by minute. Returns the goals that were missed."""
    shown = [resident(registry)]
    missing: list[str] = []
    for _ in range(round(MINUTES)):
        began = time.monotonic()
        load = generator.run(capacity / 2, 60, 64)
        shown.append(resident(registry))
        missing += lost(registry, load)
        served, refused = load.rate(*SERVED), load.rate(*REFUSED)
        print(
            f"{served:,.0f}/s served, {refused:,.0f}/s refused, {_other(load)} other, {shown[-1]:.0f} MiB "
            f"after {time.monotonic() - began:.0f} s",
            flush=True,
        )
    print(f"\nMiB of both API processes and their decoders: {', '.join(f'{one:.0f}' for one in shown)}")
    print(f"Acknowledged uploads that are missing afterwards: {len(missing)}.")
    steady = shown[len(shown) // 3 :]  # caches fill in the first third
    growing = len(steady) > 1 and steady[-1] > GOAL_GROWTH * steady[0]
    return ["memory grows"] * growing + ["an acknowledged upload is missing"] * bool(missing)


def main() -> bool:
    """Print the tables. Returns whether the goals are reached."""
    environment = {"SPEAKER_MAX_UPLOADED": "1000000"}
    with (
        tempfile.TemporaryDirectory() as folder,
        RegistryProcesses(Path(folder), apis=2, environment=environment) as registry,
    ):
        generator = Generator(registry.urls, prepare(registry))
        capacity, missed = overload(registry, generator)
        missed += soak(registry, generator, capacity)
    print(f"\nGoals missed: {', '.join(missed)}." if missed else "\nGoals reached.")
    return not missed
