"""Tests of the manifest of a profile: what its engines should hold, in the ordinary way and from memory."""

import asyncio
import re
from collections.abc import Iterator
from typing import Any

import pytest

from services.registry_api.express import lane as lane_module
from services.shared.registry import pages
from speaker_registry import AsyncRegistryClient, RegistryClient
from speaker_registry.errors import InvalidRequest, ProfileUnknown
from speaker_registry.manifests import Manifest
from tests.integration.api.conftest import Start
from tests.integration.api.registry import EMBEDDING, OTHER_CLIP, PROFILE, WIDER, Registry
from tests.integration.api.test_express_lane import Lane, settled
from tests.queue_workers import wait_until

PATH = f"/v1/profiles/{PROFILE}/manifest"


@pytest.fixture
def closed_lane(start: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Registry, Lane]]:
    """A registry for one test alone, and its lane, which never checks a key again.

    Checking it again makes the answer anew, and so would hide that an event has not ended it.
    """
    monkeypatch.setattr(lane_module, "_GRANT_SECONDS", 3600.0)
    registry = start()
    yield registry, Lane(registry)
    del registry.app.state.parts.lane.answer


def listed(registry: Registry, path: str = PATH, **params: Any) -> dict[str, Any]:
    response = registry.client.get(path, params=params)
    assert response.status_code == 200, response.text
    page: dict[str, Any] = response.json()
    return page


def voices(page: dict[str, Any]) -> list[str]:
    return [one["voice"] for one in page["data"]]


def test_an_entry_is_what_the_bare_name_means(start: Start):
    """An engine fetches by this entry, so it must agree with the descriptor in every field."""
    registry = start()
    registry.ready("Alice", ref_text="Hi.")
    registry.upload("alice", clip=OTHER_CLIP, ref_text="Ho.")
    page = listed(registry)
    assert (page["profile"], page["model_type"], page["namespace"]) == (PROFILE, "qwen3_tts", "default")
    [entry] = page["data"]
    assert (entry["version"], entry["state"], entry["source"]) == (1, "ready", "audio")
    descriptor = registry.client.get(f"/v1/voices/alice/versions/1/artifacts/{PROFILE}").json()
    for field in ("voice", "voice_id", "version_id", "created_at", "digest", "size", "ref_text"):
        assert entry[field] == descriptor[field]
    registry.worker.finish_all("alice")
    wait_until(lambda: listed(registry)["data"][0]["version"] == 2)


def test_voices_that_the_profile_cannot_use_are_left_out(start: Start):
    """An embedding of one model is of no use to another."""
    registry = start()
    registry.ready("alice")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    assert voices(listed(registry)) == ["alice", "eve"]
    wider = listed(registry, f"/v1/profiles/{WIDER}/manifest")
    assert voices(wider) == ["alice"]
    assert (wider["data"][0]["state"], wider["data"][0]["digest"]) == (None, None)  # nobody asked for it


def test_every_voice_is_on_one_page(start: Start):
    registry = start()
    names = [f"voice-{number}" for number in range(7)]
    for one in names:
        registry.upload(one)
    found, after, more = [], "", True
    while more:
        page = listed(registry, limit=3, after=after)
        found += voices(page)
        after, more = page["last_id"], page["has_more"]
    assert found == names


def pin(registry: Registry, name: str, *, pinned: bool = True) -> None:
    response = registry.client.patch(f"/v1/voices/{name}", json={"pinned": pinned})
    assert response.status_code == 200, response.text


def five_voices(registry: Registry, *pinned: str) -> None:
    for name in "abcde":
        registry.upload(name)
    for name in pinned:
        pin(registry, name)


def walk(registry: Registry, limit: int) -> list[list[str]]:
    """Return the names on each page."""
    found, after, more = [], "", True
    while more:
        page = listed(registry, limit=limit, after=after)
        found.append(voices(page))
        after, more = page["last_id"], page["has_more"]
    return found


