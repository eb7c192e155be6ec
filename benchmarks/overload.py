"""Two API processes asked for twice what they can serve; and ten minutes of a mixed load at half of it.

What is offered is a mix of what engines, dashboards and uploaders ask. The load comes from the same two
cores. Every upload that was acknowledged is looked for afterwards.
"""

import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks.http_load import Answer, Ask, Load, stream
from benchmarks.upload_to_ready import BOUNDARY, form
from tests.processes import PROFILE, RegistryProcesses
from tests.unit.audio import clips

VOICES = 200
SECONDS = float(os.environ.get("OVERLOAD_SECONDS", "20"))
"""Of each phase."""
MINUTES = float(os.environ.get("OVERLOAD_MINUTES", "10"))
"""Of the mixed load."""
UPLOAD_SHARE = 0.02
GOAL_REFUSAL_SECONDS = 0.05
SERVED, REFUSED = (200, 202, 304), (429, 503)
CLIP = clips.wav(1.2)
MIB = 1024**2


def mix(tags: dict[str, str], numbers: "list[int]") -> Any:
    """Gives requests; `numbers`: of the voices that were uploaded by it."""

    def next_ask(lucky: random.Random) -> Ask:
        name, draw = f"voice-{lucky.randrange(VOICES)}", lucky.random()
        path = f"/v1/voices/{name}/versions/default/artifacts/{PROFILE}"
        if draw < UPLOAD_SHARE:
            numbers.append(len(numbers))
            body = form(f"load-{numbers[-1]}", CLIP)
            content_type = f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n"
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
    """Voices with artifacts. Returns the tags of their files."""
    tags = {}
    with httpx.Client(base_url=registry.urls[0], timeout=60) as client:
        for number in range(VOICES):
            name = f"voice-{number}"
            head = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
            client.post("/v1/audio/voices", content=form(name, CLIP), headers=head).raise_for_status()
        for number in range(VOICES):
            path = f"/v1/voices/voice-{number}/versions/default/artifacts/{PROFILE}/file?wait=60"
            tags[f"voice-{number}"] = client.get(path).headers["ETag"]
    return tags


def lost(registry: RegistryProcesses, load: Load) -> list[str]:
    """Voices whose upload was acknowledged and that are not there."""
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
    seconds = sorted(answer.seconds for answer in answers)
    p99 = statistics.quantiles(seconds, n=100, method="inclusive")[98]
    return f"{1e3 * statistics.median(seconds):.1f} | {1e3 * p99:.1f}"


def row(name: str, offered: float, load: Load) -> str:
    other = len(load.answers) - len(load.of(*SERVED)) - len(load.of(*REFUSED))
    return (
        f"| {name} | {offered:,.0f} | {load.rate(*SERVED):,.0f} | {milliseconds(load.of(*SERVED))} "
        f"| {load.rate(*REFUSED):,.0f} | {milliseconds(load.of(*REFUSED))} | {other + load.unsent} |"
    )


def resident(registry: RegistryProcesses) -> float:
    """MiB of the API processes and those that decode for them."""
    family = [
        process
        for child in registry.apis
        for process in (psutil.Process(child.pid), *psutil.Process(child.pid).children(recursive=True))
    ]
    total = 0
    for process in family:
        try:
            total += process.memory_info().rss
        except psutil.NoSuchProcess:
            continue
    return total / MIB


def overload(registry: RegistryProcesses, tags: dict[str, str]) -> tuple[float, bool]:
    """Returns the capacity in requests a second, and whether the goals were reached."""
    numbers: list[int] = []
    next_ask = mix(tags, numbers)

    def run(per_second: float, connections: int) -> Load:
        return asyncio.run(
            stream(registry.urls, next_ask, per_second=per_second, seconds=SECONDS, connections=connections)
        )

    print("| phase | offered/s | served/s | median ms | p99 ms | refused/s | median ms | p99 ms | other |")
    print("|---|---|---|---|---|---|---|---|---|")
    full = run(float("inf"), 32)
    capacity = full.rate(*SERVED)
    print(row("as fast as answers come, 32 callers", capacity, full), flush=True)
    half = run(capacity / 2, 256)
    print(row("half of that", capacity / 2, half), flush=True)
    twice = run(capacity * 2, 1000)
    print(row("twice that", capacity * 2, twice), flush=True)
    after = run(capacity / 2, 256)
    print(row("half again, at once after it", capacity / 2, after), flush=True)
    gone = [name for load in (full, half, twice, after) for name in lost(registry, load)]
    print(f"\nAcknowledged uploads that are not there afterwards: {len(gone)}.")
    refusals = sorted(answer.seconds for answer in twice.of(*REFUSED))
    in_time = bool(refusals) and statistics.quantiles(refusals, n=100)[98] <= GOAL_REFUSAL_SECONDS
    return capacity, in_time and not gone


def soak(registry: RegistryProcesses, tags: dict[str, str], capacity: float) -> None:
    """Memory, minute by minute."""
    numbers: list[int] = list(range(1_000_000, 1_000_001))
    next_ask = mix(tags, numbers)
    shown = [resident(registry)]
    for _ in range(round(MINUTES)):
        began = time.monotonic()
        load = asyncio.run(
            stream(registry.urls, next_ask, per_second=capacity / 2, seconds=60, connections=64)
        )
        shown.append(resident(registry))
        served = load.rate(*SERVED)
        print(f"{served:,.0f}/s, {shown[-1]:.0f} MiB after {time.monotonic() - began:.0f} s", flush=True)
    print(f"\nMiB of both API processes and their decoders: {', '.join(f'{one:.0f}' for one in shown)}")


def main() -> bool:
    """Print the tables. Returns whether the goals are reached."""
    environment = {"SPEAKER_MAX_UPLOADED": "1000000"}
    with (
        tempfile.TemporaryDirectory() as folder,
        RegistryProcesses(Path(folder), apis=2, environment=environment) as registry,
    ):
        tags = prepare(registry)
        capacity, reached = overload(registry, tags)
        soak(registry, tags, capacity)
    print(f"\nGoals {'reached' if reached else 'missed'}.")
    return reached
