"""Tests of the three routes that register clips and embeddings. What one of them accepts, refuses, counts and
limits, the others do as well; only words and statuses differ.
"""

import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from services.registry_api.keys.api_keys import new_token
from services.registry_api.protocol.routing import clip_field_of
from services.shared.audio import AudioDecoder, DecodedClip
from services.shared.configuration.access import AccessSettings, RateSettings
from services.shared.configuration.uploads import UploadLimits
from speaker_registry import RegistryClient
from tests.integration.api import raw
from tests.integration.api.conftest import Start
from tests.integration.api.registry import CLIP, EMBEDDING, OTHER_CLIP, PROFILE, Registry
from tests.integration.api.uploading import (
    UPLOAD_ROUTES,
    VERSIONS,
    VLLM_OMNIS,
    VOICES,
    UploadRoute,
)
from tests.queue_workers import wait_until
from tests.unit.audio import clips

TEXT = "The quick brown fox jumps over the lazy dog."
BOOTSTRAP = new_token()
CLOSED = AccessSettings(bootstrap_key=SecretStr(str(BOOTSTRAP)))
BEARER = {"Authorization": f"Bearer {BOOTSTRAP}"}


@pytest.fixture(params=UPLOAD_ROUTES)
def route(request: pytest.FixtureRequest) -> UploadRoute:
    return UPLOAD_ROUTES[request.param]


@pytest.fixture(params=["voices", "versions"])
def native(request: pytest.FixtureRequest) -> UploadRoute:
    return UPLOAD_ROUTES[request.param]


def version_of(registry: Registry, name: str, ref: int | str = "latest") -> dict[str, Any]:
    response = registry.client.get(f"/v1/voices/{name}/versions/{ref}")
    assert response.status_code == 200, response.text
    version: dict[str, Any] = response.json()
    return version


def message_of(response: httpx.Response) -> str:
    message: str = response.json()["error"]["message"]
    return message


