"""Tests of answers from memory: that they equal the ordinary ones, and that nothing wrong is ever served."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx
import pytest

from services.registry_api.express.lane import ExpressLane
from services.registry_api.routes import artifact_files, manifests
from services.shared.configuration.access import RateSettings
from services.shared.registry.pages import SpeakerPage
from services.shared.registry.speakers import FoundSpeaker
from services.shared.telemetry import metrics
from tests.integration.api import raw
from tests.integration.api.access import CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.registry import OTHER_CLIP, PROFILE, Registry
from tests.queue_workers import wait_until

MANIFEST = f"/v1/profiles/{PROFILE}/manifest"
PATH = "/v1/voices/{}/versions/{}/artifacts/" + PROFILE
NEWER = "sha256:" + "2" * 64
CHANGING = {"date", "x-request-id", "ratelimit-remaining", "ratelimit-reset"}


class Lane:
    """The express lane of a registry, watched."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._lane = registry.app.state.parts.lane
        self._answer = self._lane.answer
        self._lane.answer = self._watch
        self.answered = 0
        """The number of requests that were answered from memory."""

    def _watch(self, *arguments: Any) -> Any:
        answer = self._answer(*arguments)
        self.answered += isinstance(answer, tuple)
        return answer

    def get(
        self, path: str, method: str = "GET", headers: dict[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """Send a request until it is answered from memory, and return that answer.

        The first one is not, and neither are those for which a key is checked again. On a busy machine the
        process may be without its lease for a while.
        """
        answers: list[httpx.Response] = []

        def is_from_memory() -> bool:
            before = self.answered
            answers.append(self._registry.client.request(method, path, headers=headers, **options))
            assert answers[-1].status_code in {200, 206, 304}, answers[-1].text
            return self.answered > before

        wait_until(is_from_memory)
        return answers[-1]


@pytest.fixture
def lane(registry: Registry) -> Iterator[Lane]:
    watched = Lane(registry)
    yield watched
    del registry.app.state.parts.lane.answer


def settled(response: httpx.Response) -> tuple[int, dict[str, str], bytes]:
    """Return what must be equal in two answers to the same request."""
    headers = {name: value for name, value in response.headers.items() if name not in CHANGING}
    return response.status_code, headers, response.content


def ordinary(registry: Registry, method: str, path: str, headers: dict[str, str]) -> httpx.Response:
    """Send a request that is too unusual for the lane, but asks for the same."""
    return registry.client.request(method, path, headers={**headers, "X-Unusual": "1"})


@pytest.mark.parametrize("headers", [{}, {"Accept-Encoding": "gzip"}, {"Accept-Encoding": "identity"}])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("file", ["", "/file", "/file?wait=1"])
def test_an_answer_from_memory_equals_the_ordinary_one(
    registry: Registry, lane: Lane, name: str, method: str, file: str, headers: dict[str, str]
):
    """A client cannot tell which way its request took."""
    registry.ready(name)
    path = PATH.format(name, 1) + file
    expected = ordinary(registry, method, path, headers)
    if method == "HEAD":
        lane.get(path, headers=headers)
    found = lane.get(path, method, headers)
    assert settled(found) == settled(expected)
    assert found.headers["x-request-id"] != expected.headers["x-request-id"]


@pytest.mark.parametrize("file", ["", "/file"])
@pytest.mark.parametrize("tag", ["{0}", "W/{0}", '"other", {0}', "*"])
def test_a_revalidation_is_answered_from_memory(
    registry: Registry, lane: Lane, name: str, file: str, tag: str
):
    """Engines ask whether what they hold is still right more often than for anything else."""
    registry.ready(name)
    path = PATH.format(name, 1) + file
    etag = registry.client.get(path).headers["etag"]
    headers = {"If-None-Match": tag.format(etag.removeprefix("W/"))}
    expected = ordinary(registry, "GET", path, headers)
    assert expected.status_code == 304
    assert settled(lane.get(path, headers=headers)) == settled(expected)


def test_a_revalidation_is_kept_although_the_file_was_never_sent(registry: Registry, lane: Lane, name: str):
    """A process that was just started is asked by engines that hold everything already."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    etag = ordinary(registry, "GET", path, {}).headers["etag"]
    assert lane.get(path, headers={"If-None-Match": etag}).status_code == 304
    assert registry.client.get(path, headers={"If-None-Match": '"another"'}).status_code == 200


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-99", 0, 99), ("bytes=100-", 100, None), ("bytes=-10", -10, None), ("bytes=5-5", 5, 5)],
)
def test_a_part_of_a_file_is_the_same_both_ways(
    registry: Registry, lane: Lane, name: str, asked: str, first: int, last: int | None
):
    """An interrupted download goes on where it was."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    whole = lane.get(path)
    found = lane.get(path, headers={"Range": asked})
    assert found.status_code == 206
    size = len(whole.content)
    begin, end = first % size, size if last is None else last + 1
    assert found.content == whole.content[begin:end]
    assert found.headers["content-range"] == f"bytes {begin}-{end - 1}/{size}"
    assert "content-digest" not in found.headers
    assert found.headers["repr-digest"] == whole.headers["content-digest"]
    assert settled(found) == settled(ordinary(registry, "GET", path, {"Range": asked}))


@pytest.mark.parametrize("asked", ["bytes=5-4", "bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=999999999-"])
def test_a_range_that_is_not_honoured_gets_the_whole_file(
    registry: Registry, lane: Lane, name: str, asked: str
):
    """RFC 9110, 14.2, leaves that to the server."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    assert settled(lane.get(path, headers={"Range": asked})) == settled(lane.get(path))
    assert settled(ordinary(registry, "GET", path, {"Range": asked})) == settled(lane.get(path))


def test_a_part_of_an_older_file_is_not_sent(registry: Registry, name: str):
    """The parts would be of two files."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    whole = registry.client.get(path)
    for tag, status in ((whole.headers["etag"], 206), ('"sha256:another"', 200)):
        headers = {"Range": "bytes=0-9", "If-Range": tag}
        assert registry.client.get(path, headers=headers).status_code == status


@pytest.mark.parametrize("file", ["artifacts/qwen3-tts-0.6b/file", "audio", "audio/samples"])
def test_no_part_of_another_file_is_sent_to_whoever_names_one(registry: Registry, name: str, file: str):
    """The answer without a condition comes first, because the express lane may keep it."""
    registry.ready(name)
    path = f"/v1/voices/{name}/versions/1/{file}"
    whole = registry.client.get(path)
    for asked in ({}, {"Range": "bytes=0-9"}):
        matched = registry.client.get(path, headers={**asked, "If-Match": whole.headers["etag"]})
        assert matched.content == whole.content[: 10 if asked else None]
        refused = registry.client.get(path, headers={**asked, "If-Match": '"sha256:another"'})
        assert refused.status_code == 412
        assert refused.json()["error"]["code"] == "precondition_failed"
    assert registry.client.head(path, headers={"If-Match": '"sha256:another"'}).status_code == 412


def test_the_request_id_is_given_back(registry: Registry, lane: Lane, name: str):
    """A client finds its request by the id that it gave, unless that could be something else than an id."""
    registry.ready(name)
    path = PATH.format(name, 1)
    assert lane.get(path, headers={"X-Request-Id": "mine.1"}).headers["x-request-id"] == "mine.1"
    assert lane.get(path, headers={"X-Request-Id": "a b"}).headers["x-request-id"].startswith("req_")
    ids = {lane.get(path).headers["x-request-id"] for _ in range(20)}
    assert len(ids) == 20


def delete(registry: Registry, name: str) -> None:
    assert registry.client.delete(f"/v1/audio/voices/{name}").status_code == 200


def promote(registry: Registry, name: str) -> None:
    job = registry.post_voice(name, clip=OTHER_CLIP).json()["voice"]["jobs"][PROFILE]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(registry.client.get, f"/v1/jobs/{job}", params={"wait": 20})
        registry.worker.finish_all(name)
        assert waiting.result().status_code == 200
    assert registry.client.get(f"/v1/jobs/{job}").json()["state"] == "succeeded"


def register_anew(registry: Registry, name: str) -> None:
    delete(registry, name)
    registry.ready(name, clip=OTHER_CLIP)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (delete, 404),
        (promote, 200),
        (register_anew, 200),
    ],
    ids=["deleted", "promoted", "registered anew"],
)
@pytest.mark.parametrize("file", ["", "/file"])
def test_what_is_taken_away_is_not_served_after_the_answer(
    registry: Registry,
    lane: Lane,
    name: str,
    change: Callable[[Registry, str], None],
    status: int,
    file: str,
):
    """The change is acknowledged when no process serves the former state any more, from wherever."""
    registry.ready(name)
    path = PATH.format(name, "default") + file
    before = lane.get(path)
    change(registry, name)
    after = registry.client.get(path)
    assert after.status_code == status
    assert after.content != before.content
    if status == 200:
        assert settled(lane.get(path)) == settled(after)


