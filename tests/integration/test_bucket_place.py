"""Tests that a copied bucket is recognised, and refused until an operator has decided whose it is."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.registry_api.commands import adopt_bucket
from services.shared.bucket.connection import StoreUnfit
from services.shared.bucket.facts import MAX_RECORD_BYTES
from services.shared.bucket.opening import open_store
from services.shared.bucket.place import BucketCopied, Place, make_own
from services.shared.configuration.settings import RegistrySettings, StoreSettings
from services.shared.model.clock import Clock
from services.shared.registry.opening import open_parts
from services.shared.registry.parts import RegistryParts
from tests import servers
from tests.integration.conftest import bucket_settings
from tests.servers import S3Server

REDIS = RegistrySettings(redis_url="redis://127.0.0.1:1/0")
"""Settings of a Redis that is not asked while a registry is opened."""


def opened(settings: StoreSettings) -> RegistryParts:
    parts = open_parts(settings, REDIS)
    parts.close()
    return parts


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


def set_environment(monkeypatch: pytest.MonkeyPatch, settings: StoreSettings) -> None:
    # This process keeps its own.
    monkeypatch.setattr(adopt_bucket, "configure_logs", lambda level="INFO": None)
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)


def environment(settings: StoreSettings) -> Mapping[str, str]:
    return {
        "SPEAKER_STORE_URL": settings.url,
        "SPEAKER_STORE_ENDPOINT": str(settings.endpoint),
        "SPEAKER_STORE_REGION": str(settings.region),
        "SPEAKER_STORE_ACCESS_KEY_ID": servers.KEY_ID,
        "SPEAKER_STORE_SECRET_ACCESS_KEY": servers.SECRET,
    }


@pytest.mark.slow
def test_a_bucket_is_the_same_at_every_start(original: StoreSettings):
    assert identity(original) == identity(original)


@pytest.mark.slow
def test_a_copy_is_refused(original: StoreSettings, copy: StoreSettings):
    """A copied bucket is refused. Pointed at the same Redis, the two registries would take each other's index
    for their own.
    """
    with pytest.raises(BucketCopied) as caught:
        opened(copy)
    assert str(caught.value).startswith("SPEAKER_STORE_URL: the bucket at ")
    assert f"'{copy.url} at {copy.endpoint}' says that it is '{original.url} at" in str(caught.value)


@pytest.mark.slow
def test_a_copy_can_be_made_a_registry_of_its_own(
    original: StoreSettings, copy: StoreSettings, monkeypatch: pytest.MonkeyPatch
):
    """One command makes a copy a registry of its own, and the original stays what it is."""
    before = identity(original)
    set_environment(monkeypatch, copy)
    assert adopt_bucket.run() == 0
    assert identity(copy) != before
    assert identity(copy) == identity(copy)
    assert identity(original) == before


LAST_ID = "_place/999999." + "a" * 32


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"", b"{", b'{"seq":1,"uid":"x","where":"elsewhere"}'])
def test_a_damaged_object_after_all_others_says_nothing(original: StoreSettings, body: bytes):
    """A damaged object that sorts after all others is ignored. It once left no place for a later object, and
    no process started any more.
    """
    before = identity(original)
    open_store(original).put(LAST_ID, body)
    assert identity(original) == before


@pytest.mark.slow
def test_an_object_that_is_too_large_for_a_record_is_not_read(original: StoreSettings):
    """An object that is too large for a record is not read. A caller with write access to the bucket could
    otherwise make every starting process read a file of any size.
    """
    before = identity(original)
    place = Place(seq=999999, uid="a" * 32, where="elsewhere").to_json().encode()
    open_store(original).put(LAST_ID, place.ljust(MAX_RECORD_BYTES + 1))
    assert identity(original) == before


@pytest.mark.slow
def test_a_copy_with_a_damaged_object_after_all_others_can_be_made_a_registry_of_its_own(
    original: StoreSettings, copy: StoreSettings, monkeypatch: pytest.MonkeyPatch
):
    """A copy with a damaged object after all others can become a registry of its own, any number of times."""
    open_store(copy).put(LAST_ID, b"of somebody else")
    with pytest.raises(BucketCopied, match=f"left out: {LAST_ID}"):
        opened(copy)
    set_environment(monkeypatch, copy)
    seen = {identity(original)}
    for _ in range(2):
        assert adopt_bucket.run() == 0
        assert identity(copy) == identity(copy)
        assert identity(copy) not in seen
        seen.add(identity(copy))


@pytest.mark.slow
def test_an_object_that_comes_after_every_other_is_named(copy: StoreSettings):
    """An object that sorts after every other one is named in the message. It was made by hand, and only a
    person can tell what it is for.
    """
    uid = "f" * 32
    body = json.dumps({"seq": 999_999, "uid": uid, "where": "elsewhere"})
    open_store(copy).put(f"_place/999999.{uid}", body.encode())
    with pytest.raises(BucketCopied, match="'elsewhere'"):
        opened(copy)
    with pytest.raises(
        StoreUnfit, match=f"_place/999999.{uid} in the bucket comes after every other: delete"
    ):
        make_own(open_store(copy), copy, Clock())


@pytest.mark.slow
def test_a_bucket_that_says_nothing_readable_is_refused_until_somebody_decides(
    original: StoreSettings, copy: StoreSettings, monkeypatch: pytest.MonkeyPatch
):
    """A bucket whose identity cannot be read is refused until an operator decides. A copy must not pass for
    the original because what distinguishes them is damaged.
    """
    (place,) = [stored.key for stored in open_store(copy).list("_place/").objects]
    open_store(copy).put(place, b"")
    with pytest.raises(StoreUnfit, match=f"does not say where it is, .*: {place}. Restore"):
        opened(copy)
    set_environment(monkeypatch, copy)
    assert adopt_bucket.run() == 0
    assert identity(copy) != identity(original)


def test_a_copied_folder_is_refused_as_a_bucket_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copied folder is refused like a copied bucket. A moved folder cannot be told from a copy, so the
    operator who moved it has to say so.
    """
    (tmp_path / "voices").mkdir()
    original = StoreSettings(url=(tmp_path / "voices").as_uri())
    before = identity(original)
    shutil.copytree(tmp_path / "voices", tmp_path / "copy")
    copy = StoreSettings(url=(tmp_path / "copy").as_uri())
    with pytest.raises(BucketCopied, match=f"'{copy.url}' says that it is '{original.url}'"):
        opened(copy)
    assert identity(copy.model_copy(update={"known_as": original.url})) == before
    (tmp_path / "link").symlink_to(tmp_path / "voices")
    assert identity(StoreSettings(url=(tmp_path / "link").as_uri())) == before
    monkeypatch.setattr(adopt_bucket, "configure_logs", lambda level="INFO": None)
    monkeypatch.setenv("SPEAKER_STORE_URL", copy.url)
    assert adopt_bucket.run() == 0
    assert identity(copy) not in {before, identity(original)}


@pytest.mark.slow
def test_the_same_bucket_by_another_address_is_told_so(original: StoreSettings):
    """A bucket at an unknown address is refused until a setting names the known one. Workers may reach it by
    another name than the API does.
    """
    elsewhere = original.model_copy(
        update={"endpoint": str(original.endpoint).replace("127.0.0.1", "localhost")}
    )
    with pytest.raises(BucketCopied, match="SPEAKER_STORE_KNOWN_AS"):
        opened(elsewhere)
    known = elsewhere.model_copy(update={"known_as": f"{original.url} at {original.endpoint}"})
    assert identity(known) == identity(original)
