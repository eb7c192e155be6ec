"""Measures the memory that Redis takes for a voice with one clip and one artifact. The bucket is in memory
and the worker is a stand-in, which changes nothing in Redis.
"""

import os
import tempfile
import time
from pathlib import Path

import numpy as np
from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.registry_api.maintenance.housekeeping import Housekeeper
from services.registry_api.operations import Operations
from services.registry_api.operations.registration import Upload
from services.shared.audio import DecodedClip, ReferenceAudio
from services.shared.configuration.settings import HousekeepingSettings, RegistrySettings
from services.shared.model.clock import Clock
from services.shared.registry.opening import parts_over
from services.shared.registry.parts import RegistryParts
from services.shared.telemetry.logs import configure_logs
from speaker_registry.names import parse_speaker_name
from tests.integration.api.worker import StandIn
from tests.simulation.store import PerfectStore

VOICES = int(os.environ.get("REDIS_MEMORY_VOICES", "10000"))
BATCH = 200
REF_TEXT = (
    "What a speaker says in the six seconds of a reference clip is about as long as this sentence here is."
)
CLIP = DecodedClip(
    ReferenceAudio(np.full(24_000, 0.5, np.float32), 24_000), "wav", "pcm_s16le", "audio/wav", 1
)


def main() -> bool:
    """Print the table. There is no goal."""
    configure_logs("WARNING")
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(Path(folder) / "redis") as valkey:
        parts = parts_in_memory(valkey.url, VOICES)
        with Redis.from_url(valkey.url) as redis:
            operations = Operations.over(parts)
            Housekeeper(
                parts,
                operations,
                HousekeepingSettings(),
                lambda: 0,
            ).rebuild()
            empty = _bytes(redis)
            register_voices(parts, operations, VOICES)
            with_queue = _bytes(redis)
            _delete(redis, "rq:*", "sr:place:*", "sr:answered:*")
            with_job = _bytes(redis)
            _delete(redis, "sr:job:*", "sr:jobs:*", "sr:events", "sr:dirty")
            alone = _bytes(redis)
    print("| KiB for a voice | |\n|---|---|")
    for figure, what in (
        (alone, "itself, with its version and artifact"),
        (with_job, "with the record of its job, kept for 30 days"),
        (with_queue, "with its place in the queue, and what tells its upload if it is repeated soon"),
    ):
        print(f"| {(figure - empty) / VOICES / 1024:.1f} | {what} |")
    return True


def parts_in_memory(url: str, voices: int) -> RegistryParts:
    """Open the parts that the services use, but with a bucket in memory."""
    settings = RegistrySettings(redis_url=url, max_uploaded=10 * voices)
    return parts_over(PerfectStore(time.time), "0" * 32, settings, Clock())


def register_voices(parts: RegistryParts, operations: Operations, voices: int) -> None:
    """Register voices, each with its artifact."""
    worker = StandIn(parts)
    worker.announce()
    for number in range(voices):
        name = parse_speaker_name(f"voice-{number:06d}")
        upload = Upload(name=name, consent="cons_1", ref_text=REF_TEXT)
        operations.registrations.register_clip("default", upload, str(number).encode(), CLIP)
        if number % BATCH == BATCH - 1:
            worker.finish_all()
            worker.taken.clear()


def _delete(redis: Redis, *patterns: str) -> None:
    for pattern in patterns:
        for key in list(redis.scan_iter(pattern, count=1000)):
            redis.delete(key)


def _bytes(redis: Redis) -> int:
    time.sleep(1)  # for what it frees a little later
    return int(redis.info("memory")["used_memory"])  # type: ignore[index]
