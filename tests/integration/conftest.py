"""Stores to test against: a local folder, and buckets on the S3 servers available here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from services.shared.bucket.connection import StoreUnfit, prepare_bucket
from services.shared.bucket.opening import open_store
from services.shared.bucket.store import ObjectStore
from services.shared.configuration.store import StoreSettings
from tests import servers
from tests.servers import S3Server


def bucket_settings(server: S3Server, **changes: Any) -> StoreSettings:
    """Return settings for a bucket prefix of its own on the server."""
    values: dict[str, Any] = {
        "url": f"s3://{server.bucket}/test/{uuid4().hex}",
        "endpoint": server.endpoint,
        "region": server.region,
        "access_key_id": servers.KEY_ID,
        "secret_access_key": servers.SECRET,
    }
    return StoreSettings(**values | changes)


@pytest.fixture(autouse=True)
def _retries_end_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the retries, because what fails in a test fails for good."""
    monkeypatch.setattr("services.shared.bucket.opening.RETRY_SECONDS", 5)


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
def seaweedfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with servers.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        servers.wait_until(lambda: _make_bucket(server), seconds=120)
        yield server


def _make_bucket(server: S3Server) -> None:
    """Make the bucket. Raises OSError while the server answers but its parts have not found each other."""
    try:
        prepare_bucket(bucket_settings(server, create_bucket=True))
    except StoreUnfit as error:
        raise OSError(str(error)) from None


@pytest.fixture(params=["folder", "seaweedfs"])
def swapping_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Yield an empty store of each kind that has compare-and-swap."""
    if request.param == "folder":
        return open_store(StoreSettings(url=f"file://{tmp_path}/store"))
    return open_store(bucket_settings(request.getfixturevalue("seaweedfs_server")))


@pytest.fixture(params=["folder", "rclone", "moto", "seaweedfs"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    """Yield an empty store of each kind."""
    if request.param == "folder":
        return open_store(StoreSettings(url=f"file://{tmp_path}/store"))
    return open_store(bucket_settings(request.getfixturevalue(f"{request.param}_server")))
