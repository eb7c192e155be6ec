"""Measures how long `fetch` of the SDK takes: from memory, from the directory of the cache, and from nginx.

The same nginx serves the same file to httpx alone, so that the difference is the SDK, and to curl.
"""

import base64
import hashlib
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

from speaker_registry import ArtifactCache, RegistryClient
from speaker_registry.artifact import Manifest, encode

PROFILE = "benchmark"
FILE_BYTES = 24 * 1024
GOAL_MICROSECONDS, GOAL_CURLS = 10.0, 3.0
MISS, CURL = "miss, without a cache", "curl, a command for each"
CONFIGURATION = """
daemon off; pid {folder}/pid; error_log stderr crit; worker_processes 1;
events {{ }}
http {{
  access_log off; etag off; client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2;
  fastcgi_temp_path {folder}/t3; uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
  server {{
    listen 127.0.0.1:{port}; root {folder};
    location / {{ try_files /file =404; keepalive_requests 1000000; add_header Content-Digest "{digest}"; }}
  }}
}}
"""


def main() -> bool:
    if missed := [name for name in ("nginx", "curl") if shutil.which(name) is None]:
        print(f"not measured: {' and '.join(missed)} must be installed")
        return False
    data = artifact_file()
    with tempfile.TemporaryDirectory() as name, nginx(Path(name), data) as url:
        rows = measure(url, Path(name) / "cache")
    print(f"{len(data)} bytes, microseconds\n\n| fetch | median | p99 |\n|---|---|---|")
    for what, times in rows.items():
        print(f"| {what} | {statistics.median(times):.1f} | {np.quantile(times, 0.99):.1f} |")
    curls = statistics.median(rows[MISS]) / statistics.median(rows[CURL])
    print(f"\nA miss takes {curls:.2f} times as long as a curl command; goal: at most {GOAL_CURLS:g}.")
    return statistics.median(rows["hit in memory"]) <= GOAL_MICROSECONDS and curls <= GOAL_CURLS


def measure(url: str, folder: Path) -> dict[str, list[float]]:
    cache = ArtifactCache(directory=folder)
    with RegistryClient(url, cache=cache) as client, httpx.Client() as plain:
        client.fetch("alice", PROFILE)

        def from_disk() -> None:
            cache.clear()
            client.fetch("alice", PROFILE, max_age=3600)

        def from_server() -> None:
            cache.clear()
            client.fetch("alice", PROFILE)

        return {
            "hit in memory": timed(lambda: client.fetch("alice", PROFILE, max_age=3600), 20_000),
            "hit on disk": timed(from_disk, 2000),
            "miss, kept on disk": timed(from_server, 1000),
            MISS: timed(missing(url), 1000),
            "httpx alone": timed(lambda: plain.get(f"{url}/file").content, 1000),
            "curl, one command for all, its own time": curl_times(url, 1000),
            CURL: timed(lambda: curl_times(url, 1), 50),
        }


def curl_times(url: str, rounds: int) -> list[float]:
    """Return the microseconds of each transfer as curl sees it. All but the first use a kept connection."""
    command = ["curl", "-s", "-w", "%{stderr}%{time_total}\n"]
    for _ in range(rounds):
        command += ["-o", "/dev/null", f"{url}/file"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return [float(line) * 1e6 for line in said.split()]


def missing(url: str) -> Callable[[], object]:
    client = RegistryClient(url, cache=None)
    return lambda: client.fetch("alice", PROFILE)


def timed(call: Callable[[], object], rounds: int) -> list[float]:
    """Return the microseconds that each call took."""
    times = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        times.append((time.perf_counter() - begun) * 1e6)
    return times


def artifact_file() -> bytes:
    manifest = Manifest(
        profile=PROFILE,
        model_type="none",
        fingerprint="sha256:" + "0" * 64,
        voice="alice",
        version=1,
        version_id="v1",
        created_at=1,
        source="audio",
    )
    return encode({"codes": np.zeros(FILE_BYTES // 4 - 128, np.int32)}, manifest)


@contextmanager
def nginx(folder: Path, data: bytes) -> Iterator[str]:
    folder.chmod(0o755)  # nginx's worker has another user
    (folder / "file").write_bytes(data)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    digest = f"sha-256=:{base64.b64encode(hashlib.sha256(data).digest()).decode()}:"
    text = CONFIGURATION.format(folder=folder, port=port, digest=digest)
    (folder / "nginx.conf").write_text(text)
    command = ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    with subprocess.Popen(command) as process:
        try:
            await_port(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


def await_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return
