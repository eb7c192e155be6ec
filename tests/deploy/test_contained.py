"""Tests that no image needs what a container takes away: a writable root, capabilities and a user's name."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from speaker_registry import RegistryClient
from tests.deploy.contained import UID
from tests.deploy.tools import program
from tests.process_load import noise_clip
from tests.processes import PROFILE, QUICK, RegistryProcesses
from tests.queue_workers import wait_until

ROOT = Path(__file__).parents[2]


def healthy(module: str, *words: str, **environment: str) -> int:
    """The exit status of an image's health check."""
    command = [sys.executable, "-m", module, *words]
    return subprocess.run(
        command, env={**os.environ, **QUICK, **environment}, cwd=ROOT, check=False
    ).returncode


def check_contained(bubblewrap: int) -> None:
    """Check that everything that runs in the container, decoders included, is an unprivileged user and cannot
    become another one.
    """
    inside = [
        process
        for process in psutil.Process(bubblewrap).children(recursive=True)
        if "python" in " ".join(process.cmdline()[:1])
    ]
    assert inside
    for process in inside:
        folder = Path(f"/proc/{process.pid}")
        lines = (folder / "status").read_text().splitlines()
        status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
        assert {int(status[name][0], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == ["1"]
        assert (folder / "uid_map").read_text().split() == [UID, str(os.getuid()), "1"]
        with pytest.raises(OSError, match="Read-only file system"):
            (folder / "root" / "app").write_text("ours now")


@pytest.mark.slow
@pytest.mark.integration
def test_a_voice_becomes_an_artifact_under_a_read_only_root(tmp_path: Path):
    """The clip is decoded in its guarded process, all guards up: none needs a dropped right."""
    program("bwrap", "bubblewrap")
    beats = tmp_path / "beat"
    environment = {**QUICK, "CONTAINED_FOLDER": str(tmp_path), "SPEAKER_WORKER_BEAT_FILE": str(beats)}
    with RegistryProcesses(
        tmp_path,
        environment=environment,
        api="tests.deploy.contained_api",
        worker="tests.deploy.contained_worker",
    ) as registry:
        with RegistryClient(registry.urls[0]) as client:
            voice = client.register("Wren", noise_clip(1)[0], consent="cons_1")
            client.wait_ready(voice.reference, timeout=30)
            assert client.fetch(voice.reference, profile=PROFILE).tensors
        for child in registry.children:
            check_contained(child.pid or 0)
        port = registry.urls[0].rpartition(":")[2]
        assert "decoder.unfiltered" not in registry.log()
        assert healthy("services.registry_api.healthy", SPEAKER_API_PORT=port) == 0
        assert healthy("services.extractor_worker", "healthy", SPEAKER_WORKER_BEAT_FILE=str(beats)) == 0
        for child in registry.children:
            child.stop(0)
        assert healthy("services.registry_api.healthy", SPEAKER_API_PORT=port) == 1
        wait_until(
            lambda: healthy("services.extractor_worker", "healthy", SPEAKER_WORKER_BEAT_FILE=str(beats)) == 1,
            20,
        )
