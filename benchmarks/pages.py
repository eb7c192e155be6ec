"""Measures the pages for people: each with 100 and with 100,000 voices, and what fifty open dashboards cost.

Both numbers of voices are in one registry, in namespaces of their own, and each page is asked for in turn in
one and the other, so that other load on the machine slows both alike. Every voice has a version, an artifact
and the record of its job. All but one of each namespace are copies that are written into Redis only, because
pages read nothing else. An open dashboard asks for its live region as often as its page says. Environment:
`PAGES_VOICES`, `PAGES_DASHBOARDS`, `PAGES_TIMES`.
"""

import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

import httpx
from redis import Redis

from benchmarks.rebuild import renamed, wait_until_quiet
from benchmarks.upload_to_ready import FORM, form
from services.registry_api.keys.api_keys import new_token
from services.registry_api.pages.sessions import COOKIE
from services.registry_api.pages.situation import LONG_KEPT_SECONDS
from services.registry_api.protocol.routing import PAGES
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.view.keys import copy_key, jobs_key, names_key, record_key
from services.shared.view.stamp import STAMP, Stamp
from tests.processes import PROFILE, RegistryProcesses
from tests.unit.audio import clips

FEW, MANY = 100, int(os.environ.get("PAGES_VOICES", "100000"))
DASHBOARDS = int(os.environ.get("PAGES_DASHBOARDS", "50"))
TIMES = int(os.environ.get("PAGES_TIMES", "30"))
COUNTED_ANEW_TIMES = 5
GOAL_RATIO = 1.5
GOAL_CORE = 0.05
CLIP = clips.wav(1.2)
ADDRESSES = {
    "overview": "",
    "voices": "/voices",
    "voices, the last page": "/voices?after=voice-000040",
    "voices, a search": "/voices?q=voice-00003",
    "voices, a filter without results": "/voices?state=failed",
    "one voice": "/voices/model",
    "form for a voice": "/voices/@new",
    "jobs": "/jobs",
    "jobs, a filter without results": "/jobs?state=failed",
    "profiles": "/profiles",
    "keys": "/keys",
}
_LIVE = {"overview": "", "jobs": "/jobs", "profiles": "/profiles"}
_KEPT_SECONDS = LONG_KEPT_SECONDS + 0.1
"""After this many seconds, the overview counts everything again."""
_STEP = 200
"""Voices that are copied at once."""


@dataclass(frozen=True)
class Seen:
    """The median times of a page, in seconds: few voices, many voices. Wall time, and processor time of API
    and Valkey.
    """

    wall: tuple[float, float]
    busy: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Return many by few, by the clock."""
        return self.wall[1] / self.wall[0]


def main() -> bool:
    """Print the tables. Returns whether the goals were met."""
    with furnished() as (registry, few, many):
        head = "| page | {:,} voices, ms | {:,}, ms | ratio | processor ms | | ratio |\n"
        print(head.format(FEW, MANY) + 7 * "|---" + "|")
        ratios = [_shown(name, _seen(registry, few, many, path)) for name, path in ADDRESSES.items()]
        anew = _seen(registry, few, many, "", COUNTED_ANEW_TIMES, pause=_KEPT_SECONDS)
        ratios.append(_shown("overview, counted anew", anew))
        print(f"\n| {DASHBOARDS} open dashboards on | of a core, API |\n|---|---|")
        shares = []
        wait_until_quiet(registry)
        idle = _idle(registry)
        print(f"| none | {idle:.1%} |", flush=True)
        for name, path in _LIVE.items():
            shares.append(_cores(registry, many, path) - idle)
            print(f"| {name}, besides that | {shares[-1]:.1%} |", flush=True)
    return max(ratios) <= GOAL_RATIO and max(shares) <= GOAL_CORE


def _shown(name: str, one: Seen) -> float:
    """Print a row and return its ratio by the clock."""
    print(_row(name, one), flush=True)
    return one.ratio


def _row(name: str, one: Seen) -> str:
    walls, busy = ([f"{1e3 * value:.1f}" for value in pair] for pair in (one.wall, one.busy))
    ratios = f"{one.ratio:.2f}", f"{one.busy[1] / one.busy[0]:.2f}"
    return f"| {name} | {' | '.join([*walls, ratios[0], *busy, ratios[1]])} |"


@contextmanager
def furnished() -> Iterator[tuple[RegistryProcesses, httpx.Client, httpx.Client]]:
    """Provide a registry with the two namespaces, and a browser that is signed in at each."""
    operator = str(new_token())
    environment = {
        "SPEAKER_MAX_UPLOADED": "1000000",
        "SPEAKER_AUTH_BOOTSTRAP_KEY": operator,
        "SPEAKER_LIMIT_REQUESTS_PER_MINUTE": "1000000",
        "SPEAKER_LOG_LEVEL": "WARNING",
        # The copies are in Redis only, which housekeeping would take for a bucket that was restored.
        "SPEAKER_HOUSEKEEPING_TURN_SECONDS": "3600",
    }
    with (
        tempfile.TemporaryDirectory() as folder,
        RegistryProcesses(Path(folder), environment=environment) as registry,
        _browser(registry, operator, "few", FEW) as few,
        _browser(registry, operator, "many", MANY) as many,
    ):
        registry.make_whole()
        yield registry, few, many


@contextmanager
def _browser(
    registry: RegistryProcesses, operator: str, namespace: str, voices: int
) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=registry.urls[0], timeout=600) as http:
        head = {"Authorization": f"Bearer {operator}", "X-Speaker-Namespace": namespace}
        sent = form("model", CLIP)
        http.post("/v1/audio/voices", content=sent, headers=head | FORM).raise_for_status()
        file = f"/v1/voices/model/versions/default/artifacts/{PROFILE}/file?wait=60"
        http.get(file, headers=head).raise_for_status()
        wanted = {
            "name": namespace,
            "scopes": ["voices:read", "voices:write", "jobs:read", "jobs:write", "admin"],
        }
        made = http.post("/v1/keys", json=wanted, headers=head).raise_for_status()
        _copy(registry, namespace, voices - 1)
        _sign_in(http, made.json()["key"])
        yield http


def _copy(registry: RegistryProcesses, namespace: str, count: int) -> None:
    """Write copies of the namespace's voice, and of the record of its job, into Redis."""
    model = SpeakerId(namespace, "model")
    with Redis.from_url(registry.valkey.url, decode_responses=True) as redis:
        generation = Stamp.parse(str(redis.get(STAMP))).generation
        voice = dict(redis.hgetall(copy_key(generation, model)))
        [job] = redis.zrange(jobs_key(generation, namespace), 0, -1)
        record = dict(redis.hgetall(record_key(generation, job)))
        document = SpeakerDocument.parse(voice["doc"].encode())
        for first in range(0, count, _STEP):
            with redis.pipeline(transaction=False) as pipeline:
                for number in range(first, min(first + _STEP, count)):
                    name, vuid = f"voice-{number:06d}", f"{number:032d}"
                    copied = renamed(document, name, vuid).to_bytes().decode()
                    speaker = copy_key(generation, SpeakerId(namespace, name))
                    pipeline.hset(speaker, mapping=voice | {"doc": copied, "key": name, "etag": vuid})
                    pipeline.zadd(names_key(generation, namespace), {name: 0})
                    its = {"id": f"{job}{number}", "slug": name, "name": name, "vuid": vuid}
                    pipeline.hset(record_key(generation, its["id"]), mapping=record | its)
                    at = {its["id"]: float(record["created_at"]) - number}
                    pipeline.zadd(jobs_key(generation, namespace), at)
                    pipeline.zadd(jobs_key(generation, namespace, "succeeded"), at)
                    pipeline.zadd(jobs_key(generation, namespace, "succeeded", PROFILE), at)
                pipeline.execute()
        assert redis.zcard(jobs_key(generation, namespace)) == count + 1


