"""Measures single requests of a tenant with much data: a voice with many versions, many voices, and searches
without results.

Each request is compared with the same request for a voice with one version, or for a page of voices, in the
same run. The kernel reports the peak of the API process' resident memory (`VmHWM`). `neighbours` writes the
many voices and versions into the view only, because requests read nothing else.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import httpx

from benchmarks.neighbours import BAD, MANY_VERSIONS, MANY_VOICES, PeakMemory, tenants
from tests.processes import PROFILE

TIMES = 30
FEW_TIMES = 5
"""Number of repetitions of requests that take long."""
AT_ONCE = 4


@dataclass(frozen=True)
class Asked:
    """A kind of request. `at_once` is the number of them that run at the same time, and `compared_with` is
    the path of the request that it is compared with.
    """

    name: str
    path: str
    compared_with: str
    times: int = TIMES
    at_once: int = 1
    revalidated: bool = False


def all_requests() -> Iterator[Asked]:
    """Yield the requests. Those that others are compared with come first."""
    one, many = "/v1/voices/clip", "/v1/voices/many"
    file = f"versions/1/artifacts/{PROFILE}/file"
    page, whole = "/v1/voices?limit=100", "/v1/audio/voices"
    yield Asked("a voice with 1 version", one, one)
    yield Asked(f"… with {MANY_VERSIONS:,} versions of 4 KB", many, one)
    yield Asked(
        "304 of an artifact by `name@1`, 1 version", f"{one}/{file}", f"{one}/{file}", revalidated=True
    )
    yield Asked("`name@1`, 1 version", f"{one}/versions/1", f"{one}/versions/1")
    yield Asked(f"… {MANY_VERSIONS:,} versions", f"{many}/versions/1", f"{one}/versions/1")
    yield Asked("100 of its versions", f"{many}/versions?limit=100", one)
    yield Asked("a page of 100 voices", page, page)
    yield Asked(f"all {MANY_VOICES:,} voices", whole, page, FEW_TIMES)
    yield Asked(f"… {AT_ONCE} at once", whole, page, FEW_TIMES, AT_ONCE)
    for search in ("q=nobody", "state=failed", f"profile={PROFILE}&state=processing"):
        yield Asked(f"`{search}`, `limit=1`, which finds nothing", f"/v1/voices?limit=1&{search}", page)


@dataclass(frozen=True)
class Seen:
    """Results of one kind: median in seconds, length of an answer's body, and peak memory of the API."""

    seconds: float
    length: int
    peak_mib: float


def seen(client: httpx.Client, memory: PeakMemory, asked: Asked) -> Seen:
    """Measure one kind of request. Raises `httpx.HTTPStatusError` for an answer that is an error."""
    known = client.get(asked.path).raise_for_status()
    headers = {"If-None-Match": known.headers["ETag"]} if asked.revalidated else {}

    def once(_: object) -> float:
        began = time.perf_counter()
        answer = client.get(asked.path, headers=headers)
        if asked.revalidated:
            assert answer.status_code == httpx.codes.NOT_MODIFIED
        else:
            answer.raise_for_status()
        return time.perf_counter() - began

    memory.reset()
    with ThreadPoolExecutor(asked.at_once) as pool:
        seconds = list(pool.map(once, range(asked.times * asked.at_once)))
    return Seen(median(seconds), len(known.content), memory.mib())


def table(found: Sequence[tuple[Asked, Seen]]) -> str:
    by_path = {asked.path: one.seconds for asked, one in reversed(found)}
    lines = ["| request | median ms | ratio | body, kB | API, at most: MiB |", "|---|---|---|---|---|"]
    for asked, one in found:
        ratio = one.seconds / by_path[asked.compared_with]
        cells = [
            f"{1e3 * one.seconds:.1f}",
            f"{ratio:.1f}",
            f"{one.length / 1e3:,.0f}",
            f"{one.peak_mib:.0f}",
        ]
        lines.append(f"| {asked.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> bool:
    """Print the table. There is no goal."""
    with tenants() as (registry, keys):
        head = {"Authorization": f"Bearer {keys[BAD]}"}
        memory = PeakMemory(registry.apis[0])
        with httpx.Client(base_url=registry.urls[0], headers=head, timeout=60) as client:
            print(table([(asked, seen(client, memory, asked)) for asked in all_requests()]))
    return True
