"""Tests of resolving many voices in one request, in the ordinary way and from memory."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from services.registry_api.operations.artifacts import find_each
from services.registry_api.routes import resolve
from speaker_registry import AsyncRegistryClient, RegistryClient
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import InvalidRequest, ProfileUnknown
from speaker_registry.schemas import ResolvedArtifact
from tests.integration.api.conftest import Start
from tests.integration.api.registry import OTHER_CLIP, PROFILE, WIDER, Registry
from tests.integration.api.test_express_lane import Lane, settled

PATH = "/v1/resolve"


@pytest.fixture
def lane(registry: Registry) -> Iterator[Lane]:
    watched = Lane(registry)
    yield watched
    del registry.app.state.parts.lane.answer


def ask(*voices: str, profiles: tuple[str, ...] = (PROFILE,)) -> dict[str, Any]:
    return {"voices": list(voices), "profiles": list(profiles)}


def resolved(
    registry: Registry, *voices: str, profiles: tuple[str, ...] = (PROFILE,)
) -> list[dict[str, Any]]:
    response = registry.client.post(PATH, json=ask(*voices, profiles=profiles))
    assert response.status_code == 200, response.text
    data: list[dict[str, Any]] = response.json()["data"]
    return data


def test_each_reference_stands_for_what_the_descriptor_says(registry: Registry, name: str):
    registry.ready(name)
    registry.upload(name, clip=OTHER_CLIP)
    voice_id = registry.client.get(f"/v1/voices/{name}").json()["id"]
    entries = resolved(registry, name, f"{name}@1", f"{name.upper()}@2", f"{name}@latest", voice_id)
    assert [one["version"] for one in entries] == [1, 1, 2, 1, 1]
    assert [one["state"] for one in entries] == ["ready", "ready", "pending", "ready", "ready"]
    descriptor = registry.client.get(f"/v1/voices/{name}/versions/1/artifacts/{PROFILE}").json()
    for field in ("version_id", "created_at", "digest", "size", "profile"):
        assert entries[0][field] == descriptor[field]
    assert entries[2]["digest"] is None


def test_every_voice_is_resolved_for_every_profile(registry: Registry, name: str):
    registry.ready(name)
    entries = resolved(registry, name, f"{name}@1", profiles=(PROFILE, WIDER))
    assert [(one["voice"], one["profile"]) for one in entries] == [
        (name, PROFILE),
        (name, WIDER),
        (f"{name}@1", PROFILE),
        (f"{name}@1", WIDER),
    ]
    assert entries[1]["error"]["code"] == "artifact_not_found"


@pytest.mark.parametrize(
    ("voice", "code"),
    [
        ("nobody", "voice_not_found"),
        ("{name}@7", "version_not_found"),
        ("{name}@prod", "alias_not_found"),
        ("{name}@", "invalid_reference"),
        ("{name}@1@2", "invalid_reference"),
        ("", "invalid_voice_name"),
        ("a/b", "invalid_voice_name"),
    ],
)
def test_what_is_not_found_is_an_entry_with_an_error(registry: Registry, name: str, voice: str, code: str):
    """One mistake among 500 voices must not cost the other 499."""
    registry.ready(name)
    wrong, right = resolved(registry, voice.format(name=name), name)
    assert wrong["error"]["code"] == code
    assert (wrong["version"], wrong["digest"], wrong["state"]) == (None, None, None)
    assert right["state"] == "ready"


@pytest.mark.parametrize(
    ("body", "param", "says"),
    [
        ({"voices": [], "profiles": [PROFILE]}, "voices", "1"),
        ({"voices": ["a"], "profiles": []}, "profiles", "1"),
        ({"voices": ["a"] * 501, "profiles": [PROFILE]}, "voices", "500"),
        ({"voices": ["a"] * 251, "profiles": [PROFILE, WIDER]}, "voices", "502 pairs; accepted: 500"),
        ({"voices": ["a"], "profiles": [PROFILE], "profile": PROFILE}, "profile", "profiles"),
        ({"voices": "a", "profiles": [PROFILE]}, "voices", "list"),
        ({"voices": ["a"]}, "profiles", "profiles"),
    ],
)
def test_a_malformed_question_is_refused(registry: Registry, body: dict[str, Any], param: str, says: str):
    answer = registry.client.post(PATH, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


def test_an_unknown_profile_is_an_error_of_the_whole_request(registry: Registry, name: str):
    answer = registry.client.post(PATH, json=ask(name, profiles=("qwen",)))
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "profile_unknown")


def test_an_unchanged_answer_is_not_sent_again(registry: Registry, name: str):
    registry.ready(name)
    first = registry.client.post(PATH, json=ask(name))
    known = {"If-None-Match": first.headers["etag"]}
    assert registry.client.post(PATH, json=ask(name), headers=known).status_code == 304
    registry.ready(name, clip=OTHER_CLIP)
    changed = registry.client.post(PATH, json=ask(name), headers=known)
    assert (changed.status_code, changed.json()["data"][0]["version"]) == (200, 2)


@pytest.mark.parametrize("headers", [{}, {"Accept-Encoding": "gzip"}, {"If-None-Match": "*"}])
def test_an_answer_from_memory_equals_the_ordinary_one(
    registry: Registry, lane: Lane, name: str, headers: dict[str, str]
):
    registry.ready(name)
    body = ask(*[f"{name}@1"] * 30, profiles=(PROFILE,))
    expected = registry.client.post(PATH, json=body, headers={**headers, "X-Unusual": "1"})
    assert settled(lane.get(PATH, "POST", headers, json=body)) == settled(expected)


def test_another_question_is_not_given_the_same_answer(registry: Registry, lane: Lane, name: str):
    registry.ready(name)
    lane.get(PATH, "POST", json=ask(name))
    assert resolved(registry, f"{name}@1")[0]["voice"] == f"{name}@1"
    assert lane.get(PATH, "POST", json=ask(f"{name}@1")).json()["data"][0]["voice"] == f"{name}@1"


def test_an_answer_from_memory_ends_with_any_of_its_voices(registry: Registry, lane: Lane, name: str):
    voices = [f"{name}-{number}" for number in range(3)]
    for one in voices:
        registry.ready(one)
    while voices:
        lane.get(PATH, "POST", json=ask(*voices))
        assert registry.client.delete(f"/v1/voices/{voices[-1]}").status_code == 204
        assert resolved(registry, *voices)[-1]["error"]["code"] == "voice_not_found"
        voices.pop()


def test_what_is_not_ready_is_looked_up_each_time(registry: Registry, lane: Lane, name: str):
    """A job that has just ended must not be told as pending."""
    registry.upload(name)
    for _ in range(5):
        assert resolved(registry, name)[0]["state"] == "pending"
    assert lane.answered == 0
    registry.worker.finish_all(name)
    assert resolved(registry, name)[0]["state"] == "ready"


@pytest.mark.parametrize("pieces", [1, 2, 7])
def test_a_body_in_pieces_is_answered_all_the_same(registry: Registry, name: str, pieces: int):
    """The lane waits for a body only until the end of what was read at once."""
    registry.ready(name)
    body = json.dumps(ask(name)).encode()
    head = (
        f"POST {PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", registry.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(3):
            sent = head.encode() + body
            size = -(-len(sent) // pieces)
            for start in range(0, len(sent), size):
                connection.sendall(sent[start : start + size])
            answer = read_answer(connection)
            assert answer["data"][0]["state"] == "ready"


def read_answer(connection: socket.socket) -> dict[str, Any]:
    """Read one answer with a Content-Length from a connection."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    [length] = [int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if b"content-length" in line]
    while len(body) < length:
        body += connection.recv(65536)
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def test_while_redis_was_lost_voices_are_resolved_from_the_bucket(start: Start):
    """Their documents say everything, so nothing is uncertain for a moment."""
    registry = start(kept_bytes=0)
    registry.ready("alice")
    registry.redis.flushdb()
    [entry] = resolved(registry, "alice")
    assert (entry["version"], entry["state"], entry["error"]) == (1, "ready", None)


