"""A registry of real processes for tests and measurements: Valkey, any number of APIs and of light workers on
one bucket, each of which can be killed, suspended and started again. Knows no expectations.
"""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Self

import httpx
import redis

from services.embedded.managed_process import ManagedProcess
from services.embedded.valkey import ValkeyServer
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.registry.opened import Opened
from services.shared.registry.opening import open_registry
from tests.ports import free_port
from tests.queue_workers import START_SECONDS, wait_until

PROFILE = "qwen3-tts-0.6b"
OPTIONAL_PROFILE = "qwen3-tts-1.7b"
"""Served as well, but not required of a version."""
PROFILES = {"SPEAKER_PROFILES": PROFILE, "SPEAKER_EXTRACTOR_PROFILES": f"{PROFILE},{OPTIONAL_PROFILE}"}
LEASE_SECONDS = 3
QUICK = {
    "SPEAKER_WORKER_LEASE_SECONDS": str(LEASE_SECONDS),
    "SPEAKER_WORKER_POLL_SECONDS": "0.2",
    "SPEAKER_HOUSEKEEPING_TURN_SECONDS": "0.2",
    "SPEAKER_MAX_ATTEMPTS": "4",
}
"""Seconds instead of half minutes."""


class LoggedProcess(ManagedProcess):
    """A process whose output is written to a file, for who looks into a failed test."""

    def __init__(self, name: str, module: str, environment: Mapping[str, str], file: IO[bytes]) -> None:
        super().__init__(name, module, environment, show=lambda line, importance: None)
        self._file = file

    def _handle_line(self, line: str) -> None:
        with suppress(ValueError):  # the test is over, and the file is closed
            self._file.write(f"{line}\n".encode())
            self._file.flush()
        super()._handle_line(line)


class RegistryProcesses:
    """Context manager: inside it all of them run, and `clients` may ask any API.

    Args:
        folder: for bucket, Valkey, pace and log.
        environment: what differs from the defaults of production. profiles: required and served ones.
        api, worker: their modules.
        store: the settings of a bucket that exists, by their variables. By default, all use a folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        apis: int = 1,
        workers: int = 1,
        environment: Mapping[str, str] = QUICK,
        profiles: Mapping[str, str] = PROFILES,
        api: str = "services.registry_api",
        worker: str = "tests.light_worker",
        store: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.bucket = folder / "bucket"
        self.valkey = ValkeyServer(folder / "redis", port=0)
        self._stack = ExitStack()
        self.pace_file = folder / "pace"
        self.pace(0)
        self._start_seconds = START_SECONDS if worker.startswith("tests.") else 600
        self._awaited = profiles["SPEAKER_PROFILES"].partition(",")[0]
        self._key = environment.get("SPEAKER_AUTH_BOOTSTRAP_KEY", "")
        common = {
            **os.environ,
            **environment,
            **(store or {"SPEAKER_STORE_URL": self.bucket.as_uri()}),
            "SPEAKER_REDIS_URL": self.valkey.url,
            **profiles,
            "LIGHT_WORKER_PACE": str(self.pace_file),
        }
        self._common = common
        self._raw = self._stack.enter_context((folder / "log").open("ab"))
        ports = [free_port() for _ in range(apis)]
        self.metrics_urls: dict[str, str] = {}
        """Maps a process's name to the URL of its metrics."""
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self.apis = [
            self._child(f"api{number}", api, {**common, "SPEAKER_API_PORT": str(port)})
            for number, port in enumerate(ports)
        ]
        self.workers = [self._child(f"worker{number}", worker, common) for number in range(workers)]

    def another_worker(self, environment: Mapping[str, str]) -> ManagedProcess:
        """Return one more worker, which is not started, with further settings of its own."""
        worker = self._child(
            f"worker{len(self.workers)}", "tests.light_worker", {**self._common, **environment}
        )
        self.workers.append(worker)
        return worker

    def _child(self, name: str, module: str, environment: Mapping[str, str]) -> ManagedProcess:
        port = str(free_port())
        self.metrics_urls[name] = f"http://127.0.0.1:{port}/metrics"
        own = {**environment, "SPEAKER_METRICS_PORT": port}
        return LoggedProcess(name, module, own, self._raw)

    def __enter__(self) -> Self:
        self.bucket.mkdir(exist_ok=True)
        try:
            self.make_whole()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def children(self) -> list[ManagedProcess]:
        return [*self.apis, *self.workers]

    def pace(self, seconds: float) -> None:
        """Set how many seconds a worker takes for each clip from now on."""
        written = self.pace_file.with_suffix(".new")
        written.write_text(str(seconds))
        written.replace(self.pace_file)  # a worker may be reading it

    def make_whole(self) -> None:
        """Start whatever does not run, and wait until all of it is ready and the view in use."""
        self.pace(0)
        self.valkey.start()
        for child in self.children:
            if child.pid is None or child.exit_status is not None:
                child.start()
        for url in self.urls:
            wait_until(lambda url=url: self._ready(url), self._start_seconds)

    def _ready(self, url: str) -> bool:
        for child in self.children:
            assert child.exit_status is None, f"{child.name} ended: {child.failure_reason()}"
        return _serves(url, self._awaited, len(self.workers), self._key)

    @contextmanager
    def opened(self) -> Iterator[Opened]:
        """Open in this process what the services open as well."""
        settings = RegistrySettings(redis_url=self.valkey.url)
        opened = open_registry(StoreSettings(url=self.bucket.as_uri()), settings)
        try:
            yield opened
        finally:
            opened.close()

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.valkey.url)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def close(self) -> None:
        deadline = time.monotonic() + 5
        for child in self.children:
            child.request_stop()
        for child in self.children:
            child.stop(deadline)
        self.valkey.stop(seconds=5)
        self._stack.close()


def _serves(url: str, profile: str, workers: int, key: str) -> bool:
    with suppress(httpx.TransportError):
        if httpx.get(f"{url}/readyz").status_code == 200:
            head = {"Authorization": f"Bearer {key}"} if key else {}
            served = httpx.get(f"{url}/v1/profiles", headers=head).json()["data"]
            return all(one["workers"] >= workers for one in served if one["id"] == profile)
    return False
