"""Tests of real processes that are killed, suspended and stopped while they work: nothing acknowledged is
lost, nothing is served that should not be, and other processes finish what was under way. `FAULT_SECONDS`
makes the test under load longer; `FAULT_SEED` gives it another course.
"""

import os
import random
import signal
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import timedelta

import httpx
import pytest

from services.registry_api.maintenance.erase import erase
from services.registry_api.maintenance.garbage_sweep import sweep
from services.shared.bucket.layout import document_key, documents_prefix, speaker_of
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import ArtifactRecord
from services.shared.model.speaker import SpeakerId
from services.shared.queue.rq_jobs import JobQueue, queue_name
from speaker_registry import RegistryClient
from speaker_registry.errors import NotFound
from speaker_registry.schemas import Job
from tests.process_load import Load, noise_clip
from tests.processes import LEASE_SECONDS, OPTIONAL_PROFILE, PROFILE, RegistryProcesses
from tests.queue_workers import wait_until

SECONDS = float(os.environ.get("FAULT_SECONDS", "10"))
SEED = int(os.environ.get("FAULT_SEED", "1"))
REST_SECONDS = 90
"""The time in which all work must end. Housekeeping looks at what may have gone wrong
after 10 s, then every 15 s.
"""
pytestmark = pytest.mark.timeout(300 + 3 * SECONDS)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    """Two APIs and two workers on one Valkey and one bucket."""
    with RegistryProcesses(tmp_path_factory.mktemp("processes"), apis=2, workers=2) as running:
        yield running


@pytest.fixture
def registry(processes: RegistryProcesses) -> RegistryProcesses:
    """The registry with all processes alive and ready, whatever the test before did."""
    processes.make_whole()
    return processes


@pytest.fixture
def clients(registry: RegistryProcesses) -> Iterator[list[RegistryClient]]:
    """One client for each API. They do not repeat requests that get no answer."""
    with ExitStack() as stack:
        yield [stack.enter_context(RegistryClient(url, retries=0, cache=None)) for url in registry.urls]


def upload(client: RegistryClient, name: str, seed: int = 0) -> str:
    """Upload a clip and return the id of its job."""
    return client.register(name, noise_clip(seed)[0], consent="cons_1").jobs[PROFILE]


def in_hand(client: RegistryClient, job_id: str, attempt: int = 1) -> Job:
    """Return the job once a worker has it on its device."""
    wait_until(lambda: (job := client.job(job_id)).attempt == attempt and job.progress.stage == "encoding")
    return client.job(job_id)


def holder(registry: RegistryProcesses, job: Job) -> int:
    """Return the number of the worker that has the job."""
    pids = [worker.pid for worker in registry.workers]
    return next(number for number, pid in enumerate(pids) if f"-{pid}-" in (job.worker or ""))


def artifacts(registry: RegistryProcesses, name: str) -> list[ArtifactRecord]:
    """Return the artifacts that the document of a voice names. The sweep removes other files later."""
    path = registry.bucket / document_key(SpeakerId("default", name))
    document = SpeakerDocument.parse(path.read_bytes())
    return [one for version in document.versions for made in version.artifacts.values() for one in made]


# -- everything at once


@pytest.mark.slow
def test_nothing_acknowledged_is_lost_when_processes_are_killed_under_load(registry: RegistryProcesses):
    """Nothing acknowledged is lost when processes are killed under load. This is the main promise, tested
    with uploads, deletes, precomputing, reading, and kill -9 at the same time.
    """
    registry.pace(0.2)  # so that workers are killed while they run jobs
    load = Load(registry.urls, writers=5, readers=2, seed=SEED)
    with load.running():
        kills = kill_at_random(registry, random.Random(SEED), SECONDS)
    print(kills, dict(load.counts))
    assert load.counts["_register"] > SECONDS, "this was no load"
    registry.make_whole()
    with RegistryClient(registry.urls[0], cache=None) as client:
        wait_until(lambda: at_rest(registry, client), REST_SECONDS)
        load.counts.clear()
        for ledger in load.ledgers:
            for version in [*ledger.there, *ledger.gone]:
                load.look(ledger, version, client)
    assert load.violations == []
    assert load.counts["read"] == sum(len(ledger.there) for ledger in load.ledgers) > 0
    assert load.counts["read of what is gone"] == sum(len(ledger.gone) for ledger in load.ledgers)
    assert_view_shows_the_documents(registry)


