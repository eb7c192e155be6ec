"""The whole registry on one machine: Valkey, one API and one worker process, started, watched, restarted and
stopped.

They are the processes of production, told by environment variables where to meet. Knows what to start and
when it is
up; not what they do.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

from services.embedded.settings import EmbeddedSettings
from services.shared.child import spawn
from services.shared.valkey import ValkeyServer
from speaker_registry import RegistryClient, SpeakerRegistryError

log = structlog.get_logger()

START_SECONDS = 300.0
"""Loading and warming models may take a while on a small machine."""
STOP_SECONDS = 30.0
_STEADY_SECONDS = 30.0
"""A child that lived so long and then ends is restarted at once, not with a growing pause."""
_LONGEST_PAUSE_SECONDS = 30.0


class StartFailed(Exception):
    """The registry did not come up; the message says which part and where to look."""


class Child:
    """One of our processes, restarted when it ends by itself."""

    def __init__(
        self, name: str, module: str, environment: Mapping[str, str], output: IO[bytes] | None
    ) -> None:
        self.name = name
        self._command = [sys.executable, "-m", module]
        self._environment = {**os.environ, **environment}
        self._output = output
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._pause = 0.0
        self._due = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        root = Path(__file__).parents[2]
        self._process = spawn(
            self._command,
            env=self._environment,
            cwd=root,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=self._output,
        )
        self._started = time.monotonic()

    def keep_alive(self) -> None:
        """Restart it if it has ended: at once the first time, then after growing pauses."""
        if self.exit_status is None:
            return
        now = time.monotonic()
        if not self._due:
            steady = now - self._started > _STEADY_SECONDS
            self._pause = 0.0 if steady else min(max(1.0, 2 * self._pause), _LONGEST_PAUSE_SECONDS)
            self._due = now + self._pause
            log.warning("child.ended", child=self.name, status=self.exit_status, restart_in=self._pause)
        if now >= self._due:
            self._due = 0.0
            self.start()

    def ask_to_stop(self) -> None:
        if self._process and self.exit_status is None:
            self._process.terminate()

    def stop(self, deadline: float) -> None:
        """Wait until it has ended; kill it at the deadline (monotonic)."""
        if self._process is None:
            return
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.warning("child.killed", child=self.name)
            self._process.kill()
            self._process.wait()


class EmbeddedRegistry:
    """Context manager: inside it, a registry runs at `url`.

    Args:
        log_path: where the children write; None: to our own output.
    """

    def __init__(self, settings: EmbeddedSettings, *, log_path: Path | None = None) -> None:
        self._settings = settings
        self._log_path = log_path
        self._stack = ExitStack()
        self._stopping = threading.Event()
        self.children: dict[str, Child] = {}
        self.valkey: ValkeyServer | None = None
        port = settings.port or _free_port(settings.host)
        self.port = port
        self.url = f"http://{_bracketed(settings.host)}:{port}"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start(self) -> None:
        data = self._settings.data.absolute()
        (data / "bucket").mkdir(parents=True, exist_ok=True, mode=0o700)
        redis_url = self._settings.redis_url or self._start_valkey(data / "redis")
        environment = self._environment(data, redis_url)
        output = self._stack.enter_context(self._log_path.open("ab")) if self._log_path else None
        for name, module in (("api", "services.registry_api"), ("worker", "services.extractor_worker")):
            self.children[name] = Child(name, module, environment, output)
            self.children[name].start()
        self._wait_until_up()

    def _start_valkey(self, folder: Path) -> str:
        self.valkey = ValkeyServer(folder)
        self.valkey.start()
        return self.valkey.url

    def _environment(self, data: Path, redis_url: str) -> dict[str, str]:
        return {
            "SPEAKER_STORE_URL": f"{(data / 'bucket').as_uri()}",
            "SPEAKER_REDIS_URL": redis_url,
            "SPEAKER_PROFILES": self._settings.profiles,
            "SPEAKER_API_HOST": self._settings.host,
            "SPEAKER_API_PORT": str(self.port),
            "SPEAKER_EXTRACTOR_WEIGHTS": self._settings.weights,
            # The only worker there is: what it makes is what is wanted, also after other weights were tried.
            "SPEAKER_EXTRACTOR_ROLL_BACK": "true",
        }

    def _wait_until_up(self) -> None:
        """Until the API is ready and a worker serves every profile."""
        profiles = {name.strip() for name in self._settings.profiles.split(",")}
        deadline = time.monotonic() + START_SECONDS
        with RegistryClient(self.url, retries=0) as client:
            while time.monotonic() < deadline:
                self._raise_if_ended()
                try:
                    served = {profile.id for profile in client.profiles() if profile.workers}
                except SpeakerRegistryError:
                    served = set()
                if profiles <= served:
                    return
                time.sleep(0.1)
        raise StartFailed(f"The registry was not up after {START_SECONDS:.0f} s{self._where_to_look()}")

    def _raise_if_ended(self) -> None:
        for child in self.children.values():
            if child.exit_status is not None:
                raise StartFailed(
                    f"The {child.name} process ended with status {child.exit_status}{self._where_to_look()}"
                )

    def _where_to_look(self) -> str:
        return f"; its last words are in {self._log_path}" if self._log_path else "; its last words are above"

    def watch(self) -> None:
        """Restart what ends by itself, until `request_stop`."""
        while not self._stopping.wait(0.2):
            if self.valkey is not None and not self.valkey.running:
                log.warning("child.ended", child="valkey")
                self.valkey.start()
            for child in self.children.values():
                child.keep_alive()

    def request_stop(self) -> None:
        """Make `watch` return. May be called from a signal handler."""
        self._stopping.set()

    def stop(self) -> None:
        """All of it: who writes first, Valkey last."""
        self._stopping.set()
        deadline = time.monotonic() + STOP_SECONDS
        for child in self.children.values():
            child.ask_to_stop()
        for child in self.children.values():
            child.stop(deadline)
        if self.valkey is not None:
            self.valkey.stop()
        self._stack.close()


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
