"""The overlays as kustomize builds them, and what is looked for in them."""

import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.tools import program

ROOT = Path(__file__).parents[2]
OVERLAYS = ("dev", "production")
CREDENTIALS = ("static-keys", "web-identity", "pod-identity", "machine-role")
"""The components of `k8s/credentials`. For each one `tests/deploy/overlays` has an overlay of this name."""

Manifest = dict[str, Any]


@cache
def rendered(overlay: str) -> list[Manifest]:
    """Every object of an overlay."""
    folder = ROOT / "tests" / "deploy" if overlay in CREDENTIALS else ROOT / "k8s"
    return built(folder / "overlays" / overlay)


def built(folder: Path) -> list[Manifest]:
    """Every object, by `kustomize` or by kubectl's own."""
    if shutil.which("kustomize"):
        command = ["kustomize", "build"]
    else:
        command = [program("kubectl", "kubectl, or kustomize"), "kustomize"]
    done = subprocess.run([*command, folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def of_kind(overlay: str, *kinds: str) -> list[Manifest]:
    return [manifest for manifest in rendered(overlay) if manifest["kind"] in kinds]


def name_of(manifest: Manifest) -> str:
    name: str = manifest["metadata"]["name"]
    return name


def pods(overlay: str) -> Iterator[tuple[str, Manifest]]:
    """(Name of what makes them, their template), of everything that makes pods."""
    for manifest in of_kind(overlay, "Deployment", "StatefulSet"):
        yield name_of(manifest), manifest["spec"]["template"]
    for manifest in of_kind(overlay, "CronJob"):
        yield name_of(manifest), manifest["spec"]["jobTemplate"]["spec"]["template"]


def containers(template: Manifest) -> list[Manifest]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def ours(overlay: str) -> Iterator[tuple[str, Manifest]]:
    """Return (pod, container) for each container that runs one of our images."""
    for name, template in pods(overlay):
        for container in containers(template):
            if "speaker-registry" in container["image"]:
                yield name, container


def environment(overlay: str, container: Manifest) -> dict[str, str]:
    """Return the environment as the container gets it. A value from a secret is replaced by its reference."""
    found: dict[str, str] = {}
    maps = {name_of(manifest): manifest.get("data", {}) for manifest in of_kind(overlay, "ConfigMap")}
    for source in container.get("envFrom", []):
        found |= maps[source["configMapRef"]["name"]]
    for entry in container.get("env", []):
        source = entry.get("valueFrom", {}).get("configMapKeyRef")
        found[entry["name"]] = (
            maps[source["name"]][source["key"]] if source else entry.get("value", "from-a-secret")
        )
    return found
