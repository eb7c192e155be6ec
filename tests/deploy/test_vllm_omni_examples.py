"""Tests of the two examples of a vLLM-Omni server with an init container, without a cluster, an engine or
a GPU: their form, and that the command writes the folder that the server is told to read.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from speaker_registry.cli.program import parser
from speaker_registry.environment import SDK_VARIABLES
from tests.deploy.compose_file import FILE, ROOT, merged
from tests.deploy.manifests import built
from tests.vllm_omni_readers import WHEEL

KUBERNETES = ROOT / "k8s" / "vllm-omni"
COMPOSE = ROOT / "deploy" / "compose" / "vllm-omni.yaml"
SCRIPT = KUBERNETES / "serve.sh"


class Example(NamedTuple):
    command: list[str]
    """The whole command line of the init container."""
    environment: Mapping[str, str]
    written: Mapping[str, str]
    """The volumes of the init container by their paths."""
    read: Mapping[str, str]
    """The volumes of the server by their paths."""


def kubernetes() -> Example:
    [deployment] = [one for one in built(KUBERNETES) if one["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    [voices], [server] = spec["initContainers"], spec["containers"]

    def mounts(container: dict[str, Any]) -> dict[str, str]:
        return {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}

    environment = {entry["name"]: entry.get("value", "key") for entry in voices["env"]}
    return Example([*voices["command"], *voices["args"]], environment, mounts(voices), mounts(server))


def compose() -> Example:
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    voices, server = services["tts-voices"], services["tts"]

    def mounts(service: dict[str, Any]) -> dict[str, str]:
        return {volume["target"]: volume["source"] for volume in service["volumes"]}

    command = [*voices["entrypoint"], *voices["command"]]
    return Example(command, voices["environment"], mounts(voices), mounts(server))


@pytest.mark.parametrize("example", [kubernetes, compose])
def test_the_command_writes_the_folder_that_the_server_reads(example: Any, tmp_path: Path):
    """A server that reads another folder starts without voices and says nothing."""
    command, environment, written, read = example()
    assert command[:3] == ["tini", "--", "speaker-registry"]
    arguments = parser().parse_args(command[3:])
    assert (arguments.format, arguments.watch) == ("custom-voice-dir", False)
    assert environment.keys() <= set(SDK_VARIABLES)
    deploy = deploy_configuration(tmp_path)
    assert written[arguments.folder] == read[deploy["custom_voice_dir"]]


def deploy_configuration(folder: Path) -> dict[str, str]:
    """Return the configuration with which the script starts the server, from vLLM-Omni's own wheel."""
    vllm = folder / "vllm"
    vllm.write_text('#!/bin/sh\nwhile [ "$1" != --deploy-config ]; do shift; done\ncat "$2"\n')
    vllm.chmod(0o755)
    (folder / "python3").symlink_to(sys.executable)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(WHEEL)}
    done = subprocess.run(["sh", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    found: dict[str, str] = yaml.safe_load(done.stdout)
    return found


def test_the_server_inherits_a_configuration_that_vllm_omni_has(tmp_path: Path):
    """The path of the installed package differs between images, so the script asks Python for it."""
    deploy = deploy_configuration(tmp_path)
    base = Path(deploy["base_config"])
    assert base.is_relative_to(WHEEL)
    assert yaml.safe_load(base.read_text())["stages"]


def test_the_manifests_are_of_their_form():
    """Every manifest is valid by Kubernetes' own schemas, which allow no unknown field."""
    manifests = built(KUBERNETES)
    for manifest in manifests:
        kubernetes_validate.validate(manifest, "1.37", strict=True)
    maps = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == "ConfigMap"}
    [deployment] = [one for one in manifests if one["kind"] == "Deployment"]
    volumes = deployment["spec"]["template"]["spec"]["volumes"]
    assert maps == {volume["configMap"]["name"] for volume in volumes if "configMap" in volume}


def test_the_compose_files_fit_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Networks, volumes and services that the example names are there when both files are merged."""
    monkeypatch.setenv("ENGINE_KEY", "key")
    found = merged(tmp_path, FILE, COMPOSE)
    for name in ("tts-voices", "tts"):
        service = found["services"][name]
        assert set(service["networks"]) <= found["networks"].keys()
        assert set(service["depends_on"]) <= found["services"].keys()
        assert {volume["source"] for volume in service["volumes"]} <= found["volumes"].keys()
    assert (ROOT / found["configs"]["vllm_omni_serve"]["file"]).samefile(SCRIPT)
    ways = found["services"]["tts-voices"]["networks"]
    assert set(ways) & set(found["services"]["proxy"]["networks"])
    assert found["services"]["tts"]["depends_on"]["tts-voices"] == {
        "condition": "service_completed_successfully"
    }
