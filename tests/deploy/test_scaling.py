"""Tests of how many workers KEDA starts: for which queues, and whether these are the keys that RQ writes.

A misspelt key would be an empty queue for ever.
"""

import shutil
from pathlib import Path

import pytest
import yaml
from redis import Redis

from services.registry_api.campaigns.preparation import WINDOW
from services.shared.queue.rq_jobs import PICTURES_QUEUE, JobQueue, preparation_queue, queue_name
from tests.deploy.manifests import OVERLAYS, ROOT, Manifest, built, environment, name_of, of_kind

CANDIDATE = "gpu-l4-candidate"
FINGERPRINT = "sha256:" + "0123456789abcdef" * 4
"""The fingerprint whose first digits the example of a candidate has."""


def keys(*queues: str) -> set[str]:
    """Return the keys of jobs that wait, are on their way to a worker, or that a worker has in hand."""
    found = [JobQueue(queue, connection=Redis()) for queue in queues]
    return {
        key
        for queue in found
        for key in (queue.key, queue.intermediate_queue_key, queue.started_job_registry.key)
    }


def asked_for(scaled: Manifest) -> set[str]:
    return {trigger["metadata"]["listName"] for trigger in scaled["spec"]["triggers"]}


def sum_of_all(scaled: Manifest) -> str:
    return " + ".join(trigger["name"] for trigger in scaled["spec"]["triggers"])


def formula(scaled: Manifest) -> str:
    return str(scaled["spec"]["advanced"]["scalingModifiers"]["formula"])


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_workers_on_gpus_are_as_many_as_their_queues_ask_for(overlay: str):
    """A class asks for the queues of its profiles, and may ask for pictures, which every worker draws."""
    scaled = of_kind(overlay, "ScaledObject")
    assert len(scaled) == (2 if overlay == "production" else 0)
    deployments = {name_of(manifest): manifest for manifest in of_kind(overlay, "Deployment")}
    for manifest in scaled:
        spec = manifest["spec"]
        deployment = deployments[spec["scaleTargetRef"]["name"]]
        [container] = deployment["spec"]["template"]["spec"]["containers"]
        served = environment(overlay, container)["SPEAKER_EXTRACTOR_PROFILES"].split(",")
        assert asked_for(manifest) - keys(PICTURES_QUEUE) == keys(*map(queue_name, served))
        assert formula(manifest) == sum_of_all(manifest)
        assert spec["minReplicaCount"] == 0
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert "nvidia.com/gpu.product" in deployment["spec"]["template"]["spec"]["nodeSelector"]
        assert "replicas" not in deployment["spec"], "each apply would undo what KEDA has set"


def test_one_class_of_gpus_is_started_for_pictures():
    """If no class were, pictures would wait until a voice is registered. A second class would be started for
    nothing.
    """
    found = [asked_for(manifest) & keys(PICTURES_QUEUE) for manifest in of_kind("production", "ScaledObject")]
    assert sorted(map(len, found)) == [0, 3]


@pytest.fixture(scope="module")
def candidate(tmp_path_factory: pytest.TempPathFactory) -> list[Manifest]:
    """The objects of the production overlay with the example of a candidate listed."""
    copy = tmp_path_factory.mktemp("candidate")
    for folder in ("k8s", "deploy"):
        shutil.copytree(ROOT / folder, copy / folder)
    listed = copy / "k8s/overlays/production/kustomization.yaml"
    overlay = yaml.safe_load(listed.read_text())
    overlay["resources"].append(CANDIDATE)
    listed.write_text(yaml.safe_dump(overlay))
    return built(listed.parent)


def one(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    [found] = [one for one in manifests if (one["kind"], name_of(one)) == (kind, name)]
    return found


def test_workers_of_a_candidate_are_as_many_as_its_campaign_asks_for(candidate: list[Manifest]):
    """They take no job of the current encoder, so its queue must not start any. One is always there, because
    a campaign is refused where no worker has its encoder.
    """
    scaled = one(candidate, "ScaledObject", f"registry-worker-{CANDIDATE}")
    assert asked_for(scaled) == keys(preparation_queue("qwen3-tts-0.6b", FINGERPRINT))
    assert (scaled["spec"]["minReplicaCount"], scaled["spec"]["scaleTargetRef"]["name"]) == (
        1,
        f"registry-worker-{CANDIDATE}",
    )
    most, target = scaled["spec"]["maxReplicaCount"], scaled["spec"]["advanced"]["scalingModifiers"]["target"]
    assert formula(scaled) == f"{most * int(target) // WINDOW} * ({sum_of_all(scaled)})", (
        "a campaign under way asks for all workers"
    )
    addresses = {trigger["metadata"]["address"] for trigger in scaled["spec"]["triggers"]}
    assert addresses == {"redis.example.org:6379"}


def test_a_candidate_differs_from_its_class_and_both_are_selected_apart(candidate: list[Manifest]):
    """A Deployment whose selector matches another one's pods would take them for its own."""
    current = one(candidate, "Deployment", "registry-worker-gpu-l4")["spec"]
    other = one(candidate, "Deployment", f"registry-worker-{CANDIDATE}")["spec"]
    assert current["selector"] != other["selector"]
    assert current["template"]["spec"]["nodeSelector"] == other["template"]["spec"]["nodeSelector"]
    [container], [same] = current["template"]["spec"]["containers"], other["template"]["spec"]["containers"]
    extra = [entry for entry in same["env"] if entry not in container["env"]]
    assert extra == [{"name": "SPEAKER_EXTRACTOR_DTYPE", "value": "bfloat16"}]


def test_the_example_of_a_candidate_is_listed_nowhere():
    """It needs a fingerprint, which nobody knows before its first worker has come."""
    assert not [one for one in of_kind("production", "ScaledObject") if CANDIDATE in name_of(one)]
    assert (Path(ROOT) / "k8s/overlays/production" / CANDIDATE / "kustomization.yaml").is_file()
