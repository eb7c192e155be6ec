"""Tests of server-sent events: their order, resumption without a gap, and who hears of what."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from services.registry_api.commands.wiring import keys_of
from services.registry_api.keys import listings
from services.registry_api.keys.revoke import revoke
from services.registry_api.routes import events
from services.registry_api.serving import event_feed
from services.shared.configuration.registry import RegistrySettings
from services.shared.configuration.store import StoreSettings
from services.shared.registry.opening import open_registry
from services.shared.telemetry import metrics
from speaker_registry.errors import Unavailable
from tests.integration.api.access import CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.registry import OTHER_CLIP, WIDER, Registry
from tests.queue_workers import wait_until

PATH = "/v1/events"


@dataclass
class Frame:
    """One event as it was received, or a comment, which has no fields."""

    fields: dict[str, str]

    @property
    def type(self) -> str:
        return self.fields.get("event", "")

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.fields["data"])
        return data


class Listening:
    """An answer with events that is being read."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def frames(self) -> Iterator[Frame]:
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                yield Frame(fields)
                fields = {}
            elif not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value

    def until(self, end: Callable[[Frame], bool]) -> list[Frame]:
        """Read frames up to the first for which `end` holds."""
        read: list[Frame] = []
        for frame in self.frames():
            read.append(frame)
            if end(frame):
                return read
        raise AssertionError(f"the stream ended after {read}")


@contextmanager
def listening(
    registry: Registry, *, headers: dict[str, str] | None = None, **params: Any
) -> Iterator[Listening]:
    """Listen to events. The place of the listener is taken when this returns."""
    with (
        httpx.Client(base_url=registry.url, timeout=30) as client,
        client.stream("GET", PATH, params=params, headers=headers) as response,
    ):
        assert response.status_code == 200, response.read()
        listener = Listening(response)
        [beginning] = listener.until(lambda _: True)
        assert beginning.fields["retry"] == "2000"
        yield listener


def is_delete_of(name: str) -> Callable[[Frame], bool]:
    return lambda frame: frame.type == "voice.deleted" and frame.data["voice_slug"] == name


def test_the_life_of_a_voice_is_told_in_order(registry: Registry, name: str):
    with listening(registry, voice=name) as listener:
        registry.ready(name)
        registry.ready(name, clip=OTHER_CLIP)
        voice = registry.client.get(f"/v1/voices/{name}").json()
        assert registry.client.delete(f"/v1/voices/{name}").status_code == 204
        frames = listener.until(is_delete_of(name))
    assert listener.response.headers["content-type"].startswith("text/event-stream")
    assert listener.response.headers["x-accel-buffering"] == "no"
    told = [frame.type for frame in frames if frame.type != "job.updated"]
    assert told[0] == "version.created"
    assert told[-1] == "voice.deleted"
    assert frames[-1].data["voice_id"] == voice["id"]
    assert told.count("version.created") == told.count("artifact.ready") == 2
    created = [frame.data for frame in frames if frame.type == "version.created"]
    assert [one["version"] for one in created] == [1, 2]
    states = [frame.data["state"] for frame in frames if frame.type == "job.updated"]
    assert states[0] == "queued"
    assert states.count("succeeded") == 2
    ids = [frame.fields["id"] for frame in frames]
    assert len(set(ids)) == len(ids)
    assert all(frame.data["id"] == frame.fields["id"] for frame in frames)


def test_an_event_names_the_voice_by_an_id_that_routes_accept(registry: Registry, name: str):
    with listening(registry, types="artifact.ready", voice=name) as listener:
        registry.ready(name)
        [frame] = listener.until(lambda _: True)
    path = f"/v1/voices/{frame.data['voice_id']}/versions/1/artifacts/{frame.data['profile']}"
    descriptor = registry.client.get(path).json()
    assert (descriptor["state"], descriptor["version_id"]) == ("ready", frame.data["version_id"])
    assert descriptor["fingerprint"] == frame.data["fingerprint"]


def test_a_listener_goes_on_where_it_was(registry: Registry, name: str):
    """Nothing that happened between two connections is missed, and nothing is told twice."""
    with listening(registry, voice=name) as listener:
        registry.upload(name)
        first = listener.until(lambda frame: frame.type == "version.created")
    registry.worker.finish_all(name)
    assert registry.client.delete(f"/v1/voices/{name}").status_code == 204
    last = {"Last-Event-ID": first[-1].fields["id"]}
    with listening(registry, voice=name, headers=last) as listener:
        second = listener.until(is_delete_of(name))
    with listening(registry, voice=name, after=last["Last-Event-ID"]) as listener:
        again = listener.until(is_delete_of(name))
    assert [frame.fields for frame in second] == [frame.fields for frame in again]
    assert {"artifact.ready", "voice.deleted"} <= {frame.type for frame in second}
    ids = [frame.fields["id"] for frame in first + second]
    assert len(set(ids)) == len(ids)


