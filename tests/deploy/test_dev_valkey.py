"""The Valkey of the dev overlay, by its own command: it keeps a log, and knows nobody without a password, nor
lets anybody change it.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import redis

from services.embedded.valkey import find_server_binary
from services.shared.view.redis_access import OPERATOR_RIGHTS, RIGHTS
from tests.deploy.compose_file import ROOT
from tests.deploy.composed import check_what_an_operator_may, pongs
from tests.deploy.manifests import containers, name_of, of_kind
from tests.ports import free_port
from tests.queue_workers import wait_until


@pytest.mark.slow
@pytest.mark.integration
def test_the_dev_overlays_valkey_asks_for_the_password_and_keeps_a_log(tmp_path: Path):
    """It starts in a shell, whose lines nobody else would ever run."""
    [valkey] = [manifest for manifest in of_kind("dev", "StatefulSet") if name_of(manifest) == "valkey"]
    [container] = containers(valkey["spec"]["template"])
    [settings] = [manifest for manifest in of_kind("dev", "ConfigMap") if name_of(manifest) == "valkey"]
    for folder in ("run/redis", "etc/valkey", "tmp", "data", "bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "run/redis/password").write_text("secret")
    port = free_port()
    conf = settings["data"]["valkey.conf"].replace("dir /data", f"dir {tmp_path}/data")
    # Somebody who may ask for settings, which the registry's own user may not.
    (tmp_path / "etc/valkey/valkey.conf").write_text(f"{conf}port {port}\nuser onlooker on nopass +@all ~*\n")
    assert settings["data"]["rights"] == RIGHTS
    assert settings["data"]["operator-rights"] == OPERATOR_RIGHTS
    assert RIGHTS in (ROOT / "docs" / "operations.md").read_text()
    for rights in ("rights", "operator-rights"):
        (tmp_path / "etc/valkey" / rights).write_text(settings["data"][rights])
    (tmp_path / "bin/valkey-server").symlink_to(find_server_binary())
    script = re.sub("/(run/redis|etc/valkey|tmp)/", rf"{tmp_path}/\1/", container["args"][0])
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    command = [shutil.which(container["command"][0]) or "sh", *container["command"][1:], script]
    process = subprocess.Popen(command, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL)
    try:
        with redis.Redis(port=port, password="secret", decode_responses=True) as client:
            wait_until(lambda: pongs(client))
            client.set("sr:boot", "1")
            for refused in (
                "CONFIG GET dir",
                "MODULE LIST",
                "FLUSHALL",
                "GET other",
                "ACL LIST",
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*refused.split())
        check_what_an_operator_may(port, (tmp_path / "tmp/operator").read_text().strip())
        with redis.Redis(port=port, username="onlooker", password="", decode_responses=True) as client:
            assert client.config_get("append*")["appendonly"] == "yes"
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
    finally:
        process.terminate()
        assert process.wait(20) == 0, "the signal did not reach it"
