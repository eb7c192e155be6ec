"""Tests of how pods get the bucket's credentials: by one of the components of `k8s/credentials`.

What a component puts into the environment is tried with fakes of a cloud, and with an S3 server that checks
signatures.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, urlsplit

import kubernetes_validate
import pytest

from tests import servers
from tests.deploy.manifests import (
    CREDENTIALS,
    OVERLAYS,
    ROOT,
    Manifest,
    containers,
    environment,
    name_of,
    of_kind,
    pods,
    rendered,
)
from tests.servers import KEY_ID, SECRET, S3Server

KEYLESS = tuple(name for name in CREDENTIALS if name != "static-keys")
AGENT = "http://169.254.170.23/v1/credentials"
"""EKS Pod Identity tells its pods to ask here. EKS sets it, in AWS_CONTAINER_CREDENTIALS_FULL_URI."""
MACHINE = "http://169.254.169.254"
OPEN_STORE = """
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import probe_consistency
from services.shared.configuration.store import StoreSettings
probe_consistency(open_store(StoreSettings()))
"""

ACCOUNTS = {
    "registry-api": "registry-api",
    "registry-worker-cpu": "registry-worker",
    "registry-worker-gpu": "registry-worker",
    "registry-housekeeping": "registry-housekeeping",
    "registry-backup": "registry-backup",
}


# -- the manifests --


@pytest.mark.parametrize("overlay", CREDENTIALS)
def test_every_manifest_is_of_its_form(overlay: str):
    """A patch can put a field where Kubernetes has none."""
    for manifest in rendered(overlay):
        if manifest["kind"] != "ScaledObject":
            kubernetes_validate.validate(manifest, "1.37", strict=True)


@pytest.mark.parametrize("overlay", [*OVERLAYS, *CREDENTIALS])
def test_each_service_has_an_identity_of_its_own_without_rights_in_the_cluster(overlay: str):
    """A role on the bucket is given to a ServiceAccount. The default one would give it to every pod."""
    accounts = {name_of(account): account for account in of_kind(overlay, "ServiceAccount")}
    assert accounts.keys() == set(ACCOUNTS.values())
    assert not any(account["automountServiceAccountToken"] for account in accounts.values())
    assert not of_kind(overlay, "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    found = {
        name: template["spec"]["serviceAccountName"]
        for name, template in pods(overlay)
        if name.startswith("registry-")
    }
    assert found == {name: ACCOUNTS[name.removesuffix("-l4").removesuffix("-l40s")] for name in found}


@pytest.mark.parametrize("overlay", KEYLESS)
def test_only_the_component_for_static_keys_asks_for_static_keys(overlay: str):
    """A pod that refers to a secret that nobody made does not start."""
    asked = {
        secret["name"]
        for _, template in pods(overlay)
        for container in containers(template)
        for entry in container.get("env", [])
        if (secret := entry.get("valueFrom", {}).get("secretKeyRef"))
    }
    mounted = {
        volume["secret"]["secretName"]
        for _, template in pods(overlay)
        for volume in template["spec"]["volumes"]
        if "secret" in volume
    }
    assert (asked, mounted) == (set(), {"registry-redis", "registry-bootstrap-key"})


@pytest.mark.parametrize("overlay", [*OVERLAYS, *CREDENTIALS])
def test_link_local_addresses_are_reached_only_where_credentials_come_from_there(overlay: str):
    """The metadata service gives the machine's rights to whoever asks, so no other pod gets there."""
    open_to = {"pod-identity": AGENT, "machine-role": MACHINE}.get(overlay)
    ways = [
        (name_of(policy), policy["spec"]["podSelector"], block, rule["ports"])
        for policy in of_kind(overlay, "NetworkPolicy")
        for rule in policy["spec"].get("egress", [])
        for to in rule["to"]
        if "ipBlock" in to and "169.254.0.0/16" not in (block := to["ipBlock"]).get("except", [])
    ]
    if open_to is None:
        assert ways == []
        return
    [(_, selector, block, ports)] = ways
    address = urlsplit(open_to)
    assert block == {"cidr": f"{address.hostname}/32"}
    assert ports == [{"protocol": "TCP", "port": address.port or 80}]
    reached = {name for name, template in pods(overlay) if _selects(selector, template["metadata"]["labels"])}
    assert reached == ACCOUNTS.keys() - {"registry-housekeeping"}, "it needs Redis alone"


def _selects(selector: Manifest, labels: dict[str, str]) -> bool:
    return all(labels.get(one["key"]) in one["values"] for one in selector["matchExpressions"])


def test_a_token_is_signed_for_sts_alone_and_can_be_read():
    """A token for the cluster's own API would be worth stealing. Of another group, it could not be read."""
    for name, template in pods("web-identity"):
        spec = template["spec"]
        tokens = [volume["projected"] for volume in spec["volumes"] if "projected" in volume]
        if name == "registry-housekeeping":
            assert tokens == []
            continue
        [source] = tokens[0]["sources"]
        assert source["serviceAccountToken"]["audience"] == "sts.amazonaws.com"
        assert spec["securityContext"]["fsGroup"] == 10001
        for container in containers(template):
            file = Path(environment("web-identity", container)["AWS_WEB_IDENTITY_TOKEN_FILE"])
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert (mounts[str(file.parent)], file.name) == (
                "identity",
                source["serviceAccountToken"]["path"],
            )


