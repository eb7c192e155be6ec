"""Tests of docker-compose.yml without a container engine: its form, its settings, and what confines its
containers.
"""

import json
import re
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import redis
import yaml

from services.embedded.valkey import find_server_binary
from services.registry_api.keys.api_keys import parse_token
from services.shared.view.redis_access import OPERATOR_RIGHTS, RIGHTS
from tests.deploy import dockerfile
from tests.deploy.compose_file import FILE, REQUIRED, ROOT, merged, parsed, services
from tests.deploy.composed import check_what_an_operator_may, make_secrets, pongs
from tests.deploy.environment import FOREIGN, check
from tests.ports import free_port
from tests.queue_workers import wait_until

SERVICES = services()
ONCE = {"secrets"}
"""The services that end by themselves."""
OURS = ["api", "worker", "worker-cuda"]


def test_the_file_is_of_the_form_that_compose_reads():
    """It is valid by the schema of the compose specification."""
    command = [
        Path(sys.executable).parent / "check-jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        FILE,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_weights_must_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A fleet that forgot to name its weights would make useless voices."""
    monkeypatch.setitem(REQUIRED, "WEIGHTS", "")
    with pytest.raises(subprocess.CalledProcessError) as refused:
        merged(tmp_path)
    assert "must be set to hub, hub:<commit>, /weights, or untrained" in refused.value.stderr


def test_another_reader_of_compose_files_finds_the_same_services(tmp_path: Path):
    """Everything that is referred to exists, after anchors, variables, profiles and overrides are
    resolved.
    """
    found = merged(tmp_path)
    assert found["services"].keys() == SERVICES.keys()
    for service in found["services"].values():
        networks = service.get("networks", [])
        assert set(networks) <= found["networks"].keys()
        assert set(service.get("depends_on", {})) <= found["services"].keys()
        assert {config["source"] for config in service.get("configs", [])} <= found["configs"].keys()
    for config in found["configs"].values():
        assert (ROOT / config["file"]).is_file()


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_can_do_no_more_than_it_must(name: str):
    """Its root is read-only, it has no capabilities, and it cannot take all of the machine."""
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["logging"]["options"].keys() == {"max-size", "max-file"}
    assert service["deploy"]["resources"]["limits"].keys() == {"memory", "pids"}
    assert service["restart"] == ("no" if name in ONCE else "unless-stopped")
    if name == "secrets":
        assert service["network_mode"] == "none"
    elif name != "proxy":  # whose image brings a user of its own
        assert service["user"] == "10001:10001"


def test_only_this_machine_reaches_what_is_published():
    """The proxy's port is for a reverse proxy with TLS, the others for whoever runs the machine."""
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"proxy", "prometheus", "grafana"}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_who_may_have_to_reach_other_machines_has_a_way_out_and_what_holds_data_has_none():
    """The bucket, the issuer of tokens, the collector of traces and the hub may each be elsewhere."""
    networks = yaml.safe_load(FILE.read_text())["networks"]
    out = {name for name, network in networks.items() if not network.get("internal")}
    ways = {name: out & set(service.get("networks", ())) for name, service in SERVICES.items()}
    assert all(ways[name] for name in OURS)
    assert not any(ways[name] for name in ("valkey", "s3", "secrets"))


def test_the_api_believes_the_proxy_and_no_other_container():
    """Prometheus is on that network, too, and others may come."""
    trusted = ip_address(SERVICES["api"]["environment"]["SPEAKER_API_TRUSTED_PROXIES"])
    assert str(trusted) == SERVICES["proxy"]["networks"]["front"]["ipv4_address"]
    [network] = parsed()["networks"]["front"]["ipam"]["config"]
    assert trusted in ip_network(network["subnet"])
    assert trusted not in ip_network(network["ip_range"]), "another container may be given it first"


def test_no_secret_is_written_in_the_files():
    """They are made at the first start: whoever has read the repository knows none."""
    for name, service in SERVICES.items():
        for variable in service.get("environment", {}):
            secret = re.search("SECRET|PASSWORD|TOKEN|_KEY$", variable)
            assert not secret or variable.endswith(("_FILE", "_SECRETS")), (name, variable)


@pytest.mark.parametrize("name", OURS)
def test_the_environment_is_one_that_our_processes_read(name: str, secrets: Path):
    """A misspelt variable would do nothing; a wrong value would keep the container from starting."""
    target = SERVICES[name]["build"]["target"]
    stages = dockerfile.lineage(dockerfile.read(), target)
    image = {variable: value for stage in stages for variable, value in stage.environment().items()}
    environment = image | SERVICES[name]["environment"]
    check(
        {
            variable: str(value).replace("/run/", f"{secrets}/")
            for variable, value in environment.items()
            if not variable.startswith(("PIP_", "PYTHON")) and variable not in FOREIGN
        }
    )


