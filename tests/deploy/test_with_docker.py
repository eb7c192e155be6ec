"""Tests that need a container engine: images are built, and the servers that the compose file names are
started. They are skipped where no engine answers.
"""

import os
import subprocess
from contextlib import suppress

import httpx
import pytest

from speaker_registry import RegistryClient
from tests import servers
from tests.deploy.compose_file import FILE, REQUIRED, ROOT
from tests.deploy.dockerfile import FILE as DOCKERFILE
from tests.ports import free_port
from tests.process_load import noise_clip
from tests.processes import PROFILE
from tests.queue_workers import wait_until

START_SECONDS = 600

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    if reason := servers.no_docker():
        pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("target", "modules"),
    [
        ("api", "services.registry_api.app"),
        ("worker", "services.extractor_worker.encoders, torchaudio"),
        pytest.param("worker-cuda", "services.extractor_worker.encoders, torchaudio", marks=pytest.mark.full),
    ],
)
def test_an_image_is_built_and_imports_what_it_runs(target: str, modules: str):
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
        done = subprocess.run([*run, "-c", f"import {modules}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
    finally:
        subprocess.run(["docker", "image", "rm", "--force", image], capture_output=True, check=False)


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_docker_compose_up_and_nothing_else():
    """The README's commands lead from a checkout to an artifact. Building the images takes as long as their
    downloads.
    """
    port = free_port()
    compose = ["docker", "compose", "--project-name", f"registry-test-{port}", "--file", str(FILE)]
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
