"""Four tenants at one API process, one of which behaves badly: what the three others notice.

The three fetch, revalidate and list at a fixed rate, each with a key and voices of its own. The fourth does
one bad thing in each phase, as fast as answers come. Its many voices and versions are written into the index
alone, which is what requests read.
"""

import asyncio
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.http_load import Ask, Load, stream
from benchmarks.overload import SERVED, _p99
from benchmarks.upload_to_ready import BOUNDARY, form
from services.shared.api_keys import new_token
from services.shared.facts import SpeakerId
from services.shared.registrar import Registrar
from speaker_registry.names import SpeakerName
from tests.processes import PROFILE, RegistryProcesses
from tests.unit.audio import clips

SECONDS = float(os.environ.get("NEIGHBOURS_SECONDS", "8"))
"""Of each phase."""
PER_SECOND = float(os.environ.get("NEIGHBOURS_PER_SECOND", "40"))
"""Requests of the three others together."""
MANY_VOICES = int(os.environ.get("NEIGHBOURS_VOICES", "20000"))
MANY_VERSIONS = 1000
TEXT = "word " * 800
GOAL_RATIO = 3.0
VOICES = 5
BAD = "bad"
OTHERS = ("b", "c", "d")
CLIP = clips.wav(1.2)
FORM = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}


# -- the others


def mix(keys: Mapping[str, str]) -> Callable[[random.Random], Ask]:
    def next_ask(lucky: random.Random) -> Ask:
        tenant, draw = lucky.choice(OTHERS), lucky.random()
        path = f"/v1/voices/voice-{lucky.randrange(VOICES)}"
        artifact = f"{path}/versions/default/artifacts/{PROFILE}"
        head = f"Authorization: Bearer {keys[tenant]}\r\n"
        if draw < 0.5:
            return Ask("file", f"GET {artifact}/file", head)
        if draw < 0.8:
            return Ask("descriptor", f"GET {artifact}", head)
        if draw < 0.9:
            return Ask("voice", f"GET {path}", head)
        return Ask("page", "GET /v1/voices?limit=20", head)

    return next_ask


def others(url: str, keys: Mapping[str, str]) -> Load:
    async def main() -> Load:
        return await stream([url], mix(keys), per_second=PER_SECOND, seconds=SECONDS, connections=32)

    return asyncio.run(main())


# -- the fourth: each takes a client with its key, and goes on until it is canceled


async def _again(client: httpx.AsyncClient, callers: int, method: str, *paths: str) -> None:
    async def caller(number: int) -> None:
        while True:
            with suppress(httpx.HTTPError):
                await client.request(method, paths[number % len(paths)])

    await asyncio.gather(*(caller(number) for number in range(callers)))


async def versions(client: httpx.AsyncClient) -> None:
    path = "/v1/voices/many"
    artifact = f"{path}/versions/500/artifacts/{PROFILE}"
    await _again(client, 16, "GET", path, artifact, f"{path}/versions/latest", f"{path}/versions?limit=100")


async def whole_lists(client: httpx.AsyncClient) -> None:
    await _again(client, 4, "GET", "/v1/audio/voices")


async def searches(client: httpx.AsyncClient) -> None:
    searched = ("q=nobody", "state=failed", f"profile={PROFILE}&state=processing")
    await _again(client, 8, "GET", *(f"/v1/voices?limit=1&{one}" for one in searched))


async def long_polls(client: httpx.AsyncClient) -> None:
    await _again(client, 600, "GET", f"/v1/voices/slow/versions/1/artifacts/{PROFILE}?wait=30")


async def forced(client: httpx.AsyncClient) -> None:
    await _again(client, 8, "POST", "/v1/audio/voices/clip/cache?force=true&wait=0")


async def endless_uploads(client: httpx.AsyncClient) -> None:
    async def trickle() -> Any:
        yield form("endless", CLIP)[:-60]
        while True:
            await asyncio.sleep(1)
            yield b"x"

    async def caller() -> None:
        while True:
            with suppress(httpx.HTTPError):
                await client.post("/v1/audio/voices", content=trickle(), headers=FORM)

    await asyncio.gather(*(caller() for _ in range(200)))


THINGS: dict[str, tuple[str, Any]] = {
    "reads of a voice with 1,000 versions of 4 KB": ("versions", versions),
    "lists of all of 20,000 voices": ("whole_lists", whole_lists),
    "searches of 20,000 voices": ("searches", searches),
    "600 long polls for what nobody makes": ("long_polls", long_polls),
    "forced extractions": ("forced", forced),
    "200 uploads that never end": ("endless_uploads", endless_uploads),
}


