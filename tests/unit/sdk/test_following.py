"""Tests of following a registry: which voices it has now, and what is sent to find that out."""

import httpx
import pytest

from speaker_registry import RegistryClient
from speaker_registry.errors import Unavailable
from speaker_registry.following import Following, is_deleted
from speaker_registry.manifests import Manifest, ManifestEntry, ManifestPage, ReceivedPage
from tests.unit.sdk.fake_registry import QWEN, URL, FakeTime, error_answer

DIGEST = "sha256:{}"
REGISTRY, OTHER = "a" * 32, "b" * 32


def entry(name: str, version: int = 1, **facts: object) -> ManifestEntry:
    facts = {"voice_id": f"voice_{name}", "version_id": f"v{version}", "state": "ready", **facts}
    given = {"voice": name, "version": version, "created_at": 100 + version, "source": "audio", **facts}
    return ManifestEntry.model_validate(given)


class Pages:
    """A registry that has only a manifest, in pages of two voices, and counts what it sent."""

    def __init__(self) -> None:
        self.voices: list[ManifestEntry] = []
        self.profile = QWEN
        self.registry = REGISTRY
        self.away = False
        self.sent: list[int] = []
        """Statuses of the answers."""
        self.limits: list[str | None] = []
        """The limits that were asked for."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if self.away:
            raise httpx.ConnectError("refused")
        after = request.url.params.get("after", "")
        following = [one for one in self.voices if one.voice > after]
        self.limits.append(request.url.params.get("limit"))
        size = int(self.limits[-1] or 2)
        page = ManifestPage(
            registry=self.registry,
            namespace="default",
            profile=self.profile,
            model_type="qwen3_tts",
            data=following[:size],
            last_id=following[:size][-1].voice if following else None,
            has_more=len(following) > size,
        )
        content = page.model_dump_json()
        etag = f'W/"{hash(content)}"'
        status = 304 if request.headers.get("if-none-match") == etag else 200
        self.sent.append(status)
        return httpx.Response(status, headers={"etag": etag}, content=b"" if status == 304 else content)


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.fixture
def client(pages: Pages, time: FakeTime) -> RegistryClient:
    transport = httpx.MockTransport(pages)
    return RegistryClient(URL, transport=transport, clock=time, sleep=time.sleep, retries=0)


def look(following: Following) -> list[tuple[str, int]]:
    """Look at the registry, and return the names and versions of the voices."""
    following.look()
    return [(one.voice, one.version) for one in following.voices.values()]


def test_each_look_finds_the_voices_as_they_are_then(pages: Pages, client: RegistryClient):
    following = Following(client, QWEN)
    pages.voices = [entry("a"), entry("b"), entry("c")]
    assert look(following) == [("a", 1), ("b", 1), ("c", 1)]
    pages.voices = [entry("a", digest=DIGEST), entry("c", 2), entry("d")]
    assert look(following) == [("a", 1), ("c", 2), ("d", 1)]
    assert following.voices["voice_a"].digest == DIGEST
    assert following.manifest.model_type == "qwen3_tts"


def test_after_a_look_at_an_unchanged_registry_the_voices_are_the_same_objects(
    pages: Pages, client: RegistryClient
):
    """Fifty engines look every few seconds, and most looks find nothing new."""
    following = Following(client, QWEN)
    pages.voices = [entry("a"), entry("b")]
    following.look()
    voices = following.voices
    following.look()
    assert following.voices is voices


def test_an_unchanged_page_is_not_sent_again(pages: Pages, client: RegistryClient):
    """Fifty engines look at ten thousand voices every few seconds."""
    following = Following(client, QWEN)
    pages.voices = [entry(name) for name in "abcde"]
    following.look()
    pages.sent.clear()
    following.look()
    assert pages.sent == [304, 304, 304]
    pages.voices[4] = entry("e", 2)
    pages.sent.clear()
    assert look(following)[4] == ("e", 2)
    assert pages.sent == [304, 304, 200]


def test_pinned_voices_come_first(pages: Pages, client: RegistryClient):
    """An engine whose cache is too small for all voices then holds those that matter more."""
    pages.voices = [entry("alice"), entry("bob"), entry("carol", pinned=True), entry("dave", pinned=True)]
    following = Following(client, QWEN)
    following.look()
    assert [one.voice for one in following.voices.values()] == ["carol", "dave", "alice", "bob"]
    pages.voices[3] = entry("dave")
    following.look()
    assert [one.voice for one in following.voices.values()] == ["carol", "alice", "bob", "dave"]


def test_a_name_that_is_registered_again_is_another_voice(pages: Pages, client: RegistryClient):
    """What an engine holds of the former voice must go, although the name is still there."""
    following = Following(client, QWEN)
    pages.voices = [entry("a")]
    following.look()
    pages.voices = [entry("a", 2, voice_id="voice_other")]
    following.look()
    assert [*following.voices] == ["voice_other"]


def test_while_the_registry_is_away_the_voices_stay(pages: Pages, client: RegistryClient):
    """An engine must not drop its voices because the registry restarts."""
    following = Following(client, QWEN)
    pages.voices = [entry("a"), entry("b")]
    following.look()
    pages.away = True
    with pytest.raises(Unavailable):
        following.look()
    assert len(following.voices) == 2
    pages.away, pages.voices = False, [entry("b")]
    assert look(following) == [("b", 1)]


def test_the_manifest_of_another_profile_is_refused(pages: Pages, client: RegistryClient):
    """A proxy that mixes up two registries must not fill an engine with voices of another model."""
    following = Following(client, QWEN)
    pages.voices, pages.profile = [entry("a")], "voxcpm2"
    with pytest.raises(Unavailable, match=r"'voxcpm2'.*was asked for"):
        following.look()
    assert not following.voices


def test_another_registry_is_refused_and_takes_nothing_away(pages: Pages, client: RegistryClient):
    """A wrong DNS entry may lead to a registry with the same profile and namespace. Engines keep their voices
    and go on when the entry is right again. A restarted engine follows whatever answers.
    """
    following = Following(client, QWEN)
    pages.voices = [entry("a"), entry("b"), entry("c")]
    following.look()
    theirs, pages.voices, pages.registry = pages.voices, [entry("x")], OTHER
    for _ in range(2):
        with pytest.raises(Unavailable, match=f"answered, '{OTHER}' instead of '{REGISTRY}'"):
            following.look()
        assert [one.voice for one in following.voices.values()] == ["a", "b", "c"]
    assert look(Following(client, QWEN)) == [("x", 1)]
    pages.voices, pages.registry = theirs[1:], REGISTRY
    assert look(following) == [("b", 1), ("c", 1)]


def test_a_voice_on_two_pages_is_as_the_later_one_says():
    """Pinned voices are listed twice, and may change between the two pages."""
    found = (
        [entry("p", 1, pinned=True), entry("q", pinned=True)],
        [entry("a"), entry("p", 2), entry("q", pinned=True)],
    )
    facts = {"registry": REGISTRY, "namespace": "default", "profile": QWEN, "model_type": "qwen3_tts"}
    first, second = (ReceivedPage(None, ManifestPage.model_validate({**facts, "data": one})) for one in found)
    manifest = Manifest(REGISTRY, "default", QWEN, "qwen3_tts", {"": first, "/all": second})
    assert [(one.voice, one.version) for one in manifest] == [("q", 1), ("p", 2), ("a", 1)]
    assert len(manifest) == 3


def test_pages_of_two_registries_are_refused(pages: Pages, client: RegistryClient):
    """An address that leads to two registries in turn must not fill an engine with a mixture."""
    pages.voices = [entry("a"), entry("b"), entry("c")]

    class Turns(Pages):
        def __call__(self, request: httpx.Request) -> httpx.Response:
            pages.registry = OTHER if "after" in request.url.params else REGISTRY
            return pages(request)

    mixed = RegistryClient(URL, transport=httpx.MockTransport(Turns()), retries=0)
    with pytest.raises(Unavailable, match="another registry answered"):
        Following(mixed, QWEN).look()


def test_one_page_tells_which_registry_answers(pages: Pages, client: RegistryClient):
    """A sync asks for that alone, of a registry with any number of voices. It checks what a whole reading
    checks.
    """
    pages.voices = [entry(name) for name in "abcde"]
    page = client.manifest_page(QWEN, limit=1, registry=REGISTRY)
    assert (page.registry, page.namespace, len(page.data)) == (REGISTRY, "default", 1)
    assert (pages.sent, pages.limits) == ([200], ["1"])
    pages.registry = OTHER
    assert client.manifest_page(QWEN).registry == OTHER
    with pytest.raises(Unavailable, match="another registry answered"):
        client.manifest_page(QWEN, registry=REGISTRY)
    pages.profile = "other"
    with pytest.raises(Unavailable, match="the manifest of profile"):
        client.manifest_page(QWEN)


def test_a_profile_without_voices_is_known_too(pages: Pages, client: RegistryClient):
    """An engine of an empty registry has to know what it follows when the first voice comes."""
    following = Following(client, QWEN)
    following.look()
    found = following.manifest
    assert (found.registry, found.namespace, found.model_type) == (REGISTRY, "default", "qwen3_tts")


@pytest.mark.parametrize(
    ("answer", "deleted"),
    [
        (error_answer(404, "version_not_found"), True),
        (error_answer(404, "voice_not_found"), True),
        (error_answer(404, "not_found"), False),  # a proxy has changed the path
        (error_answer(503, "unavailable"), False),
        (httpx.Response(404, html="<html>page</html>"), False),
        (httpx.Response(410, html="<html>page</html>"), False),
    ],
    ids=["version", "voice", "path", "away", "proxy 404", "proxy 410"],
)
def test_only_the_registry_says_that_a_version_is_deleted(answer: httpx.Response, deleted: bool):
    """Its followers erase a deleted version, which nobody should lose because of a proxy's page."""
    transport = httpx.MockTransport(lambda _: answer)
    client = RegistryClient(URL, transport=transport, retries=0)
    assert is_deleted(lambda: client.version("alice@1"), lambda _: True) == deleted
