"""Tests of the manifests without a cluster: their form, their settings, and that everything they
name exists.
"""

import re
import shutil
import subprocess
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator

from services.registry_api.commands.exit_statuses import WRONG_SETTINGS
from services.registry_api.routes import health
from tests.deploy.dockerfile import lineage, read
from tests.deploy.environment import FOREIGN, check
from tests.deploy.manifests import (
    OVERLAYS,
    ROOT,
    Manifest,
    containers,
    environment,
    name_of,
    of_kind,
    ours,
    pods,
    rendered,
)
from tools.prometheus_rule import rule

BACKUP_CASES = ROOT / "tests" / "data" / "backup_alerts_test.yaml"
CUSTOM = yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text())
SECRETS = {
    "registry-redis": {"password"},
    "registry-store": {"access-key-id", "secret-access-key"},
    "registry-bootstrap-key": {"key"},
    "registry-backup": {"access-key-id", "secret-access-key"},
}
"""The secrets that the operator has to make, as docs/operations.md says."""

OPERATIONS = (ROOT / "docs" / "operations.md").read_text()

pytestmark = pytest.mark.parametrize("overlay", OVERLAYS)


def test_every_manifest_is_of_its_form(overlay: str):
    """Every manifest is valid by Kubernetes' own schemas, which allow no unknown field."""
    kinds = set()
    for manifest in rendered(overlay):
        if manifest["kind"] in CUSTOM["$defs"]:
            schema = {"$ref": f"#/$defs/{manifest['kind']}", "$defs": CUSTOM["$defs"]}
            Draft202012Validator(schema).validate(manifest["spec"])
        else:
            kubernetes_validate.validate(manifest, "1.37", strict=True)
        kinds.add(manifest["kind"])
    assert {"Deployment", "NetworkPolicy", "HorizontalPodAutoscaler", "CronJob"} <= kinds
    if overlay == "production":
        assert set(CUSTOM["$defs"]) & kinds == {
            *("ScaledObject", "TriggerAuthentication"),
            *("ServiceMonitor", "PodMonitor", "PrometheusRule"),
        }


def test_pods_are_of_the_restricted_kind(overlay: str):
    """The namespace lets no other in."""
    [namespace] = of_kind(overlay, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for name, template in pods(overlay):
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] == 10001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(template):
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False, name
            assert context["readOnlyRootFilesystem"] is True, name
            assert context["capabilities"] == {"drop": ["ALL"]}, name
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
            assert "memory" in container["resources"]["limits"], name
            assert re.search(r":[^:/]*\d", container["image"]), f"{container['image']} is not pinned"


def test_secrets_are_only_referred_to(overlay: str):
    """None is in the files, none is in the environment but key ids, and each is one that the docs name."""
    assert not of_kind(overlay, "Secret")
    for _, template in pods(overlay):
        for volume in template["spec"].get("volumes", []):
            assert volume.get("secret", {}).get("secretName", "registry-redis") in SECRETS
        for container in containers(template):
            for entry in container.get("env", []):
                secret = entry.get("valueFrom", {}).get("secretKeyRef")
                assert secret is None or secret["key"] in SECRETS[secret["name"]]
    for name, keys in SECRETS.items():
        assert name in OPERATIONS
        assert all(key in OPERATIONS for key in keys)


def test_the_environment_is_one_that_our_processes_read(overlay: str, tmp_path: Path):
    """A misspelt variable would do nothing; a wrong value would keep the pod from starting."""
    stages = read()
    seen = set()
    for name, container in ours(overlay):
        target = {"api": "api", "worker": "worker", "cuda": "worker-cuda"}[
            container["image"].partition(":")[0].rpartition("-")[2]
        ]
        image = {
            key: value for stage in lineage(stages, target) for key, value in stage.environment().items()
        }
        own = environment(overlay, container)
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        for variable, value in own.items():
            if variable.endswith("_FILE"):
                file = Path(value)
                assert str(file.parent) in mounted, (name, variable)
                (tmp_path / file.name).write_text("secret")
                own[variable] = str(tmp_path / file.name)
        given = image | own
        check(
            {key: value for key, value in given.items() if key.startswith("SPEAKER_") and key not in FOREIGN}
        )
        seen.add(target)
    assert seen >= {"api", "worker"}