def test_an_answer_is_dropped_when_another_encoder_is_promoted(start: Start):
    """The same bytes are still served, and say from then on that they are of a former encoder. That answer is
    given from memory, too.
    """
    registry = start()
    lane = Lane(registry)
    registry.ready("alice")
    path = PATH.format("alice", 1) + "/file"
    lane.get(path)
    registry.worker.announce(NEWER)
    wait_until(lambda: registry.client.get(path).headers["X-Artifact-Current"] == "false")
    answered = lane.answered
    for _ in range(5):
        assert registry.client.get(path).headers["X-Artifact-Current"] == "false"
    assert lane.answered > answered


def test_nothing_is_answered_from_memory_without_a_lease(
    registry: Registry, lane: Lane, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Another process may have acknowledged a change that this one has not heard of."""
    registry.ready(name)
    path = PATH.format(name, 1)
    lane.get(path)
    events = registry.app.state.parts.services.events
    monkeypatch.setattr(events, "_leases", None)  # no renewal succeeds
    wait_until(lambda: not events.is_fresh)
    answered = lane.answered
    for _ in range(5):
        assert registry.client.get(path).status_code == 200
    assert lane.answered == answered


def test_an_answer_that_was_read_from_the_bucket_is_not_kept(
    registry: Registry, lane: Lane, name: str, monkeypatch: pytest.MonkeyPatch
):
    """The bucket may show an older document than the newest, whose event this process has heard already."""
    read_many = registry.opened.speakers.read_many

    def of_bucket(*arguments: Any) -> list[FoundSpeaker]:
        return [replace(one, of_view=False) for one in read_many(*arguments) if isinstance(one, FoundSpeaker)]

    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    with monkeypatch.context() as patched:
        patched.setattr(registry.opened.speakers, "read_many", of_bucket)
        for _ in range(5):
            assert registry.client.get(path).status_code == 200
        assert lane.answered == 0
    lane.get(path)


def test_answers_do_not_outlive_the_index_that_they_came_from(start: Start):
    """Events that the lost server did not deliver are nowhere, so nothing from before the loss is certain."""
    registry = start()
    lane, path = Lane(registry), PATH.format("alice", 1) + "/file"
    registry.ready("alice")
    lane.get(path)
    events = registry.app.state.parts.services.events
    before = registry.generation()
    registry.redis.flushdb()
    registry.rebuild()
    wait_until(lambda: events.generation != before and events.is_fresh)
    answered = lane.answered
    assert registry.client.get(path).status_code in {200, 503}
    assert lane.answered == answered


def test_an_answer_that_a_change_overtook_is_not_kept(
    registry: Registry, lane: Lane, name: str, monkeypatch: pytest.MonkeyPatch
):
    """It was right when it was read. When it is sent, the event of the change was heard already."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    read, goes_on = threading.Event(), threading.Event()
    get = artifact_files.artifact_or_replacement

    def slow(*arguments: Any, **more: Any) -> bytes | None:
        data = get(*arguments, **more)
        read.set()
        assert goes_on.wait(20)
        return data

    monkeypatch.setattr(artifact_files, "artifact_or_replacement", slow)
    with ThreadPoolExecutor(1) as pool:
        overtaken = pool.submit(registry.client.get, path)
        assert read.wait(20)
        assert registry.client.delete(f"/v1/audio/voices/{name}").status_code == 200
        goes_on.set()
        assert overtaken.result().status_code == 200
    for _ in range(5):
        assert registry.client.get(path).status_code == 404


def test_concurrent_requests_for_what_is_not_in_memory_read_the_bucket_once(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A fleet of engines that starts asks for the same voice at the same time."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    goes_on, reads, get = threading.Event(), [], artifact_files.artifact_or_replacement

    def slow(*arguments: Any, **more: Any) -> bytes | None:
        reads.append(arguments)
        assert goes_on.wait(20)
        return get(*arguments, **more)

    monkeypatch.setattr(artifact_files, "artifact_or_replacement", slow)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(registry.client.get, path) for _ in range(8)]
        shared_reads = registry.app.state.parts.shared_reads
        wait_until(lambda: len(reads) == 1 and bool(shared_reads._under_way))
        threading.Event().wait(0.2)  # all of them are there
        goes_on.set()
        responses = [one.result() for one in asked]
    assert {response.status_code for response in responses} == {200}
    assert len({response.content for response in responses}) == 1
    assert len(reads) == 1


def hears_nothing(lane: ExpressLane) -> bool:
    """Return whether no event has come for a moment."""
    before = lane._heard
    threading.Event().wait(0.2)
    return lane._heard == before


def voices_of(response: httpx.Response) -> set[str]:
    assert response.status_code == 200, response.text
    return {entry["voice"] for entry in response.json()["data"]}


def test_engines_that_ask_together_have_a_page_of_the_manifest_made_once(
    registry: Registry, name: str, monkeypatch: pytest.MonkeyPatch
):
    """A page of 500 voices takes a fifth of a second to make. Who asks after a change has a new one made."""
    registry.ready(name)
    lane = registry.app.state.parts.lane
    wait_until(lambda: hears_nothing(lane))
    goes_on, made, page = threading.Event(), [], manifests.page_pinned_first

    def slow(*arguments: Any, **more: Any) -> SpeakerPage:
        listed = page(*arguments, **more)
        made.append(listed)
        assert goes_on.wait(20)
        return listed

    monkeypatch.setattr(manifests, "page_pinned_first", slow)
    heard = lane._heard
    with ThreadPoolExecutor(8) as pool:
        together = [pool.submit(registry.client.get, MANIFEST) for _ in range(6)]
        wait_until(lambda: len(made) == 1)
        threading.Event().wait(0.2)  # all of them are there
        assert registry.client.delete(f"/v1/audio/voices/{name}").status_code == 200
        wait_until(lambda: lane._heard > heard)
        later = pool.submit(registry.client.get, MANIFEST)
        wait_until(lambda: len(made) == 2)
        goes_on.set()
        assert all(name in voices_of(one.result()) for one in together)
        assert name not in voices_of(later.result())
    assert len(made) == 2


def test_a_page_of_the_manifest_from_memory_equals_the_first(
    start: Start, name: str, monkeypatch: pytest.MonkeyPatch
):
    """Twice a second the key of a request is checked, and the request gets the page in memory."""
    registry = start()
    registry.ready(name, ref_text="said by her " * 100)  # so long that the page is compressed
    made, page, lane = [], manifests.page_pinned_first, registry.app.state.parts.lane
    monkeypatch.setattr(
        manifests, "page_pinned_first", lambda *args, **more: made.append(args) or page(*args, **more)
    )

    def from_memory(tag: str) -> httpx.Response:
        """Return the answer to a request whose key was checked, and for which no page was made."""
        answers = [first]

        def is_from_memory() -> bool:
            lane._drop_grants()
            before = len(made)
            answers.append(registry.client.get(MANIFEST, headers=accepts | {"If-None-Match": tag}))
            return len(made) == before

        wait_until(is_from_memory)
        return answers[-1]

    accepts = {"Accept-Encoding": "gzip"}
    first = registry.client.get(MANIFEST, headers=accepts)
    again, known = from_memory('"another"'), from_memory(first.headers["etag"])
    assert first.headers["content-encoding"] == "gzip"
    assert (again.status_code, again.content, known.status_code) == (200, first.content, 304)
    stable = [{k: v for k, v in one.headers.items() if k not in CHANGING} for one in (first, again)]
    assert stable[0] == stable[1]


# -- keys


@pytest.fixture
def closed(start: Start) -> Registry:
    """Return a registry that requires keys and has the voice `alice` in the namespace `acme`."""
    registry = start(access=CLOSED, rates=RateSettings(requests_per_minute=None))
    registry.namespace = "acme"
    registry.client.headers.update(bearer(key(registry, namespace="acme")))
    registry.ready("alice")
    return registry


def test_a_key_sees_only_its_own_namespace(closed: Registry):
    """The answer in memory is of another tenant's voice of the same name."""
    lane, path = Lane(closed), PATH.format("alice", 1) + "/file"
    lane.get(path)
    other = bearer(key(closed, namespace="other"))
    for _ in range(3):
        assert closed.client.get(path, headers=other).status_code == 404
    without_right = bearer(key(closed, "jobs:read", namespace="acme"))
    assert closed.client.get(path, headers=without_right).status_code == 403
    assert closed.client.get(path, headers=bearer("sreg_wrong")).status_code == 401


def test_an_operators_key_names_the_namespace(closed: Registry):
    """The same key may read different voices under one path."""
    lane, path = Lane(closed), PATH.format("alice", 1) + "/file"
    token = key(closed, namespace="*")
    assert lane.get(path, headers=bearer(token, "acme")).status_code == 200
    for namespace in ("other", None):
        assert closed.client.get(path, headers=bearer(token, namespace)).status_code == 404


def test_two_headers_about_the_caller_are_refused_however_often_one_was_answered_from_memory(
    closed: Registry,
):
    """A proxy in front could check one of them, and the registry could take the other."""
    lane, path = Lane(closed), PATH.format("alice", 1) + "/file"
    granted, operator = key(closed, namespace="acme"), key(closed, namespace="*")
    lane.get(path, headers=bearer(granted))
    lane.get(path, headers=bearer(operator, "acme"))
    good, strange = f"Authorization: Bearer {granted}", "Authorization: Bearer sreg_wrong"
    named = [f"Authorization: Bearer {operator}", "X-Speaker-Namespace: acme"]
    before = lane.answered
    for twice, name in (
        ([good, good], "Authorization"),
        ([good, strange], "Authorization"),
        ([strange, good], "Authorization"),
        ([good, "AUTHORIZATION: Bearer sreg_wrong"], "Authorization"),
        ([*named, named[1]], "X-Speaker-Namespace"),
        ([*named, "X-Speaker-Namespace: other"], "X-Speaker-Namespace"),
        (["X-Speaker-Namespace: other", *named], "X-Speaker-Namespace"),
    ):
        for target in (path, "/v1/voices"):
            answer = raw.ask(closed.port, raw.head("GET", target, *twice))
            assert answer.status == 400, (target, twice)
            assert (answer.error["code"], answer.error["param"]) == ("invalid_request", name)
    assert lane.answered == before
    assert raw.ask(closed.port, raw.head("GET", path, *named)).status == 200


def test_a_revoked_key_is_refused_at_once(closed: Registry):
    """Its last answers came from memory, without a look at the key."""
    lane, path = Lane(closed), PATH.format("alice", 1) + "/file"
    token = key(closed, namespace="acme")
    lane.get(path, headers=bearer(token))
    assert closed.client.delete(f"/v1/keys/{id_of(token)}").status_code == 204
    for _ in range(3):
        assert closed.client.get(path, headers=bearer(token)).status_code == 401


def test_a_client_of_an_older_version_sees_the_connection_end(registry: Registry, lane: Lane, name: str):
    """A client of HTTP/1.0 that is not told otherwise reads an answer until the connection ends."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    lane.get(path)
    request = f"GET {path} HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n"
    for _ in range(3):
        assert raw.ask(registry.port, request.encode()).headers["connection"] == "close"


def test_what_is_known_of_a_key_takes_a_bounded_amount_of_memory(
    closed: Registry, monkeypatch: pytest.MonkeyPatch
):
    """A header with a valid key may be 16 KiB long, and be written in any number of ways."""
    bound = 100_000
    monkeypatch.setattr("services.registry_api.express.lane._MAX_GRANT_BYTES", bound)
    token, path = key(closed, namespace="acme"), PATH.format("alice", 1) + "/file"
    for number in range(30):
        padded = "Bearer " + " " * (10_000 + number) + token
        assert closed.client.get(path, headers={"Authorization": padded}).status_code == 200
        grants = closed.app.state.parts.lane._grants
        assert sum(len(credentials[0]) for credentials in grants) <= bound
    assert Lane(closed).get(path).status_code == 200


def test_answers_from_memory_are_counted_against_the_limit(start: Start):
    """A key may send 300 requests a minute, whichever way they take."""
    registry = start(access=CLOSED)
    registry.app.state.parts.services.access.rate_limits.now = lambda: 30.0  # the minute does not end
    registry.namespace = "acme"
    registry.client.headers.update(bearer(key(registry, namespace="acme")))
    registry.ready("alice")
    lane, path = Lane(registry), PATH.format("alice", 1)
    headers = bearer(key(registry, namespace="acme", requests_per_minute=300))
    remaining = []
    for _ in range(320):
        response = registry.client.get(path, headers=headers)
        if response.status_code == 429:
            break
        remaining.append(int(response.headers["ratelimit-remaining"]))
    assert response.status_code == 429
    assert remaining == list(range(299, -1, -1))
    assert lane.answered > 100


def test_answers_from_memory_are_counted_in_the_metrics(registry: Registry, lane: Lane, name: str):
    """Operators see all requests, by route and status, with their times."""

    def counted() -> tuple[float, float, float]:
        route = "/v1/voices/{name}/versions/{ref}/artifacts/{profile}/file"
        value = metrics.REGISTRY.get_sample_value
        labels = {"route": route, "method": "GET"}
        return (
            value("registry_http_requests_total", {**labels, "status": "200"}) or 0,
            value("registry_http_request_duration_seconds_count", labels) or 0,
            value("registry_artifact_requests_total", {"profile": PROFILE, "result": "hit"}) or 0,
        )

    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    lane.get(path)
    before, answered, sent = counted(), lane.answered, 0
    while lane.answered < answered + 10:
        assert registry.client.get(path).status_code == 200
        sent += 1
    assert [after - former for after, former in zip(counted(), before, strict=True)] == [sent] * 3


def test_many_requests_in_one_piece_are_all_answered_in_order(registry: Registry, lane: Lane, name: str):
    """More than are answered before others have their turn, and some that are not answered from memory."""
    registry.ready(name)
    path = PATH.format(name, 1)
    lane.get(path)
    head = f"Host: 127.0.0.1:{registry.port}\r\n\r\n"
    request = "".join(
        f"GET {path if number % 10 else '/v1/voices/nobody'} HTTP/1.1\r\nX-Request-Id: r{number}\r\n{head}"
        for number in range(300)
    )
    with socket.create_connection(("127.0.0.1", registry.port), timeout=20) as connection:
        connection.sendall(request.encode())
        received = b""
        while received.count(b"HTTP/1.1 ") < 300 or b"x-request-id: r299" not in received:
            received += connection.recv(65536)
    ids = [line.split(b": ")[1] for line in received.split(b"\r\n") if line.startswith(b"x-request-id")]
    assert ids == [b"r%d" % number for number in range(300)]


class Answers:
    """Reads answers of a known size from a connection, one after the other."""

    def __init__(self, connection: socket.socket, size: int) -> None:
        self._connection = connection
        self._size = size
        self._received = b""

    def next(self) -> bytes:
        """Return the body of the next answer."""
        while b"\r\n\r\n" not in self._received:
            self._receive()
        head, _, self._received = self._received.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        while len(self._received) < self._size:
            self._receive()
        body, self._received = self._received[: self._size], self._received[self._size :]
        return body

    def _receive(self) -> None:
        received = self._connection.recv(65536)
        assert received, "the connection has ended"
        self._received += received


@pytest.mark.parametrize("cut", [None, 1, 40, -1])
def test_a_head_that_came_before_means_the_same_however_it_is_cut(
    registry: Registry, lane: Lane, name: str, monkeypatch: pytest.MonkeyPatch, cut: int | None
):
    """Heads are recognised by their bytes. A head that comes in two parts, or with a part of the next one, is
    parsed.
    """
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    size = len(lane.get(path).content)
    head = f"GET {path} HTTP/1.1\r\nHost: {registry.client.base_url.netloc.decode()}\r\n\r\n".encode()
    express, recalled = registry.app.state.parts.lane, []
    monkeypatch.setattr(express, "recall", lambda data: recalled.append(data) or express._heads.get(data))
    with socket.create_connection(("127.0.0.1", registry.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        answers = Answers(connection, size)

        def ask() -> bytes:
            connection.sendall(head)
            return answers.next()

        first = ask()
        wait_until(lambda: ask() == first and head in express._heads)
        if cut is not None:
            connection.sendall(head + head[:cut])
            assert answers.next() == first
            connection.sendall(head[cut:] + head)
            assert (answers.next(), answers.next()) == (first, first)
        assert ask() == first
    assert recalled[-1] == head


def test_a_head_that_names_its_request_is_not_remembered(registry: Registry, lane: Lane, name: str):
    """Each request of such a client has another head, and they would displace those that come again."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    for number in range(3):
        named = {"X-Request-Id": f"req_{name}_{number}"}
        assert lane.get(path, headers=named).headers["x-request-id"] == named["X-Request-Id"]
    assert not any(name.encode() in head for head in registry.app.state.parts.lane._heads)


def test_a_client_that_asks_for_heads_only_is_answered_from_memory_for_longer_than_a_key_is_known(
    registry: Registry, lane: Lane, name: str
):
    """A key is checked in the ordinary way again each second, also for HEAD."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    lane.get(path)
    for grant in registry.app.state.parts.lane._grants.values():
        grant.until = 0.0  # as after a second without a request
        grant.renewal = 0.0
    assert lane.get(path, "HEAD").status_code == 200


def test_one_request_renews_what_is_known_of_a_key_before_it_ends(registry: Registry, lane: Lane, name: str):
    """Otherwise all clients would take the ordinary way at once, each second."""
    registry.ready(name)
    path = PATH.format(name, 1) + "/file"
    lane.get(path)
    lane.get(path)
    [grant] = registry.app.state.parts.lane._grants.values()
    grant.until, grant.renewal = registry.app.state.parts.lane._events.now() + 60, 0.0
    before = lane.answered
    registry.client.get(path)
    assert lane.answered == before
    [renewed] = registry.app.state.parts.lane._grants.values()
    assert renewed is not grant
