"""Tests that a process that cannot start gives the reason in one line and ends with a status of its own."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from services.embedded.managed_process import ROOT
from services.registry_api.keys.api_keys import new_token
from services.shared.bucket.folder_lock import exclusive_lock
from services.shared.bucket.layout import REGISTRY
from tests.ports import free_port

API, WORKER = "services.registry_api", "services.extractor_worker"
SWEEP, ADOPT = "services.registry_api sweep", "services.registry_api adopt-bucket"
SECRET = "6b1f0c9a4e"


def lines(program: str, *, status: int = 1, **environment: str) -> list[dict[str, str]]:
    """Return what a process logs before it ends with this status."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("SPEAKER_")}
    given["SPEAKER_EXTRACTOR_WEIGHTS"] = "untrained"
    command = [sys.executable, "-m", *program.split()]
    done = subprocess.run(
        command, env={**given, **environment}, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == status
    assert SECRET not in done.stdout + done.stderr
    return [json.loads(line) for line in done.stderr.splitlines()]


@pytest.mark.parametrize("program", [API, WORKER])
def test_a_level_that_there_is_not_is_named(program: str):
    """An unknown log level is named, although logging is not configured by then."""
    *_, last = lines(program, SPEAKER_LOG_LEVEL="loud")
    assert last["event"].endswith(".cannot_start")
    assert last["reason"].startswith("SPEAKER_LOG_LEVEL: ")


@pytest.mark.parametrize("program", [API, WORKER, SWEEP, ADOPT])
def test_a_mistyped_variable_is_named_before_anything_can_go_wrong(program: str):
    """A mistyped variable is named before anything can go wrong, because it may be why the process cannot
    start.
    """
    first, *_ = lines(
        program, SPEAKER_UPLOAD_MAXBYTES=SECRET, SPEAKER_MAX_VERSIONS="many", SPEAKER_STORE_URL="voices"
    )
    assert (first["event"], first["level"]) == ("setting.unknown", "warning")
    assert (first["variable"], first["nearest"]) == ("SPEAKER_UPLOAD_MAXBYTES", "SPEAKER_UPLOAD_MAX_BYTES")


@pytest.mark.parametrize("program", [API, WORKER])
def test_a_bucket_that_cannot_be_reached_is_named(program: str, tmp_path: Path):
    """A bucket that cannot be reached is named. A traceback would end with a line of some library's."""
    port = free_port()
    *_, last = lines(
        program,
        SPEAKER_STORE_URL="s3://voices",
        SPEAKER_STORE_ENDPOINT=f"http://127.0.0.1:{port}",
        SPEAKER_STORE_ACCESS_KEY_ID="GK1",
        SPEAKER_STORE_SECRET_ACCESS_KEY=SECRET,
        SPEAKER_STORE_START_SECONDS="0",
    )
    assert last["event"].endswith(".cannot_start")
    assert f"127.0.0.1:{port}" in last["reason"]
    assert "bucket 'voices'" in last["reason"]
    assert last["reason"].startswith("SPEAKER_STORE_ENDPOINT: ")
    assert "\n" not in last["reason"]


@pytest.mark.parametrize(
    ("program", "event"), [(API, "api.cannot_start"), (ADOPT, "bucket.not_adopted")], ids=["api", "adopt"]
)
def test_a_file_is_no_folder(tmp_path: Path, program: str, event: str):
    """The reason is not that the path exists, which an operator would take for the opposite of a fault."""
    in_the_way = tmp_path / "voices"
    in_the_way.write_bytes(b"")
    *_, last = lines(program, SPEAKER_STORE_URL=in_the_way.as_uri(), SPEAKER_STORE_START_SECONDS="0")
    assert last["event"] == event
    assert last["reason"] == (
        f"SPEAKER_STORE_URL: the folder '{in_the_way}' cannot be used: it is a file. Accepted: a folder"
    )


@pytest.mark.parametrize("path", ["DATA/bucket", "other/linked", "other/folder/../linked"])
def test_the_folder_of_a_running_registry_is_not_adopted(tmp_path: Path, path: str):
    """Its processes would keep the former identity. The folder may have several paths."""
    bucket = tmp_path / path
    for folder in ("DATA/bucket", "other/folder"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "other/linked").symlink_to(tmp_path / "DATA/bucket")
    with exclusive_lock(tmp_path / "DATA/bucket", wait_seconds=0):
        *_, last = lines(ADOPT, SPEAKER_STORE_URL=f"file://{bucket}")
        assert "a running registry uses it. Stop the registry first" in last["reason"]
        assert not (bucket / REGISTRY).exists()
    *_, last = lines(ADOPT, status=0, SPEAKER_STORE_URL=f"file://{bucket}")
    assert last["event"] == "bucket.adopted"


@pytest.mark.parametrize("fault", ["host", "port"])
def test_an_address_at_which_the_api_cannot_listen_is_named(tmp_path: Path, fault: str):
    """An address at which the API cannot listen is named together with its variable. The web server's own
    line names no setting.
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        *_, last = lines(
            API,
            SPEAKER_STORE_URL=tmp_path.as_uri(),
            SPEAKER_REDIS_URL=f"redis://127.0.0.1:{free_port()}/0",
            SPEAKER_AUTH_BOOTSTRAP_KEY=str(new_token()),
            SPEAKER_API_HOST=" " if fault == "host" else "127.0.0.1",
            SPEAKER_API_PORT=port,
        )
    assert last["event"] == "api.cannot_start"
    if fault == "host":
        assert last["reason"].startswith("SPEAKER_API_HOST is ' ', which cannot be resolved: ")
    else:
        assert last["reason"] == (
            f"Port {port} of 127.0.0.1 cannot be used (Address already in use). "
            "Is a registry running there already? Set SPEAKER_API_PORT to another port."
        )


def test_a_mistyped_profile_of_custom_weights_is_named(tmp_path: Path):
    """A mistyped profile of custom weights is named. If it were ignored, the intended profile would be
    refused because of its checksums.
    """
    *_, last = lines(
        WORKER,
        SPEAKER_STORE_URL=tmp_path.as_uri(),
        SPEAKER_EXTRACTOR_CUSTOM_WEIGHTS="qwen3-tts-06b",
    )
    assert last["event"] == "worker.cannot_start"
    assert last["reason"].startswith("Unknown profile 'qwen3-tts-06b'. Known: ")


def test_a_worker_that_is_told_no_weights_says_so_and_ends(tmp_path: Path):
    """Random weights are only for trying out. A worker that took them by itself would fill the registry with
    useless voices.
    """
    *_, last = lines(WORKER, SPEAKER_STORE_URL=tmp_path.as_uri(), SPEAKER_EXTRACTOR_WEIGHTS="")
    assert last["event"] == "worker.cannot_start"
    assert last["reason"] == (
        "SPEAKER_EXTRACTOR_WEIGHTS: it must be set; accepted: `hub`, `hub:<commit>`, the path of a folder, "
        "or `untrained`"
    )


@pytest.mark.parametrize("program", [SWEEP, ADOPT])
@pytest.mark.parametrize("argument", ["--help", "--nonsense"])
def test_a_command_that_takes_no_arguments_does_nothing_when_it_is_given_some(program: str, argument: str):
    """A command that takes no arguments does nothing when it is given some. A user who types `--help` does
    not want a bucket taken over.
    """
    command = [sys.executable, "-m", *program.split(), argument]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == (0 if argument == "--help" else 2)
    assert "usage: python -m services.registry_api" in done.stdout + done.stderr
    assert '"event"' not in done.stderr


@pytest.mark.parametrize("program", [API, WORKER, ADOPT])
def test_a_folder_that_is_missing_is_not_made(tmp_path: Path, program: str):
    """A missing folder is not created. A typo would otherwise start a registry without a voice that reports
    itself ready.
    """
    mistyped = tmp_path / "voicse"
    *_, last = lines(program, SPEAKER_STORE_URL=mistyped.as_uri(), SPEAKER_STORE_START_SECONDS="0")
    assert last["reason"] == (
        f"SPEAKER_STORE_URL: the folder '{mistyped}' cannot be used: it does not exist. "
        "SPEAKER_STORE_CREATE_BUCKET=true creates it"
    )
    assert not mistyped.exists()
