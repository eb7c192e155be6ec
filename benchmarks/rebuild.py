"""Measures a loss of Redis: how fast an API process reads all voices again from a local folder, and how long
a write to any voice waits meanwhile. Then the server is restarted with its data, from which the registry
takes over every document that the bucket still lists unchanged.

Each voice has one version and one artifact. Redis is emptied. The speed of the machine at that time is
measured by the jobs that RQ's own `SimpleWorker` does on it, before and after. The API's metrics count the
reads of the bucket, which include those of `_view.json` and of profiles. Environment: `REBUILD_VOICES`.
"""

import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import psutil
from redis import Redis

from benchmarks.queue_throughput import jobs_per_second, simple_worker
from benchmarks.upload_to_ready import CLIP, FORM, Caller, form
from services.embedded.valkey import ValkeyServer
from services.shared.bucket.layout import document_key, version_prefix
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.view.keys import complete_key
from services.shared.view.stamp import STAMP, Stamp
from tests.processes import RegistryProcesses
from tests.scraping import Scrape

VOICES = int(os.environ.get("REBUILD_VOICES", "20000"))
GOAL_VOICES = 2000
"""Voices a second on a machine where RQ's `SimpleWorker` does `REFERENCE_JOBS` a second."""
REFERENCE_JOBS = 650
GOAL_SECONDS = 1.0
"""Longest time that a write may wait."""
GOAL_READS = 500
"""The most reads of the bucket after a restart of Redis with its data. A registry that read the voices again
would need at least one for each of them.
"""
UPLOADS = 100
QUIET_WITHIN_SECONDS, QUIET_PERCENT = 300, 5.0
MODEL = SpeakerId("default", "voice-model")


def main() -> bool:
    """Print the table. Returns whether the goals were met."""
    before = _reference_jobs_per_second()
    with tempfile.TemporaryDirectory() as folder, RegistryProcesses(Path(folder), environment={}) as registry:
        clip = CLIP.read_bytes()
        upload_model(Caller(registry.urls[0]), MODEL.slug, clip)
        names = list(copies(registry.bucket, VOICES))
        seconds_to_rebuild(registry)
        idle = seconds_to_rebuild(registry)
        waits = _uploads_after_a_loss(registry, Caller(registry.urls[0]), names, clip)
        emptied = _recovery(registry, names[0], lose)
        restarted = _recovery(registry, names[0], restart)
    reference = statistics.mean([before, _reference_jobs_per_second()])
    ratio, goal = VOICES / idle / reference, GOAL_VOICES / REFERENCE_JOBS
    first, median, longest = waits[0], statistics.median(waits), max(waits)
    print("| | seen | goal |\n|---|---|---|")
    print(f"| voices/s read again, of {VOICES:,} | {VOICES / idle:,.0f} | {GOAL_VOICES:,} |")
    print(f"| jobs/s of rq SimpleWorker just then | {reference:,.0f} | |")
    print(f"| voices read again for each such job | {ratio:.1f} | {goal:.1f} |")
    print(f"| first upload after the loss, s | {first:.3f} | {GOAL_SECONDS:g} |")
    print(f"| {len(waits)} uploads to other voices meanwhile, s: median | {median:.3f} | |")
    print(f"| longest | {longest:.3f} | {GOAL_SECONDS:g} |")
    print("\n| | after FLUSHALL | after a restart with the data |\n|---|---|---|")
    print(
        f"| first read of a voice answered after s | {emptied.first_read:.3f} | {restarted.first_read:.3f} |"
    )
    print(f"| view complete after s | {emptied.seconds:.2f} | {restarted.seconds:.2f} |")
    print(f"| reads of the bucket | {emptied.reads:,.0f} | {restarted.reads:,.0f} |")
    return ratio >= goal and longest <= GOAL_SECONDS and restarted.reads <= GOAL_READS


def _reference_jobs_per_second() -> float:
    with (
        tempfile.TemporaryDirectory() as folder,
        ValkeyServer(Path(folder)) as server,
        Redis.from_url(server.url) as client,
    ):
        return statistics.median(jobs_per_second(client, simple_worker) for _ in range(3))


def upload_model(caller: Caller, name: str, clip: bytes) -> None:
    caller.ask("POST", "/v1/audio/voices", form(name, clip), **FORM)
    caller.ask("POST", f"/v1/audio/voices/{name}/cache?wait=30")


