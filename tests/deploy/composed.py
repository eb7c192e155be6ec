"""The registry that docker-compose.yml describes, as processes of this machine: secrets made by its own
script, Valkey by its own command, API and workers with their own environment, the real proxy with its own
configuration, and SeaweedFS by its own command. Addresses are others; workers compute next to nothing.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import pytest
import redis

from services.embedded.managed_process import ManagedProcess
from services.embedded.valkey import find_server_binary
from tests.deploy import compose_file
from tests.deploy.compose_file import ROOT
from tests.deploy.names_server import NamesServer
from tests.deploy.tools import program
from tests.ports import free_port, free_ports
from tests.processes import QUICK, LoggedProcess
from tests.queue_workers import START_SECONDS, wait_until

API_HOSTS = ("127.0.0.2", "127.0.0.3")
WORKERS = 2


class ComposedRegistry:
    """Context manager: inside it the proxy answers at `url`, for whoever has the `key`.

    environment: what differs from the compose file.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str] = QUICK) -> None:
        self.folder = folder
        self._stack = ExitStack()
        self._services = compose_file.services()
        self._changes = environment
        self.secrets = folder / "secrets"
        self.redis_port, self.s3_port, self.api_port, self.proxy_port, self.stats_port = free_ports(5)
        self._seaweedfs = seaweedfs_ports(self.s3_port)
        self.url = f"http://127.0.0.1:{self.proxy_port}"
        self.apis: list[ManagedProcess] = []
        self.workers: list[ManagedProcess] = []
        self.kills = 0

    def __enter__(self) -> Self:
        try:
            self._raw = self._stack.enter_context((self.folder / "log").open("ab"))
            make_secrets(self.secrets, self._services["secrets"])
            self._add_an_onlooker()
            self._stack.enter_context(self._valkey())
            self._stack.enter_context(self._s3())
            self._start_children()
            names = self._stack.enter_context(NamesServer("api", API_HOSTS))
            self._stack.enter_context(self._proxy(names.address))
            wait_until(self.whole, START_SECONDS)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def key(self) -> str:
        """Return a key with all rights."""
        return (self.secrets / "bootstrap" / "key").read_text()

    @property
    def password(self) -> str:
        return (self.secrets / "redis" / "password").read_text()

    def redis(self) -> redis.Redis:
        return redis.Redis(port=self.redis_port, password=self.password)

    def _add_an_onlooker(self) -> None:
        """Add a Redis user that may ask what our own user may not. Only tests use it."""
        conf = self.secrets / "valkey" / "valkey.conf"
        conf.chmod(0o600)
        conf.write_text(conf.read_text() + "user onlooker on nopass ~* +@all\n")

    def denied(self) -> list[Any]:
        """Return what Redis has refused to our processes."""
        with redis.Redis(port=self.redis_port, username="onlooker", password="x") as onlooker:
            return list(onlooker.acl_log())

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def whole(self) -> bool:
        """Both replicas are ready, and each worker is seen by both. AssertionError: a process has ended."""
        for child in (*self.apis, *self.workers):
            assert child.exit_status is None, f"{child.name} ended: {child.failure_reason()}"
        return all(self.ready(host) for host in API_HOSTS) and _ok(f"{self.url}/readyz")

    def ready(self, host: str) -> bool:
        """Return whether this replica is ready and serves with all workers."""
        url = f"http://{host}:{self.api_port}"
        if not _ok(f"{url}/readyz"):
            return False
        profiles = httpx.get(f"{url}/v1/profiles", headers=self.authorization).json()["data"]
        return any(profile["workers"] >= WORKERS for profile in profiles)

    @property
    def authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"}

    def sessions(self) -> int:
        """Requests that the proxy has handed on and that are not answered."""
        return self._of_the_proxy("haproxy_backend_current_sessions")

    def _of_the_proxy(self, metric: str) -> int:
        text = httpx.get(f"http://127.0.0.1:{self.stats_port}/metrics").text
        [line] = [line for line in text.splitlines() if line.startswith(metric + '{proxy="api"}')]
        return int(float(line.split()[-1]))

    def kill_a_replica(self) -> bool:
        """Kill -9 one and start it anew, each in turn. Not before the last one is back, also for the proxy;
        returns whether.
        """
        number = self.kills % len(self.apis)
        known = self._of_the_proxy("haproxy_backend_active_servers")
        if known < len(self.apis) or not all(
            _ok(f"http://{host}:{self.api_port}/readyz") for host in API_HOSTS
        ):
            return False
        self.apis[number].kill()
        self.apis[number].start()
        self.kills += 1
        return True

    # -- the parts

    def here(self, text: str) -> str:
        """A value of the compose file with this machine's places in it."""
        places = {
            "/run/": f"{self.secrets}/",
            "valkey:6379": f"127.0.0.1:{self.redis_port}",
            "s3:8333": f"127.0.0.1:{self.s3_port}",
        }
        for theirs, ours in places.items():
            text = text.replace(theirs, ours)
        return text

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of one of its processes, as it runs here."""
        given = self._services[service].get("environment", {})
        return {name: self.here(str(value)) for name, value in given.items()}

    @contextmanager
    def _valkey(self) -> Iterator[None]:
        (self.folder / "valkey").mkdir()
        _, *arguments = [
            str(self.folder / "valkey") if word == "/data" else self.here(word)
            for word in compose_file.words(self._services["valkey"]["command"])
        ]
        places = ["--port", str(self.redis_port), "--bind", "127.0.0.1"]
        with self._process([str(find_server_binary()), *arguments, *places], {}):
            wait_until(lambda: pongs(self.redis()), START_SECONDS)
            yield

    @contextmanager
    def _s3(self) -> Iterator[None]:
        data = self.folder / "s3"
        data.mkdir()
        _, *arguments = [
            f"-dir={data}" if word == "-dir=/data" else self.here(word)
            for word in compose_file.words(self._services["s3"]["command"])
        ]
        weed = shutil.which("weed", path=Path(sys.executable).parent) or "weed"
        with self._process([weed, "server", *arguments, *self._seaweedfs], {}):
            wait_until(lambda: _ok(f"http://127.0.0.1:{self.s3_port}/healthz"), START_SECONDS)
            yield

    def _start_children(self) -> None:
        self._stack.callback(self._stop_children)
        for number, host in enumerate(API_HOSTS):
            own = {
                "SPEAKER_API_HOST": host,
                "SPEAKER_API_PORT": str(self.api_port),
                "SPEAKER_API_TRUSTED_PROXIES": "127.0.0.1",
            }
            self.apis.append(self._child(f"api{number}", "services.registry_api", "api", own))
        for number in range(WORKERS):
            beats = {"SPEAKER_WORKER_BEAT_FILE": str(self.folder / f"beat{number}")}
            self.workers.append(self._child(f"worker{number}", "tests.light_worker", "worker", beats))
        for child in (*self.apis, *self.workers):
            child.start()

    def _child(self, name: str, module: str, service: str, own: Mapping[str, str]) -> ManagedProcess:
        port = free_port()
        metrics = {"SPEAKER_METRICS_HOST": "127.0.0.1", "SPEAKER_METRICS_PORT": str(port)}
        environment = {**os.environ, **self.environment(service), **metrics, **own, **self._changes}
        return LoggedProcess(name, module, environment, self._raw)

    def _stop_children(self) -> None:
        children = [*self.apis, *self.workers]
        deadline = time.monotonic() + 5
        for child in children:
            child.request_stop()
        for child in children:
            child.stop(deadline)

    @contextmanager
    def _proxy(self, names: str) -> Iterator[None]:
        environment = self.environment("proxy") | {
            "REGISTRY_LISTEN": f"127.0.0.1:{self.proxy_port}",
            "REGISTRY_METRICS_LISTEN": f"127.0.0.1:{self.stats_port}",
            "REGISTRY_API": f"api:{self.api_port}",
            "REGISTRY_DNS": names,
        }
        configuration = ROOT / "deploy" / "haproxy" / "haproxy.cfg"
        with self._process([program("haproxy", "haproxy"), "-db", "-f", str(configuration)], environment):
            yield

    @contextmanager
    def _process(self, command: list[str], environment: Mapping[str, str]) -> Iterator[None]:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=self._raw,
            stderr=self._raw,
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


def seaweedfs_ports(s3_port: int) -> list[str]:
    """Return the arguments by which SeaweedFS listens on free ports of this machine alone."""
    kinds = [f"{server}.port{kind}" for server in ("master", "volume", "filer") for kind in ("", ".grpc")]
    ports = zip((*kinds, "s3.port.grpc"), free_ports(len(kinds) + 1), strict=True)
    chosen = [f"-{kind}={port}" for kind, port in ports]
    return [*chosen, f"-s3.port={s3_port}", "-s3.ip.bind=127.0.0.1", "-volume.minFreeSpace=0"]


def make_secrets(folder: Path, service: Mapping[str, Any]) -> str:
    """Run the script as the first service of the compose file does. Returns what it prints."""
    environment = {**os.environ, **service["environment"], "PYTHONPATH": str(ROOT)}
    script = ROOT / "deploy" / "compose" / "make_secrets.py"
    command = [sys.executable, str(script), str(folder)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def check_what_an_operator_may(port: int, password: str) -> None:
    """Check that Valkey's user `operator` can empty it and have its log rewritten, and nothing else."""
    with redis.Redis(port=port, username="operator", password=password) as operator:
        operator.bgrewriteaof()
        operator.flushdb()
        for refused in ("GET sr:boot", "CONFIG GET dir", "FLUSHALL", "ACL LIST", "SHUTDOWN NOSAVE"):
            with pytest.raises(redis.exceptions.NoPermissionError):
                operator.execute_command(*refused.split())


def _ok(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code == httpx.codes.OK
    return False


def pongs(client: redis.Redis) -> bool:
    with client, suppress(redis.ConnectionError):
        return bool(client.ping())
    return False
