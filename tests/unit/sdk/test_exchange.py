"""Tests of what is tried again, after how long, and of which error an answer becomes."""

from collections.abc import Callable

import httpx
import pytest

from speaker_registry import errors
from speaker_registry.exchange import (
    Reply,
    Request,
    RetryPolicy,
    SendRequest,
    error_of,
    exchange,
    pause_before,
    retry_after_seconds,
)
from tests.unit.sdk.conftest import Connect
from tests.unit.sdk.fake_registry import FakeRegistry, FakeTime, error_answer

READ = Request(path="/v1/voices")
UPLOAD = Request(method="POST", path="/v1/voices")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_trouble_is_tried_again(connect: Connect, registry: FakeRegistry, status: int):
    """A registry that restarts, or sheds load, is not a reason to fail."""
    registry.add_version("alice")
    registry.faults.extend([httpx.Response(status), httpx.Response(status)])
    assert connect().get("alice").name == "alice"
    assert len(registry.requests) == 3


@pytest.mark.parametrize(
    "trouble", [httpx.ConnectError("refused"), httpx.ReadTimeout("late"), httpx.ReadError("reset")]
)
def test_a_lost_connection_is_tried_again(connect: Connect, registry: FakeRegistry, trouble: Exception):
    """Every request of ours can be repeated, so a dead connection is worth another one."""
    registry.add_version("alice")
    registry.faults.append(trouble)
    assert connect().get("alice").name == "alice"


NEW_KEY = {
    "id": "4dtqrws3", "name": "fleet", "namespace": "default", "scopes": ["engine"], "created_at": 5,
    "created_by": "k3v9x0ab", "state": "active", "key": "sreg_4dtqrws3_x_y",
}  # fmt: skip


@pytest.mark.parametrize("call", ["create", "rotate"])
@pytest.mark.parametrize(
    "trouble",
    [
        httpx.ReadError("reset"),
        httpx.ReadTimeout("late"),
        lambda _: httpx.Response(408),
        lambda _: httpx.Response(500),
        lambda _: httpx.Response(503, headers={"retry-after": "1", "x-should-retry": "true"}),
    ],
    ids=["lost", "late", "408", "500", "503"],
)
def test_a_key_is_not_made_twice(
    connect: Connect, registry: FakeRegistry, call: str, trouble: Exception | Callable[..., httpx.Response]
):
    """It may have been made before the answer was lost: then nobody would have it, and it would be good."""
    client = connect()
    make = {
        "create": lambda: client.create_key("fleet", ["engine"]),
        "rotate": lambda: client.rotate_key("4dtqrws3"),
    }[call]
    registry.faults.append(trouble)
    with pytest.raises(errors.SpeakerRegistryError):
        make()
    assert len(registry.requests) == 1
    # Before it did anything.
    registry.faults.extend([error_answer(429, "rate_limited"), httpx.Response(201, json=NEW_KEY)])
    assert make().id == "4dtqrws3"
    assert len(registry.requests) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422])
def test_a_refusal_is_final(connect: Connect, registry: FakeRegistry, time: FakeTime, status: int):
    """Repeating what is wrong only makes it slow."""
    registry.faults.append(error_answer(status, "nope"))
    with pytest.raises(errors.SpeakerRegistryError):
        connect().get("alice")
    assert len(registry.requests) == 1
    assert time.slept == []


def test_the_registry_may_overrule_what_is_tried_again(connect: Connect, registry: FakeRegistry):
    """Only it knows whether a conflict passes, or an overload lasts."""
    registry.add_version("alice")
    registry.faults.append(error_answer(409, "artifact_not_ready", headers={"x-should-retry": "true"}))
    assert connect().get("alice").name == "alice"
    registry.faults.append(error_answer(503, "unavailable", headers={"x-should-retry": "false"}))
    with pytest.raises(errors.Unavailable):
        connect().get("alice")
    assert len(registry.requests) == 3


def test_after_the_last_retry_the_last_error_is_raised(connect: Connect, registry: FakeRegistry):
    """A caller that waits must learn in the end what was wrong."""
    registry.faults.extend(httpx.ConnectError("refused") for _ in range(9))
    with pytest.raises(errors.Unavailable, match="refused"):
        connect(retries=2).get("alice")
    assert len(registry.requests) == 3