def _sign_in(http: httpx.Client, key: str) -> None:
    page = http.get(f"{PAGES}/login").text
    [token] = re.findall(r'name="token" value="([0-9a-f]{64})"', page)
    answer = http.post(f"{PAGES}/login", data={"token": token, "key": key, "next": ""})
    assert answer.status_code == 303, answer.text
    assert http.cookies[COOKIE]


def _seen(
    registry: RegistryProcesses,
    few: httpx.Client,
    many: httpx.Client,
    path: str,
    times: int = TIMES,
    pause: float = 0,
) -> Seen:
    walls: list[list[float]] = [[], []]
    busy: list[list[float]] = [[], []]
    for number in range(times + 1):
        time.sleep(pause)
        for which, http in enumerate((few, many)):
            before, began = _busy(registry), time.perf_counter()
            http.get(f"{PAGES}{path}").raise_for_status()
            if number or pause:  # the first request fills caches
                walls[which].append(time.perf_counter() - began)
                busy[which].append(_busy(registry) - before)
    return Seen((median(walls[0]), median(walls[1])), (median(busy[0]), median(busy[1])))


def _busy(registry: RegistryProcesses) -> float:
    """Return the processor time of the API process and of Valkey so far, in seconds."""
    return _processor_seconds(registry.apis[0].pid) + _processor_seconds(_valkey_pid(registry.valkey.url))


@cache
def _valkey_pid(url: str) -> int:
    with Redis.from_url(url) as redis:
        return int(redis.info("server")["process_id"])


def _processor_seconds(pid: int | None) -> float:
    """Return the processor time of a process so far, of threads that have ended as well."""
    assert pid is not None
    return time.clock_gettime((~pid << 3) | 2)  # as clock_getcpuclockid(3) of the C library makes it


def _idle(registry: RegistryProcesses) -> float:
    """Return the share of a core that the API process takes while nobody asks for anything."""
    before = _processor_seconds(registry.apis[0].pid)
    time.sleep(_KEPT_SECONDS)
    return (_processor_seconds(registry.apis[0].pid) - before) / _KEPT_SECONDS


def _cores(registry: RegistryProcesses, http: httpx.Client, path: str) -> float:
    """Return the share of a core that the API process takes while the dashboards are open."""
    found = re.search(r'id="live"[^>]* hx-trigger="every (\d+)s"', http.get(f"{PAGES}{path}").text)
    assert found, "the page has a live region"
    every = int(found[1])
    head = {"HX-Request": "true", "HX-Target": "live"}
    _request_evenly(http, path, head, every, seconds=2)
    before = _processor_seconds(registry.apis[0].pid)
    asked = _request_evenly(http, path, head, every, seconds=2 * _KEPT_SECONDS)
    # On a busy machine fewer requests are sent than are due.
    return (_processor_seconds(registry.apis[0].pid) - before) / asked * DASHBOARDS / every


def _request_evenly(http: httpx.Client, path: str, head: dict[str, str], every: int, seconds: float) -> int:
    """Send the requests of all dashboards at even intervals, and return the number of requests."""
    began, asked = time.perf_counter(), 0
    while (now := time.perf_counter() - began) < seconds:
        if asked * every / DASHBOARDS > now:
            time.sleep(asked * every / DASHBOARDS - now)
        http.get(f"{PAGES}{path}", headers=head).raise_for_status()
        asked += 1
    return asked


if __name__ == "__main__":
    main()
