"""The SeaweedFS of the dev overlay, by its own command: it asks for the key, and has compare-and-swap."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from services.shared.bucket.connection import prepare_bucket
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import probe_consistency, probe_swaps
from services.shared.configuration.store import StoreSettings
from tests import servers
from tests.deploy.composed import seaweedfs_ports
from tests.deploy.manifests import containers, name_of, of_kind
from tests.ports import free_port


@pytest.mark.slow
@pytest.mark.integration
def test_the_dev_overlays_seaweedfs_asks_for_the_key_and_has_compare_and_swap(tmp_path: Path):
    """The key comes from the environment, and a server that found none would let everybody in."""
    [manifest] = [one for one in of_kind("dev", "StatefulSet") if name_of(one) == "seaweedfs"]
    [container] = containers(manifest["spec"]["template"])
    port, (data, home) = free_port(), (tmp_path / "data", tmp_path / "home")
    data.mkdir()
    home.mkdir()
    arguments = [word.replace("=/data", f"={data}") for word in container["args"]]
    weed = shutil.which("weed", path=Path(sys.executable).parent) or "weed"
    key = {
        entry["name"]: servers.SECRET if "SECRET" in entry["name"] else servers.KEY_ID
        for entry in container["env"]
    }
    process = subprocess.Popen(
        [weed, *arguments, *seaweedfs_ports(port)],
        env={**os.environ, **key, "HOME": str(home)},
        cwd=home,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        servers.wait_until(lambda: servers.answers(f"{endpoint}/healthz"), seconds=120)
        settings = StoreSettings(
            url="s3://voices",
            endpoint=endpoint,
            access_key_id=servers.KEY_ID,
            secret_access_key=servers.SECRET,
            create_bucket=True,
        )
        servers.wait_until(lambda: prepare_bucket(settings), seconds=120)
        store = open_store(settings)
        probe_consistency(store)
        probe_swaps(store)
        assert httpx.get(f"{endpoint}/voices").status_code == httpx.codes.FORBIDDEN, "without a key"
    finally:
        process.kill()
        process.wait()