def copies(bucket: Path, count: int) -> Iterator[str]:
    """Write voices that differ from the model only by name and id, without syncing, and yield their names."""
    document = SpeakerDocument.parse((bucket / document_key(MODEL)).read_bytes())
    for number in range(count):
        name, vuid = f"voice-{number:06d}", uuid4().hex
        copy = SpeakerId("default", name)
        _write(bucket / document_key(copy), renamed(document, name, vuid).to_bytes())
        (bucket / version_prefix(copy, vuid)).mkdir(parents=True)
        for stored in (bucket / version_prefix(MODEL, document.default.vuid)).iterdir():
            os.link(stored, bucket / version_prefix(copy, vuid) / stored.name)
        yield name


def renamed(document: SpeakerDocument, name: str, vuid: str) -> SpeakerDocument:
    """Return the document of a voice with one version as that of another voice."""
    version = document.default.having(name=name, vuid=vuid)
    aliases = {alias: one.having(vuid=vuid) for alias, one in document.aliases.items()}
    return document.having(key=name, versions=(version,), aliases=aliases)


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def seconds_to_rebuild(registry: RegistryProcesses) -> float:
    began = lose(registry)
    wait_until_complete(registry)
    return time.perf_counter() - began


def lose(registry: RegistryProcesses) -> float:
    began = time.perf_counter()
    registry.redis().flushall()
    return began


def restart(registry: RegistryProcesses) -> float:
    """Restart Redis with its data. Returns when it answers again."""
    registry.valkey.stop()
    registry.valkey.start()
    return time.perf_counter()


@dataclass(frozen=True)
class Recovery:
    """What a loss of the view cost. Seconds count from the moment at which Redis answers again."""

    first_read: float
    seconds: float
    reads: float


def _recovery(registry: RegistryProcesses, name: str, harm: Callable[[RegistryProcesses], float]) -> Recovery:
    """Harm Redis, read one voice at once, and wait until a new generation of the view is complete."""
    before, former = _reads(registry), _generation(registry)
    began = harm(registry)
    Caller(registry.urls[0]).ask("GET", f"/v1/voices/{name}")
    first_read = time.perf_counter() - began
    wait_until_complete(registry, after=former)
    return Recovery(first_read, time.perf_counter() - began, _reads(registry) - before)


def _reads(registry: RegistryProcesses) -> float:
    """Return how many objects the API process has read from the bucket since its start."""
    scrape = Scrape.of(registry.metrics_urls["api0"])
    return sum(scrape.series("registry_store_seconds_count", op="get").values())


def _generation(registry: RegistryProcesses) -> str:
    with registry.redis() as redis:
        return Stamp.parse((redis.get(STAMP) or b"").decode()).generation


def _is_complete(registry: RegistryProcesses, after: str = "") -> bool:
    """Return whether the view is complete, and of another generation than `after`."""
    generation = _generation(registry)
    with registry.redis() as redis:
        return generation != after and bool(redis.exists(complete_key(generation)))


def wait_until_complete(registry: RegistryProcesses, after: str = "") -> None:
    deadline = time.monotonic() + 600
    while not _is_complete(registry, after):
        assert time.monotonic() < deadline, "the rebuild does not end"
        time.sleep(0.05)


def wait_until_quiet(registry: RegistryProcesses) -> None:
    """Wait until the API process has done what it does after a rebuild. Raises `TimeoutError`."""
    process = psutil.Process(registry.apis[0].pid)
    deadline = time.monotonic() + QUIET_WITHIN_SECONDS
    while process.cpu_percent(2.0) > QUIET_PERCENT:
        if time.monotonic() > deadline:
            raise TimeoutError(f"The API process is still busy {QUIET_WITHIN_SECONDS} s after the rebuild.")


def _uploads_after_a_loss(
    registry: RegistryProcesses, caller: Caller, names: list[str], clip: bytes
) -> list[float]:
    """Return the seconds of each upload, one after the other, while most voices have not been read yet."""
    chosen = random.Random(0).sample(names, UPLOADS)
    waits: list[float] = []
    lose(registry)
    for name in chosen:
        began = time.perf_counter()
        caller.ask("POST", "/v1/audio/voices", form(name, clip), **FORM)
        waits.append(time.perf_counter() - began)
        if _is_complete(registry):
            break
    wait_until_complete(registry)
    return waits