def test_the_sdk_asks_as_often_as_it_has_to(registry: Registry, name: str):
    registry.ready(name)
    with RegistryClient(registry.url, cache=None) as client:
        entries = client.resolve([f"{name}@1"] * 700 + ["nobody"], [PROFILE])
        assert len(entries) == 701
        assert {one.state for one in entries[:700]} == {"ready"}
        assert entries[0].digest == client.descriptor(name, PROFILE).digest
        assert entries[700].error is not None
        assert entries[700].error.code == "voice_not_found"
        assert client.resolve([], [PROFILE]) == []
        with pytest.raises(InvalidRequest, match="0 profiles were given; accepted: 1 to 64"):
            client.resolve([name], [])
        with pytest.raises(ProfileUnknown):
            client.resolve([name], ["qwen"])


def named_in_chinese(registry: Registry, name: str) -> str:
    return str(registry.ready(f"{name}{'名' * (60 - len(name))}")["name"])


def named_at_length(registry: Registry, name: str) -> str:
    return str(registry.ready(f"{name:x<128}")["name"])


def known_by_id_and_alias(registry: Registry, name: str) -> str:
    voice, alias = registry.ready(f"{name:x<64}")["id"], "a" * 64
    moved = registry.client.put(f"/v1/voices/{voice}/aliases/{alias}", json={"version": 1})
    assert moved.status_code == 200, moved.text
    return f"{voice}@{alias}"