def test_only_the_overlay_for_trying_out_takes_untrained_weights(overlay: str):
    """Every overlay names the weights, because a worker that is told none does not start."""
    workers = [container for name, container in ours(overlay) if "worker" in name]
    named = {environment(overlay, container)["SPEAKER_EXTRACTOR_WEIGHTS"] for container in workers}
    assert named == {"untrained" if overlay == "dev" else "hub"}


def test_what_is_run_and_asked_is_there(overlay: str):
    """Modules of commands and probes, paths of probes, ports by their names."""
    paths = {route.path for route in health.router.routes}
    for name, container in ours(overlay):
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", [])}
        given = environment(overlay, container)
        assert ports.get("metrics", 9464) == int(given["SPEAKER_METRICS_PORT"])
        if "command" in container:
            assert find_spec(container["command"][2])
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            probe = container.get(kind, {})
            if "httpGet" in probe:
                assert probe["httpGet"]["path"] in paths, name
                assert probe["httpGet"]["port"] in ports
            if "exec" in probe:
                assert probe["exec"]["command"] == ["python", "-m", "services.extractor_worker", "healthy"]


def test_a_pod_serves_also_while_redis_is_away_or_the_view_is_rebuilt(overlay: str):
    """Reads go on then; and pods that were restarted for it would never finish a long rebuild."""
    asked = {
        (kind, container[kind]["httpGet"]["path"])
        for _, container in ours(overlay)
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
        if "httpGet" in container.get(kind, {})
    }
    assert asked == {(kind, "/healthz") for kind in ("startupProbe", "readinessProbe", "livenessProbe")}


def test_selectors_find_pods_and_targets_exist(overlay: str):
    """A Service, a budget or a policy that selects nothing is not noticed until it is needed."""
    labels = [template["metadata"]["labels"] for _, template in pods(overlay)]
    names = {(manifest["kind"], name_of(manifest)) for manifest in rendered(overlay)}
    for manifest in of_kind(overlay, "Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor"):
        spec = manifest["spec"]
        selector = spec.get("podSelector", spec.get("selector"))
        wanted = selector.get("matchLabels", {} if "podSelector" in spec else selector)
        if "matchExpressions" not in selector:
            assert any(wanted.items() <= found.items() for found in labels), name_of(manifest)
    for manifest in of_kind(overlay, "HorizontalPodAutoscaler", "ScaledObject"):
        assert ("Deployment", manifest["spec"]["scaleTargetRef"]["name"]) in names
    for manifest in of_kind(overlay, "Ingress"):
        for entry in manifest["spec"]["rules"]:
            for path in entry["http"]["paths"]:
                assert ("Service", path["backend"]["service"]["name"]) in names
    for monitor in of_kind(overlay, "ServiceMonitor"):
        wanted = monitor["spec"]["selector"]["matchLabels"]
        [service] = [
            service
            for service in of_kind(overlay, "Service")
            if wanted.items() <= service["metadata"].get("labels", {}).items()
        ]
        assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_no_pod_talks_to_anybody_unless_a_policy_says_so(overlay: str):
    """No pod may talk to another unless a policy says so, and callers reach only the API."""
    policies = {name_of(policy): policy["spec"] for policy in of_kind(overlay, "NetworkPolicy")}
    assert policies["default-deny"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    callers = [name for name, spec in policies.items() if _ports(spec, "ingress") & {8300}]
    assert callers == ["callers"]
    except_for = policies["storage"]["egress"][0]["to"][0]["ipBlock"]["except"]
    assert except_for == ["169.254.0.0/16"], "the node's credentials are none of ours"


def test_what_an_overlay_brings_along_is_reached_by_its_labels(overlay: str):
    """Overlays select pods by labels. A range of addresses may not cover pods, and everything would then wait
    for Redis for ever.
    """
    ways = [way for policy in of_kind(overlay, "NetworkPolicy") for way in policy["spec"].get("egress", [])]
    for brought in of_kind(overlay, "StatefulSet"):
        labels = brought["spec"]["template"]["metadata"]["labels"]
        ports = {
            port["containerPort"]
            for container in containers(brought["spec"]["template"])
            for port in container["ports"]
        }
        assert any(
            to.get("podSelector", {}).get("matchLabels") == labels
            and ports == {port["port"] for port in way["ports"]}
            for way in ways
            for to in way["to"]
        ), name_of(brought)
    for manifest in of_kind(overlay, "ScaledObject"):
        for trigger in manifest["spec"]["triggers"]:
            host = trigger["metadata"]["address"].partition(":")[0]
            assert "." in host, "KEDA asks from another namespace"


def test_what_is_there_to_try_it_out_fits_on_two_cores(overlay: str):
    """One of which Kubernetes itself takes; while pods are replaced, there is one more of the API's."""
    if overlay == "dev":
        asked = [
            _millicores(container["resources"]["requests"]["cpu"])
            for name, template in pods(overlay)
            for container in containers(template)
            for _ in range(2 if name == "registry-api" else 1)
            if not name.startswith(("registry-backup", "registry-housekeeping"))
        ]
        assert sum(asked) <= 1000


def _millicores(cpu: str) -> int:
    return int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)


