"""Tests that need a container engine: images are built, and the servers that the compose file names are
started. They are skipped where no engine answers.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import probe_consistency
from services.shared.configuration.settings import StoreSettings
from speaker_registry import RegistryClient
from tests import servers
from tests.deploy.compose_file import FILE, REQUIRED, ROOT, SEAWEEDFS, services
from tests.deploy.composed import make_secrets
from tests.deploy.dockerfile import FILE as DOCKERFILE
from tests.ports import free_port
from tests.process_load import noise_clip
from tests.processes import PROFILE
from tests.queue_workers import wait_until

GARAGE = services()["s3"]
BUCKET = services()["bucket"]["environment"]
START_SECONDS = 600

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    if reason := servers.no_docker():
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_real_garage_gives_us_the_bucket(tmp_path: Path):
    """The real Garage is set up by its own settings file and administration API, which a fake plays in other
    tests.
    """
    make_secrets(tmp_path, services()["secrets"])
    with garage(tmp_path) as (s3, administration):
        environment = {
            **os.environ,
            **BUCKET,
            "GARAGE_URL": administration,
            "GARAGE_SECRETS": str(tmp_path / "garage"),
            "S3_SECRETS": str(tmp_path / "s3"),
        }
        command = [sys.executable, ROOT / "deploy" / "compose" / "make_bucket.py"]
        for _ in range(2):  # the second time there is nothing to do
            subprocess.run(command, env=environment, check=True, timeout=150)
        settings = StoreSettings(
            url=f"s3://{BUCKET['BUCKET']}",
            endpoint=s3,
            region="garage",
            access_key_id=BUCKET["KEY_ID"],
            secret_access_key_file=tmp_path / "s3" / "secret",
            allow_http=True,
        )
        probe_consistency(open_store(settings))


@contextmanager
def garage(secrets: Path) -> Iterator[tuple[str, str]]:
    """The container of the compose file, without its volumes: where S3 and the administration API answer."""
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415 - slow, and rarely used

    container = (
        DockerContainer(GARAGE["image"])
        .with_volume_mapping(str(ROOT / "deploy" / "compose" / "garage.toml"), "/etc/garage.toml", "ro")
        .with_volume_mapping(str(secrets / "garage"), "/run/garage", "ro")
        .with_command(GARAGE["command"])
        .with_exposed_ports(3900, 3903)
    )
    with container:
        host = container.get_container_host_ip()
        yield tuple(f"http://{host}:{container.get_exposed_port(port)}" for port in (3900, 3903))


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("target", "module"),
    [
        ("api", "services.registry_api.app"),
        ("worker", "services.extractor_worker.encoders"),
        pytest.param("worker-cuda", "services.extractor_worker.encoders", marks=pytest.mark.full),
    ],
)
def test_an_image_is_built_and_imports_what_it_runs(target: str, module: str):
    """The image is built as the documentation says, and starts as Kubernetes starts it: read-only and with no
    rights.
    """
    image = f"registry-test-{target}-{free_port()}"
    build = ["docker", "build", "--file", DOCKERFILE, "--target", target, "--tag", image, ROOT]
    built = subprocess.run(build, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr[-4000:]
    confined = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
    run = ["docker", "run", "--rm", "--network", "none", *confined, "--entrypoint", "python", image]
    try:
        done = subprocess.run([*run, "-c", f"import {module}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("files", [(FILE,), (FILE, SEAWEEDFS)], ids=["garage", "seaweedfs"])
def test_docker_compose_up_and_nothing_else(files: tuple[Path, ...]):
    """The README's commands lead from a checkout to an artifact. Building the images takes as long as their
    downloads.
    """
    port = free_port()
    compose = ["docker", "compose", "--project-name", f"registry-test-{port}"]
    for file in files:
        compose += ["--file", str(file)]
    environment = {**os.environ, **REQUIRED, "PORT": str(port), "FRONT": "172.31.84"}

    def run(*words: str) -> str:
        done = subprocess.run(
            [*compose, *words], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    run("version")
    try:
        run("up", "--detach")
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: answers(f"{url}/readyz"), START_SECONDS)
        key = run("exec", "-T", "api", "cat", "/run/bootstrap/key").strip()
        with RegistryClient(url, api_key=key) as client:
            voice = client.register("Wren", noise_clip(1)[0], consent="cons_1")
            client.wait_ready(voice.reference, timeout=START_SECONDS)
            assert client.fetch(voice.reference, profile=PROFILE).tensors
    finally:
        run("down", "--volumes", "--timeout", "10")


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url).status_code == httpx.codes.OK
    return False