@pytest.mark.parametrize("made", [named_in_chinese, named_at_length, known_by_id_and_alias])
def test_the_sdk_resolves_voices_whatever_their_references_look_like(
    registry: Registry, name: str, made: Callable[[Registry, str], str]
):
    """500 such references are larger than any other JSON body that is accepted."""
    reference = made(registry, name)
    with RegistryClient(registry.url, cache=None) as client:
        entries = client.resolve([reference] * 501, [PROFILE])
    assert [(one.voice, one.version, one.state) for one in entries] == [(reference, 1, "ready")] * 501


def test_the_largest_question_that_is_documented_is_answered(registry: Registry):
    """The bound of the body leaves room for what the schema accepts, and is still a bound."""
    longest = canonical_json(ask(*["𝄞" * 512] * 500)).encode()
    headers = {"Content-Type": "application/json"}
    answer = registry.client.post(PATH, content=longest, headers=headers)
    assert answer.status_code == 200, answer.text
    assert {one["error"]["code"] for one in answer.json()["data"]} == {"invalid_voice_name"}
    refused = registry.client.post(PATH, content=longest + b" " * 65536, headers=headers)
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "payload_too_large")
    assert refused.json()["error"]["message"].endswith("accepted here: 1089536.")


@pytest.mark.parametrize(("many", "wait_seconds", "together"), [(50, 20.0, True), (51, 0.3, False)])
def test_many_voices_are_resolved_one_request_at_a_time(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, many: int, wait_seconds: float, together: bool
):
    """The threads of one tenant that compute for long would slow every request of other tenants."""
    both, met = threading.Barrier(2), []

    def meet(*arguments: Any) -> Any:
        try:
            both.wait(wait_seconds)
        except threading.BrokenBarrierError:
            met.append(False)
        else:
            met.append(True)
        return find_each(*arguments)

    monkeypatch.setattr(resolve, "find_each", meet)
    questions = [[f"nobody-{request}-{number}" for number in range(many)] for request in range(2)]
    with ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda voices: resolved(registry, *voices), questions))
    assert [len(answer) for answer in answers] == [many, many]
    assert met == [together, together]


def test_the_sdk_asks_without_blocking(registry: Registry, name: str):
    registry.ready(name)

    async def ask_the_registry() -> Sequence[ResolvedArtifact]:
        async with AsyncRegistryClient(registry.url) as client:
            return await client.resolve([name], [PROFILE])

    [entry] = asyncio.run(ask_the_registry())
    assert (entry.voice, entry.version, entry.state) == (name, 1, "ready")
