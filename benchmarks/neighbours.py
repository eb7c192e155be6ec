"""Measures what three tenants notice of a fourth that behaves badly, at one API process.

The three fetch and list at a fixed rate, each with a key and voices of its own. The fourth misbehaves in one
way in each phase, as fast as answers come. Before each such phase there is one in which the fourth does
nothing, so each phase is compared with what the machine could do just then. After it, the fourth does the
same to a server that answers everything with 204: what is slower then is slower because callers and registry
share the processors. The kernel reports the peak of the API process' resident memory in a phase (`VmHWM`).
The many voices and versions of the fourth are documents without bytes, because its requests read no others.
"""

import asyncio
import itertools
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import httpx

from benchmarks.http_load import Answer, Ask, Load, stream
from benchmarks.overload import SERVED, p99_seconds
from benchmarks.upload_to_ready import FORM, form
from services.embedded.managed_process import ManagedProcess
from services.registry_api.keys.api_keys import new_token
from services.shared.bucket.layout import document_key
from services.shared.bucket.store import Store
from services.shared.model.speaker import SpeakerId
from services.shared.registry.speakers import Speakers
from speaker_registry.names import DEFAULT, SpeakerName
from tests.ports import free_port
from tests.processes import PROFILE, RegistryProcesses
from tests.unit.audio import clips

ROUNDS = int(os.environ.get("NEIGHBOURS_ROUNDS", "3"))
"""Number of rounds. Each goes through all phases."""
SECONDS = float(os.environ.get("NEIGHBOURS_SECONDS", "6"))
"""Length of each phase."""
PER_SECOND = float(os.environ.get("NEIGHBOURS_PER_SECOND", "40"))
"""Requests of the three others together."""
MANY_VOICES = int(os.environ.get("NEIGHBOURS_VOICES", "20000"))
ONLY = os.environ.get("NEIGHBOURS_ONLY", "")
"""Text that selects those `MISBEHAVIOURS` whose method has it in its name. By default all are selected."""
MANY_VERSIONS = 200
TEXT = "word " * 800
LONG_TEXTS = {
    "ref_text": "\N{STUDIO MICROPHONE}" * 8000,
    "speaker_description": "\N{STUDIO MICROPHONE}" * 7000,
}
"""Texts of 60 KB in UTF-8, nearly the longest that are accepted."""
GOAL_RATIO = 3.0
VOICES = 5
BAD = "bad"
OTHERS = ("b", "c", "d")
CLIP = clips.wav(1.2)
_BEGINS_SECONDS, _ENDS_SECONDS = 2.0, 1.0
"""The fourth begins this long before the others and ends this long after them."""


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


# -- the fourth


@dataclass
class MisbehavingTenant:
    """The misbehaviours of the fourth tenant. Each method goes on until it is canceled. `statuses` counts the
    statuses of the answers; 0 means no answer.
    """

    client: httpx.AsyncClient
    statuses: "Counter[int]" = field(default_factory=Counter)
    _started: int = field(default_factory=time.time_ns)

    async def versions(self) -> None:
        path = "/v1/voices/many"
        artifact = f"{path}/versions/500/artifacts/{PROFILE}"
        await self._again(16, "GET", path, artifact, f"{path}/versions/latest", f"{path}/versions?limit=100")

    async def whole_lists(self) -> None:
        await self._again(4, "GET", "/v1/audio/voices")

    async def searches(self) -> None:
        searched = ("q=nobody", "state=failed", f"profile={PROFILE}&state=processing")
        await self._again(8, "GET", *(f"/v1/voices?limit=1&{one}" for one in searched))

    async def long_polls(self) -> None:
        await self._again(600, "GET", f"/v1/voices/slow/versions/1/artifacts/{PROFILE}?wait=30")

    async def forced(self) -> None:
        await self._again(8, "POST", "/v1/audio/voices/clip/cache?force=true&wait=0")

    async def registers(self) -> None:
        """Upload: half of the callers make versions of one voice, the rest a new voice with each request."""

        async def caller(number: int) -> None:
            for made in itertools.count():
                fields = {"name": "texts" if number % 2 else f"texts-{number}-{self._started}-{made}"}
                fields |= {"consent": f"cons_{number}_{self._started}_{made}", **LONG_TEXTS}  # always another
                files = {"audio_sample": ("clip", CLIP)}
                await self._ask("POST", "/v1/audio/voices", data=fields, files=files)

        await asyncio.gather(*(caller(number) for number in range(8)))

    async def endless_uploads(self) -> None:
        async def trickle() -> Any:
            yield form("endless", CLIP)[:-60]
            while True:
                await asyncio.sleep(1)
                yield b"x"

        async def caller() -> None:
            while True:
                await self._ask("POST", "/v1/audio/voices", content=trickle(), headers=FORM)

        await asyncio.gather(*(caller() for _ in range(200)))

    async def _again(self, callers: int, method: str, *paths: str) -> None:
        async def caller(number: int) -> None:
            while True:
                await self._ask(method, paths[number % len(paths)])

        await asyncio.gather(*(caller(number) for number in range(callers)))

    async def _ask(self, method: str, path: str, **options: Any) -> None:
        try:
            answer = await self.client.request(method, path, **options)
        except httpx.HTTPError:
            self.statuses[0] += 1
            await asyncio.sleep(0.01)
        else:
            self.statuses[answer.status_code] += 1