def test_retry_after_is_kept_to(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """Coming back earlier than asked is what brings a registry down."""
    registry.add_version("alice")
    registry.faults.append(httpx.Response(429, headers={"retry-after": "7"}))
    connect().get("alice")
    assert 7 <= time.slept[0] <= 7.5


def test_a_pause_that_reaches_past_the_deadline_is_not_begun(
    connect: Connect, registry: FakeRegistry, time: FakeTime
):
    """The caller hears at once what it would hear after the pause, with the time to come back at."""
    registry.faults.append(error_answer(503, "unavailable", headers={"retry-after": "100"}))
    with pytest.raises(errors.Unavailable) as caught:
        connect(timeout=30).get("alice")
    assert caught.value.retry_after_seconds == 100
    assert time.slept == []


def test_the_time_out_counts_over_all_attempts(connect: Connect, registry: FakeRegistry, time: FakeTime):
    """Ten attempts of 5 s each are 50 s: nobody who says 12 means that."""

    def slow(_: httpx.Request) -> httpx.Response:
        time.now += 5
        return httpx.Response(503)

    registry.faults.extend(slow for _ in range(10))
    with pytest.raises(errors.Unavailable):
        connect(timeout=12, retries=9).get("alice")
    assert time.now - 1000 <= 17


def test_pauses_grow_and_are_spread_over_their_whole_range():
    """A fleet that lost its registry must not come back in step."""
    assert [pause_before(attempt, None, 1.0) for attempt in range(6)] == [0.5, 1, 2, 4, 8, 8]
    assert pause_before(3, None, 0.0) == 0
    assert pause_before(3, None, 0.5) == 2
    assert pause_before(10**6, None, 1.0) == 8


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("3", 3.0),
        ("0.5", 0.5),
        ("Wed, 21 Oct 2026 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2026 07:27:00 GMT", 0.0),
        ("soon", None),
        ("nan", None),
        ("-1", None),
        ("", None),
        ("٣", None),
    ],
)
def test_retry_after_is_read_in_both_its_forms(value: str, seconds: float | None):
    """A date counts from the server's own clock: ours may be an hour off."""
    headers = {"retry-after": value, "date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    assert retry_after_seconds(headers) == seconds


@pytest.mark.parametrize("cls", sorted(errors.BY_CODE.values(), key=lambda cls: cls.code))
def test_an_error_comes_back_as_the_class_that_was_raised(cls: type[errors.SpeakerRegistryError]):
    """Callers catch classes; the code on the wire is how they get here."""
    body = (
        b'{"error":{"message":"m","type":"t","param":"p","code":"%s","request_id":"req_1"}}'
        % cls.code.encode()
    )
    error = error_of(Reply(418, {}, body), READ)
    assert type(error) is cls
    assert error is not None
    assert (error.message, error.param, error.request_id) == ("m", "p", "req_1")
    assert not error.is_foreign


def test_under_v1_audio_the_code_is_in_reason():
    """There `code` is the HTTP status, as TTS servers send it."""
    body = b'{"error":{"message":"m","type":"BadRequestError","code":400,"reason":"audio_too_short"}}'
    assert type(error_of(Reply(400, {}, body), READ)) is errors.AudioTooShort


TTS_ERROR = (
    b'{"error":{"message":"The model does not exist.","type":"NotFoundError","param":null,"code":404}}'
)
"""The answer of vLLM to a path that it does not know."""


@pytest.mark.parametrize(
    ("status", "cls"),
    [
        (400, errors.InvalidRequest),
        (401, errors.InvalidApiKey),
        (403, errors.PermissionDenied),
        (404, errors.NotFound),
        (409, errors.Conflict),
        (410, errors.NotFound),
        (412, errors.PreconditionFailed),
        (413, errors.PayloadTooLarge),
        (415, errors.UnsupportedAudio),
        (429, errors.Unavailable),
        (500, errors.SpeakerRegistryError),
        (502, errors.Unavailable),
        (308, errors.Unavailable),
    ],
)
def test_an_unknown_error_becomes_the_nearest_class(status: int, cls: type[Exception]):
    """A newer registry must not make the client fail by anything but our errors."""
    body = b'{"error":{"message":"m","type":"t","code":"newer"}}'
    error = error_of(Reply(status, {"x-request-id": "req_2"}, body), READ)
    assert type(error) is cls
    assert error.request_id == "req_2"
    assert not error.is_foreign, "only the registry answers with such a body"


@pytest.mark.parametrize(
    "status", [308, 400, 401, 403, 404, 407, 408, 409, 410, 412, 413, 415, 429, 500, 502]
)
@pytest.mark.parametrize("body", [b"<html>page</html>", TTS_ERROR, b""], ids=["page", "TTS server", "empty"])
def test_an_answer_that_is_not_the_registrys_means_that_it_cannot_be_reached(status: int, body: bytes):
    """The 404 of a proxy does not say that a voice was deleted, nor does its 403 concern the API key."""
    error = error_of(Reply(status, {"x-request-id": "req_2"}, body), READ)
    assert type(error) is errors.Unavailable
    assert "html" not in str(error)
    assert error.request_id == "req_2"
    assert (error.is_foreign, error.retryable) == (True, status in {408, 429, 500, 502})


def test_a_request_that_is_too_large_for_a_proxy_is_refused_alone():
    """Smaller clips still get through."""
    error = error_of(Reply(413, {}, b"<html>page</html>"), UPLOAD)
    assert (type(error), error and error.is_foreign) == (errors.PayloadTooLarge, True)


def test_a_proxy_that_asks_for_credentials_is_not_called_the_registry():
    """The registry never answers so, and nothing that a person could change there would help."""
    assert str(error_of(Reply(407, {}, b""), READ)).startswith("a proxy asks for credentials")


@pytest.mark.parametrize("status", [200, 202, 204, 304])
def test_good_news_is_no_error(status: int):
    """304 and 202 are answers to what was asked."""
    assert error_of(Reply(status, {}, b""), READ) is None


def test_a_plan_asks_for_its_exchanges_instead_of_doing_them():
    """The same text can so serve the blocking and the async client."""
    plan = exchange(
        RetryPolicy(timeout_seconds=5, clock=lambda: 100.0), Request(path="/v1/jobs", wait_seconds=2)
    )
    step = next(plan)
    assert step == SendRequest(Request(path="/v1/jobs", wait_seconds=2), deadline=107.0)
    with pytest.raises(StopIteration) as end:
        plan.send(Reply(200, {}, b"{}"))
    assert end.value.value == Reply(200, {}, b"{}")
