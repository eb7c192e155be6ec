"""Stores to test against: a local folder, and buckets on the S3 servers that can be had here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.shared.bucket.store import ObjectStore, open_store, prepare_bucket
from services.shared.configuration.settings import StoreSettings
from tests import servers
from tests.servers import S3Server


def bucket_settings(server: S3Server, **changes: Any) -> StoreSettings:
    """A place of its own in the server's bucket. Few seconds: what fails in a test fails for good."""
    values: dict[str, Any] = {
        "url": f"s3://{server.bucket}/test/{uuid4().hex}",
        "endpoint": server.endpoint,
        "region": server.region,
        "access_key_id": servers.KEY_ID,
        "secret_access_key": servers.SECRET,
        "retry_seconds": 5,
    }
    return StoreSettings(**values | changes)


@pytest.fixture(scope="session")
def rclone_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with servers.rclone(tmp_path_factory.mktemp("rclone")) as server:
        yield server


@pytest.fixture(scope="session")
def moto_server() -> Iterator[S3Server]:
    with servers.moto() as server:
        prepare_bucket(bucket_settings(server, create_bucket=True))
        yield server


@pytest.fixture(scope="session")
def garage_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if reason := servers.no_docker():
        pytest.skip(reason)
    with servers.garage(tmp_path_factory.mktemp("garage")) as server:
        yield server


@pytest.fixture(params=["folder", "rclone", "moto", "garage"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """An empty store of each kind."""
    if request.param == "folder":
        return open_store(StoreSettings(url=f"file://{tmp_path}/store"))
    return open_store(bucket_settings(request.getfixturevalue(f"{request.param}_server")))