def test_pinned_voices_come_first_on_a_manifest_of_one_page(start: Start):
    """A client with a small cache takes the voices in the order of the manifest, each once."""
    registry = start()
    five_voices(registry, "d", "b")
    wait_until(lambda: walk(registry, 5) == [["b", "d", "a", "c", "e"]])
    registry.redis.flushdb()
    assert walk(registry, 5) == [["b", "d", "a", "c", "e"]], "also when the page is made from the bucket"


def test_pages_of_pinned_voices_come_before_those_of_all(start: Start):
    """A pinned voice is listed again, so that none that is pinned or unpinned meanwhile is missing."""
    registry = start()
    five_voices(registry, "e", "d", "b")
    wait_until(lambda: walk(registry, 2) == [["b", "d"], ["e"], ["a", "b"], ["c", "d"], ["e"]])
    first = listed(registry, limit=2)
    pin(registry, "e", pinned=False)
    wait_until(lambda: listed(registry, limit=2, after=first["last_id"])["data"][0]["voice"] == "a")
    pin(registry, "d", pinned=False)
    pin(registry, "b", pinned=False)
    wait_until(lambda: walk(registry, 2) == [["a", "b"], ["c", "d"], ["e"]])


def test_a_pin_changes_the_pages_of_pinned_voices_alone(closed_lane: tuple[Registry, Lane]):
    """Engines that poll are sent only what has changed. The first page has, although it lacked the voice."""
    registry, lane = closed_lane
    five_voices(registry, "b")
    paths = [f"{PATH}?limit=2{after}" for after in ("", "&after=/all", "&after=b", "&after=d")]

    def is_changed() -> list[bool]:
        answers = zip(paths, tags, strict=True)
        return [
            registry.client.get(path, headers={"If-None-Match": tag}).status_code != 304
            for path, tag in answers
        ]

    wait_until(lambda: voices(listed(registry, limit=2)) == ["b"])
    tags = [lane.get(path).headers["etag"] for path in paths]
    assert is_changed() == [False] * 4
    pin(registry, "e")
    wait_until(lambda: voices(listed(registry, limit=2)) == ["b", "e"])
    wait_until(lambda: is_changed() == [True, False, False, True])


