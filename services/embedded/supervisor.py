"""The supervisor of an embedded registry: it starts, watches, restarts and stops Valkey, one API process and
one worker process.

The processes are those of a production deployment. Environment variables tell them how to reach each other.
"""

import logging
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Self

import httpx
import structlog
from pydantic import ValidationError

from services.embedded.bootstrap_key import bootstrap_key_file
from services.embedded.log_lines import coloured
from services.embedded.managed_process import ManagedProcess
from services.embedded.settings import EmbeddedSettings
from services.embedded.valkey import (
    LOCK_WAIT_SECONDS,
    MAX_SOCKET_PATH_BYTES,
    DataDirectoryInUseError,
    ValkeyError,
    ValkeyServer,
)
from services.shared.bucket.folder_lock import FolderInUseError, exclusive_lock
from services.shared.bucket.layout import REGISTRY
from services.shared.configuration.access import AccessSettings
from services.shared.configuration.api import ApiSettings
from services.shared.configuration.listening import why_not_listening
from services.shared.configuration.telemetry import MetricsSettings
from speaker_registry import RegistryClient, SpeakerRegistryError

log = structlog.get_logger()

START_SECONDS = 600.0
"""Maximum time for a start. Downloading, loading and warming up models may take a while on a small
machine.
"""
STOP_SECONDS = 8.0
"""Time for running jobs to finish during a stop. Jobs that do not finish continue after the next start."""
VALKEY_STOP_SECONDS = 5.0
_CHECK_SECONDS = 0.1
"""Interval at which a start checks whether a process has ended."""
_LONGEST_PAUSE_SECONDS = 1.0
"""Longest pause between two checks whether the registry is up. The pauses grow to this length."""
_REPORT_INTERVAL_SECONDS = 30.0
"""Interval at which a slow start is reported, with the last line of each process."""
AOF_REWRITE_SECONDS = 3600.0
"""Interval at which Valkey's append-only file is rewritten. Erased texts stay in the file until the next
rewrite that succeeds.
"""
_WRITE_TEST_BYTES = 1024**2
_TEMPORARY = "speaker-registry-"
_TEMPORARY_PARENTS = (Path("/tmp"), Path("/dev/shm"))  # noqa: S108 - a folder of our own is made in it
_STORE_KNOWN_AS = "an embedded registry"
"""Location that is recorded for a new bucket with a Redis server of its own beside it. A copy of both folders
has a view of its own, and may be moved. A bucket that has recorded it is also accepted with another server.
"""
_SILENT = logging.CRITICAL + 1
_MAX_BUFFERED_LINES = 100
"""Maximum number of log lines that are kept until the registry is up."""

_SINGLE_MACHINE_DEFAULTS = {
    # Interval at which an idle worker checks whether it should stop.
    "SPEAKER_WORKER_POLL_SECONDS": "0.2",
    # A stop waits for the clips being processed. There may be no GPU, so batches are small.
    "SPEAKER_WORKER_BATCH_SIZE": "4",
    # A stop also waits for pending answers, some of which wait for a job.
    "SPEAKER_API_SHUTDOWN_SECONDS": "3",
}
"""Environment variables of the processes, unless the environment sets them."""


class StartFailed(Exception):
    """The registry could not be started. The message says which part failed, and why."""


