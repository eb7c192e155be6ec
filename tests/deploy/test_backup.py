"""The backup that the manifests schedule, run against real servers, and brought back: a copy of the bucket
and an empty Redis answer what the original answered.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.shared.bucket.layout import (
    REGISTRY,
    VIEW,
    api_key_key,
    clip_key,
    document_key,
    profile_key,
)
from services.shared.bucket.store import PROBES, SENTINEL
from services.shared.model.speaker import SpeakerId
from speaker_registry import RegistryClient
from tests import servers
from tests.deploy.manifests import containers, environment, of_kind
from tests.process_load import noise_clip
from tests.processes import PROFILE, RegistryProcesses
from tests.servers import S3Server

pytestmark = pytest.mark.integration


def back_up(registry: RegistryProcesses, target: S3Server, between: Callable[[], None] | None = None) -> None:
    """Back up as the CronJob does, container by container. `between` is called after the first container."""
    [job] = [job for job in of_kind("production", "CronJob") if job["metadata"]["name"] == "registry-backup"]
    for container in containers(job["spec"]["jobTemplate"]["spec"]["template"]):
        given = environment("production", container)
        # A server for each step: rclone's remembers for minutes what a folder held.
        with servers.rclone(registry.folder) as server:
            source = replace(server, bucket=registry.bucket.name)
            places = {"$(FROM)": source.bucket, "$(TO)": target.bucket}
            arguments = [_replaced(argument, places) for argument in container["args"]]
            remotes = _remote("FROM", source) | _remote("TO", target)
            run_rclone(arguments, given | remotes)
        (registry.folder / servers.BUCKET).rmdir()
        if between is not None:
            between()
        between = None


def _replaced(text: str, places: Mapping[str, str]) -> str:
    for theirs, ours in places.items():
        text = text.replace(theirs, ours)
    return text


def _remote(name: str, server: S3Server) -> dict[str, str]:
    return {
        f"RCLONE_CONFIG_{name}_ENDPOINT": server.endpoint,
        f"RCLONE_CONFIG_{name}_ACCESS_KEY_ID": servers.KEY_ID,
        f"RCLONE_CONFIG_{name}_SECRET_ACCESS_KEY": servers.SECRET,
    }


def run_rclone(arguments: list[str], given: Mapping[str, str]) -> None:
    rclone = shutil.which("rclone", path=Path(sys.executable).parent) or "rclone"
    done = subprocess.run(
        [rclone, *arguments], env={**os.environ, **given}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def answers(url: str) -> dict[str, Any]:
    """All that can be asked about all voices, and every artifact's bytes."""
    with httpx.Client(base_url=url) as client:
        found: dict[str, Any] = {
            path: client.get(path).json() for path in ("/v1/audio/voices", "/v1/voices?limit=100")
        }
        for voice in found["/v1/voices?limit=100"]["data"]:
            path = f"/v1/voices/{voice['name']}/versions"
            found[path] = client.get(path).json()
            file = client.get(f"{path}/default/artifacts/{PROFILE}/file")
            found[f"{path} file"] = (file.status_code, file.headers.get("ETag"), file.content)
    return found


def forget_jobs(found: Any) -> Any:
    """Jobs are of Redis alone: a restored registry does not know of those that have ended."""
    if isinstance(found, dict):
        return {key: forget_jobs(value) for key, value in found.items() if key not in {"job_id", "jobs"}}
    return [forget_jobs(one) for one in found] if isinstance(found, list) else found


@pytest.mark.slow
def test_a_restored_copy_answers_as_the_original_did(tmp_path: Path):
    """Voices, versions, aliases and artifacts byte for byte; what was deleted stays deleted."""
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with servers.rclone(tmp_path / "new") as target:
        with RegistryProcesses(tmp_path / "old", workers=1) as registry:
            with RegistryClient(registry.urls[0]) as client:
                for name in ("Wren", "Robin", "Wren", "Gone"):
                    voice = client.register(name, noise_clip(len(name))[0], consent="cons_1", ref_text=name)
                    client.wait_ready(voice.reference, timeout=30)
                client.delete("gone")
            before = answers(registry.urls[0])
            back_up(registry, target)
            back_up(registry, target)  # the second time there is nothing to do, and that is no error
        with restored(tmp_path) as again:
            assert forget_jobs(answers(again.urls[0])) == forget_jobs(before)
            with RegistryClient(again.urls[0]) as client:
                assert client.register("gone", noise_clip(9)[0], consent="cons_1").version == 2


@pytest.mark.slow
def test_a_copy_that_is_made_while_voices_come_and_go_is_whole(tmp_path: Path):
    """Everything that the copy says exists has its data, because documents are copied first, and data is
    stored before the document that names it.
    """
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    with servers.rclone(tmp_path / "new") as target:
        with RegistryProcesses(tmp_path / "old", workers=1) as registry:

            def come_and_go() -> None:
                with RegistryClient(registry.urls[0]) as client:
                    client.delete("gone")
                    for name in ("late", "early"):
                        voice = client.register(name, noise_clip(7)[0], consent="cons_1")
                        client.wait_ready(voice.reference, timeout=30)

            with RegistryClient(registry.urls[0]) as client:
                for name in ("early", "gone"):
                    voice = client.register(name, noise_clip(len(name))[0], consent="cons_1")
                    client.wait_ready(voice.reference, timeout=30)
            back_up(registry, target, between=come_and_go)
        with restored(tmp_path) as again, RegistryClient(again.urls[0]) as client:
            assert [voice.name for voice in client.list()] == ["early", "gone"], "as it was at the first step"
            for name in ("early", "gone"):
                client.wait_ready(name, timeout=30)
                assert client.fetch(name, profile=PROFILE).tensors
            assert "job.lost" not in again.log(), "nothing had to be extracted again"


def test_a_copy_has_the_last_state_of_each_document_and_no_view(tmp_path: Path):
    """A key that was revoked since the last backup must not be good again after a restore. The view in Redis
    that the original uses says nothing about the copy, nor do the objects of a probe that is under way.
    """
    (tmp_path / "old").mkdir()
    (tmp_path / "new").mkdir()
    registry = RegistryProcesses(tmp_path / "old")
    copy, wren = tmp_path / "new" / servers.BUCKET, SpeakerId("default", "wren")
    documents = [document_key(wren), api_key_key("abcd1234"), profile_key(PROFILE), REGISTRY]
    clip, left_out = clip_key(wren, "0" * 32), [VIEW, SENTINEL, f"{PROBES}1/swap"]
    for key in (*documents, clip, *left_out):
        (registry.bucket / key).parent.mkdir(parents=True, exist_ok=True)
        (registry.bucket / key).write_text("{}")
    with servers.rclone(tmp_path / "new") as target:
        for state in ("active", "revoked"):
            for key in documents:
                (registry.bucket / key).write_text(state)
            back_up(registry, target)
            assert {key: (copy / key).read_text() for key in documents} == dict.fromkeys(documents, state)
    copied = {str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file()}
    assert copied == {*documents, clip}


@contextmanager
def restored(folder: Path) -> Iterator[RegistryProcesses]:
    """A registry on the copy, made one of its own, with a Redis that knows nothing."""
    (folder / "restored").mkdir()
    registry = RegistryProcesses(folder / "restored", workers=1)
    shutil.copytree(folder / "new" / servers.BUCKET, registry.bucket)
    subprocess.run(
        [sys.executable, "-m", "services.registry_api", "adopt-bucket"],
        env={**os.environ, "SPEAKER_STORE_URL": registry.bucket.as_uri()},
        check=True,
    )
    with registry:
        yield registry
