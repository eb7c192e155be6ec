"""Tests of requests whose key or session ends while they wait or arrive. A revocation is acknowledged when
the key opens nothing any more, and that includes requests that began before it. The same is true of a session
that a person ends by signing out.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

import httpx
import pytest

from services.registry_api.keys.revoke import revoke as revoke_key
from services.registry_api.keys.seal import SEALED_SECONDS
from services.registry_api.serving import recheck
from services.shared.audio import DecodedClip
from services.shared.model.speaker import SpeakerId
from tests.integration.api import raw
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.pages import Visitor
from tests.integration.api.registry import CLIP, PROFILE, Registry
from tests.queue_workers import wait_until

AUDIO = "/v1/voices/alice/versions/1/audio"
ARTIFACT = f"/v1/voices/alice/versions/1/artifacts/{PROFILE}"


@pytest.fixture
def closed(start: Start) -> Registry:
    """A registry that requires keys."""
    return start(access=CLOSED)


def revoke(closed: Registry, token: str) -> None:
    response = closed.client.delete(f"/v1/keys/{id_of(token)}", headers=bearer(BOOTSTRAP))
    assert response.status_code == 204, response.text


def assert_refused(response: httpx.Response) -> None:
    assert response.status_code == 401, response.text[:200]
    assert response.json()["error"]["message"] == "This API key is revoked."


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{ARTIFACT}?wait=30"),
        ("GET", f"{ARTIFACT}/file?wait=30"),
        ("GET", "/v1/jobs/{job_id}?wait=30"),
        ("POST", "/v1/audio/voices/alice/cache?wait=30&version=1"),
    ],
)
def test_a_request_that_waits_gets_nothing_after_its_key_was_revoked(
    closed: Registry, method: str, path: str
):
    job = closed.upload("alice", headers=bearer(key(closed)))["job_id"]
    token = key(closed)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(closed.client.request, method, path.format(job_id=job), headers=bearer(token))
        wait_until(lambda: closed.long_polls.waiting == 1)
        revoke(closed, token)
        closed.worker.finish_all("alice")
        assert_refused(asked.result())


def test_a_request_that_waits_is_answered_after_its_key_was_rotated(closed: Registry):
    """A rotated key is valid for another day."""
    closed.upload("alice", headers=bearer(key(closed)))
    token = key(closed)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(closed.client.get, f"{ARTIFACT}?wait=30", headers=bearer(token))
        wait_until(lambda: closed.long_polls.waiting == 1)
        rotated = closed.client.post(f"/v1/keys/{id_of(token)}/rotate", headers=bearer(BOOTSTRAP))
        assert rotated.status_code == 201, rotated.text
        closed.worker.finish_all("alice")
        assert asked.result().status_code == 200


@pytest.mark.parametrize(("path", "clip"), [("/v1/voices", "audio"), ("/v1/audio/voices", "audio_sample")])
def test_an_upload_that_arrives_after_its_key_was_revoked_registers_nothing(
    closed: Registry, path: str, clip: str
):
    token, began, revoked = key(closed), Event(), Event()
    form = raw.form(raw.field("name", "alice"), raw.field("consent", "cons_1"), raw.file(clip, CLIP))

    def slowly() -> Iterator[bytes]:
        yield form[: len(form) // 2]
        began.set()
        assert revoked.wait(30)
        yield form[len(form) // 2 :]

    def send() -> httpx.Response:
        return closed.client.post(path, content=slowly(), headers=bearer(token) | raw.CONTENT_TYPE)

    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(send)
        assert began.wait(30)
        wait_until(lambda: closed.app.state.parts.services.access.arriving_uploads._held)
        revoke(closed, token)
        revoked.set()
        assert_refused(sent.result())
    assert closed.client.get("/v1/voices/alice", headers=bearer(BOOTSTRAP)).status_code == 404


@pytest.fixture
def decoding(closed: Registry, monkeypatch: pytest.MonkeyPatch) -> tuple[Event, Event]:
    """Two events: a clip has been decoded, and its upload may go on."""
    decoder = closed.app.state.parts.services.decoder
    decode, is_decoded, goes_on = decoder.decode, Event(), Event()

    def decode_and_wait(data: bytes) -> DecodedClip:
        decoded: DecodedClip = decode(data)
        is_decoded.set()
        assert goes_on.wait(30)
        return decoded

    monkeypatch.setattr(decoder, "decode", decode_and_wait)
    return is_decoded, goes_on


@pytest.mark.parametrize(("path", "clip"), [("/v1/voices", "audio"), ("/v1/audio/voices", "audio_sample")])
def test_an_upload_that_is_decoded_while_its_key_is_revoked_registers_nothing(
    closed: Registry, decoding: tuple[Event, Event], path: str, clip: str
):
    """A clip may wait ten seconds for a decoder, and be decoded for ten more."""
    token, (is_decoded, goes_on) = key(closed), decoding
    form = {"data": {"name": "alice", "consent": "cons_1"}, "files": {clip: ("clip.wav", CLIP, "audio/wav")}}
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(closed.client.post, path, headers=bearer(token), **form)
        assert is_decoded.wait(30)
        revoke(closed, token)
        goes_on.set()
        assert_refused(sent.result())
    assert closed.client.get("/v1/voices/alice", headers=bearer(BOOTSTRAP)).status_code == 404


@contextmanager
def at_full_store(closed: Registry, ask: Callable[[], httpx.Response]) -> Iterator[Future[httpx.Response]]:
    """Have a request wait for the bucket within the context. It goes on afterwards."""
    queue = closed.app.state.parts.store_slots._queue
    slots, queue.limit = queue.limit, 0
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask)
        try:
            wait_until(lambda: any(tenant.queue for tenant in queue._waiting.values()))
            yield asked
        finally:
            queue.limit = slots
            # This request takes a slot, and so gives the others.
            closed.client.get("/v1/voices/nobody/versions/1/audio", headers=bearer(BOOTSTRAP))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/voices/alice/versions/1/audio"),
        ("GET", f"{ARTIFACT}/file"),
        ("DELETE", "/v1/voices/alice"),
    ],
)
def test_a_request_that_waits_for_the_bucket_gets_and_does_nothing_after_its_key_was_revoked(
    closed: Registry, method: str, path: str
):
    closed.ready("alice", headers=bearer(key(closed)))
    token = key(closed)
    with at_full_store(closed, lambda: closed.client.request(method, path, headers=bearer(token))) as asked:
        revoke_key(closed.keys, id_of(token), by="test")
    assert_refused(asked.result())
    assert closed.client.get("/v1/voices/alice", headers=bearer(BOOTSTRAP)).status_code == 200


def test_an_extraction_is_not_started_after_its_key_was_revoked(
    closed: Registry, monkeypatch: pytest.MonkeyPatch
):
    """The bucket may take half a minute to return the voice."""
    closed.ready("alice", headers=bearer(key(closed)))
    token, speakers = key(closed), closed.app.state.parts.services.speakers
    read = speakers.read_many

    def read_slowly(speaker_ids: Sequence[SpeakerId]) -> Any:
        found = read(speaker_ids)
        with ThreadPoolExecutor(1) as threads:  # a thread that belongs to no request
            threads.submit(revoke_key, closed.keys, id_of(token), by="test").result()
        return found

    monkeypatch.setattr(speakers, "read_many", read_slowly)
    path = "/v1/voices/alice/versions/1/extractions"
    assert_refused(closed.client.post(path, json={"force": True}, headers=bearer(token)))
    jobs = closed.client.get("/v1/jobs", params={"state": "queued"}, headers=bearer(BOOTSTRAP))
    assert jobs.json()["data"] == []


def test_a_request_that_waits_for_the_bucket_is_answered_while_its_key_is_valid(closed: Registry):
    closed.ready("alice", headers=bearer(key(closed)))
    path, token = "/v1/voices/alice/versions/1/audio", key(closed)
    with at_full_store(closed, lambda: closed.client.get(path, headers=bearer(token))) as asked:
        pass
    assert asked.result().status_code == 200


@contextmanager
def at_slow_bucket(closed: Registry, ask: Callable[[], httpx.Response]) -> Iterator[Future[httpx.Response]]:
    """Have a request hold a slot of the bucket and wait for its answer within the context."""
    speakers, is_reading, goes_on = closed.opened.speakers, Event(), Event()
    read_many = speakers.read_many

    def read_slowly(speaker_ids: Sequence[SpeakerId]) -> list[Any]:
        is_reading.set()
        assert goes_on.wait(30)
        time.sleep(2 * recheck._BRIEF_SECONDS)  # a request that goes on sooner has not waited
        return list(read_many(speaker_ids))

    with pytest.MonkeyPatch.context() as patches, ThreadPoolExecutor(1) as threads:
        patches.setattr(speakers, "read_many", read_slowly)
        asked = threads.submit(ask)
        try:
            assert is_reading.wait(30)
            yield asked
        finally:
            goes_on.set()


@pytest.mark.parametrize(
    ("method", "path", "headers"),
    [
        ("GET", AUDIO, {}),
        ("GET", AUDIO, {"Range": "bytes=0-999"}),
        ("GET", f"{AUDIO}/samples", {}),
        ("GET", "/v1/voices/alice/versions/1/waveform.svg", {}),
        ("GET", "/v1/voices?q=alice", {}),
        ("POST", "/v1/audio/voices/alice/cache?wait=0", {}),
        ("PUT", ARTIFACT, {}),  # the artifact that the voice has, so that nothing is changed
    ],
)
def test_a_request_whose_key_is_revoked_while_the_bucket_answers_gets_nothing(
    closed: Registry, method: str, path: str, headers: dict[str, str]
):
    """A slow bucket may take many seconds to answer, and the revocation is acknowledged long before."""
    closed.ready("alice", headers=bearer(key(closed)))
    token = key(closed)
    file = closed.client.get(f"{ARTIFACT}/file", headers=bearer(token)).content

    def ask() -> httpx.Response:
        content = file if method == "PUT" else None
        return closed.client.request(method, path, content=content, headers=bearer(token) | headers)

    assert ask().status_code in {200, 202, 206}
    with at_slow_bucket(closed, ask) as asked:
        revoke_key(closed.keys, id_of(token), by="test")
    assert_refused(asked.result())


def test_a_key_that_revokes_itself_learns_that_it_did(closed: Registry):
    """The revocation was carried out, so its answer must not be that its key has ended."""
    token = key(closed)
    answer = closed.client.delete(f"/v1/keys/{id_of(token)}", headers=bearer(token))
    assert answer.status_code == 204, answer.text


# -- sessions


@contextmanager
def another_tab(visitor: Visitor) -> Iterator[Callable[[], None]]:
    """Yield a function that signs a person out in another tab."""
    token = visitor.token()
    with httpx.Client(base_url=visitor.http.base_url, cookies=visitor.http.cookies) as tab:

        def sign_out() -> None:
            answer = tab.post("/dashboard/logout", data={"token": token})
            assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/login")

        yield sign_out


def assert_session_ended(closed: Registry, answer: httpx.Response) -> None:
    assert answer.status_code == 401
    assert "Your session has ended" in answer.text
    assert closed.client.get("/v1/voices/alice", headers=bearer(BOOTSTRAP)).status_code == 404


@pytest.mark.parametrize("how", ["signed out", "Redis emptied"])
def test_a_form_that_arrives_after_its_session_has_ended_does_nothing(closed: Registry, how: str):
    """A form may arrive for a minute. A Redis that was emptied has forgotten who has signed out."""
    with Visitor(closed, str(BOOTSTRAP)) as visitor, another_tab(visitor) as sign_out:
        began, ended = Event(), Event()
        form = raw.form(
            raw.field("token", visitor.token()),
            raw.field("name", "alice"),
            raw.field("consent", "cons_1"),
            raw.file("audio_sample", CLIP),
        )

        def slowly() -> Iterator[bytes]:
            yield form[: len(form) // 2]
            began.set()
            assert ended.wait(30)
            yield form[len(form) // 2 :]

        with ThreadPoolExecutor(1) as threads:
            sent = threads.submit(
                visitor.http.post, "/dashboard/voices", content=slowly(), headers=raw.CONTENT_TYPE
            )
            assert began.wait(30)
            wait_until(lambda: closed.app.state.parts.services.access.arriving_uploads._held)
            if how == "signed out":
                sign_out()
            else:
                closed.redis.flushdb()
                closed.rebuild()
            ended.set()
            assert_session_ended(closed, sent.result())


def test_a_copied_cookie_of_a_session_that_was_ended_opens_nothing_at_an_api_whose_clock_is_behind(
    closed: Registry,
):
    """By Redis' clock, twelve hours have passed since, and by the API's clock no time at all."""
    with Visitor(closed, str(BOOTSTRAP)) as visitor, another_tab(visitor) as sign_out:
        form = {"token": visitor.token(), "name": "late", "scope:voices:read": "on"}
        sign_out()
        [mark] = closed.redis.scan_iter("sr:*:ended:*")
        closed.redis.expire(mark, closed.redis.ttl(mark) - SEALED_SECONDS)
        assert_session_ended(closed, visitor.http.post("/dashboard/keys", data=form))


def test_a_form_whose_clip_is_decoded_while_its_session_ends_registers_nothing(
    closed: Registry, decoding: tuple[Event, Event]
):
    is_decoded, goes_on = decoding
    with (
        Visitor(closed, str(BOOTSTRAP)) as visitor,
        another_tab(visitor) as sign_out,
        ThreadPoolExecutor(1) as threads,
    ):
        sent = threads.submit(visitor.register, "alice", CLIP)
        assert is_decoded.wait(30)
        sign_out()
        goes_on.set()
        assert_session_ended(closed, sent.result())


def test_a_form_that_waits_for_the_bucket_makes_no_key_after_its_session_has_ended(closed: Registry):
    def names() -> list[Any]:
        listed = closed.client.get("/v1/keys", headers=bearer(BOOTSTRAP)).json()["data"]
        return [one["name"] for one in listed]

    with Visitor(closed, str(BOOTSTRAP)) as visitor, another_tab(visitor) as sign_out:
        form = {"token": visitor.token(), "name": "late", "scope:voices:read": "on"}
        with at_full_store(closed, lambda: visitor.http.post("/dashboard/keys", data=form)) as asked:
            sign_out()
        assert_session_ended(closed, asked.result())
    assert names() == []


@pytest.mark.parametrize("shown", ["audio", "pictures"])
def test_a_page_whose_session_ends_while_the_bucket_answers_shows_nothing(closed: Registry, shown: str):
    closed.ready("alice", headers=bearer(BOOTSTRAP))
    path = f"/dashboard/voices/alice/versions/1/{shown}"
    with Visitor(closed, str(BOOTSTRAP)) as visitor, another_tab(visitor) as sign_out:
        assert visitor.http.get(path).url.path == path
        with at_slow_bucket(closed, lambda: visitor.http.get(path)) as asked:
            sign_out()
        assert asked.result().url.path == "/dashboard/login"