class EmbeddedRegistry:
    """A registry on this machine. As a context manager, it runs at `url` until the context is left.

    Args:
        show: Minimum level of log lines that are printed to standard error once the registry is up. Before
            that no lines are printed. If the start fails, `StartFailed` has the reason. If it succeeds
            nevertheless, errors of the start are printed afterwards.

    Raises:
        StartFailed: The registry could not be started. Raised when the context is entered.
    """

    def __init__(self, settings: EmbeddedSettings, *, show: int = _SILENT) -> None:
        self._settings = settings
        self._show_from = show
        self._shown_from = _SILENT
        self._buffered_lines = deque[tuple[str, int]](maxlen=_MAX_BUFFERED_LINES)
        self._stack = ExitStack()
        self.children: dict[str, ManagedProcess] = {}
        self.valkey: ValkeyServer | None = None
        self.port = settings.port
        self.url = ""
        self.key_file: Path | None = None
        """File of an API key with all permissions that was made here. None if no key is required, or if the
        environment provides one.
        """

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        self._shown_from = self._show_from
        for line, importance in self._buffered_lines:
            self._show(line, importance)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        host, data = self._settings.host, self._settings.data.absolute()
        next_metrics_port = _next_metrics_port()
        self.port = _claim_port(host, self._settings.port)
        self.url = f"http://{_bracketed(ApiSettings(host=host).own_host)}:{self.port}"
        self._lock_bucket(data)
        self.key_file = self._key_file(data)
        redis_url = self._settings.redis_url or self._start_valkey(self._redis_folder(data))
        environment = self._environment(data, redis_url)
        own = {"api": environment, "worker": {**environment, **next_metrics_port}}
        for name, module in (("api", "services.registry_api"), ("worker", "services.extractor_worker")):
            self.children[name] = ManagedProcess(name, module, own[name], self._show)
            self.children[name].start()
        self._wait_until_up()

    def _lock_bucket(self, data: Path) -> None:
        """Lock the bucket, and make its folder if there is none. Two registries on one bucket with separate
        Redis servers would assign the same version numbers.
        """
        bucket = data / "bucket"
        try:
            bucket.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._stack.enter_context(exclusive_lock(bucket, wait_seconds=LOCK_WAIT_SECONDS))
        except FolderInUseError:
            raise _in_use(data) from None
        except OSError as error:
            raise StartFailed(f"DATA is {data}, which cannot be used: {error.strerror}.") from None

    def _key_file(self, data: Path) -> Path | None:
        try:
            return bootstrap_key_file(self._settings.host, data)
        except ValidationError:  # the error of a setting already says what is wrong
            raise
        except (ValueError, OSError) as error:
            raise StartFailed(f"HOST is {self._settings.host!r}: {error}") from None

    @property
    def api_key(self) -> str | None:
        """An API key with all permissions, for code that runs in this process. None if no key is required."""
        return self.key_file.read_text().strip() if self.key_file else AccessSettings().bootstrap

    def _redis_folder(self, data: Path) -> Path:
        """Return the folder for Redis, in DATA if that is writable. Otherwise return a temporary folder, in
        which the view is rebuilt.
        """
        reason = why_not_writable(data)
        if reason is None:
            return data / "redis"
        log.error("data.read_only", path=str(data), reason=reason)
        parents = [parent for parent in _TEMPORARY_PARENTS if why_not_writable(parent) is None]
        if not parents:
            raise StartFailed(
                f"DATA is {data}, which is not writable ({reason}), and neither is a temporary folder."
            )
        return Path(self._stack.enter_context(TemporaryDirectory(prefix=_TEMPORARY, dir=parents[0])))

    def _start_valkey(self, folder: Path) -> str:
        try:
            self.valkey = ValkeyServer(folder, socket_path=self._short_socket_path(folder))
            self.valkey.start()
        except DataDirectoryInUseError:
            raise _in_use(self._settings.data.absolute()) from None
        except ValkeyError as error:
            raise StartFailed(f"Valkey could not be started: {error}") from None
        return self.valkey.url

    def _short_socket_path(self, folder: Path) -> Path:
        """Return a path for the unix socket: in the folder, or in a temporary folder if the path would be
        too long.
        """
        path = folder / "valkey.sock"
        if len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES:
            return path
        return Path(self._stack.enter_context(TemporaryDirectory(prefix=_TEMPORARY))) / path.name

    def _environment(self, data: Path, redis_url: str) -> Mapping[str, str]:
        # A new bucket whose Redis may serve other buckets records its path, so that a copy of it is refused.
        records_path = self._settings.redis_url and not (data / "bucket" / REGISTRY).exists()
        known_as = "" if records_path else _STORE_KNOWN_AS
        return {
            **_SINGLE_MACHINE_DEFAULTS,
            **os.environ,
            "SPEAKER_STORE_URL": f"{(data / 'bucket').as_uri()}",
            "SPEAKER_STORE_CREATE_BUCKET": "true",
            "SPEAKER_STORE_KNOWN_AS": os.environ.get("SPEAKER_STORE_KNOWN_AS") or known_as,
            "SPEAKER_REDIS_URL": redis_url,
            "SPEAKER_PROFILES": self._settings.profiles,
            "SPEAKER_API_HOST": self._settings.host,
            "SPEAKER_API_PORT": str(self.port),
            **({"SPEAKER_AUTH_BOOTSTRAP_KEY_FILE": str(self.key_file)} if self.key_file else {}),
            "SPEAKER_EXTRACTOR_WEIGHTS": self._settings.weights,
        }

    def _show(self, line: str, importance: int) -> None:
        if self._shown_from == _SILENT and importance >= logging.ERROR:
            self._buffered_lines.append((line, importance))
        if importance >= self._shown_from:
            with suppress(OSError, ValueError):  # the registry keeps running even if the terminal is gone
                text = coloured(line, importance) if sys.stderr.isatty() else line
                print(text, file=sys.stderr, flush=True)

    def _wait_until_up(self) -> None:
        reported = asked = started = time.monotonic()
        pause = 0.0
        with RegistryClient(self.url, api_key=self.api_key, retries=0, timeout=2) as client:
            while (now := time.monotonic()) < started + START_SECONDS:
                self._raise_if_ended()
                if now >= asked + pause:
                    if self._is_up(client):
                        return
                    asked, pause = time.monotonic(), min(1.5 * pause + _CHECK_SECONDS, _LONGEST_PAUSE_SECONDS)
                if now - reported > _REPORT_INTERVAL_SECONDS:
                    last_lines = {name: child.last_line for name, child in self.children.items()}
                    log.warning("start.takes_long", **last_lines)
                    reported = now
                time.sleep(_CHECK_SECONDS)
        raise StartFailed(f"The registry was not up after {START_SECONDS:.0f} s.")

    def _is_up(self, client: RegistryClient) -> bool:
        """Return whether a worker serves a profile and the API is ready.

        The worker announces all of its profiles at once. Before that, the API accepts no voices.
        """
        with suppress(SpeakerRegistryError, httpx.HTTPError):
            if any(profile.workers for profile in client.profiles()):
                return httpx.get(f"{self.url}/readyz", timeout=2).is_success
        return False

    def _raise_if_ended(self) -> None:
        for child in self.children.values():
            if child.exit_status is not None:
                raise StartFailed(f"The {child.name} could not start: {child.failure_reason()}")

    def watch(self) -> None:
        """Restart processes that end by themselves. This does not return, but Ctrl-C raises
        KeyboardInterrupt.
        """
        rewrite_at = time.monotonic()
        while True:
            time.sleep(0.2)
            try:
                if self.valkey is not None and not self.valkey.running:
                    log.warning("valkey.ended")
                    self.valkey.start()
                if self.valkey is not None and time.monotonic() >= rewrite_at:
                    rewrite_at = time.monotonic() + AOF_REWRITE_SECONDS
                    self.valkey.rewrite_append_only_file()
                for child in self.children.values():
                    child.keep_alive()
            except (ValkeyError, OSError) as error:
                log.error("restart.failed", reason=str(error))
                time.sleep(2)

    def stop(self) -> None:
        """Stop everything: first the API and the worker, then Valkey. A second Ctrl-C kills what is still
        running.
        """
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for child in self.children.values():
                child.request_stop()
            for child in self.children.values():
                child.stop(deadline)
            if self.valkey is not None:
                self.valkey.stop(seconds=VALKEY_STOP_SECONDS)
        finally:
            for child in self.children.values():
                child.kill()
            if self.valkey is not None:
                self.valkey.stop(seconds=0)
            self._stack.close()


def why_not_writable(folder: Path) -> str | None:
    """Return the reason why a folder cannot be written. Returns None if 1 MiB can be written to it."""
    try:
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(_WRITE_TEST_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None


def _in_use(data: Path) -> StartFailed:
    return StartFailed(f"Another registry runs on {data}: stop it, or set DATA to another folder.")


def _next_metrics_port() -> Mapping[str, str]:
    """Return the variable that gives the worker the metrics port after that of the API, if there is one."""
    port = MetricsSettings().port
    if port == 65535:
        raise StartFailed(
            "SPEAKER_METRICS_PORT is 65535, and the worker's port is one higher. Set it to 65534 or less."
        )
    return {"SPEAKER_METRICS_PORT": str(port + 1)} if port else {}


def _claim_port(host: str, port: int) -> int:
    """Check that a port is free, or choose a free one for 0. Raises StartFailed if the port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the server sets this too
        try:
            probe.bind((host, port))
        except OSError as error:
            raise StartFailed(why_not_listening(error, host, port, prefix="")) from None
        claimed: int = probe.getsockname()[1]
        return claimed


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
