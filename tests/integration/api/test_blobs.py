"""Tests of artifacts' files by digest, and of redirects to the bucket."""

from collections.abc import Iterator
from urllib.parse import quote

import httpx
import pytest

from services.shared.bucket.folder_store import FolderStore
from speaker_registry.artifact import sha256_digest
from tests.integration.api.conftest import Start
from tests.integration.api.registry import OTHER_CLIP, PROFILE, Registry
from tests.integration.api.test_express_lane import CHANGING, Lane, ordinary, settled
from tests.integration.conftest import bucket_settings
from tests.servers import S3Server

UNKNOWN = "sha256:" + "0" * 64


@pytest.fixture
def lane(registry: Registry) -> Iterator[Lane]:
    watched = Lane(registry)
    yield watched
    del registry.app.state.parts.lane.answer


def blob(registry: Registry, name: str, ref: int | str = "default") -> str:
    """Return the path of an artifact's file by digest, as the descriptor states it."""
    path = f"/v1/voices/{quote(name)}/versions/{ref}/artifacts/{PROFILE}"
    return str(registry.client.get(path).json()["immutable_url"])


def test_a_file_by_digest_equals_the_file_by_name_and_may_be_kept_for_good(registry: Registry, name: str):
    registry.ready(name)
    by_name, by_digest = registry.file(name), registry.client.get(blob(registry, name))
    assert by_digest.content == by_name.content
    assert blob(registry, name) == f"/v1/blobs/{sha256_digest(by_name.content)}"
    assert by_digest.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert by_digest.headers["vary"] == "Authorization, X-Speaker-Namespace", "which decide who may read it"
    different = CHANGING | {"cache-control", "x-artifact-current"}
    for header, value in by_name.headers.items():
        assert header in different or by_digest.headers[header] == value


