"""Tests that requests waiting for a slow dependency do not block requests that do not need it."""

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import httpx
import pytest

from services.registry_api.keys.api_keys import new_token
from services.registry_api.keys.listings import KeyListing
from services.registry_api.serving import admission, fair_queue
from services.registry_api.serving.concurrency_limits import ByteBudget
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer
from tests.integration.api.conftest import Start
from tests.integration.api.pages import Visitor
from tests.integration.api.raw import connected, head, read_answer
from tests.integration.api.registry import PROFILE, Registry
from tests.queue_workers import wait_until
from tests.unit.audio import clips

AT_WORK = 2
AT_STORE = 4


class Standstill:
    """Calls that do not return before `go_on`."""

    def __init__(self, real: Callable[..., Any]) -> None:
        self._real = real
        self._go_on = threading.Event()
        self._lock = threading.Lock()
        self.calls = 0

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        with self._lock:
            self.calls += 1
        assert self._go_on.wait(30)
        return self._real(*arguments, **named)

    def go_on(self) -> None:
        self._go_on.set()


@contextmanager
def asking(*requests: Callable[[], httpx.Response]) -> Iterator[list[Future[httpx.Response]]]:
    """Send the requests at the same time, and yield their future answers."""
    with ThreadPoolExecutor(len(requests)) as threads:
        yield [threads.submit(request) for request in requests]


@pytest.fixture
def narrow(start: Start) -> Registry:
    registry = start(max_active=AT_WORK, max_at_store=AT_STORE)
    for number in range(AT_STORE + 1):
        registry.ready(f"voice-{number}")
    return registry


def files(registry: Registry) -> list[Callable[[], httpx.Response]]:
    """Return requests for as many files as the bucket has slots. Requests for one file would share a read."""
    return [lambda name=f"voice-{number}": registry.file(name) for number in range(AT_STORE)]  # type: ignore[misc]


def assert_others_are_answered(registry: Registry) -> None:
    tag = f"/v1/voices/voice-0/versions/default/artifacts/{PROFILE}"
    for _ in range(5):
        assert registry.client.get("/v1/voices").status_code == 200
        assert registry.client.get(tag).status_code == 200