def test_only_the_types_and_the_profile_that_were_asked_for_are_told(registry: Registry, name: str):
    with listening(registry, voice=name, profile=WIDER, types="artifact.ready,voice.deleted") as listener:
        registry.ready(name)  # for another profile
        assert registry.client.delete(f"/v1/voices/{name}").status_code == 204
        frames = listener.until(is_delete_of(name))
    assert [frame.type for frame in frames] == ["voice.deleted"]


@pytest.mark.parametrize(
    ("params", "param", "says"),
    [
        ({"types": "artifact.made"}, "types", "accepted: alias.updated, artifact.failed"),
        ({"after": "abc"}, "Last-Event-ID", "'abc' does not belong to this registry"),
        ({"after": "1-2"}, "Last-Event-ID", "three parts"),
        ({"after": "1-2-3-4"}, "Last-Event-ID", "three parts"),
        ({"voice": "a/b"}, "name", "Invalid voice name"),
    ],
)
def test_a_malformed_question_is_refused(registry: Registry, params: dict[str, str], param: str, says: str):
    answer = registry.client.get(PATH, params=params)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), error
    assert says in error["message"]


def test_an_unknown_profile_is_an_error(registry: Registry):
    answer = registry.client.get(PATH, params={"profile": "qwen"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "profile_unknown")


@pytest.mark.parametrize("place", ["1-1-1", "-0-0", "{generation}-1-1", "{generation}-99999999999999-0"])
def test_a_place_that_is_not_known_is_answered_with_a_reset(registry: Registry, name: str, place: str):
    """An event of another registry or view, the position that a process sends before it knows one, an event
    that is gone by now, and one that never was.
    """
    given = place.format(generation=registry.generation())
    with listening(registry, voice=name, headers={"Last-Event-ID": given}) as listener:
        [reset] = listener.until(lambda _: True)
        assert reset.type == "reset"
        registry.upload(name)
        listener.until(lambda frame: frame.type == "version.created")
    with listening(registry, voice=name, after=reset.fields["id"]) as listener:
        listener.until(lambda frame: frame.type == "version.created")


def test_what_a_listener_does_not_take_is_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(event_feed, "MAX_BEHIND", 3)
    heard = event_feed.Listener(lambda _: True, lambda: 0.0)
    for number in range(3):
        heard.tell({"what": "version.created", "id": str(number)})
    assert not heard.has_missed_events
    heard.tell({"what": "version.created", "id": "3"})
    assert heard.has_missed_events
    assert [event["id"] for event in heard.take()] == ["3"]


def test_a_comment_is_sent_from_time_to_time(start: Start):
    registry = start(heartbeat_seconds=0.05)
    with listening(registry, types="voice.deleted") as listener:
        for _ in range(3):
            [comment] = listener.until(lambda _: True)
            assert comment.fields == {}


def test_a_compressing_client_gets_events_at_once(registry: Registry, name: str):
    with listening(registry, voice=name, headers={"Accept-Encoding": "gzip"}) as listener:
        registry.upload(name)
        listener.until(lambda frame: frame.type == "version.created")
        assert "content-encoding" not in listener.response.headers


def test_no_tenant_hears_of_anothers_voices(start: Start):
    registry = start(access=CLOSED, heartbeat_seconds=0.1)
    ours, theirs = (key(registry, namespace=one) for one in ("ours", "theirs"))
    registry.client.headers = httpx.Headers(bearer(ours))
    registry.namespace = "ours"
    assert httpx.get(registry.url + PATH).status_code == 401
    with listening(registry, headers=bearer(ours)) as we, listening(registry, headers=bearer(theirs)) as they:
        registry.ready("alice")
        we.until(lambda frame: frame.type == "artifact.ready")
        registry.client.post(
            "/v1/audio/voices",
            data={"name": "bob", "consent": "c"},
            files={"audio_sample": OTHER_CLIP},
            headers=bearer(theirs),
        ).raise_for_status()
        frames = they.until(lambda frame: frame.type == "version.created")
    assert {frame.data["voice_slug"] for frame in frames if frame.type} == {"bob"}


def test_a_key_without_the_scope_hears_nothing_of_jobs(start: Start):
    registry = start(access=CLOSED, heartbeat_seconds=0.5)
    token = key(registry, "voices:read")
    registry.client.headers = httpx.Headers(bearer(key(registry)))
    refused = registry.client.get(PATH, params={"types": "job.updated"}, headers=bearer(token))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    with listening(registry, headers=bearer(token)) as listener:
        registry.ready("alice")
        frames = listener.until(lambda frame: frame.type == "artifact.ready")
    assert "job.updated" not in {frame.type for frame in frames}


def test_the_stream_of_a_revoked_key_ends(start: Start):
    """It ends before it tells anything that happened after the revocation was acknowledged."""
    registry = start(access=CLOSED)
    token = key(registry, "engine")
    registry.client.headers = httpx.Headers(bearer(key(registry)))
    with listening(registry, headers=bearer(token)) as listener:
        assert registry.client.delete(f"/v1/keys/{id_of(token)}").status_code in {200, 204}
        registry.upload("alice")
        told = [frame.type for frame in listener.frames()]
    assert "version.created" not in told


def test_the_stream_of_a_key_whose_revocation_redis_was_not_told_of_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """No event tells of the revocation, and nobody else sends a request."""
    monkeypatch.setattr(listings, "_PERIOD_SECONDS", 0.2)
    registry = start(access=CLOSED, heartbeat_seconds=60)
    token = key(registry, "engine")
    cut_off = open_registry(
        StoreSettings(url=registry.folder.as_uri()), RegistrySettings(redis_url="redis://127.0.0.1:1")
    )
    with closing(cut_off), listening(registry, headers=bearer(token)) as listener:
        with pytest.raises(Unavailable):
            revoke(keys_of(cut_off), id_of(token), by="test")
        assert list(listener.frames()) == []


def test_the_stream_of_a_key_that_is_revoked_while_it_begins_ends(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """The key was checked before, and no other event about keys may come for hours."""
    registry = start(access=CLOSED, heartbeat_seconds=60)
    token = key(registry, "engine")
    registry.client.headers = httpx.Headers(bearer(key(registry)))
    registry.upload("alice")
    find = events.speaker_named

    def revoked_meanwhile(*args: Any) -> Any:
        assert registry.client.delete(f"/v1/keys/{id_of(token)}").status_code in {200, 204}
        return find(*args)

    monkeypatch.setattr(events, "speaker_named", revoked_meanwhile)
    answer = httpx.get(registry.url + PATH, params={"voice": "alice"}, headers=bearer(token), timeout=10)
    assert (answer.status_code, answer.text) == (200, "")


def test_the_stream_of_a_key_ends_with_it(start: Start):
    """Nothing is sent at that moment, not even a comment: a stream would otherwise send several."""
    registry = start(access=CLOSED)
    token = key(registry, "engine", expires_at=int(time.time()) + 3)
    with listening(registry, headers=bearer(token)) as listener:
        assert list(listener.frames()) == []  # to its end


def test_a_stream_whose_key_cannot_be_looked_up_ends_when_the_process_stops(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """A bucket that does not answer would keep the process from stopping for half a minute."""
    registry = start(access=CLOSED, heartbeat_seconds=60)
    token = key(registry, "engine")
    asked, answers, stops = threading.Event(), threading.Event(), threading.Event()
    read = registry.keys.read

    def silent(key_id: str) -> Any:
        asked.set()
        answers.wait(10)
        return read(key_id)

    monkeypatch.setattr(registry.long_polls, "closing", stops.is_set)
    with listening(registry, headers=bearer(token)) as listener:
        monkeypatch.setattr(registry.keys, "read", silent)
        monkeypatch.setattr(registry.keys, "find", lambda _: None)
        registry.keys.events_missed()
        assert asked.wait(5)
        stops.set()
        began = time.monotonic()
        try:
            assert list(listener.frames()) == []
        finally:
            answers.set()
        assert time.monotonic() - began < 5


def test_the_stream_of_a_rotated_key_goes_on_until_that_key_ends(start: Start):
    """Otherwise, all listeners of a key would have to connect again at the moment of its rotation."""
    registry = start(access=CLOSED)
    token = key(registry, "engine")
    registry.client.headers = httpx.Headers(bearer(key(registry)))
    with listening(registry, headers=bearer(token)) as listener:
        rotated = registry.client.post(f"/v1/keys/{id_of(token)}/rotate", params={"grace_seconds": 2})
        assert rotated.status_code == 201, rotated.text
        registry.upload("alice")
        told = [frame.type for frame in listener.frames()]
    assert "version.created" in told


def test_head_says_what_a_listener_would_get(registry: Registry):
    answer = registry.client.head(PATH)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_metrics_count_listeners_what_they_were_sent_and_resets(start: Start):
    """Operators see how many listeners a process has, and how often they have to ask anew. A listener that
    hangs up gives its place back.
    """
    registry = start(heartbeat_seconds=0.05)
    value = metrics.REGISTRY.get_sample_value
    wait_until(lambda: value("registry_event_listeners") == 0)  # those of the tests before have gone
    sent, resets = map(value, ("registry_events_sent_total", "registry_event_resets_total"))
    with listening(registry, after="1-1-0") as listener:
        assert listener.until(lambda _: True)[0].type == "reset"
        assert value("registry_event_listeners") == 1
        registry.upload("alice")
        listener.until(lambda frame: frame.type == "version.created")
    wait_until(lambda: value("registry_event_listeners") == 0)
    assert value("registry_event_resets_total") == resets + 1
    assert value("registry_events_sent_total") > sent


def test_a_listener_that_hangs_up_gives_its_place_back_at_once(start: Start):
    """Engines that connect again would otherwise find all places taken by their former connections, until a
    comment is due.
    """
    registry = start(heartbeat_seconds=600)
    value = metrics.REGISTRY.get_sample_value
    wait_until(lambda: value("registry_event_listeners") == 0)  # those of the tests before have gone
    with listening(registry):
        assert value("registry_event_listeners") == 1
    wait_until(lambda: value("registry_event_listeners") == 0)