@contextmanager
def held(decoder: AudioDecoder, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the decoder decode nothing inside the context."""
    go_on, decode = threading.Event(), decoder.decode

    def slowly(data: bytes) -> DecodedClip:
        go_on.wait(60)
        return decode(data)

    monkeypatch.setattr(decoder, "decode", slowly)
    try:
        yield
    finally:
        go_on.set()


# -- what is registered


def test_every_route_registers_the_same_version(registry: Registry, name: str):
    """A version is the same whichever route it came by, because engines do not ask how it came."""
    made = []
    for number, route in enumerate(UPLOAD_ROUTES.values()):
        voice = f"{name}-{number}"
        before = route.prepare(registry, voice)
        response = route.post(registry, voice, ref_text=TEXT, description="warm", consent=" cons_7 ")
        assert response.status_code == route.created, response.text
        assert route.number(response) == before + 1
        version = version_of(registry, voice, before + 1)
        own = {"id", "voice_id", "voice", "version", "created_at", "held_back", "artifacts"}
        version["audio"].pop("url")
        made.append({key: value for key, value in version.items() if key not in own})
    assert made[0] == made[1] == made[2]
    assert (made[0]["ref_text"], made[0]["description"], made[0]["consent"]) == (TEXT, "warm", "cons_7")


def test_every_route_takes_an_embedding(registry: Registry, name: str, route: UploadRoute):
    """Every route takes an embedding instead of a clip."""
    before = route.prepare(registry, name)
    assert route.number(route.post(registry, name, clip=None, embedding=EMBEDDING)) == before + 1
    assert version_of(registry, name, before + 1)["embedding_dim"] == 1024


def test_the_answer_is_the_version_as_it_is_shown_everywhere(
    registry: Registry, name: str, native: UploadRoute
):
    """The answer has the shape of a version, so that clients need to know one shape. `Location` leads to the
    version, and `jobs` to the jobs.
    """
    native.prepare(registry, name)
    response = native.post(registry, name)
    body = response.json()
    assert response.headers["Location"] == f"/v1/voices/{name}/versions/{body['version']}"
    shown = registry.client.get(response.headers["Location"]).json()
    assert body == {**shown, "created": True, "jobs": body["jobs"]}
    assert body["state"] == "pending"
    assert body["voice_id"] == registry.client.get(f"/v1/voices/{name}").json()["id"]
    job = registry.client.get(f"/v1/jobs/{body['jobs'][PROFILE]}").json()
    assert (job["voice"], job["version"], job["state"]) == (name, body["version"], "queued")


def test_an_equal_upload_is_answered_with_the_version_that_is_there(
    registry: Registry, name: str, route: UploadRoute
):
    """An upload that equals the newest version returns that version, unless the caller refuses that."""
    route.prepare(registry, name)
    first = route.number(route.post(registry, name))
    again = route.post(registry, name)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert (route.number(again), again.json()["created"]) == (first, False)
    twice = route.post(registry, name, params={"dedupe": "false"})
    if route is VOICES:
        assert route.refusal(twice)[:2] == (409, "voice_exists")
    else:
        assert route.number(twice) == first + 1


def test_an_idempotency_key_makes_one_version(registry: Registry, name: str, route: UploadRoute):
    """A repeated request returns the version that the first attempt made, even if others came in between, and
    another request with the key is refused.
    """
    route.prepare(registry, name)
    headers = {"Idempotency-Key": "k1"}
    made = route.number(route.post(registry, name, headers=headers))
    VLLM_OMNIS.post(registry, name, clip=OTHER_CLIP)
    again = route.post(registry, name, headers=headers)
    assert (route.number(again), again.headers["Idempotent-Replayed"]) == (made, "true")
    other = route.post(registry, name, clip=clips.wav(1.9), headers=headers)
    assert route.refusal(other) == (422, "idempotency_key_reused", None)
    for wrong in ("", "k" * 256):
        bad = route.post(registry, name, headers={"Idempotency-Key": wrong})
        assert route.refusal(bad) == (400, "invalid_request", "Idempotency-Key")


# -- voices and versions


def test_a_name_that_exists_is_refused_and_told_the_way(registry: Registry, name: str):
    """A new voice does not add a version to a voice that exists by mistake: the caller is told the route that
    does, and nothing is stored. Case does not matter.
    """
    registry.upload(name)
    before = registry.stored()
    refused = VOICES.post(registry, name.upper(), clip=OTHER_CLIP)
    assert VOICES.refusal(refused) == (409, "voice_exists", "name")
    assert f"Add a version with POST /v1/voices/{name}/versions" in message_of(refused)
    assert refused.headers["x-should-retry"] == "false"
    assert registry.stored() == before
    added = VOICES.post(registry, name, clip=OTHER_CLIP, params={"if_exists": "add_version"})
    assert VOICES.number(added) == 2


def test_a_version_of_an_unknown_voice_is_refused_and_told_the_way(registry: Registry):
    """A mistyped name makes no new voice. The caller is told so before it has sent the clip."""
    before = registry.stored()
    refused = VERSIONS.post(registry, "nobody")
    assert VERSIONS.refusal(refused) == (404, "voice_not_found", "name")
    assert message_of(refused) == "Voice 'nobody' not found. Register it with POST /v1/voices."
    head = raw.head("POST", VERSIONS.path("nobody"), "Content-Length: 100000", "Content-Type: x/y")
    assert raw.ask(registry.port, head).status == 404
    assert registry.stored() == before


def test_a_version_can_be_added_by_the_id_of_a_voice(registry: Registry, name: str):
    """The route takes an id as the other routes of voices do, and keeps the name as it was typed."""
    made = VOICES.post(registry, name.title()).json()
    added = VERSIONS.post(registry, made["voice_id"], clip=OTHER_CLIP).json()
    assert (added["voice"], added["version"], added["voice_id"]) == (name.title(), 2, made["voice_id"])


# -- what is refused


REFUSED: dict[str, tuple[dict[str, Any], tuple[int, str, str]]] = {
    "no consent": ({"consent": None}, (400, "invalid_request", "consent")),
    "a blank consent": ({"consent": " "}, (400, "invalid_request", "consent")),
    "a control character": ({"ref_text": "a\0b"}, (400, "invalid_request", "ref_text")),
    "a text too long": ({"ref_text": "x" * 8_001}, (400, "invalid_request", "ref_text")),
    "a description too long": ({"description": "x" * 8_001}, (400, "invalid_request", "description")),
    "no source": ({"clip": None}, (400, "invalid_request", "clip")),
    "two sources": ({"embedding": EMBEDDING}, (400, "invalid_request", "clip")),
    "a text as clip": ({"clip": "text"}, (400, "invalid_request", "clip")),
    "no audio": ({"clip": bytes(3000)}, (415, "unsupported_audio", "clip")),
    "a clip too short": ({"clip": clips.wav(0.4)}, (400, "audio_too_short", "clip")),
    "no JSON": ({"clip": None, "embedding": "[1"}, (400, "invalid_embedding", "embedding")),
    "not finite": ({"clip": None, "embedding": "[NaN]"}, (400, "invalid_embedding", "embedding")),
    "another width": ({"clip": None, "embedding": "[1]"}, (422, "embedding_dim_mismatch", "embedding")),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_every_route_refuses_the_same_forms(registry: Registry, name: str, route: UploadRoute, fault: str):
    """A fault is refused with the same code on every route, and named by the field's name on that route."""
    fields, (status, code, what) = REFUSED[fault]
    route.prepare(registry, name)
    before = registry.stored()
    refused = route.post(registry, name, **fields)
    assert route.refusal(refused) == (status, code, getattr(route.names, what, what))
    assert registry.stored() == before


@pytest.mark.parametrize("bad", ["..", "a@b", "x" * 129, " "])
def test_a_name_that_cannot_be_one_is_refused(registry: Registry, bad: str):
    """New voices get only names that every route can be asked for."""
    for route in (VLLM_OMNIS, VOICES):
        assert route.refusal(route.post(registry, bad)) == (400, "invalid_voice_name", "name")


def test_an_unknown_field_is_refused(registry: Registry, name: str, native: UploadRoute):
    """A mistyped field is refused and not ignored, since a voice without its transcript sounds wrong. A
    client of vLLM-Omni's route is told the name that its field has here.
    """
    native.prepare(registry, name)
    before = registry.stored()
    for strange, meant in {"reftext": "ref_text", "audio_sampl": None}.items():
        refused = native.post(registry, name, **{strange: "x"})
        assert native.refusal(refused) == (400, "invalid_request", strange)
        assert meant is None or f"did you mean '{meant}'?" in message_of(refused)
        assert "Accepted: audio, consent, description, embedding" in message_of(refused)
    assert registry.stored() == before


def test_a_name_in_the_form_of_a_version_is_refused(registry: Registry, name: str):
    """The path names the voice, so a name in the form would be a second and perhaps another one."""
    registry.upload(name)
    refused = VERSIONS.post(registry, name, name="other")
    assert VERSIONS.refusal(refused) == (400, "invalid_request", "name")


def test_if_exists_is_one_of_two_words(registry: Registry, name: str):
    """A mistyped value must not add a version."""
    refused = VOICES.post(registry, name, params={"if_exists": "add"})
    assert VOICES.refusal(refused) == (400, "invalid_request", "if_exists")
    assert "accepted: 'refuse', 'add_version'" in message_of(refused)


# -- limits


def test_every_route_limits_the_size_of_a_body(registry: Registry, route: UploadRoute, name: str):
    """A clip of a byte too many, and a body that declares too much, are refused on every route."""
    route.prepare(registry, name)
    refused = route.post(registry, name, clip=bytes(10 * 1024**2 + 1))
    assert route.refusal(refused) == (413, "payload_too_large", route.names.clip)
    lines = (f"Content-Type: {raw.CONTENT_TYPE['Content-Type']}", "Content-Length: 10000000000")
    answer = raw.ask(registry.port, raw.head("POST", route.path(name), *lines, "Expect: 100-continue"))
    assert (answer.status, answer.error["param"]) == (413, route.names.clip)


def test_every_route_shares_the_room_for_arriving_uploads(start: Start, route: UploadRoute):
    """Uploads that arrive by any route take no more memory together than there is room for."""
    size = 1024 * 1024
    registry = start(limits=UploadLimits(max_bytes=size, held_bytes=2 * size))
    route.prepare(registry, "alice")
    lines = [f"Content-Length: {size}", f"Content-Type: {raw.CONTENT_TYPE['Content-Type']}"]
    body = raw.form(raw.field("name", "a"), raw.file(route.names.clip, bytes(size - 4096)))[: size - 8192]
    with ExitStack() as stack:

        def is_full() -> bool:
            slow = stack.enter_context(raw.connected(registry.port))
            slow.sendall(raw.head("POST", route.path("alice"), *lines) + body)
            return route.post(registry, "alice").status_code == 503

        wait_until(is_full)
        assert "no memory left for arriving uploads" in message_of(route.post(registry, "alice"))
    wait_until(lambda: route.post(registry, "alice").status_code in {200, route.created})


def test_every_route_waits_for_the_same_decoders(
    start: Start, route: UploadRoute, decoder: AudioDecoder, monkeypatch: pytest.MonkeyPatch
):
    """An upload that finds no free decoder in time is refused with `Retry-After`, on every route."""
    monkeypatch.setattr("services.shared.audio.decoder.WAIT_SECONDS", 0.5)
    registry = start(limits=UploadLimits(decoders=1))
    many = registry.app.state.parts.upload_slots.count + 1
    for number in range(many):
        route.prepare(registry, f"voice-{number}")
    with ThreadPoolExecutor(many) as pool, held(decoder, monkeypatch):
        uploads = [pool.submit(route.post, registry, f"voice-{number}") for number in range(many)]
        wait_until(lambda: any(one.done() for one in uploads))
        refused = next(one.result() for one in uploads if one.done())
    assert (refused.status_code, refused.headers["Retry-After"]) == (503, "1")


def test_every_route_counts_uploads_for_the_limit_of_a_minute(start: Start, route: UploadRoute):
    """An upload counts as one, whichever route it comes by."""
    registry = start(access=CLOSED, rates=RateSettings(uploads_per_minute=3))
    registry.app.state.parts.services.access.rate_limits.now = lambda: 1_775_133_885.0
    before = route.prepare(registry, "alice", headers=BEARER)
    codes = [route.post(registry, "alice", headers=BEARER).status_code for _ in range(4 - before)]
    assert codes[-1] == 429
    assert 429 not in codes[:-1]


def test_every_route_fills_the_same_quotas(start: Start, route: UploadRoute):
    """Stored bytes and versions are limited whichever route they come by, and new voices are."""
    registry = start(max_uploaded=1, max_versions=2, max_stored_bytes=10 * len(CLIP))
    before = route.prepare(registry, "alice")
    route.number(route.post(registry, "alice"))
    if not route.adds:
        assert route.refusal(route.post(registry, "bob"))[:2] == (429, "quota_exceeded")
    if route is VOICES:
        return
    for number in range(before + 1, 2):
        route.number(route.post(registry, "alice", clip=clips.wav(1.4 + number)))
    refused = route.post(registry, "alice", clip=OTHER_CLIP)
    assert route.refusal(refused)[:2] == (429, "quota_exceeded")
    assert "SPEAKER_MAX_VERSIONS" in message_of(refused)


def test_every_route_counts_stored_bytes(start: Start, route: UploadRoute):
    """The bytes of a namespace are limited whichever route they come by."""
    registry = start(max_stored_bytes=len(CLIP) // 2)
    if route.adds:
        VOICES.number(VOICES.post(registry, "alice", clip=None, embedding=EMBEDDING))
    assert route.refusal(route.post(registry, "alice"))[:2] == (429, "quota_exceeded")


def test_an_immutable_registry_takes_no_second_version_by_any_route(start: Start, route: UploadRoute):
    """The policy `immutable` holds on every route."""
    registry = start(registration_policy="immutable")
    registry.upload("alice")
    params = {"if_exists": "add_version"} if route is VOICES else None
    refused = route.post(registry, "alice", clip=OTHER_CLIP, params=params)
    assert route.refusal(refused)[:2] == (409, "voice_exists")
    assert "delete it first" in message_of(refused)


# -- the SDK


def test_the_sdk_registers_and_adds_versions(registry: Registry, name: str):
    """`register` makes a voice or adds a version, and says what `wait_ready` has to know."""
    with RegistryClient(registry.url) as client:
        first = client.register(name, CLIP, consent="yes", ref_text=TEXT, description="warm")
        second = client.register(name, OTHER_CLIP, consent="yes")
        again = client.register(name, OTHER_CLIP, consent="yes")
    assert (first.reference, first.created, second.version) == (f"{name}@1", True, 2)
    assert (again.version, again.created, again.id) == (2, False, first.id)
    assert set(first.jobs) == {PROFILE}
    assert version_of(registry, name, 1)["description"] == "warm"


# -- room


def test_an_upload_that_finds_no_room_on_the_disk_is_to_be_tried_again(
    registry: Registry, route: UploadRoute, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A form's larger files lie on the disk for temporary files until they are decoded. If it is full,
    read-only or gone, the answer says so, and when to try again.
    """
    route.prepare(registry, "roomless")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    answer = route.post(registry, "roomless", clip=b"x" * 2 * 1024**2)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    assert "disk for temporary files" in message_of(answer)


# -- paths


@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/v1/audio/voices", "audio_sample"),
        ("POST", "/dashboard/voices", "audio_sample"),
        ("POST", "/v1/voices", "audio"),
        ("POST", "/v1/voices/a\nb/versions", "audio"),
        ("PUT", "/v1/voices/a\nb/versions/7", "audio"),
        ("GET", "/v1/voices/a/versions/7", None),
        ("PUT", "/v1/voices/a/aliases/prod", None),
        ("GET", "/v1/voices", None),
        ("POST", "/v1/voices/a/versions/1/extractions", None),
        ("POST", "/v1/voices/a/b/versions", None),
        ("POST", "/v1/resolve", None),
    ],
)
def test_only_routes_that_take_clips_take_large_bodies(method: str, path: str, field: str | None):
    """The limits of bodies are set by the path, before a route is found."""
    assert clip_field_of({"method": method, "path": path}) == field