def misbehave(url: str, key: str, what: str, seconds: float) -> None:
    """In a process of its own."""
    do = next(one for name, one in THINGS.values() if name == what)

    async def main() -> None:
        limits = httpx.Limits(max_connections=None)
        head = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=head, timeout=60, limits=limits) as client:
            with suppress(TimeoutError):
                await asyncio.wait_for(do(client), seconds)

    asyncio.run(main())


# -- what there is


def prepare(registry: RegistryProcesses, bootstrap: str) -> dict[str, str]:
    """Keys, and a few voices with artifacts for each tenant; and the many of the fourth."""
    keys = {}
    with httpx.Client(base_url=registry.urls[0], timeout=60) as client:
        operator = {"Authorization": f"Bearer {bootstrap}"}
        for tenant in (*OTHERS, BAD):
            scopes = ["voices:read", "voices:write", "engine"]
            wanted = {"name": tenant, "namespace": tenant, "scopes": scopes}
            made = client.post("/v1/keys", json=wanted, headers=operator)
            keys[tenant] = made.raise_for_status().json()["key"]
            head = {"Authorization": f"Bearer {keys[tenant]}"}
            for name in ["clip"] if tenant == BAD else [f"voice-{number}" for number in range(VOICES)]:
                sent = form(name, CLIP)
                client.post("/v1/audio/voices", content=sent, headers=head | FORM).raise_for_status()
                path = f"/v1/voices/{name}/versions/default/artifacts/{PROFILE}/file?wait=60"
                client.get(path, headers=head).raise_for_status()
    with registry.registrar() as registrar:
        fill(registrar)
    return keys


def fill(registrar: Registrar) -> None:
    index = registrar.index
    record = index.load(SpeakerId(BAD, "clip")).speaker.versions[0].record
    for seq, (name, number) in enumerate(many(), 1):
        facts = {"vuid": f"{seq:032d}", "number": number, "name": name, "ref_text": TEXT[: 5 * number]}
        copy = record.model_copy(update=facts)
        index.apply_version(SpeakerId.of(BAD, SpeakerName(name, name)), 2 * 10**11 + seq, copy)


def many() -> Iterator[tuple[str, int]]:
    yield "slow", 1
    yield from (("many", number) for number in range(1, MANY_VERSIONS + 1))
    yield from ((f"many-{number:05d}", 1) for number in range(MANY_VOICES))


@contextmanager
def process() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        yield pool


def phase(url: str, keys: Mapping[str, str], what: str | None) -> Load:
    with process() as pool:
        bad: Future[None] | None = None
        if what is not None:
            bad = pool.submit(misbehave, url, keys[BAD], what, SECONDS + 4)
            time.sleep(2)  # until it is at it
        load = pool.submit(others, url, keys).result()
        if bad is not None:
            bad.result()
    return load


def row(name: str, load: Load, alone: Load) -> str:
    served = load.of(*SERVED)
    failed = len(load.answers) + load.unsent - len(served)
    if not served:
        return f"| {name} | 0 | – | – | – | {failed} |"
    middle, p99 = median(answer.seconds for answer in served), _p99(served)
    ratio = p99 / _p99(alone.of(*SERVED))
    rate = load.rate(*SERVED)
    return f"| {name} | {rate:.0f} | {1e3 * middle:.1f} | {1e3 * p99:.1f} | {ratio:.1f} | {failed} |"


def main() -> bool:
    """Print the table. Returns whether the goals are reached."""
    bootstrap = str(new_token())
    environment = {
        "SPEAKER_MAX_UPLOADED": "1000000",
        "SPEAKER_AUTH_BOOTSTRAP_KEY": bootstrap,
        "SPEAKER_LOG_LEVEL": "WARNING",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        RegistryProcesses(Path(folder), environment=environment) as registry,
    ):
        keys = prepare(registry, bootstrap)
        url = registry.urls[0]
        phase(url, keys, None)  # warm
        alone = phase(url, keys, None)
        print("| what the fourth tenant does | others served/s | median ms | p99 ms | x alone | failed |")
        print("|---|---|---|---|---|---|")
        print(row("nothing", alone, alone), flush=True)
        reached = True
        for name, (what, _) in THINGS.items():
            load = phase(url, keys, what)
            print(row(name, load, alone), flush=True)
            failed = len(load.answers) != len(load.of(*SERVED)) or bool(load.unsent)
            reached &= not failed and _p99(load.of(*SERVED)) <= GOAL_RATIO * _p99(alone.of(*SERVED))
    print(f"\nGoals {'reached' if reached else 'missed'}.")
    return reached
