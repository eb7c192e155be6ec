"""Measures HTTP servers with wrk, beside nginx as the reference. Both must be installed.

wrk runs on one core and the measured server on the other, because they would take the time from each other.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import httpx

from tests.ports import free_port
from tests.queue_workers import wait_until

SERVER_CORE, LOAD_CORE = "0", "1"
SECONDS = float(os.environ.get("WRK_SECONDS", "3"))
CONNECTIONS: Final = 16


@dataclass(frozen=True)
class Measured:
    """What wrk saw of a server."""

    per_second: float
    median_ms: float
    p99_ms: float
    failed: int
    """Answers that were neither 2xx nor 3xx."""


def missing_tools() -> list[str]:
    """Return the programs that have to be installed first."""
    return [name for name in ("nginx", "wrk", "taskset") if shutil.which(name) is None]


def on_server_core(pid: int) -> None:
    """Keep a process, with all its threads, on the core of servers."""
    subprocess.run(["taskset", "-a", "-c", "-p", SERVER_CORE, str(pid)], check=True, capture_output=True)


def measure(url: str, *headers: str, script: Path | None = None) -> Measured:
    """Send requests for `SECONDS` as fast as answers come.

    Args:
        headers: lines of the requests' heads.
        script: a script of wrk that makes the requests.
    """
    options = [option for header in headers for option in ("-H", header)]
    options += ["-s", str(script)] if script else []
    command = ["taskset", "-c", LOAD_CORE, "wrk", "-t", "1", "-c", f"{CONNECTIONS}"]
    command += ["-d", f"{SECONDS:g}s", "--latency", *options, url]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    failed = re.search(r"Non-2xx or 3xx responses: (\d+)", said)
    return Measured(
        per_second=float(_found(r"Requests/sec: +([0-9.]+)", said)),
        median_ms=_milliseconds(_found(r" 50% +(\S+)", said)),
        p99_ms=_milliseconds(_found(r" 99% +(\S+)", said)),
        failed=int(failed[1]) if failed else 0,
    )


def _found(pattern: str, said: str) -> str:
    match = re.search(pattern, said)
    assert match, said
    return match[1]


def _milliseconds(text: str) -> float:
    for unit, factor in (("us", 0.001), ("ms", 1.0), ("s", 1000.0)):
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    raise ValueError(text)


@contextmanager
def nginx(folder: Path, body: bytes) -> Iterator[str]:
    """Run nginx with one worker on the servers' core. Yields the URL of a file with this body."""
    port = free_port()
    (folder / "file").write_bytes(body)
    settings = folder / "nginx.conf"
    settings.write_text(
        "daemon off; worker_processes 1; user root; pid nginx.pid; error_log stderr crit;\n"
        "events { worker_connections 1024; }\n"
        "http { access_log off; sendfile on; keepalive_requests 1000000000; "
        f"server {{ listen 127.0.0.1:{port}; root {folder}; }} }}\n"
    )
    with running(["nginx", "-p", f"{folder}", "-c", f"{settings}"], f"http://127.0.0.1:{port}/file") as url:
        yield url


@contextmanager
def running(command: Sequence[str], url: str) -> Iterator[str]:
    """Run a server on the servers' core until the end of the context. Yields `url` when it answers."""
    process = subprocess.Popen(["taskset", "-c", SERVER_CORE, *command], start_new_session=True)
    try:
        wait_until(lambda: _answers(url), 60)
        yield url
    finally:
        os.killpg(process.pid, 15)
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
