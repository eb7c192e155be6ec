"""Tests that whatever a manifest or compose file refers to by name is there, or that the documentation tells
the operator to make it. Kubernetes starts no pod that refers to a missing Secret, and says so only in events.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.deploy.compose_file import FILE, merged
from tests.deploy.manifests import CREDENTIALS, OVERLAYS, ROOT, Manifest, built, name_of, rendered

EXAMPLE = ROOT / "k8s" / "vllm-omni"
COMPOSE_EXAMPLE = ROOT / "deploy" / "compose" / "vllm-omni.yaml"
PLACES = [*OVERLAYS, *CREDENTIALS, EXAMPLE.name]
NAMED_BY = {
    "configMap": "ConfigMap",
    "configMapRef": "ConfigMap",
    "configMapKeyRef": "ConfigMap",
    "secretRef": "Secret",
    "secretKeyRef": "Secret",
    "secretTargetRef": "Secret",
    "imagePullSecrets": "Secret",
    "authenticationRef": "TriggerAuthentication",
}
"""Fields whose value names an object, or is a list of such values, and the kind of the object."""
NAMES = {
    "secretName": "Secret",
    "serviceAccountName": "ServiceAccount",
    "claimName": "PersistentVolumeClaim",
}
"""Fields whose value is the name of an object, and the kind of the object."""


class Reference(NamedTuple):
    kind: str
    name: str
    key: str | None
    """The entry of the ConfigMap or Secret, if only one is meant."""


def manifests(place: str) -> list[Manifest]:
    return built(EXAMPLE) if place == EXAMPLE.name else rendered(place)


def instructions(place: str) -> str:
    """Return the text that tells the operator which secrets to make."""
    if place != EXAMPLE.name:
        return (ROOT / "docs" / "operations.md").read_text()
    lines = (EXAMPLE / "kustomization.yaml").read_text().splitlines()
    return "\n".join(line for line in lines if line.startswith("#"))


def references(node: Any) -> Iterator[Reference]:
    """Return what a manifest refers to by name, at any depth."""
    if isinstance(node, list):
        for one in node:
            yield from references(one)
    if not isinstance(node, dict):
        return
    for field, value in node.items():
        if field in NAMED_BY:
            for one in value if isinstance(value, list) else [value]:
                yield Reference(NAMED_BY[field], one["name"], one.get("key"))
        elif field in NAMES and isinstance(value, str):
            yield Reference(NAMES[field], value, None)
        yield from references(value)


def pod_specs(node: Any) -> Iterator[Manifest]:
    if isinstance(node, list):
        for one in node:
            yield from pod_specs(one)
    if isinstance(node, dict):
        if "containers" in node and isinstance(node["containers"], list):
            yield node
        for value in node.values():
            yield from pod_specs(value)


def tells(text: str, word: str) -> bool:
    """Return whether a text has a word as a whole: `registry-store` is not in `registry-store-2`."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text) is not None


@pytest.mark.parametrize("place", PLACES)
def test_what_a_manifest_refers_to_is_there_or_the_operator_is_told_to_make_it(place: str):
    """Only secrets are left to the operator, because none may be in the files."""
    found, told = manifests(place), instructions(place)
    entries = {(one["kind"], name_of(one)): one.get("data", {}).keys() for one in found}
    wanted = {reference for manifest in found for reference in references(manifest)}
    assert {"Secret", "ConfigMap"} & {one.kind for one in wanted}
    for one in wanted:
        if place in CREDENTIALS and one.kind == "TriggerAuthentication":
            continue  # these overlays, which only tests build, have no Redis to scale by
        if (one.kind, one.name) in entries:
            assert one.key is None or one.key in entries[one.kind, one.name], one
        else:
            assert one.kind == "Secret", f"there is no {one.kind} {one.name!r}"
            assert tells(told, one.name), f"nobody is told to make the secret {one.name!r}"
            assert one.key is None or tells(told, one.key), one


@pytest.mark.parametrize("place", PLACES)
def test_every_mount_has_its_volume_and_every_volume_its_mount(place: str):
    for manifest in manifests(place):
        for spec in pod_specs(manifest):
            volumes = {one["name"] for one in spec.get("volumes", [])}
            volumes |= {one["metadata"]["name"] for one in manifest["spec"].get("volumeClaimTemplates", [])}
            every = [*spec.get("initContainers", []), *spec["containers"]]
            mounted = {mount["name"] for one in every for mount in one.get("volumeMounts", [])}
            assert mounted == volumes, name_of(manifest)


@pytest.mark.parametrize("files", [(FILE,), (FILE, COMPOSE_EXAMPLE)], ids=["registry", "vllm-omni"])
def test_what_a_compose_file_refers_to_is_there(
    files: tuple[Path, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Compose refuses a file that refers to nothing, and the tests have no compose that would."""
    monkeypatch.setenv("ENGINE_KEY", "key")
    found = merged(tmp_path, *files)
    for name, service in found["services"].items():
        for kind in ("networks", "secrets", "configs"):
            used = {one if isinstance(one, str) else one["source"] for one in service.get(kind, [])}
            assert used <= found.get(kind, {}).keys(), (name, kind)
        volumes = {_volume(one) for one in service.get("volumes", [])} - {None}
        assert volumes <= found["volumes"].keys(), name
        assert set(service.get("depends_on", [])) <= found["services"].keys(), name


def _volume(volume: Any) -> str | None:
    """Return the name of a volume that a service mounts, or None for a folder or a memory file system."""
    if isinstance(volume, str):
        source = volume.partition(":")[0]
        return None if source.startswith((".", "/", "~")) else source
    return str(volume["source"]) if volume.get("type") == "volume" else None


def test_the_compose_example_tells_what_it_needs():
    """A variable without a default ends `docker compose up` if nobody has set it."""
    lines = COMPOSE_EXAMPLE.read_text().splitlines()
    told = "\n".join(line for line in lines if line.startswith("#"))
    needed = re.findall(r"\$\{(\w+):\?", COMPOSE_EXAMPLE.read_text())
    assert needed
    assert all(tells(told, f"export {name}") for name in needed)
