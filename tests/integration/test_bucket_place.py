"""A copied bucket is recognised, and refused until somebody has decided whose it is."""

from collections.abc import Mapping

import pytest

from services.shared import bucket_place
from services.shared.bucket_place import BucketCopied
from services.shared.opening import open_registrar
from services.shared.registrar import Registrar
from services.shared.settings import RegistrySettings, StoreSettings
from services.shared.store import open_store
from tests import servers
from tests.integration.conftest import bucket_settings
from tests.servers import S3Server

REDIS = RegistrySettings(redis_url="redis://127.0.0.1:1/0")
"""Not asked while a registrar is opened."""


def opened(settings: StoreSettings) -> Registrar:
    registrar = open_registrar(settings, REDIS)
    registrar.index.close()
    return registrar


def identity(settings: StoreSettings) -> str:
    return opened(settings).index._bucket


@pytest.fixture
def original(rclone_server: S3Server) -> StoreSettings:
    settings = bucket_settings(rclone_server)
    opened(settings)
    return settings


@pytest.fixture
def copy(rclone_server: S3Server, original: StoreSettings) -> StoreSettings:
    settings = bucket_settings(rclone_server)
    source, target = open_store(original), open_store(settings)
    for stored in source.list("").objects:
        target.put(stored.key, source.get(stored.key))
    return settings


def environment(settings: StoreSettings) -> Mapping[str, str]:
    return {
        "SPEAKER_STORE_URL": settings.url,
        "SPEAKER_STORE_ENDPOINT": str(settings.endpoint),
        "SPEAKER_STORE_REGION": str(settings.region),
        "SPEAKER_STORE_ACCESS_KEY_ID": servers.KEY_ID,
        "SPEAKER_STORE_SECRET_ACCESS_KEY": servers.SECRET,
    }


def test_a_bucket_is_the_same_at_every_start(original: StoreSettings):
    assert identity(original) == identity(original)


def test_a_copy_is_refused(original: StoreSettings, copy: StoreSettings):
    """Pointed at the same Redis, the two would take each other's index for their own."""
    with pytest.raises(BucketCopied) as caught:
        opened(copy)
    assert str(caught.value).startswith("SPEAKER_STORE_URL: the bucket at ")
    assert f"'{copy.url} at {copy.endpoint}' says that it is '{original.url} at" in str(caught.value)


def test_a_copy_can_be_made_a_registry_of_its_own(
    original: StoreSettings, copy: StoreSettings, monkeypatch: pytest.MonkeyPatch
):
    """By one command; the original stays what it is."""
    before = identity(original)
    for name, value in environment(copy).items():
        monkeypatch.setenv(name, value)
    assert bucket_place.main([]) == 0
    assert identity(copy) != before
    assert identity(copy) == identity(copy)
    assert identity(original) == before


def test_the_same_bucket_by_another_address_is_told_so(original: StoreSettings):
    """Workers may reach it by another name than the API does."""
    elsewhere = original.model_copy(
        update={"endpoint": str(original.endpoint).replace("127.0.0.1", "localhost")}
    )
    with pytest.raises(BucketCopied, match="SPEAKER_STORE_KNOWN_AS"):
        opened(elsewhere)
    known = elsewhere.model_copy(update={"known_as": f"{original.url} at {original.endpoint}"})
    assert identity(known) == identity(original)