def kill_at_random(registry: RegistryProcesses, chance: random.Random, seconds: float) -> dict[str, int]:
    """Kill the processes one after the other, starting each again after a moment. Return
    how often each was killed.
    """
    kills = {"worker": 0, "api": 0, "valkey": 0}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(0.2, 1.5))
        what = chance.choices(list(kills), (4, 3, 2))[0]
        kills[what] += 1
        if what == "valkey":
            registry.valkey.kill()
            time.sleep(chance.uniform(0, 1))
            registry.valkey.start()
        else:
            child = chance.choice(registry.workers if what == "worker" else registry.apis)
            child.kill()
            time.sleep(chance.uniform(0, 1))
            child.start()
    return kills


def at_rest(registry: RegistryProcesses, client: RegistryClient) -> bool:
    """Return whether every live version has its artifact and no job is open."""
    states = {version.state for voice in client.list() for version in client.versions(voice.name)}
    unfinished = [job for state in ("queued", "processing") for job in client.jobs(state=state, limit=1)]
    return states <= {"ready"} and not unfinished and queue_is_empty(registry)


def queue_is_empty(registry: RegistryProcesses) -> bool:
    with registry.redis() as redis:
        queue = JobQueue(queue_name(PROFILE), redis)
        waiting = redis.llen(queue.key) + redis.llen(queue.intermediate_queue_key)
        return waiting + redis.zcard(queue.started_job_registry.key) == 0


def assert_view_shows_the_documents(registry: RegistryProcesses) -> None:
    """Check that the view at rest equals the bucket, voice by voice."""
    with registry.opened() as opened:
        listed = opened.store.list(documents_prefix("default")).objects
        known = [one for stored in listed if (one := speaker_of(stored.key))]
        assert known
        for speaker_id, etag in zip(known, opened.speakers.view.etags(known), strict=True):
            assert etag == opened.documents.read(document_key(speaker_id)).etag


# -- one thing at a time


