"""Measures the milliseconds from the start of an upload until a waiting client sees the artifact ready,
without the extraction: a real API process, a worker process whose extractor computes nothing, the embedded
Valkey and a local folder. There is one upload at a time, so this is latency, not throughput.
"""

import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from services.shared.bucket.durable_folder import DurableFolder
from tests.processes import PROFILE, RegistryProcesses

CLIP = Path(__file__).parents[1] / "examples" / "clips" / "wren.flac"
RENDITION_BYTES = 6 * 16_000 * 4
"""Size of the decoded clip, the largest object that is written."""
UPLOADS = 200
WARM_UP = 10
GOAL_MEDIAN = 25.0
GOAL_P99 = 60.0
FORM = {"Content-Type": "multipart/form-data; boundary=benchmark"}


@dataclass(frozen=True)
class Timing:
    """Times of one upload, in milliseconds. The answer comes while a worker already extracts."""

    total: float
    answered: float
    """Time until the upload's own answer."""
    committed: float
    """Time until the version was committed and its job enqueued."""
    queued: float
    """Time after `committed` until a worker had started the job."""
    worked: float
    """Time after `queued` until the waiting client had its answer: clip read, tensors made, stored and
    published. The job's own end comes a little later.
    """


class Caller:
    """One kept connection, without a client library, whose time would be measured as well."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Mapping[str, Any]:
        self._connection.request(method, path, body, headers)
        response = self._connection.getresponse()
        data = response.read()
        assert response.status == 200, (response.status, data)
        answer: Mapping[str, Any] = json.loads(data)
        return answer


def upload(caller: Caller, name: str, clip: bytes) -> Timing:
    body = form(name, clip)
    started = time.time()
    voice = caller.ask("POST", "/v1/audio/voices", body, **FORM)["voice"]
    answered = time.time()
    state = caller.ask("GET", f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}?wait=60")["state"]
    ready = time.time()
    assert state == "ready"
    job = caller.ask("GET", f"/v1/jobs/{voice['job_id']}")
    moments = [started, job["created_at"], job["started_at"], ready]
    steps = [1e3 * (later - earlier) for earlier, later in pairwise(moments)]
    return Timing(1e3 * (ready - started), 1e3 * (answered - started), *steps)


def form(name: str, clip: bytes) -> bytes:
    """Return the body of an upload, whose headers are `FORM`."""
    fields = {"name": name, "consent": "cons_1", "ref_text": "Good morning. The ferry leaves at seven."}
    files = {"audio_sample": ("clip", clip)}
    return httpx.Request("POST", "http://registry", data=fields, files=files, headers=FORM).read()


def write_milliseconds(folder: Path) -> list[float]:
    """Return the times that this disk takes for durable writes of the decoded clip."""
    durable, data = DurableFolder(folder), bytes(RENDITION_BYTES)
    taken = []
    for number in range(50):
        started = time.perf_counter()
        durable.put(f"v/{number}", data)
        taken.append(1e3 * (time.perf_counter() - started))
    return taken


def p99(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


def measure(folder: Path) -> list[Timing]:
    clip = CLIP.read_bytes()
    with RegistryProcesses(folder, environment={}) as registry:
        caller = Caller(registry.urls[0])
        return [upload(caller, f"voice-{number}", clip) for number in range(WARM_UP + UPLOADS)][WARM_UP:]


def main() -> bool:
    """Print the table. Returns whether the goals are reached."""
    with tempfile.TemporaryDirectory() as folder:
        timings = measure(Path(folder))
        disk = statistics.median(write_milliseconds(Path(folder) / "disk"))
    print("| milliseconds | median | p99 |\n|---|---|---|")
    for name in Timing.__dataclass_fields__:
        values = [getattr(timing, name) for timing in timings]
        print(f"| {name} | {statistics.median(values):.1f} | {p99(values):.1f} |")
    print(f"| one durable write of {RENDITION_BYTES // 1000} kB | {disk:.1f} | |")
    totals = [timing.total for timing in timings]
    reached = statistics.median(totals) <= GOAL_MEDIAN and p99(totals) <= GOAL_P99
    goal = f"median ≤ {GOAL_MEDIAN:.0f} ms, p99 ≤ {GOAL_P99:.0f} ms"
    print(f"\n{len(totals)} uploads; goal {goal}: {'reached' if reached else 'missed'}")
    return reached