def test_each_image_of_ours_is_built_once_and_asked_of_nobody(tmp_path: Path):
    """Two builds of one image get in each other's way, and an image of that name elsewhere is not ours."""
    found = merged(tmp_path)["services"].values()
    built = [service["image"] for service in found if "build" in service]
    assert len(set(built)) == len(built)
    used = [service for service in found if service["image"].startswith("speaker-registry")]
    assert {service["image"] for service in used} == set(built)
    assert {service.get("pull_policy") for service in used} == {"never"}


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_container_mounts_is_declared_and_what_it_reads_is_mounted(name: str):
    """A file that is not there would be found out only by an engine."""
    volumes = yaml.safe_load(FILE.read_text())["volumes"]
    targets = [volume for volume in SERVICES[name].get("volumes", []) if isinstance(volume, dict)]
    assert {volume["source"] for volume in targets} <= volumes.keys()
    mounted = tuple(volume["target"] for volume in targets)
    text = json.dumps([SERVICES[name].get(key) for key in ("environment", "command", "healthcheck")])
    read = re.findall(r"/run/[a-z0-9]+", text)
    assert set(read) <= set(mounted)


# -- what the first start makes


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_secrets(folder, SERVICES["secrets"])
    return folder


def test_secrets_are_made_once_and_no_two_are_the_same(tmp_path: Path):
    """Every later start finds those of the first: with others the data could not be read any more."""
    made = make_secrets(tmp_path, SERVICES["secrets"])
    first = {file: file.read_text() for file in tmp_path.rglob("*") if file.is_file()}
    assert made.count("/") == len(first) == 7
    assert len(set(first.values())) == len(first)
    assert make_secrets(tmp_path, SERVICES["secrets"]) == "made: nothing, all is there\n"
    assert {file: file.read_text() for file in first} == first
    assert {file.stat().st_mode & 0o777 for file in first} == {0o400}


def test_what_a_start_that_was_cut_off_has_not_made_the_next_one_makes(tmp_path: Path):
    """The next start leaves in place what exists, because half of the containers may already run with it."""
    make_secrets(tmp_path, SERVICES["secrets"])
    before = (tmp_path / "s3" / "secret").read_text()
    (tmp_path / "valkey" / "valkey.conf").unlink()
    (tmp_path / "valkey" / ".valkey.conf.new").write_text("requirepa")
    assert make_secrets(tmp_path, SERVICES["secrets"]) == "made: valkey/valkey.conf\n"
    password, operator = ((tmp_path / file).read_text() for file in ("redis/password", "valkey/operator"))
    assert (tmp_path / "valkey" / "valkey.conf").read_text() == (
        f"user default reset on >{password} {RIGHTS}\nuser operator reset on >{operator} {OPERATOR_RIGHTS}\n"
    )
    assert (tmp_path / "s3" / "secret").read_text() == before


def test_an_operator_may_empty_redis_and_have_its_log_rewritten(secrets: Path, tmp_path: Path):
    """The documentation asks operators for both. No process of ours may do either, or knows the password."""
    holders = {
        name
        for name, service in SERVICES.items()
        for volume in service.get("volumes", [])
        if isinstance(volume, dict) and volume["source"] == "valkey_secret"
    }
    assert holders == {"secrets", "valkey"}
    port = free_port()
    command = [find_server_binary(), secrets / "valkey" / "valkey.conf", "--port", str(port)]
    process = subprocess.Popen(
        [*command, "--bind", "127.0.0.1", "--dir", tmp_path, "--save", ""], stdout=subprocess.DEVNULL
    )
    try:
        with redis.Redis(port=port, password=(secrets / "redis" / "password").read_text()) as ours:
            wait_until(lambda: pongs(ours))
            ours.set("sr:boot", "1")
            for refused in ("FLUSHDB", "BGREWRITEAOF"):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    ours.execute_command(refused)
            check_what_an_operator_may(port, (secrets / "valkey" / "operator").read_text())
            assert not ours.exists("sr:boot")
    finally:
        process.kill()
        process.wait()


def test_secrets_have_the_form_that_their_readers_insist_on(secrets: Path):
    """The first key is one of ours, and SeaweedFS reads from JSON the S3 key that our processes sign with."""
    assert parse_token((secrets / "bootstrap" / "key").read_text())
    [identity] = json.loads((secrets / "s3" / "identities.json").read_text())["identities"]
    key_id = SERVICES["api"]["environment"]["SPEAKER_STORE_ACCESS_KEY_ID"]
    secret = (secrets / "s3" / "secret").read_text()
    assert identity["credentials"] == [{"accessKey": key_id, "secretKey": secret}]