def test_jobs_of_a_killed_worker_are_resumed_soon_after_its_lease(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """Jobs of a killed worker are resumed soon after its lease. The documentation for operators says that a
    clip waits for a dead machine for the lease and five seconds. A busy machine takes longer, so the time is
    only printed here.
    """
    registry.pace(4)
    job = in_hand(clients[0], upload(clients[0], "resumed"))
    registry.workers[holder(registry, job)].kill()
    registry.pace(0)
    waited = wait_until(lambda: clients[0].job(job.id).attempt == 2)
    print(f"resumed after {waited:.1f} s, with a lease of {LEASE_SECONDS} s")
    assert clients[0].wait_ready("resumed@1", timeout=20).state == "ready"
    assert clients[0].job(job.id).state == "succeeded"


def test_a_worker_suspended_past_its_lease_publishes_nothing(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """A worker that was suspended past its lease publishes nothing. Its result is as good as the other's, but
    what engines have cached must never change.
    """
    registry.pace(1)
    job = in_hand(clients[0], upload(clients[0], "slept"))
    sleeper = registry.workers[holder(registry, job)]
    os.kill(sleeper.pid, signal.SIGSTOP)
    try:
        registry.pace(0)
        clients[0].wait_ready("slept@1", timeout=30)
        before = clients[0].download("slept@1", PROFILE)
    finally:
        os.kill(sleeper.pid, signal.SIGCONT)
    wait_until(lambda: f'"job_id": "{job.id}", "attempt": 1, "event": "job.lost"' in registry.log())
    assert len(artifacts(registry, "slept")) == 1
    assert clients[1].download("slept@1", PROFILE).data == before.data
    assert clients[0].job(job.id).attempt == 2
    assert sleeper.exit_status is None, "it goes on with other jobs"


@pytest.mark.slow
def test_a_stopped_worker_finishes_what_it_has_in_hand(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """A stopped worker finishes the jobs that it has started, because a rolling update must not cost any job
    a second attempt.
    """
    stopped, other = registry.workers
    other.request_stop()
    wait_until(lambda: other.exit_status is not None)
    registry.pace(1.0)  # longer than the uploads take
    jobs = [upload(clients[0], f"finished-{number}", number) for number in range(4)]
    in_hand(clients[0], jobs[0])
    stopped.request_stop()
    wait_until(lambda: stopped.exit_status is not None)
    assert stopped.exit_status == 0
    states = [(job.state, job.attempt) for job in (clients[0].job(job_id) for job_id in jobs)]
    assert ("succeeded", 1) in states
    assert set(states) <= {("succeeded", 1), ("queued", 0)}, "finished, or never begun"
    other.start()
    wait_until(lambda: {clients[0].job(job_id).state for job_id in jobs} == {"succeeded"})
    assert {clients[0].job(job_id).attempt for job_id in jobs} == {1}


def test_a_delete_that_races_an_extraction_leaves_nothing(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """A delete that races an extraction leaves no voice, no job and no artifact whenever it comes. The bucket
    holds only a document that says what was deleted.
    """
    chance = random.Random(SEED)
    registry.pace(0.02)
    jobs = {}
    for number in range(25):
        name = f"raced-{number}"
        jobs[name] = upload(clients[0], name, number)
        time.sleep(chance.uniform(0, 0.12))
        clients[number % 2].delete(name)
    wait_until(
        lambda: {clients[0].job(job_id).state for job_id in jobs.values()} <= {"succeeded", "superseded"}
    )
    wait_until(lambda: queue_is_empty(registry))
    for name in jobs:
        with pytest.raises(NotFound):
            clients[0].get(name)
    assert left_after_sweeping(registry, jobs) == []


def left_after_sweeping(registry: RegistryProcesses, names: Iterable[str]) -> list[str]:
    """Erase and sweep as if every grace period were over, and return what is left beside the documents."""
    at_once, left = timedelta(seconds=-5), []
    with registry.opened() as opened:
        for name in names:
            speaker_id = SpeakerId("default", name)
            erase(opened.speakers, opened.blobs, speaker_id, grace=at_once)
            sweep(opened.speakers, opened.blobs, speaker_id, grace=at_once)
            left += [stored.key for stored in opened.blobs.listing(speaker_id).objects]
    return left


@pytest.mark.slow
def test_while_redis_is_away_reads_go_on_and_writes_are_told_to_come_back(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """Reads go on while Redis is away, and writes are told to come back. Engines must not fall silent
    because a cache restarts, and no write may seem to succeed meanwhile.
    """
    upload(clients[0], "kept")
    clients[0].wait_ready("kept@1")
    before = clients[0].download("kept@1", PROFILE).data
    registry.valkey.kill()
    try:
        for client in clients:
            assert client.download("kept@1", PROFILE).data == before
            assert client.get("kept").version == 1
            assert "kept" in {voice.name for voice in client.list()}
            for response in refused_writes(client.url):
                assert response.status_code == 503, response.text
                assert int(response.headers["retry-after"]) >= 1
    finally:
        registry.valkey.start()
    wait_until(lambda: writes_go_on(clients[1]), 10)
    wait_until(lambda: at_rest(registry, clients[0]), REST_SECONDS)
    assert_view_shows_the_documents(registry)


def refused_writes(url: str) -> Iterator[httpx.Response]:
    form = {"data": {"name": "new", "consent": "cons_1"}, "files": {"audio_sample": noise_clip(1)[0]}}
    yield httpx.post(f"{url}/v1/audio/voices", timeout=30, **form)
    yield httpx.delete(f"{url}/v1/audio/voices/kept", timeout=30)
    yield httpx.post(f"{url}/v1/audio/voices/kept/cache", params={"force": "true"}, timeout=30)


def writes_go_on(client: RegistryClient) -> bool:
    with suppress(Exception):
        return bool(upload(client, "after", 2))
    return False


def test_an_api_that_is_stopped_answers_those_who_wait(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """An API that is stopped answers its waiting callers. A rolling update must not look like a broken
    connection to an engine that waits for its voice.
    """
    stopped = registry.apis[0]
    registry.pace(8)
    in_hand(clients[1], upload(clients[1], "awaited"))
    path = f"/v1/voices/awaited/versions/1/artifacts/{PROFILE}"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(httpx.get, f"{registry.urls[0]}{path}", params={"wait": 30}, timeout=40)
        time.sleep(0.5)
        stopped.request_stop()
        wait_until(lambda: stopped.exit_status is not None)
    assert waiting.result().status_code == 202
    assert waiting.result().headers["retry-after"] == "1"


# -- several processes, one registry


def test_fifty_calls_through_two_apis_share_one_extraction(
    registry: RegistryProcesses, clients: list[RegistryClient]
):
    """Fifty calls through two APIs share one extraction. All engines of a starting fleet ask for the same
    voice at the same time.
    """
    upload(clients[0], "shared")
    clients[0].wait_ready("shared@1", PROFILE)
    registry.pace(0.3)
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: precompute(registry.urls[number % 2], "shared"), range(50)))
    assert {answer.json()["cache_status"] for answer in answers} == {"ready"}
    jobs = list(clients[1].jobs(voice="shared", profile=OPTIONAL_PROFILE))
    # Who read the voice just before the artifact was there may open a job more, which finds it made.
    assert {job.state for job in jobs} == {"succeeded"}
    assert sum(job.attempt for job in jobs) == 1


def precompute(url: str, name: str) -> httpx.Response:
    return httpx.post(f"{url}/v1/audio/voices/{name}/cache", params={"profile": OPTIONAL_PROFILE}, timeout=60)