def test_the_docs_name_every_component():
    """An operator first has to choose one of them."""
    text = (ROOT / "docs" / "operations.md").read_text()
    assert all(f"`{name}`" in text for name in CREDENTIALS)
    assert {folder.name for folder in (ROOT / "k8s" / "credentials").iterdir()} == set(CREDENTIALS)


# -- whether they work --


@dataclass
class Cloud:
    """A fake of the services that give credentials. It answers with keys that the S3 server knows."""

    url: str = ""
    asked: list[str] = field(default_factory=list)
    """The requests for credentials: by which service, and with which role and token."""


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    cloud = Cloud()
    until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    keys = {"AccessKeyId": KEY_ID, "SecretAccessKey": SECRET, "Token": "session", "Expiration": until}

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self._answer("a token", "text/plain")

        def do_GET(self) -> None:
            if self.path == "/v1/credentials":
                cloud.asked.append(f"agent: {self.headers['Authorization']}")
                self._answer(json.dumps(keys))
            elif self.path.endswith("/security-credentials/"):
                self._answer("the-machine", "text/plain")
            else:
                cloud.asked.append(f"machine: {self.path.rpartition('/')[2]}")
                self._answer(json.dumps(keys | {"Code": "Success", "Type": "AWS-HMAC"}))

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            cloud.asked.append(f"sts: {form['RoleArn'][0]}, {form['WebIdentityToken'][0]}")
            given = "".join(
                f"<{name}>{keys[key]}</{name}>"
                for name, key in [
                    ("AccessKeyId", "AccessKeyId"),
                    ("SecretAccessKey", "SecretAccessKey"),
                    ("SessionToken", "Token"),
                    ("Expiration", "Expiration"),
                ]
            )
            self._answer(
                '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
                f"<AssumeRoleWithWebIdentityResult><Credentials>{given}</Credentials>"
                "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
                "text/xml",
            )

        def _answer(self, text: str, kind: str = "application/json") -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        cloud.url = f"http://127.0.0.1:{server.server_port}"
        Thread(target=server.serve_forever, daemon=True).start()
        yield cloud
        server.shutdown()


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    (tmp_path / "bucket").mkdir()
    with servers.rclone(tmp_path / "bucket") as server:
        yield server


def given(overlay: str, name: str, cloud: Cloud, folder: Path) -> dict[str, str]:
    """Return the environment of the pod's first container with what the cloud adds. All of it is here."""
    [template] = [template for pod, template in pods(overlay) if pod == name]
    own = environment(overlay, containers(template)[0])
    own = {key: value for key, value in own.items() if key.startswith(("AWS_", "SPEAKER_STORE_", "RCLONE_"))}
    (folder / "token").write_text("signed by the cluster")
    if overlay == "web-identity":
        own |= {"AWS_WEB_IDENTITY_TOKEN_FILE": str(folder / "token"), "AWS_ENDPOINT_URL_STS": cloud.url}
    if overlay == "pod-identity":
        own |= {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": AGENT.replace("http://169.254.170.23", cloud.url),
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(folder / "token"),
            "AWS_REGION": "us-east-1",
        }
    if overlay == "machine-role":
        own |= {"AWS_EC2_METADATA_SERVICE_ENDPOINT": cloud.url}
    nothing = {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}
    return own | nothing | {"PATH": os.environ["PATH"], "HOME": str(folder)}


def expected(overlay: str, role: str) -> str:
    return {
        "web-identity": f"sts: {role}, signed by the cluster",
        "pod-identity": "agent: signed by the cluster",
        "machine-role": "machine: the-machine",
    }[overlay]


@pytest.mark.integration
@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("registry-api", "arn:aws:iam::123456789012:role/voices-api"),
        ("registry-worker-gpu", "arn:aws:iam::123456789012:role/voices-worker"),
    ],
)
@pytest.mark.parametrize("overlay", KEYLESS)
def test_the_store_opens_with_what_a_component_gives(
    overlay: str, name: str, role: str, cloud: Cloud, s3: S3Server, tmp_path: Path
):
    """The store opens without a static key, because the component tells boto3 where to ask for one."""
    environment = given(overlay, name, cloud, tmp_path) | {"SPEAKER_STORE_ENDPOINT": s3.endpoint}
    environment["SPEAKER_STORE_URL"] = f"s3://{s3.bucket}"
    done = subprocess.run(
        [sys.executable, "-c", OPEN_STORE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert set(cloud.asked) == {expected(overlay, role)}


@pytest.mark.integration
@pytest.mark.parametrize("overlay", KEYLESS)
def test_the_backup_reads_the_bucket_with_what_a_component_gives(
    overlay: str, cloud: Cloud, s3: S3Server, tmp_path: Path
):
    """rclone has a library of its own for credentials, and a setting that makes it look for them."""
    environment = given(overlay, "registry-backup", cloud, tmp_path)
    environment["RCLONE_CONFIG_FROM_ENDPOINT"] = s3.endpoint
    rclone = shutil.which("rclone", path=Path(sys.executable).parent) or "rclone"
    command = [rclone, "lsf", "from:", f"--config={os.devnull}", "--retries=1"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{s3.bucket}/\n"), done.stderr
    assert set(cloud.asked) == {expected(overlay, "arn:aws:iam::123456789012:role/voices-backup")}
