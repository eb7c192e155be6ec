"""Tests that run what the documentation shows for a terminal, the `console` and `sh` blocks, on a registry
with API keys whose worker computes next to nothing. `EXCUSED` says which blocks cannot run here, and why.
"""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from services.registry_api.access.rules import NAMESPACE_HEADER
from services.registry_api.keys.api_keys import new_token
from speaker_registry import RegistryClient
from tests.integration.documented import PAGES, ROOT, blocks
from tests.processes import PROFILE, QUICK, RegistryProcesses
from tests.unit.audio import clips

EXCUSED = {
    r"^(\S+=\S+ )?make |^echo WEIGHTS": "installs packages, downloads weights or runs until it is ended",
    r"^docker |^kind |^kubectl ": "needs a container engine or a cluster",
    r"\bpip install ": "needs a package index",
    r" sha256:(\S{4})?…": "its fingerprint is cut, and the encoder that it names differs on every machine",
    r"extractor_worker download ": "downloads weights",
    r"/…/": "names a folder of the reader",
    r"VOICE\.pt": "needs a file that only Mistral publishes",
    r"127\.0\.0\.1:809\d": "needs a TTS server or a gateway",
    r" --watch$|services\.registry_api$": "runs until it is ended",
    r"^rclone ": "needs an S3 server",
    r"completion (zsh|fish)": "needs other shells than bash",
}
"""Patterns of the blocks that cannot run here, each with the reason."""
DOCUMENTED = [
    (page, block)
    for page in (*PAGES, "CONTRIBUTING.md")
    for language in ("console", "sh")
    for block in blocks(language, page)
]
BOOTSTRAP = str(new_token())
NUMBERS = count()
PROFILES = {"SPEAKER_PROFILES": PROFILE, "SPEAKER_EXTRACTOR_PROFILES": f"{PROFILE},ecapa-voxceleb"}


def excuses(block: str) -> set[str]:
    return {pattern for pattern in EXCUSED if re.search(pattern, block, re.MULTILINE)}


RUN = sorted(
    ((page, block) for page, block in DOCUMENTED if not excuses(block)),
    key=lambda example: "keys revoke" in example[1],  # takes long in the first seconds of a registry
)
SCRIPTS = [pytest.param(block, id=page) for page, block in RUN if not block.startswith("$ ")]
TRANSCRIPTS = [block for _, block in RUN if block.startswith("$ ")]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProcesses]:
    environment = {**QUICK, "SPEAKER_AUTH_REQUIRED": "true", "SPEAKER_AUTH_BOOTSTRAP_KEY": BOOTSTRAP}
    folder = tmp_path_factory.mktemp("console")
    with RegistryProcesses(folder, environment=environment, profiles=PROFILES) as running:
        yield running


@pytest.fixture
def client(registry: RegistryProcesses) -> Iterator[RegistryClient]:
    """A client of a namespace of its own, with the voice `wren` and three versions of `rowan`."""
    namespace = f"reader-{next(NUMBERS)}"
    with RegistryClient(registry.urls[0], api_key=BOOTSTRAP, namespace=namespace) as client:
        for name, versions in (("wren", 1), ("rowan", 3)):
            for number in range(versions):
                made = client.register(name, clips.wav(1.2 + number / 10), consent="cons_1")
                client.wait_ready(made)
        yield client


def environment(registry: RegistryProcesses, client: RegistryClient, folder: Path) -> dict[str, str]:
    """Return the environment of a reader who has an API key. curl sends the key, and fails on errors."""
    namespace = client.quota().namespace
    (folder / ".curlrc").write_text(
        f'header = "Authorization: Bearer {BOOTSTRAP}"\n'
        f'header = "{NAMESPACE_HEADER}: {namespace}"\n'
        "fail-with-body\n"
    )
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "HOME": str(folder),
        "CURL_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "SPEAKER_REGISTRY_URL": registry.urls[0],
        "SPEAKER_REGISTRY_API_KEY": BOOTSTRAP,
        "SPEAKER_REGISTRY_NAMESPACE": namespace,
    }


def adapted(block: str, registry: RegistryProcesses, key_id: str = "") -> str:
    """Return an example with this test's addresses, program and key in place of a reader's."""
    return (
        block.replace("http://127.0.0.1:8300", registry.urls[0])
        .replace("https://voices.example.com", f"{registry.urls[0]} < bootstrap-key")
        .replace(".venv/bin/python", sys.executable)
        .replace("4dtqrws3", key_id)
    )


@pytest.mark.parametrize("block", SCRIPTS)
def test_what_is_shown_for_a_terminal_works(
    block: str, registry: RegistryProcesses, client: RegistryClient, tmp_path: Path
):
    """Each example works, because readers paste it as it is. Whoever is asked for confirmation says yes."""
    key_id = client.create_key("shown", scopes=["engine"]).id if "4dtqrws3" in block else ""
    if "--out bootstrap-key" not in block:
        (tmp_path / "bootstrap-key").write_text(BOOTSTRAP)
    script = f"set -euo pipefail\n{adapted(block, registry, key_id)}"
    keyboard, terminal = pty.openpty()
    try:
        os.write(keyboard, b"yes\n" * block.count("\n"))
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env=environment(registry, client, tmp_path),
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(keyboard)
        os.close(terminal)
    assert done.returncode == 0, done.stdout


def test_the_events_come_as_they_are_shown(
    registry: RegistryProcesses, client: RegistryClient, tmp_path: Path
):
    """The stream of events begins as it is shown, and its events have the fields that are shown."""
    [transcript] = TRANSCRIPTS
    command, _, shown = transcript.removeprefix("$ ").partition("\n")
    with subprocess.Popen(
        ["bash", "-c", f"exec {adapted(command, registry)}"],
        env=environment(registry, client, tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    ) as curl:
        try:
            assert curl.stdout is not None
            assert next(curl.stdout) == shown.partition("\n")[0] + "\n"
            client.register("wren", clips.wav(1.7), consent="cons_1")
            came = next(line for line in curl.stdout if line.startswith("data: "))
        finally:
            curl.kill()
    [documented] = re.findall(r"^data: (.*)$", shown, re.MULTILINE)
    assert json.loads(came.removeprefix("data: ")).keys() == json.loads(documented).keys()


def test_every_reason_excuses_an_example():
    """Every reason excuses an example. One that excuses nothing any more would hide the next mistake."""
    assert set().union(*(excuses(block) for _, block in DOCUMENTED)) == set(EXCUSED)
