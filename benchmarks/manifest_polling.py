"""Measures what engines that follow a registry cost an API process: each asks for the whole manifest of its
profile again and again, and gets 304 for every page that has not changed. Then some voices are pinned, which
have pages of their own before the others.

The processor time is that of the API process, so a busy machine hardly changes it. Environment:
`POLLED_VOICES`, `POLLED_PINNED`, `POLLING_ENGINES`, `POLLING_SECONDS`.
"""

import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from benchmarks.rebuild import MODEL, copies, lose, upload_model, wait_until_complete, wait_until_quiet
from benchmarks.upload_to_ready import CLIP, FORM, Caller, form
from tests.process_load import noise_clip
from tests.processes import PROFILE, RegistryProcesses

VOICES = int(os.environ.get("POLLED_VOICES", "10000"))
PINNED = int(os.environ.get("POLLED_PINNED", "100"))
ENGINES = int(os.environ.get("POLLING_ENGINES", "50"))
SECONDS = float(os.environ.get("POLLING_SECONDS", "30"))
INTERVAL_SECONDS = 5.0
GOAL_CORES = 0.05
PATH = f"/v1/profiles/{PROFILE}/manifest"


class Engine:
    """One engine with a kept connection, without a client library, whose time would be measured as well."""

    def __init__(self, url: str, counts: Counter[int]) -> None:
        self._place, self._counts = urlsplit(url), counts
        self._tags: dict[str, tuple[str, str]] = {}
        """The tag of each page and the cursor of the next one, by the page's own cursor."""
        self.rounds = 0
        """How often the whole manifest was read."""

    async def poll(self, start: float) -> None:
        await asyncio.sleep(start)
        self._reader, self._writer = await asyncio.open_connection(self._place.hostname, self._place.port)
        while True:
            began = time.monotonic()
            cursor: str | None = ""
            while cursor is not None:
                cursor = await self._page(cursor)
            self.rounds += 1
            await asyncio.sleep(max(0.0, began + INTERVAL_SECONDS - time.monotonic()))

    async def _page(self, cursor: str) -> str | None:
        tag, following = self._tags.get(cursor, ("", ""))
        query = f"?after={cursor}" if cursor else ""
        known = f"If-None-Match: {tag}\r\n" if tag else ""
        self._writer.write(
            f"GET {PATH}{query} HTTP/1.1\r\nHost: {self._place.netloc}\r\n{known}\r\n".encode()
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        status, headers = int(head[9:12]), dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
        headers = {name.lower(): value for name, value in headers.items()}
        self._counts[status] += 1
        length = 0 if status == 304 else int(headers["content-length"])
        body = (await self._reader.readexactly(length)).decode()
        if status == 200:
            last = body.rpartition('"last_id":"')[2].partition('"')[0]
            following = last if '"has_more":true' in body else ""
            self._tags[cursor] = headers["etag"], following
        elif status == 503:
            await asyncio.sleep(float(headers["retry-after"]))
            return cursor
        elif status != 304:
            raise RuntimeError(f"{status} {body}")
        return following or None


async def measure(registry: RegistryProcesses, *, engines: int, changes: bool) -> tuple[float, Counter[int]]:
    """Return the cores that the API process has used, and how often it gave which status."""
    process, counts = psutil.Process(registry.apis[0].pid), Counter[int]()
    following = [Engine(registry.urls[0], counts) for _ in range(engines)]
    starts = (number * INTERVAL_SECONDS / engines for number in range(engines))
    polls = [asyncio.create_task(one.poll(start)) for one, start in zip(following, starts, strict=True)]
    while not all(one.rounds for one in following):
        for poll in polls:
            if poll.done():
                poll.result()
        await asyncio.sleep(0.1)
    counts.clear()
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    if changes:
        await asyncio.to_thread(change, registry)
    else:
        await asyncio.sleep(SECONDS)
    used = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
    for poll in polls:
        poll.cancel()
    await asyncio.gather(*polls, return_exceptions=True)
    return used, counts


def change(registry: RegistryProcesses) -> None:
    """Give one voice another version every `INTERVAL_SECONDS`."""
    caller = Caller(registry.urls[0])
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        number += 1
        caller.ask("POST", "/v1/audio/voices", form(MODEL.slug, noise_clip(number)[0]), **FORM)
        time.sleep(INTERVAL_SECONDS)


def pin(registry: RegistryProcesses, names: list[str]) -> None:
    caller = Caller(registry.urls[0])
    for name in names:
        body = json.dumps({"pinned": True}).encode()
        caller.ask("PATCH", f"/v1/voices/{name}", body, **{"content-type": "application/json"})


def main() -> bool:
    """Print the table. Returns whether the goal was reached, without pinned voices and with them."""
    with tempfile.TemporaryDirectory() as folder, RegistryProcesses(Path(folder), environment={}) as registry:
        upload_model(Caller(registry.urls[0]), MODEL.slug, CLIP.read_bytes())
        names = list(copies(registry.bucket, VOICES))
        lose(registry)
        wait_until_complete(registry)
        wait_until_quiet(registry)
        print(f"{VOICES:,} voices, {ENGINES} engines that ask every {INTERVAL_SECONDS:g} s\n")
        print("| what | % of a core | answers |\n|---|---|---|")
        idle, _ = asyncio.run(measure(registry, engines=0, changes=False))
        print(f"| nobody asks | {100 * idle:.1f} | |")
        quiet = _show(registry, "")
        pin(registry, [MODEL.slug, *names[:: max(1, VOICES // PINNED)]])  # the first is the one that changes
        wait_until_quiet(registry)
        pinned = _show(registry, ", voices pinned")
    return max(quiet, pinned) - idle <= GOAL_CORES


def _show(registry: RegistryProcesses, suffix: str) -> float:
    """Print what engines cost, and return the cores that they take while nothing changes."""
    quiet, counts = asyncio.run(measure(registry, engines=ENGINES, changes=False))
    print(f"| engines ask, nothing changes{suffix} | {100 * quiet:.1f} | {dict(counts)} |")
    busy, counts = asyncio.run(measure(registry, engines=ENGINES, changes=True))
    print(f"| … a voice gets a version every 5 s{suffix} | {100 * busy:.1f} | {dict(counts)} |")
    return quiet