MISBEHAVIOURS = {
    "reads of a voice with 200 versions of 4 KB, 16 callers": "versions",
    "lists of all of its voices, 4 callers": "whole_lists",
    "searches, 8 callers": "searches",
    "600 long polls for an artifact that nobody makes": "long_polls",
    "forced extractions, 8 callers": "forced",
    "200 uploads that never end": "endless_uploads",
    "uploads with 60 KB of texts, to one voice and to new ones, 8 callers": "registers",
}


def misbehave(url: str, key: str, what: str) -> "Counter[int]":
    """Misbehave in one way, in a process of its own, and return the statuses of the answers."""

    async def main() -> "Counter[int]":
        limits = httpx.Limits(max_connections=None)
        head = {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(base_url=url, headers=head, timeout=60, limits=limits) as client:
            fourth = MisbehavingTenant(client)
            with suppress(TimeoutError):
                seconds = _BEGINS_SECONDS + SECONDS + _ENDS_SECONDS
                await asyncio.wait_for(getattr(fourth, what)(), seconds)
        return fourth.statuses

    return asyncio.run(main())


# -- a server that does no work


class _NoContent(asyncio.Protocol):
    """Answers 204 to the head of every request, and ignores bodies."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n" * data.count(b" HTTP/1.1\r\n"))


def serve_no_content(port: int) -> None:
    """Serve 204 to everything until the process is ended."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(_NoContent, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(main())


@contextmanager
def trivial_server() -> Iterator[str]:
    port = free_port()
    process = get_context("spawn").Process(target=serve_no_content, args=(port,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


# -- the data


@contextmanager
def tenants() -> Iterator[tuple[RegistryProcesses, dict[str, str]]]:
    """Provide a registry with the data of the four tenants, and the API key of each."""
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
        yield registry, prepare(registry, bootstrap)


def prepare(registry: RegistryProcesses, bootstrap: str) -> dict[str, str]:
    """Make a key and a few voices with artifacts for each tenant, and the many voices of the fourth."""
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
    with registry.opened() as opened:
        fill(opened.store, opened.speakers)
    return keys


def fill(store: Store, speakers: Speakers) -> None:
    """Store documents of many voices and versions whose bytes the bucket does not have."""
    model = speakers.read(SpeakerId(BAD, "clip")).document
    for name, group in groupby(many(), key=itemgetter(0)):
        versions = tuple(
            model.default.having(vuid=uuid4().hex, number=number, name=name, ref_text=TEXT[: 5 * number])
            for _, number in group
        )
        aliases = {DEFAULT: model.aliases[DEFAULT].having(vuid=versions[0].vuid)}
        document = model.having(key=name, versions=versions, aliases=aliases)
        speaker_id = SpeakerId.of(BAD, SpeakerName(name, name))
        store.put(document_key(speaker_id), document.to_bytes())
        speakers.refresh(speaker_id)


def many() -> Iterator[tuple[str, int]]:
    yield "slow", 1
    yield from (("many", number) for number in range(1, MANY_VERSIONS + 1))
    yield from ((f"many-{number:05d}", 1) for number in range(MANY_VOICES))


# -- the phases


@dataclass
class Seen:
    """Results of the phases of one kind, in all rounds.

    `bad` counts the statuses that the fourth got, and `peak_mib` is the API process' peak resident memory.
    """

    answers: list[Answer] = field(default_factory=list)
    unsent: int = 0
    seconds: float = 0.0
    bad: "Counter[int]" = field(default_factory=Counter)
    peak_mib: float = 0.0

    def add(self, load: Load, bad: "Counter[int]", peak_mib: float) -> None:
        self.answers += load.answers
        self.unsent += load.unsent
        self.seconds += load.seconds
        self.bad += bad
        self.peak_mib = max(self.peak_mib, peak_mib)

    @property
    def served(self) -> list[Answer]:
        return [answer for answer in self.answers if answer.status in SERVED]

    @property
    def p99(self) -> float:
        return p99_seconds(self.served) if len(self.served) > 1 else float("inf")

    def failures(self) -> str:
        """Return the failures by status. 0 means that the connection broke."""
        statuses = Counter(answer.status for answer in self.answers if answer.status not in SERVED)
        counts = [f"{many} × {status}" for status, many in sorted(statuses.items())]
        return ", ".join(counts + [f"{self.unsent} unsent"] * bool(self.unsent)) or "0"

    def goal_reached(self, alone: "Seen") -> bool:
        return len(self.served) == len(self.answers) + self.unsent and self.p99 <= GOAL_RATIO * alone.p99


class PeakMemory:
    """The peak of a process' resident memory since the last reset, as the kernel reports it."""

    def __init__(self, child: ManagedProcess) -> None:
        self._process = Path(f"/proc/{child.pid}")

    def reset(self) -> None:
        (self._process / "clear_refs").write_text("5")

    def mib(self) -> float:
        (kibibytes,) = re.findall(r"VmHWM:\s+(\d+) kB", (self._process / "status").read_text())
        return int(kibibytes) / 1024


class Phases:
    """Runs the phases, with a process for the three tenants and one for the fourth."""

    def __init__(
        self, api: ManagedProcess, url: str, trivial: str, keys: Mapping[str, str], pool: ProcessPoolExecutor
    ) -> None:
        self._memory = PeakMemory(api)
        self._url, self._trivial, self._keys, self._pool = url, trivial, keys, pool

    def alone(self, into: Seen) -> None:
        self._memory.reset()
        into.add(self._others(), Counter(), self._memory.mib())

    def beside(self, what: str, into: Seen, *, trivial: bool = False) -> None:
        self._memory.reset()
        url = self._trivial if trivial else self._url
        bad = self._pool.submit(misbehave, url, self._keys[BAD], what)
        time.sleep(_BEGINS_SECONDS)  # until the fourth has begun
        load = self._others()
        into.add(load, bad.result(), self._memory.mib())

    def _others(self) -> Load:
        return self._pool.submit(others, self._url, self._keys).result()


HEAD = (
    "| what the fourth tenant does | others alone: median ms | p99 ms | meanwhile: served/s | median ms "
    "| p99 ms | x alone | failed | the fourth asks for a 204: p99 ms | x alone | the fourth: served/s "
    "| 400, 429/s | 5xx/s | API, at most: alone MiB | meanwhile |\n" + 15 * "|---" + "|"
)


def row(name: str, alone: Seen, seen: Seen, trivial: Seen) -> str:
    cells = [
        name,
        *(f"{1e3 * value:.1f}" for value in (_median(alone), alone.p99)),
        f"{len(seen.served) / seen.seconds:.0f}",
        *(f"{1e3 * value:.1f}" for value in (_median(seen), seen.p99)),
        f"{seen.p99 / alone.p99:.1f}",
        seen.failures(),
        f"{1e3 * trivial.p99:.1f}",
        f"{trivial.p99 / alone.p99:.1f}",
        *(f"{rate:.1f}" for rate in _rates(seen)),
        *(f"{one.peak_mib:.0f}" for one in (alone, seen)),
    ]
    return f"| {' | '.join(cells)} |"


def _median(seen: Seen) -> float:
    return median(answer.seconds for answer in seen.served) if seen.served else float("inf")


def _rates(seen: Seen) -> Iterator[float]:
    """Yield the rates of the fourth's answers: served, refused by a limit (400: the upload exceeds a quota),
    and 5xx.
    """
    seconds = ROUNDS * (_BEGINS_SECONDS + SECONDS + _ENDS_SECONDS)
    for served in (SERVED, (400, 429), range(500, 600)):
        yield sum(many for status, many in seen.bad.items() if status in served) / seconds


def main() -> bool:
    """Print the table. Returns whether the goals are reached."""
    selected = {name: what for name, what in MISBEHAVIOURS.items() if ONLY in what}
    if not selected:
        raise SystemExit(
            f"NEIGHBOURS_ONLY is {ONLY!r}; accepted: a part of {', '.join(MISBEHAVIOURS.values())}."
        )
    with (
        tenants() as (registry, keys),
        trivial_server() as trivial,
        ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool,
    ):
        phases = Phases(registry.apis[0], registry.urls[0], trivial, keys, pool)
        phases.alone(Seen())  # warm
        seen = {name: (Seen(), Seen(), Seen()) for name in selected}
        for _ in range(ROUNDS):
            for name, what in selected.items():
                alone, meanwhile, control = seen[name]
                phases.alone(alone)
                phases.beside(what, meanwhile)
                phases.beside(what, control, trivial=True)
    print(HEAD)
    for name, (alone, meanwhile, control) in seen.items():
        print(row(name, alone, meanwhile, control))
    reached = all(meanwhile.goal_reached(alone) for alone, meanwhile, _ in seen.values())
    print(f"\nGoals {'reached' if reached else 'missed'}.")
    return reached