def test_a_worker_computes_on_as_many_cores_as_it_was_given(overlay: str):
    """torch would start a thread for each core of the node, and they would stand in each other's way."""
    for name, container in ours(overlay):
        threads = [entry for entry in container.get("env", []) if entry["name"] == "OMP_NUM_THREADS"]
        fields = [entry["valueFrom"]["resourceFieldRef"]["resource"] for entry in threads]
        assert fields == (["requests.cpu"] if "worker" in name else [])


def test_wrong_settings_are_not_tried_again(overlay: str):
    """The command ends with 1 then, and with 75 where Redis is away."""
    [job] = [one for one in of_kind(overlay, "CronJob") if name_of(one) == "registry-housekeeping"]
    spec = job["spec"]["jobTemplate"]["spec"]
    [refusal] = spec["podFailurePolicy"]["rules"]
    [container] = containers(spec["template"])
    assert refusal["action"] == "FailJob"
    expected = {"containerName": container["name"], "operator": "In", "values": [WRONG_SETTINGS]}
    assert refusal["onExitCodes"] == expected
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_a_backup_that_fails_or_does_not_come_is_told(overlay: str, tmp_path: Path):
    """The alerts use what kube-state-metrics reports of the CronJob and its jobs."""
    found = [one for one in of_kind(overlay, "PrometheusRule") if name_of(one) == "registry-backup"]
    for manifest in found:
        spec = deepcopy(manifest["spec"])
        for alert in spec["groups"][0]["rules"]:
            del alert["annotations"]
        (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(spec))
        shutil.copy(BACKUP_CASES, tmp_path)
        command = ["promtool", "test", "rules", tmp_path / BACKUP_CASES.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def _ports(spec: Manifest, direction: str) -> set[int]:
    return {port["port"] for rule in spec.get(direction, []) for port in rule.get("ports", [])}


def test_of_every_alert_the_docs_say_what_to_do(overlay: str):
    """The documentation says what to do about every alert, because an operator who is woken by one looks
    there.
    """
    alerts = [
        alert["alert"]
        for manifest in of_kind(overlay, "PrometheusRule")
        for group in manifest["spec"]["groups"]
        for alert in group["rules"]
    ]
    assert bool(alerts) == (overlay == "production")
    assert not alerts or re.findall(r"^\| (Registry\w+) \|", OPERATIONS, re.MULTILINE) == alerts


def test_the_operators_rules_are_those_of_the_alerts_file(overlay: str):
    """Made by a tool; whoever changes the one has to run it."""
    assert (ROOT / "k8s" / "monitoring" / "rules.yaml").read_text() == rule()
    assert [name_of(manifest) for manifest in of_kind(overlay, "PrometheusRule")] == (
        ["registry", "registry-backup"] if overlay == "production" else []
    )