@pytest.mark.parametrize("headers", [{}, {"Range": "bytes=0-9"}, {"If-None-Match": "*"}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_file_by_digest_is_answered_from_memory(
    registry: Registry, lane: Lane, name: str, method: str, headers: dict[str, str]
):
    registry.ready(name)
    path = blob(registry, name)
    expected = ordinary(registry, method, path, headers)
    lane.get(path)
    assert settled(lane.get(path, method, headers)) == settled(expected)


def test_each_version_has_its_own_file_until_the_voice_is_deleted(registry: Registry, lane: Lane, name: str):
    registry.ready(name)
    first = blob(registry, name)
    registry.ready(name, clip=OTHER_CLIP)
    second = blob(registry, name)
    assert first != second
    assert lane.get(first).headers["x-voice-version"] == "1"
    assert lane.get(second).headers["x-voice-version"] == "2"
    assert registry.client.delete(f"/v1/voices/{name}").status_code == 204
    for path in (first, second):
        gone = registry.client.get(path)
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "artifact_not_found")


def test_a_digest_that_no_artifact_has_is_named(registry: Registry):
    answer = registry.client.get(f"/v1/blobs/{UNKNOWN}")
    assert answer.status_code == 404
    assert f"No voice has an artifact with the digest {UNKNOWN}" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "digest", ["abc", "sha256:abc", "md5:" + "0" * 64, "sha256:" + "A" * 64, "sha256:" + "0" * 65]
)
def test_what_is_no_digest_is_refused(registry: Registry, digest: str):
    answer = registry.client.get(f"/v1/blobs/{digest}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "digest")


def test_only_half_a_digest_finds_nothing(registry: Registry, name: str):
    """The view has the first half of a digest. The rest is compared as well."""
    registry.ready(name)
    path = blob(registry, name)
    assert registry.client.get(path[:-1] + ("0" if path[-1] != "0" else "1")).status_code == 404


def test_while_the_view_is_rebuilt_an_unknown_digest_may_exist(start: Start):
    """It is not said that an artifact does not exist, before the view has all of them."""
    registry = start(kept_bytes=0)
    registry.ready("alice")
    path = blob(registry, "alice")
    registry.redis.flushdb()
    answer = registry.client.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    registry.rebuild()
    assert registry.client.get(path).status_code == 200
    assert registry.client.get(f"/v1/blobs/{UNKNOWN}").status_code == 404


def test_a_file_whose_bytes_are_lost_is_not_found_until_it_is_made_again(start: Start):
    registry = start(kept_bytes=0)
    registry.ready("alice")
    path = blob(registry, "alice")
    [stored] = registry.folder.rglob("*.safetensors")
    stored.unlink()
    assert registry.client.get(path).status_code == 404
    registry.worker.finish_all("alice")
    assert registry.client.get(blob(registry, "alice")).status_code == 200


def test_a_client_that_wants_it_is_redirected_to_the_bucket(start: Start, seaweedfs_server: S3Server):
    """The bucket's address gives the bytes to anyone for a while, so the registry gives none by default."""
    registry = start(store=bucket_settings(seaweedfs_server), redirect_seconds=60)
    registry.ready("alice")
    for path in (f"/v1/voices/alice/versions/1/artifacts/{PROFILE}/file", blob(registry, "alice")):
        whole = registry.client.get(path)
        assert whole.status_code == 200
        sent = registry.client.get(path, params={"redirect": 1})
        assert (sent.status_code, sent.headers["cache-control"]) == (307, "no-store")
        assert "X-Amz-Expires=60" in sent.headers["location"]
        assert httpx.get(sent.headers["location"]).content == whole.content
        known = {"If-None-Match": whole.headers["etag"]}
        assert registry.client.get(path, params={"redirect": 1}, headers=known).status_code == 304


def test_nobody_is_redirected_to_a_file_that_the_bucket_has_lost(start: Start, seaweedfs_server: S3Server):
    """The bucket would answer 404 for good, and nothing would have the artifact made again."""
    registry = start(store=bucket_settings(seaweedfs_server), redirect_seconds=60, kept_bytes=0)
    registry.ready("alice")
    path = f"/v1/voices/alice/versions/1/artifacts/{PROFILE}/file?redirect=1"
    store = registry.opened.store
    store.delete([one.key for one in store.list("").objects if one.key.endswith(".safetensors")])
    assert registry.client.get(f"{blob(registry, 'alice')}?redirect=1").status_code == 404
    assert registry.client.get(path).status_code == 202
    registry.worker.finish_all("alice")
    assert registry.client.get(path).status_code == 307


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"If-Match": "{etag}"}, 200),
        ({"If-Match": '"another"'}, 412),
        ({"Range": "bytes=0-9", "If-Range": "{etag}"}, 206),
        ({"Range": "bytes=0-9", "If-Range": '"another"'}, 200),
        ({"If-Modified-Since": "Sat, 28 Nov 2099 00:00:00 GMT"}, 200),
        ({"If-Unmodified-Since": "Sat, 28 Nov 2009 00:00:00 GMT"}, 200),
        ({"If-None-Match": '"another"'}, 307),
        ({"Range": "bytes=0-9"}, 307),
    ],
)
def test_a_condition_that_only_the_registry_can_judge_prevents_the_redirect(
    start: Start, monkeypatch: pytest.MonkeyPatch, headers: dict[str, str], status: int
):
    """A client that follows a redirect sends the condition along, and the bucket has an ETag of its own. A
    download that was resumed there would get a part of another file.
    """
    monkeypatch.setattr(FolderStore, "address", lambda *_: "https://bucket.example.com/file")
    registry = start(redirect_seconds=60)
    registry.ready("alice")
    for path in (f"/v1/voices/alice/versions/1/artifacts/{PROFILE}/file", blob(registry, "alice")):
        tag = registry.client.get(path).headers["etag"]
        sent = {name: value.replace("{etag}", tag) for name, value in headers.items()}
        answer = registry.client.get(path, params={"redirect": 1}, headers=sent)
        assert answer.status_code == status


@pytest.mark.parametrize("redirect_seconds", [0, 60])
def test_where_there_is_no_address_the_registry_sends_the_bytes(start: Start, redirect_seconds: int):
    """A folder has no addresses. Clients may ask for a redirect wherever they are."""
    registry = start(redirect_seconds=redirect_seconds)
    registry.ready("alice")
    assert registry.client.get(blob(registry, "alice"), params={"redirect": 1}).status_code == 200