def test_a_page_ends_after_a_mebibyte_of_texts(start: Start, monkeypatch: pytest.MonkeyPatch):
    """Five hundred of the longest transcripts would be an answer of 30 MB."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 250)
    registry = start()
    for number in range(5):
        registry.upload(f"voice-{number}", ref_text="x" * 100)
    page = listed(registry)
    assert (voices(page), page["has_more"]) == (["voice-0", "voice-1", "voice-2"], True)
    rest = listed(registry, after=page["last_id"])
    assert (voices(rest), rest["has_more"]) == (["voice-3", "voice-4"], False)


@pytest.mark.parametrize(
    ("path", "status", "code", "says"),
    [
        (PATH + "?limit=501", 400, "invalid_request", "1 to 500"),
        (PATH + "?limit=0", 400, "invalid_request", "1 to 500"),
        (PATH + "?since=3", 400, "invalid_request", "after, limit"),
        ("/v1/profiles/qwen/manifest", 404, "profile_unknown", PROFILE),
    ],
)
def test_a_malformed_question_is_refused(registry: Registry, path: str, status: int, code: str, says: str):
    response = registry.client.get(path)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert says in error["message"]


@pytest.mark.parametrize("headers", [{}, {"Accept-Encoding": "gzip"}, {"If-None-Match": "*"}])
def test_a_page_from_memory_equals_the_ordinary_one(
    closed_lane: tuple[Registry, Lane], headers: dict[str, str]
):
    """Fifty engines ask every few seconds, so nearly all answers come from memory."""
    registry, lane = closed_lane
    for number in range(20):
        registry.upload(f"voice-{number}")
    expected = registry.client.get(PATH, headers={**headers, "X-Unusual": "1"})
    assert settled(lane.get(PATH, headers=headers)) == settled(expected)


def test_a_page_from_memory_ends_with_any_of_its_voices(closed_lane: tuple[Registry, Lane]):
    """A deleted voice must not be told of any more from the answer to the deletion on."""
    registry, lane = closed_lane
    for one in ("alice", "bob", "carol"):
        registry.ready(one)
    wait_until(lambda: [one["state"] for one in listed(registry)["data"]] == ["ready"] * 3)
    for one in ("bob", "alice", "carol"):
        lane.get(PATH)
        assert registry.client.delete(f"/v1/voices/{one}").status_code == 204
        assert one not in voices(listed(registry))


def test_a_page_from_memory_ends_with_a_pin(closed_lane: tuple[Registry, Lane]):
    """Engines that load pinned voices first hear of it although nothing else has changed."""
    registry, lane = closed_lane
    registry.ready("alice")
    assert "pinned" not in lane.get(PATH).json()["data"][0]
    for pinned in (True, False):
        lane.get(PATH)
        registry.client.patch("/v1/voices/alice", json={"pinned": pinned})
        wait_until(lambda pinned=pinned: listed(registry)["data"][0].get("pinned", False) is pinned)


def test_while_redis_was_lost_the_manifest_comes_from_the_bucket(start: Start):
    """An engine must not be told that all voices are gone because the view is."""
    registry = start(kept_bytes=0)
    registry.ready("alice")
    registry.redis.flushdb()
    assert voices(listed(registry)) == ["alice"]


def test_the_manifest_names_its_registry(start: Start):
    """Engines tell by this that their address leads elsewhere. It survives every loss of Redis."""
    registry, other = start(), start()
    identity = listed(registry)["registry"]
    assert re.fullmatch(r"[0-9a-f]{32}", identity)
    assert listed(other)["registry"] != identity
    registry.redis.flushdb()
    assert listed(registry)["registry"] == identity
    registry.opened.generation.check()
    assert listed(registry)["registry"] == identity


def test_the_sdk_reads_all_pages_and_only_changed_ones_again(start: Start, monkeypatch: pytest.MonkeyPatch):
    registry = start()
    for number in range(5):
        registry.ready(f"voice-{number}")
    with RegistryClient(registry.url) as client:
        first = client.manifest(PROFILE)
        assert [one.voice for one in first] == [f"voice-{number}" for number in range(5)]
        assert len(first) == 5
        assert client.fetch(next(iter(first)).reference, PROFILE).digest == next(iter(first)).digest
        wait_until(lambda: client.manifest(PROFILE, first) is first)
        registry.client.delete("/v1/voices/voice-3")
        assert [one.version for one in client.manifest(PROFILE, first)] == [1, 1, 1, 1]
        with pytest.raises(ProfileUnknown):
            client.manifest("qwen")
        with pytest.raises(InvalidRequest):
            client.manifest("../voices")


def test_the_sdk_has_each_pinned_voice_once(start: Start, monkeypatch: pytest.MonkeyPatch):
    """A pinned voice is on two pages. Counting or loading it twice would waste a cache."""
    monkeypatch.setattr(pages, "PAGE_BYTES", 1)
    registry = start()
    five_voices(registry, "d", "b")
    with RegistryClient(registry.url) as client:
        wait_until(lambda: [one.voice for one in client.manifest(PROFILE)] == ["b", "d", "a", "c", "e"])
        found = client.manifest(PROFILE)
        assert (len(found), len(found.pages)) == (5, 7)
        pin(registry, "b", pinned=False)
        wait_until(
            lambda: [one.voice for one in client.manifest(PROFILE, found)] == ["d", "a", "b", "c", "e"]
        )


def test_the_sdk_reads_the_manifest_without_blocking(registry: Registry):
    async def read() -> Manifest:
        async with AsyncRegistryClient(registry.url) as client:
            return await client.manifest(PROFILE)

    assert asyncio.run(read()).profile == PROFILE
