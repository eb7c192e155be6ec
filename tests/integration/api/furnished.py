"""Fills a registry with what it has after some days of use, for pages that are looked at."""

import json
import time
from importlib.resources import files

from services.shared.view.job_records import JobRecord
from services.shared.view.keys import jobs_key, record_key, server_errors_key, workers_key
from services.shared.view.workers import FailedProof, WorkerReport
from speaker_registry.errors import InvalidAudio, WorkerError
from tests.integration.api.access import BOOTSTRAP, bearer, key
from tests.integration.api.registry import EMBEDDING, PROFILE, Registry

SERVED, MANY, FAILED, BUSY = "Nora Lindqvist", "narrator-de", "call-center-07", "Émile, warm"
DELETED = "demo-2025"
_READY = (
    "Aiyana",
    "Björn Karlsson",
    "Chidi",
    "Dr. Watanabe",
    "Elena",
    "Farah",
    "game-npc-014",
    "Hiroshi",
    "Ines",
)
_ME = bearer(BOOTSTRAP)


def furnish(registry: Registry) -> None:
    """Register voices in every state, with jobs and keys."""
    for number, name in enumerate(_READY):
        registry.ready(name, headers=_ME, ref_text=f"Take {number}: the harbour lights came on one by one.")
    registry.upload("library-preset-2", clip=None, speaker_embedding=EMBEDDING, headers=_ME)
    _served(registry)
    for number in range(4):
        text = f"Es war einmal, Fassung {number + 1}, ein Müller, der hatte drei Söhne."
        registry.ready(MANY, headers=_ME, ref_text=text)
    about = {"description": "Fairy tales, read slowly", "labels": {"team": "audiobooks", "language": "de"}}
    registry.client.patch(f"/v1/voices/{MANY}", json=about, headers=_ME)
    registry.client.put(f"/v1/voices/{MANY}/aliases/default", json={"version": 3}, headers=_ME)
    registry.client.put(f"/v1/voices/{MANY}/aliases/prod", json={"version": 2}, headers=_ME)
    registry.ready(DELETED, headers=_ME)
    registry.client.delete(f"/v1/voices/{DELETED}", headers=_ME)
    registry.upload(FAILED, headers=_ME, ref_text="Thank you for calling.")
    registry.worker.fail_all(FAILED, InvalidAudio("the encoder found no speech in 4.2 s of audio"))
    registry.upload("call-center-08", headers=_ME)
    registry.worker.fail_all(
        "call-center-08", WorkerError("the device ran out of memory (24 GiB) at 61 frames")
    )
    registry.upload("cancelled-take", headers=_ME)
    [waiting] = registry.opened.jobs.records.page("default", state="queued", limit=1).found
    registry.client.post(f"/v1/jobs/{waiting.id}/cancel", headers=_ME)
    _spread(registry)
    registry.upload(BUSY, headers=_ME)
    registry.worker.take_all(BUSY)
    registry.upload("waits-for-a-worker", headers=_ME)
    _make_keys(registry)
    _employ(registry)
    _fail(registry)


def _employ(registry: Registry) -> None:
    """Have two workers that stay alive while the pages are looked at, and one whose device is broken."""
    workers, generation, fingerprint = (
        registry.opened.workers,
        registry.generation(),
        registry.worker.fingerprint,
    )
    now = time.time()
    for name, device, made in (("gpu-1-7-3fa2c1", "cuda:0", 412), ("gpu-1-8-90b7d4", "cuda:1", 398)):
        report = WorkerReport(
            device=device, proven_at={PROFILE: now - 3 * 86_400}, extracted_last_hour={PROFILE: made}
        )
        workers.beat(name, {PROFILE: fingerprint}, report)
        registry.redis.zadd(workers_key(generation, PROFILE), {f"{fingerprint} {name}": (now + 3600) * 1000})
    reason = f"{PROFILE}: ref_code: 12.00% of the codes are equal, at least 95% are expected"
    workers.report_failed({PROFILE: FailedProof(worker="gpu-2-7-1c05ee", device="cuda:0", reason=reason)})


def _fail(registry: Registry) -> None:
    """Have the API fail some requests of the last hour."""
    generation, now = registry.generation(), int(time.time())
    for age, number in ((300, 2), (360, 7), (420, 4), (2400, 1)):
        minute = (now - age) // 60 * 60
        registry.redis.hincrby(server_errors_key(generation, "default", minute // 3600), str(minute), number)


def _served(registry: Registry) -> None:
    registry.ready(
        SERVED,
        headers=_ME,
        ref_text="The quick brown fox jumps over the lazy dog, and the band plays on.",
        consent="Signed release 2026-041, all products, until revoked",
        speaker_description="Calm alto, Swedish accent, recorded in studio B",
    )
    speech = files("speaker_registry.sample_voice").joinpath("wren.flac").read_bytes()
    registry.ready(SERVED, clip=speech, headers=_ME, ref_text="A second take, closer to the microphone.")


def _make_keys(registry: Registry) -> None:
    key(registry, "engine", name="tts-fleet eu-west", namespace="default")
    key(
        registry,
        "voices:read",
        "voices:write",
        name="studio upload",
        expires_at=int(time.time()) + 90 * 86_400,
    )
    key(registry, "admin", name="ops", namespace="*")


def _spread(registry: Registry) -> None:
    """Give the jobs so far the times of a day, and add finished ones: more by day than by night."""
    found = registry.opened.jobs.records.page("default", limit=1000).found
    now = time.time()
    for number, job in enumerate(found):
        _date(registry, job, now - 240 - 211 * number)
    sample = next(job for job in found if job.state == "succeeded")
    for number in range(420):
        at = now - 90 - (number * 197) % 86_000 if number % 3 else now - (number * 37) % 3_500
        _date(
            registry,
            sample,
            at,
            copy=f"job_{number:032x}",
            state="failed" if number % 29 == 0 else "succeeded",
        )


def _date(registry: Registry, job: JobRecord, at: float, copy: str = "", state: str = "") -> None:
    """Move a job, or a copy of it, to another time of creation."""
    job_id, state, generation = copy or job.id, state or job.state, registry.generation()
    record = registry.redis.hgetall(record_key(generation, job.id))
    fields = {name.decode(): value.decode() for name, value in record.items()}
    seconds = 2.4 + len(job_id) % 5
    fields |= {"id": job_id, "state": state, "created_at": str(at), "started_at": str(at + 0.2)}
    fields["finished_at"] = str(at + seconds)
    if state == "failed" and copy:
        fields["error"] = json.dumps(
            {"code": "audio_rejected", "message": "the clip is silent", "retryable": False, "attempt": 1}
        )
    registry.redis.hset(record_key(generation, job_id), mapping=fields)
    for place in (jobs_key(generation, "default", state), jobs_key(generation, "default")):
        registry.redis.zadd(place, {job_id: at})
    by_profile = jobs_key(generation, "default", state, job.profile)
    registry.redis.zadd(by_profile, {job_id: at + seconds})
