"""Tests of the contract that every store keeps, on each kind: a local folder, and buckets
on different S3 servers.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config
from structlog.testing import capture_logs

from services.shared.bucket.connection import StoreUnfit, StoreUnreachable, prepare_bucket
from services.shared.bucket.opening import open_store
from services.shared.bucket.probe import probe_consistency
from services.shared.bucket.store import ObjectStore
from services.shared.configuration.store import StoreSettings
from tests import servers
from tests.integration.conftest import bucket_settings
from tests.servers import MOTO_PAGE, Request, Response, S3Proxy, S3Server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@pytest.fixture(scope="module")
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def boto3_client(endpoint: str | None) -> "S3Client":
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=servers.KEY_ID,
        aws_secret_access_key=servers.SECRET,
        config=Config(s3={"addressing_style": "path"}),
    )


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return [stored.key for stored in store.list(prefix).objects]


@pytest.mark.parametrize("size", [0, 1, 70_000, 7_000_000])
def test_an_object_comes_back_as_it_was_put(store: ObjectStore, size: int) -> None:
    """An object is returned as it was put. The largest one exceeds the size from which obstore would upload
    in parts, which leave garbage when interrupted.
    """
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    store.put("default/v/alice/blob", data)
    assert store.get("default/v/alice/blob") == data


def test_the_same_object_may_be_put_again(store: ObjectStore) -> None:
    """The same object may be put again, because a caller whose answer was lost repeats its request."""
    store.put("a/b", b"same")
    store.put("a/b", b"same")
    assert store.get("a/b") == b"same"


@pytest.mark.parametrize("key", ["never/put", "a", "a/b", "a/b/c.json.x"])
def test_getting_what_is_not_there_raises_file_not_found(store: ObjectStore, key: str) -> None:
    """Getting a missing object raises FileNotFoundError, also if other objects lie below:
    a folder is no object.
    """
    store.put("a/b/c.json", b"{}")
    with pytest.raises(FileNotFoundError):
        store.get(key)


def test_a_deleted_object_is_gone(store: ObjectStore) -> None:
    """A deleted object is gone, because erasing must be final."""
    store.put("a/b", b"1")
    store.delete(["a/b"])
    with pytest.raises(FileNotFoundError):
        store.get("a/b")
    assert keys(store) == []


def test_deleting_what_is_missing_is_fine(store: ObjectStore) -> None:
    """Deleting a missing object succeeds. Two sweepers may meet, and a repeated erase finds nothing left."""
    store.put("a/b", b"1")
    store.delete(["a/missing", "a/b", "nowhere/at/all"])
    store.delete([])
    assert keys(store) == []


def test_a_listing_has_everything_under_its_prefix_and_nothing_beside_it(store: ObjectStore) -> None:
    """The listing of a voice's bytes decides what is garbage: a neighbour with a longer name must not appear
    in it.
    """
    for key in ("n/v/al/r/2", "n/v/al/r/1", "n/v/al/d/x/blob/y", "n/v/alice/r/1", "n/v/al-2/r/1", "n/w"):
        store.put(key, b"12345")
    assert keys(store, "n/v/al/") == ["n/v/al/d/x/blob/y", "n/v/al/r/1", "n/v/al/r/2"]
    assert keys(store, "n/v/al/r/") == ["n/v/al/r/1", "n/v/al/r/2"]
    assert len(keys(store)) == 6
    assert keys(store, "nothing/here/") == []
    assert {stored.size for stored in store.list("n/").objects} == {5}


def test_a_listing_is_dated_by_the_clock_that_dates_the_objects(store: ObjectStore) -> None:
    """A listing is dated by the clock that dates the objects, because the difference of the two decides which
    objects may be collected as garbage.
    """
    store.put("a/b", b"1")
    listing = store.list("a/")
    age = listing.taken_at - listing.objects[0].last_modified
    assert timedelta(seconds=-3) < age < timedelta(seconds=30)
    assert abs(listing.taken_at - datetime.now(UTC)) < timedelta(seconds=30)


@pytest.mark.slow
def test_a_listing_is_complete_beyond_one_page(
    store: ObjectStore, threads: ThreadPoolExecutor, request: pytest.FixtureRequest
) -> None:
    """Here it has three pages, of 1,000 objects on S3. A rebuild that misses a document hides a voice."""
    page = MOTO_PAGE if "moto" in request.node.name else 1_000
    wanted = [f"n/v/{number % 5}/r/{number:05}" for number in range(2 * page + 1)]
    list(threads.map(lambda key: store.put(key, b"1"), wanted))
    assert keys(store, "n/") == sorted(wanted)
    store.delete(wanted)
    assert keys(store) == []


def test_folders_are_the_immediate_ones_that_hold_something(
    store: ObjectStore, request: pytest.FixtureRequest
) -> None:
    """Namespaces and voices are found by them. A local folder is removed once it is empty."""
    for key in ("n/v/alice/r/1", "n/v/alice/d/x/y", "n/v/bob/r/1", "m/v/carol/r/1", "n/file"):
        store.put(key, b"1")
    assert store.folders("") == ["m", "n"]
    assert store.folders("n/") == ["v"]
    assert store.folders("n/v/") == ["alice", "bob"]
    assert store.folders("nothing/") == []
    store.delete(["n/v/alice/r/1", "n/v/alice/d/x/y", "m/v/carol/r/1"])
    if "seaweedfs" in request.node.name:  # names emptied folders for a while
        assert "bob" in store.folders("n/v/")
        return
    assert store.folders("n/v/") == ["bob"]
    assert store.folders("") == ["n"]


@pytest.fixture(scope="module")
def in_two_pages(moto_server: S3Server, threads: ThreadPoolExecutor) -> StoreSettings:
    """A bucket with more objects than one answer of a server lists."""
    settings = bucket_settings(moto_server)
    store = open_store(settings)
    list(threads.map(lambda key: store.put(key, b"12345"), _OURS))
    return settings


_OURS = {*(f"n/v/alice/r/{number:04}" for number in range(MOTO_PAGE + 10)), "n/v/al/r/1", "n/v/bob/r/1"}


@pytest.mark.parametrize(
    "foreign",
    ["n//x", "n/v//r/1", "n/v/al/r//", "n/v/bob/./r", "n/v/al/../r", "n/v/\x01/r", "n/v/al\x07ice/r", "/x"],
    ids=ascii,
)
def test_a_key_that_only_s3_takes_hides_no_other(in_two_pages: StoreSettings, foreign: str) -> None:
    """A key that only S3 accepts hides no other. Any client that may write to the bucket can put it there,
    and consoles and sync tools do.
    """
    store = open_store(in_two_pages)
    s3 = boto3_client(in_two_pages.endpoint)
    bucket, key = in_two_pages.bucket, f"{in_two_pages.prefix}/{foreign}"
    s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    try:
        for prefix in ("", "n/", "n/v/"):
            listed = keys(store, prefix)
            assert set(listed) - {foreign} == _OURS
            assert len(listed) == len(set(listed))
        assert "n" in store.folders("")
        assert {"al", "alice", "bob"} <= set(store.folders("n/v/"))
    finally:
        store.delete([foreign])
    assert s3.list_objects_v2(Bucket=bucket, Prefix=key)["KeyCount"] == 0


def test_markers_of_folders_are_listed_and_deleted_as_what_they_are(moto_server: S3Server) -> None:
    """Markers of folders are listed and deleted as markers. Consoles put an object `a/` when a user makes a
    folder `a`, whose name may be that of a person.
    """
    settings = bucket_settings(moto_server)
    store, s3 = open_store(settings), boto3_client(settings.endpoint)
    markers = {"n/v/al/", "n/v/al/d/", "n/v/al/d/x/"}
    for marker in markers:
        s3.put_object(Bucket=settings.bucket, Key=f"{settings.prefix}/{marker}", Body=b"")
    for key in ("n/v/al/r/1", "n/v/alice/r/1"):
        store.put(key, b"1")
    assert keys(store, "n/v/al/") == sorted({*markers, "n/v/al/r/1"})
    store.delete(keys(store, "n/v/al/"))
    left = s3.list_objects_v2(Bucket=settings.bucket, Prefix=f"{settings.prefix}/n/")["Contents"]
    assert [found["Key"] for found in left] == [f"{settings.prefix}/n/v/alice/r/1"]
    assert store.folders("n/v/") == ["alice"]


def test_what_belongs_to_the_store_itself_is_not_listed(store: ObjectStore) -> None:
    """The store's own objects are not listed. A walk over all namespaces must not fail because of another
    process's probe.
    """
    store.put(".probe/x/1", b"1")
    assert keys(store) == []
    assert store.folders("") == []


@pytest.mark.parametrize("key", ["a/ü", "a b", "a/../b", "/a", "a//b", "a/", ""])
def test_a_key_that_stores_would_treat_differently_is_refused(store: ObjectStore, key: str) -> None:
    """A key that stores would treat differently is refused. Some servers normalise, encode or refuse such
    keys, and some leave their folder.
    """
    with pytest.raises(ValueError, match="not a key"):
        store.put(key, b"1")
    assert keys(store) == []


def test_sixteen_writers_at_once_lose_nothing(
    store: ObjectStore, threads: ThreadPoolExecutor, request: pytest.FixtureRequest
) -> None:
    """Sixteen writers at once lose nothing. They make and empty the same folders, where a careless store
    would remove one under a writer.
    """

    def write(number: int) -> str:
        kept, passing = f"n/v/{number % 8}/r/{number}", f"n/w/{number % 2}/{number}"
        store.put(passing, b"passing")
        store.put(kept, str(number).encode())
        store.delete([passing])
        return kept

    written = list(threads.map(write, range(160)))
    listed = set(keys(store))
    assert listed >= set(written)
    if "rclone" not in request.node.name:  # acknowledges a delete without effect now and then
        assert listed == set(written)
    assert [store.get(key) for key in written] == [str(number).encode() for number in range(160)]


def test_a_listing_during_writes_and_deletes_still_has_what_stays(
    store: ObjectStore, threads: ThreadPoolExecutor, request: pytest.FixtureRequest
) -> None:
    """The view is rebuilt while the service is in use."""
    staying = [f"n/v/{number}/r/1" for number in range(20)]
    for key in staying:
        store.put(key, b"1")

    def come_and_go(number: int) -> None:
        store.put(f"n/v/{number % 20}/d/{number}/x", b"1")
        store.delete([f"n/v/{number % 20}/d/{number}/x"])

    passing = [threads.submit(come_and_go, number) for number in range(80)]
    while not all(future.done() for future in passing):
        assert set(keys(store, "n/v/")) >= set(staying)
    for future in passing:
        future.result()
    if "rclone" in request.node.name:  # acknowledges deletes without effect during a listing
        store.delete([f"n/v/{number % 20}/d/{number}/x" for number in range(80)])
    assert keys(store) == sorted(staying)


def test_the_probe_accepts_the_store_and_leaves_nothing(store: ObjectStore) -> None:
    """The probe accepts the store and leaves nothing, because it runs at every start."""
    probe_consistency(store)
    store.check()
    assert keys(store, ".probe/") == []


def test_a_missing_bucket_is_made_once_and_described(moto_server: S3Server) -> None:
    """A missing bucket is made once and described. Operators should not have to make it by hand, and every
    start runs this code.
    """
    settings = bucket_settings(
        moto_server, url="s3://fresh-bucket/x", region="eu-central-1", create_bucket=True
    )
    with capture_logs() as logs:
        prepare_bucket(settings)
        prepare_bucket(settings)
    assert [entry["event"] for entry in logs] == ["store.bucket_created", "store.bucket", "store.bucket"]
    assert logs[1]["versioning"] == "Off"
    assert "ObjectLockConfigurationNotFoundError" in logs[1]["object_lock"]
    probe_consistency(open_store(settings))


def test_a_missing_bucket_is_made_only_where_that_is_asked_for(moto_server: S3Server) -> None:
    """A missing bucket is made only where a setting allows it. A typo in its name must not look like a
    registry that has lost everything.
    """
    settings = bucket_settings(moto_server, url="s3://mistyped-bucket/x")
    for _ in range(2):
        with pytest.raises(StoreUnfit) as caught:
            prepare_bucket(settings)
        assert str(caught.value) == (
            f"SPEAKER_STORE_URL: bucket 'mistyped-bucket' at {moto_server.endpoint} cannot be used: it "
            "does not exist. SPEAKER_STORE_CREATE_BUCKET=true creates it"
        )


def test_a_bucket_is_prepared_with_the_signature_that_every_server_knows(rclone_server: S3Server) -> None:
    """A bucket is prepared with the signature that every server knows. Most servers know
    none but version 4.
    """
    with S3Proxy(rclone_server) as proxy:
        prepare_bucket(bucket_settings(rclone_server, endpoint=proxy.endpoint))
        signed = [request.headers["Authorization"] for request in proxy.seen]
    assert signed
    assert all(signature.startswith("AWS4-HMAC-SHA256") for signature in signed)


class NotYetSeen(S3Proxy):
    """A store that reports the bucket as missing, as it was when another replica began to make it."""

    def answer(self, request: Request) -> Response:
        return Response(404) if request.method == "HEAD" else self.forward(request)


def test_a_bucket_that_another_replica_made_meanwhile_is_fine(moto_server: S3Server) -> None:
    """A bucket that another replica made meanwhile is accepted. Two replicas that start together both find it
    missing, and the slower one must not end.
    """
    settings = bucket_settings(
        moto_server, url="s3://raced-bucket", region="eu-central-1", create_bucket=True
    )
    prepare_bucket(settings)
    with NotYetSeen(moto_server) as proxy:
        prepare_bucket(settings.model_copy(update={"endpoint": proxy.endpoint}))
        assert "PUT" in [request.method for request in proxy.seen]


class CreatedByAnother(S3Proxy):
    """A store that refuses to create a bucket, as some servers do if it exists already or
    is just being created.
    """

    code = "BucketAlreadyExists"
    seen_since: Response
    """The answer to later requests for the bucket."""

    def answer(self, request: Request) -> Response:
        if request.method == "PUT":
            body = f"<Error><Code>{self.code}</Code></Error>".encode()
            return Response(409, {"Content-Type": "application/xml"}, body)
        if request.method == "HEAD":
            tried = any(earlier.method == "PUT" for earlier in self.seen)
            return self.seen_since if tried else Response(404)
        return self.forward(request)


@pytest.mark.parametrize("code", ["BucketAlreadyExists", "BucketAlreadyOwnedByYou", "OperationAborted"])
def test_a_bucket_that_exists_already_and_is_ours_is_fine(moto_server: S3Server, code: str) -> None:
    """A bucket that exists already and is our own is accepted. Two replicas create it at the same time;
    servers have three ways to say so.
    """
    with CreatedByAnother(moto_server) as proxy:
        proxy.code, proxy.seen_since = code, Response(200)
        prepare_bucket(bucket_settings(moto_server, endpoint=proxy.endpoint, create_bucket=True))


@pytest.mark.parametrize(
    ("status", "kind"), [(403, StoreUnfit), (404, StoreUnreachable)], ids=["somebody else's", "not there yet"]
)
def test_a_bucket_that_exists_already_and_is_not_ours_is_refused(
    moto_server: S3Server, status: int, kind: type[StoreUnfit]
) -> None:
    """A bucket that exists already and is not our own is refused, because names of buckets are unique all
    over the world. A bucket that is still being created is requested again.
    """
    with CreatedByAnother(moto_server) as proxy:
        proxy.seen_since = Response(status)
        with pytest.raises(StoreUnfit, match=f"bucket '{moto_server.bucket}' at {proxy.endpoint}") as caught:
            prepare_bucket(bucket_settings(moto_server, endpoint=proxy.endpoint, create_bucket=True))
    assert type(caught.value) is kind


def test_a_bucket_that_keeps_what_is_deleted_is_warned_about(moto_server: S3Server) -> None:
    """A bucket that keeps deleted objects is warned about. Versioning breaks the promise of every erase."""
    settings = bucket_settings(moto_server, url="s3://versioned-bucket", create_bucket=True)
    prepare_bucket(settings)
    client = boto3_client(moto_server.endpoint)
    client.put_bucket_versioning(Bucket="versioned-bucket", VersioningConfiguration={"Status": "Enabled"})
    with capture_logs() as logs:
        prepare_bucket(settings)
    assert logs[-1] == {
        "event": "store.bucket_keeps_deleted_objects",
        "log_level": "warning",
        "bucket": "versioned-bucket",
    }


def test_a_local_folder_is_made_only_where_that_is_asked_for(tmp_path: Path) -> None:
    """A local folder is made only where a setting allows it, like a bucket. A typo would start a registry
    without a voice.
    """
    mistyped = StoreSettings(url=(tmp_path / "a" / "b").as_uri())
    with pytest.raises(StoreUnfit, match=r"it does not exist.* SPEAKER_STORE_CREATE"):
        prepare_bucket(mistyped)
    meant = mistyped.model_copy(update={"create_bucket": True})
    prepare_bucket(meant)
    open_store(meant).put("_registry/x", b"1")
    prepare_bucket(mistyped)  # it is there now
