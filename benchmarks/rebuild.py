"""How long the index takes to be built anew from the bucket, as after a loss of Redis: by voices with one
version and one artifact. The bucket is in memory, and takes as long for each operation as it is told.

Environment: `REBUILD_VOICES`.
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from redis import Redis

from benchmarks.redis_memory import register_voices, registrar_in_memory
from services.shared.gate import BOOT
from services.shared.housekeeping import Housekeeper
from services.shared.logs import configure_logs
from services.shared.settings import HousekeepingSettings
from services.shared.store import Store
from services.shared.valkey import ValkeyServer

VOICES = int(os.environ.get("REBUILD_VOICES", "3000"))
SECONDS = (0.0, 0.005, 0.02)
"""That one operation of the bucket takes: a local one, a near one, one of a cloud."""


class Distant:
    """A store whose answers are on their way for a while."""

    def __init__(self, store: Store, seconds: float) -> None:
        self._store = store
        self._seconds = seconds

    def __getattr__(self, operation: str) -> Any:
        call = getattr(self._store, operation)

        def later(*arguments: Any) -> Any:
            time.sleep(self._seconds)
            return call(*arguments)

        return later


def main() -> bool:
    """Print the table. There is no goal."""
    configure_logs("WARNING")
    with tempfile.TemporaryDirectory() as folder, ValkeyServer(Path(folder) / "redis") as valkey:
        registrar = registrar_in_memory(Path(folder), valkey.url, VOICES)
        Housekeeper(registrar, HousekeepingSettings()).rebuild()
        register_voices(registrar, VOICES)
        near = registrar.store
        print("| one operation of the bucket, ms | voices/s | a million voices |\n|---|---|---|")
        for seconds in SECONDS:
            registrar.store = Distant(near, seconds) if seconds else near
            with Redis.from_url(valkey.url) as redis:
                redis.delete(BOOT)
            began = time.perf_counter()
            assert Housekeeper(registrar, HousekeepingSettings()).rebuild() == VOICES
            taken = time.perf_counter() - began
            hours = 1e6 * taken / VOICES / 3600
            print(f"| {1e3 * seconds:g} | {VOICES / taken:,.0f} | {hours:.1f} h |", flush=True)
    return True
