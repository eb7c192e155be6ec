"""Measures the memory that Redis takes for a voice with one clip and one artifact. The worker is a
stand-in, which changes nothing in Redis.
"""

import os
import tempfile
import time
from contextlib import closing
from pathlib import Path

from redis import Redis

from services.embedded.valkey import ValkeyServer
from services.shared.telemetry.logs import configure_logs
from tests.opened_registry import OpenedRegistry, folder_settings

VOICES = int(os.environ.get("REDIS_MEMORY_VOICES", "10000"))
BATCH = 200
REF_TEXT = (
    "What a speaker says in the six seconds of a reference clip is about as long as this sentence here is."
)


def main() -> bool:
    """Print the table. There is no goal."""
    configure_logs("WARNING")
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(Path(folder) / "redis") as valkey:
        registry = OpenedRegistry(
            folder_settings(Path(folder) / "bucket"), valkey.url, max_uploaded=10 * VOICES
        )
        with closing(registry), Redis.from_url(valkey.url) as redis:
            registry.housekeeping().rebuild()
            empty = _bytes(redis)
            register_voices(registry, VOICES)
            with_queue = _bytes(redis)
            _delete(redis, "rq:*")
            with_job = _bytes(redis)
            _delete(redis, "sr:*:job:*", "sr:*:jobs:*", "sr:*:due")
            with_events = _bytes(redis)
            _delete(redis, "sr:*:events")
            alone = _bytes(redis)
    print("| KiB for a voice | |\n|---|---|")
    for figure, what in (
        (alone, "itself, with its version and artifact"),
        (with_events, "with the events of its changes; the newest 50,000 of all voices are kept"),
        (with_job, "with the record of its job, kept for 30 days"),
        (with_queue, "with its place in the queue"),
    ):
        print(f"| {(figure - empty) / VOICES / 1024:.1f} | {what} |")
    return True


def register_voices(registry: OpenedRegistry, voices: int) -> None:
    """Register voices, each with its artifact."""
    registry.worker.announce()
    for number in range(voices):
        registry.register(f"voice-{number:06d}", number, ref_text=REF_TEXT)
        if number % BATCH == BATCH - 1:
            registry.worker.finish_all()
            registry.worker.taken.clear()


def _delete(redis: Redis, *patterns: str) -> None:
    for pattern in patterns:
        for key in list(redis.scan_iter(pattern, count=1000)):
            redis.delete(key)


def _bytes(redis: Redis) -> int:
    time.sleep(1)  # for what it frees a little later
    return int(redis.info("memory")["used_memory"])