def wait_patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let requests wait, and tenants keep their shares, for longer than a slow machine can stand still."""
    monkeypatch.setattr(admission, "WAIT_LIMIT_SECONDS", 60)
    monkeypatch.setattr(fair_queue, "ACTIVE_SECONDS", 60)


def test_a_bucket_that_hangs_stops_only_what_reads_from_it(narrow: Registry, monkeypatch: pytest.MonkeyPatch):
    hanging = Standstill(narrow.opened.store.get)
    with monkeypatch.context() as patches:
        patches.setattr(narrow.opened.store, "get", hanging)
        reads = files(narrow)
        reads.append(lambda: narrow.client.get("/v1/voices/voice-1/versions/1/audio"))
        with asking(*reads) as answers:
            wait_until(lambda: hanging.calls == AT_STORE)
            assert_others_are_answered(narrow)
            assert hanging.calls == AT_STORE
            hanging.go_on()
            assert {answer.result().status_code for answer in answers} == {200}


def test_a_bucket_that_hangs_stops_only_what_deletes_there(narrow: Registry, monkeypatch: pytest.MonkeyPatch):
    hanging = Standstill(narrow.opened.store.swap)
    monkeypatch.setattr(narrow.opened.store, "swap", hanging)
    paths = [f"/v1/{kind}/voice-{number}" for number, kind in enumerate(["voices", "audio/voices"] * 2, 1)]
    with asking(*(lambda path=path: narrow.client.delete(path) for path in paths)) as answers:
        wait_until(lambda: hanging.calls == len(paths))
        assert_others_are_answered(narrow)
        hanging.go_on()
        assert [answer.result().status_code for answer in answers] == [204, 200] * 2


def test_however_many_may_wait_there_are_threads_for_others(start: Start, monkeypatch: pytest.MonkeyPatch):
    many = 60
    registry = start(max_active=2 * AT_WORK, max_at_store=many)
    registry.ready("voice-0")
    hanging = Standstill(registry.opened.store.get)
    monkeypatch.setattr(registry.opened.store, "get", hanging)
    answers: list[Future[httpx.Response]] = []
    clip = "/v1/voices/voice-0/versions/1/audio"  # requests for one file share a read
    with ExitStack() as asked:
        for so_far in range(6, many + 1, 6):  # more of them at once might wait too long for a slot
            answers += asked.enter_context(asking(*[lambda: registry.client.get(clip)] * 6))
            wait_until(lambda so_far=so_far: hanging.calls == so_far)
        assert_others_are_answered(registry)
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}


def test_decoders_that_hang_stop_only_uploads(narrow: Registry, monkeypatch: pytest.MonkeyPatch):
    decoder = narrow.app.state.parts.services.decoder
    hanging = Standstill(decoder.decode)
    monkeypatch.setattr(type(decoder), "decode", lambda _, data: hanging(data))
    uploads = [lambda number=number: narrow.post_voice(f"new-{number}") for number in range(8)]
    with asking(*uploads) as answers:
        wait_until(lambda: hanging.calls == len(uploads))
        assert_others_are_answered(narrow)
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}


def test_keys_that_are_made_or_looked_for_stop_nobody(start: Start, monkeypatch: pytest.MonkeyPatch):
    closed = start(max_active=AT_WORK, max_at_store=AT_STORE, access=CLOSED)
    ours = bearer(BOOTSTRAP)
    # Requests with the same key would share a read.
    theirs = [bearer(new_token()) for _ in range(2 * AT_WORK)]
    wanted = {"name": "fleet", "scopes": ["engine"]}
    making = Standstill(closed.opened.store.swap)
    looking = Standstill(closed.keys.read)
    monkeypatch.setattr(closed.opened.store, "swap", making)
    with asking(*[lambda: closed.client.post("/v1/keys", json=wanted, headers=ours)] * AT_WORK) as made:
        wait_until(lambda: making.calls == AT_WORK)
        monkeypatch.setattr(closed.keys, "read", looking)
        ask = partial(closed.client.get, "/v1/voices")
        with asking(*[partial(ask, headers=one) for one in theirs]) as unknown:
            wait_until(lambda: looking.calls == 2 * AT_WORK)
            for _ in range(5):
                assert closed.client.get("/v1/voices", headers=ours).status_code == 200
            making.go_on()
            looking.go_on()
            assert {answer.result().status_code for answer in unknown} == {401}
        assert {answer.result().status_code for answer in made} == {201}


def test_requests_of_one_tenant_that_do_not_end_keep_no_other_tenant_waiting(
    start: Start, monkeypatch: pytest.MonkeyPatch
):
    """One tenant's requests that never end keep no other tenant waiting. While all tenants waited in one
    queue, only the tenant with the most requests was answered.
    """
    closed = start(max_active=2 * AT_WORK, max_at_store=AT_STORE, access=CLOSED)
    theirs, ours = (bearer(BOOTSTRAP, name) for name in "ab")
    view = closed.opened.speakers.view
    real = view.names
    hanging = Standstill(real)

    def names(namespace: str, **wanted: Any) -> Any:
        return hanging(namespace, **wanted) if namespace == "a" else real(namespace, **wanted)

    monkeypatch.setattr(view, "names", names)
    wait_patiently(monkeypatch)
    assert closed.client.get("/v1/voices", headers=ours).status_code == 200
    with asking(*[lambda: closed.client.get("/v1/voices", headers=theirs)] * 10) as answers:
        wait_until(lambda: hanging.calls == AT_WORK)
        for _ in range(5):
            assert closed.client.get("/v1/voices", headers=ours).status_code == 200
        assert hanging.calls == AT_WORK
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}


def test_who_gets_nothing_from_the_bucket_in_time_is_told_so(
    narrow: Registry, monkeypatch: pytest.MonkeyPatch
):
    """A request that gets no slot for the bucket in time is answered 503 with Retry-After."""
    monkeypatch.setattr(narrow.app.state.parts.store_slots, "_wait_seconds", 0.2)
    hanging = Standstill(narrow.opened.store.get)
    monkeypatch.setattr(narrow.opened.store, "get", hanging)
    with asking(*files(narrow)) as answers:
        wait_until(lambda: hanging.calls == AT_STORE)
        refused = narrow.file(f"voice-{AT_STORE}")
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}
    assert refused.status_code == 503
    assert refused.headers["Retry-After"] == "1"
    assert f"{AT_STORE} requests wait for the bucket already" in refused.json()["error"]["message"]
    assert narrow.file(f"voice-{AT_STORE}").status_code == 200


def test_searches_wait_for_each_other_and_keep_nobody_from_anything_else(
    narrow: Registry, monkeypatch: pytest.MonkeyPatch
):
    """Searches wait for each other and block no other request. Eight callers that searched all the time had
    other requests refused.
    """
    view = narrow.opened.speakers.view
    hanging = Standstill(view.names)
    with monkeypatch.context() as patches:
        patches.setattr(view, "names", hanging)
        with asking(*[lambda: narrow.client.get("/v1/voices?q=nobody")] * 4) as answers:
            wait_until(lambda: hanging.calls == 1)
            for _ in range(5):
                assert narrow.client.get("/v1/voices/voice-0").status_code == 200
            assert hanging.calls == 1
            hanging.go_on()
            assert {answer.result().status_code for answer in answers} == {200}


@pytest.mark.parametrize("path", ["/v1/keys", "/v1/keys/{key_id}"])
def test_requests_about_keys_count_while_they_compute(
    start: Start, monkeypatch: pytest.MonkeyPatch, path: str
):
    """They do not wait for the bucket, so one tenant's share limits them. Without a share, one tenant's many
    requests would leave little to the others.
    """
    closed = start(max_active=2 * AT_WORK, max_at_store=2 * AT_STORE, access=CLOSED)
    theirs, ours = (bearer(BOOTSTRAP, name) for name in "ab")
    wanted = {"name": "fleet", "scopes": ["engine"]}
    key_id = closed.client.post("/v1/keys", json=wanted, headers=theirs).json()["id"]
    assert closed.client.get("/v1/voices", headers=ours).status_code == 200
    ask = partial(closed.client.get, path.format(key_id=key_id), headers=theirs)
    assert ask().status_code == 200, "the keys are held in memory from now on"
    hanging = Standstill(closed.key_uses.last)
    monkeypatch.setattr(closed.key_uses, "last", hanging)
    wait_patiently(monkeypatch)
    with asking(*[ask] * 10) as answers:
        wait_until(lambda: hanging.calls == AT_WORK)
        for _ in range(5):
            assert closed.client.get("/v1/voices", headers=ours).status_code == 200
        assert hanging.calls == AT_WORK
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}


def test_forms_that_arrive_slowly_keep_nobody_from_the_bucket(start: Start, monkeypatch: pytest.MonkeyPatch):
    closed = start(max_active=AT_WORK, max_at_store=1, access=CLOSED)
    closed.ready("alice", headers=bearer(BOOTSTRAP))
    monkeypatch.setattr(closed.app.state.parts.store_slots, "_wait_seconds", 0.2)
    began, ended = threading.Event(), threading.Event()
    with Visitor(closed, str(BOOTSTRAP)) as visitor:
        form = f"token={visitor.token()}&name=slow&scope:engine=on".encode()

        def slowly() -> Iterator[bytes]:
            yield form[:9]
            began.set()
            assert ended.wait(30)
            yield form[9:]

        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        send = partial(visitor.http.post, "/dashboard/keys", content=slowly(), headers=headers)
        with asking(send) as [answer]:
            assert began.wait(30)
            heard = [
                closed.client.get("/v1/voices/alice/versions/1/audio", headers=bearer(BOOTSTRAP)).status_code
                for _ in range(5)
            ]
            ended.set()
            assert heard == [200] * 5
            assert answer.result().status_code == 201


def test_downloads_that_nobody_reads_leave_memory_to_others(start: Start):
    """The files of one tenant's downloads once took all of a process's memory."""
    closed = start(access=CLOSED)
    theirs, ours = (bearer(BOOTSTRAP, name) for name in "ab")
    clip = clips.wav(20, 48_000, 4)  # more than the system's buffers take
    for headers in (theirs, ours):
        upload = closed.client.post(
            "/v1/voices",
            data={"name": "alice", "consent": "c"},
            files={"audio": ("a.wav", clip)},
            headers=headers,
        )
        assert upload.status_code == 201, upload.text
    sending = ByteBudget("files", 3 * len(clip), of_namespace=len(clip))
    closed.app.state.parts = replace(closed.app.state.parts, sending=sending)
    path = "/v1/voices/alice/versions/1/audio"
    fetch = partial(closed.client.get, path)
    with connected(closed.port) as unread:
        unread.sendall(head("GET", path, *(f"{name}: {value}" for name, value in theirs.items())))
        unread.recv(1, socket.MSG_PEEK)
        assert fetch(headers=theirs).status_code == 429
        assert fetch(headers=ours).content == clip
        part = fetch(headers={**ours, "Range": "bytes=7-200000"})
        assert (part.status_code, part.content) == (206, clip[7:200_001])
        answer = read_answer(unread)
        assert (answer.status, answer.body) == (200, clip)
    wait_until(lambda: fetch(headers=theirs).content == clip)


def test_a_bucket_that_hangs_stops_only_what_lists_keys_there(start: Start, monkeypatch: pytest.MonkeyPatch):
    """A process that has just started lists the bucket to find all keys."""
    closed = start(max_active=AT_WORK, max_at_store=AT_STORE, access=CLOSED)
    ours = bearer(BOOTSTRAP)
    monkeypatch.setattr(closed.keys, "_listing", KeyListing())
    hanging = Standstill(closed.opened.store.list)
    monkeypatch.setattr(closed.opened.store, "list", hanging)
    with asking(*[partial(closed.client.get, "/v1/keys", headers=ours)] * (AT_WORK + 1)) as answers:
        wait_until(lambda: hanging.calls > AT_WORK)
        for _ in range(5):
            assert closed.client.get("/v1/voices", headers=ours).status_code == 200
        hanging.go_on()
        assert {answer.result().status_code for answer in answers} == {200}
