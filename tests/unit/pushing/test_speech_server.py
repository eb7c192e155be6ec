"""Tests of the routes of a TTS server: strange answers, and servers that answer slowly."""

import email.utils
import time
from collections.abc import Callable

import httpx
import pytest

from speaker_registry.errors import InvalidRequest, PermissionDenied, Unavailable
from speaker_registry.pushing import speech_server
from speaker_registry.pushing.pusher import Pusher
from speaker_registry.pushing.speech_server import SpeechServer, UploadRefused
from tests.unit.pushing.test_pusher import Client, reason
from tests.unit.sdk.fake_registry import QWEN
from tests.unit.sdk.test_following import entry

VOICE = {"name": "Alice", "consent": "c", "created_at": 7}
ANSWER = {"voices": ["default"], "uploaded_voices": [VOICE]}


def server(answer: httpx.Response | Exception, key: str = "") -> SpeechServer:
    def handle(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, Exception):
            raise answer
        answer.headers.setdefault("x-key", request.headers.get("authorization", "none"))
        return answer

    return SpeechServer("http://tts.test/", key, transport=httpx.MockTransport(handle))


def test_a_list_is_read_with_the_clock_of_the_server():
    """The grace period of a version must not depend on two clocks that agree."""
    date = email.utils.formatdate(1_000_000, usegmt=True)
    found = server(httpx.Response(200, json=ANSWER, headers={"date": date})).voices()
    assert (found.names, found.now) == ({"default", "alice"}, 1_000_000)
    assert (found.uploaded["alice"].consent, found.uploaded["alice"].created_at) == ("c", 7)


def test_a_voice_without_consent_or_time_is_one_of_others():
    """The push of all other voices must not end because of it."""
    odd = {"name": "odd", "consent": None, "created_at": None}
    found = server(httpx.Response(200, json={**ANSWER, "uploaded_voices": [odd, VOICE]})).voices()
    assert found.names == {"default", "alice", "odd"}
    assert (found.uploaded["odd"].consent, found.uploaded["alice"].consent) == ("", "c")


@pytest.mark.parametrize("headers", [{}, {"date": "yesterday"}])
def test_a_server_without_a_clock_is_believed_to_have_ours(headers: dict[str, str]):
    before = time.time()
    assert before <= server(httpx.Response(200, json=ANSWER, headers=headers)).voices().now <= time.time()


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b'{"voices": []}',
        b'{"voices": [], "uploaded_voices": [{"name": "a"}]}',
        b'{"voices": [], "uploaded_voices": [{"name": "a", "consent": "c", "created_at": 1%s}]}'
        % (b"0" * 400),
        b"[" * 100_000,
    ],
)
def test_what_is_no_list_of_voices_is_refused(body: bytes):
    """The address may be that of another service."""
    with pytest.raises(InvalidRequest, match=r"not a (list of uploaded voices|JSON object)"):
        server(httpx.Response(200, content=body)).voices()


@pytest.mark.parametrize(
    ("status", "call"),
    [
        (200, lambda tts: tts.voices()),
        (200, lambda tts: tts.upload({"name": (None, "alice@1")})),
        (400, lambda tts: tts.upload({"name": (None, "alice@1")})),
        (415, lambda tts: tts.upload({"name": (None, "alice@1")})),
        (422, lambda tts: tts.upload({"name": (None, "alice@1")})),
        (200, lambda tts: tts.delete("alice@1")),
        (404, lambda tts: tts.delete("alice@1")),
        (401, lambda tts: tts.voices()),
        (403, lambda tts: tts.voices()),
        (404, lambda tts: tts.voices()),
    ],
    ids=[
        "list",
        "upload",
        "upload 400",
        "upload 415",
        "upload 422",
        "delete",
        "delete what is gone",
        "sign in",
        "forbidden",
        "nothing there",
    ],
)
def test_a_page_of_a_proxy_is_not_taken_for_an_answer_of_the_server(
    status: int, call: Callable[[SpeechServer], object]
):
    """The server would lack a voice that was reported as uploaded or as refused, or keep one that was
    "deleted".
    """
    with pytest.raises(InvalidRequest) as caught:
        call(server(httpx.Response(status, html="<html>Sign in</html>")))
    assert caught.value.message == (
        f"http://tts.test/v1/audio/voices answers {status} with the content type 'text/html; charset=utf-8', "
        "which is not a JSON object: '<html>Sign in</html>'; accepted: an answer of vLLM-Omni or SGLang-Omni"
    )


@pytest.mark.parametrize(
    ("answer", "is_foreign"),
    [
        (httpx.Response(404, text="default backend - 404"), True),
        (httpx.Response(404, json={"message": "no route"}), True),
        (httpx.Response(400, html="<html>Bad Request</html>"), True),
        (httpx.Response(200, html="<html>Back soon</html>"), True),
        (httpx.Response(403, html="<html>Forbidden</html>"), True),
        (httpx.Response(409, json={"error": {"message": "not supported"}}), False),
    ],
)
def test_what_a_proxy_may_have_sent_is_told_from_a_refusal(answer: httpx.Response, is_foreign: bool):
    """A watching pusher waits for the end of a rollout, and not for a server that refuses uploads."""
    with pytest.raises(InvalidRequest) as caught:
        server(answer).voices()
    assert caught.value.is_foreign == is_foreign


def test_a_redirect_is_shown_with_where_it_leads():
    """A proxy may lead from http to https, or to a page on which people sign in."""
    leads = httpx.Response(307, headers={"location": "https://tts.test/v1/audio/voices"})
    with pytest.raises(InvalidRequest, match=r"answers 307 .* the location 'https://tts\.test/v1/") as caught:
        server(leads).voices()
    assert caught.value.is_foreign


@pytest.mark.parametrize("status", [401, 403])
def test_a_server_that_refuses_the_api_key_is_no_proxy(status: int):
    with pytest.raises(PermissionDenied, match=f"answers {status}: Unauthorized"):
        server(httpx.Response(status, json={"error": "Unauthorized"})).voices()


def test_an_answer_without_a_type_is_shown_as_such():
    with pytest.raises(InvalidRequest, match="the content type '', which is not a JSON object: ''"):
        server(httpx.Response(200)).upload({"name": (None, "a")})


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(speech_server, "_MAX_ANSWER_BYTES", 1000)
    with pytest.raises(Unavailable, match="more than 1000 bytes"):
        server(httpx.Response(200, content=b"x" * 2000)).voices()


def test_a_compressed_answer_is_not_unfolded():
    """A few kilobytes could unfold to gigabytes."""
    answer = httpx.Response(200, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(b"\x1f\x8b"))
    with pytest.raises(InvalidRequest, match="compressed"):
        server(answer).voices()


def test_nobody_there_is_unavailable():
    with pytest.raises(Unavailable, match=r"no answer from http://tts\.test: refused"):
        server(httpx.ConnectError("refused")).voices()


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"error": {"message": "too short"}}, "too short"),
        ({"detail": "no such field"}, "no such field"),
        ({"odd": 1}, "'{\"odd\":1}'"),
    ],
)
def test_the_reason_of_a_refusal_is_told(body: object, says: str):
    """vLLM-Omni answers in the envelope of OpenAI, and FastAPI in its own."""
    with pytest.raises(UploadRefused) as caught:
        server(httpx.Response(400, json=body)).upload({"name": (None, "a")})
    assert str(caught.value) == says


def test_a_proxy_that_limits_the_size_of_requests_refuses_one_clip():
    """Its page must not end a push, because smaller clips pass."""
    with pytest.raises(UploadRefused, match="Request Entity Too Large"):
        server(httpx.Response(413, html="<html>Request Entity Too Large</html>")).upload(
            {"name": (None, "a")}
        )


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"success": False, "message": "disk full"}, "disk full"),
        ({"success": False, "error": "disk full"}, "disk full"),
        ({"success": False, "error": None, "message": "disk full"}, "disk full"),
        ({"success": False, "voice": {"name": "a"}}, '\'{"success":false,"voice":{"name":"a"}}\''),
        ({"success": None, "message": ""}, '\'{"success":null,"message":""}\''),
    ],
)
def test_an_upload_without_success_is_refused(body: object, says: str):
    """The status 200 alone does not tell that the server has the voice."""
    with pytest.raises(UploadRefused) as caught:
        server(httpx.Response(200, json=body)).upload({"name": (None, "a")})
    assert str(caught.value) == says


@pytest.mark.parametrize("body", [{}, {"status": "ok"}])
def test_an_object_that_no_tts_server_answers_with_is_not_taken_for_success(body: object):
    """Another service at the address may answer everything with an object, and would never have the voice."""
    with pytest.raises(InvalidRequest, match="which is not the answer to an upload"):
        server(httpx.Response(200, json=body)).upload({"name": (None, "a")})


@pytest.mark.parametrize("body", [{"success": True, "voice": VOICE}, VOICE])
def test_an_upload_succeeds_with_the_answer_of_each_server(body: object):
    """vLLM-Omni says `success`, and SGLang-Omni answers with the voice alone."""
    server(httpx.Response(200, json=body)).upload({"name": (None, "a")})


def test_a_voice_that_the_server_could_not_store_is_not_sent_again_at_once():
    """A full disk stays full for a while, and a watching pusher would send the clip at every look."""
    uploads = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"voices": [], "uploaded_voices": []})
        uploads.append(request)
        return httpx.Response(200, json={"success": False, "message": "disk full"})

    client = Client()
    client.voices = [entry("alice")]
    speech = SpeechServer("http://tts.test", transport=httpx.MockTransport(answer))
    pusher = Pusher(client, speech, profile=QWEN)  # type: ignore[arg-type]
    for _ in range(2):
        assert reason(pusher) == "the server refuses it: disk full"
    assert len(uploads) == 1


def test_a_server_that_answers_500_to_uploads_has_no_answer():
    """Its disk may be full. Whoever runs the command must see that from its exit code."""
    broken = httpx.Response(500, json={"error": {"message": "disk full"}})

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, json={"voices": [], "uploaded_voices": []})
        return broken

    client = Client()
    client.voices = [entry("alice"), entry("bob")]
    speech = SpeechServer("http://tts.test", transport=httpx.MockTransport(answer))
    report = Pusher(client, speech, profile=QWEN).run()  # type: ignore[arg-type]
    reason = f"{speech.url} answers 500: disk full"
    assert [one.reason for one in report.outcomes] == [reason] * 2
    assert isinstance(report.fault, Unavailable)


def test_a_voice_that_is_gone_already_is_deleted():
    server(httpx.Response(404, json={"error": {"message": "not found"}})).delete("a/b@1")


@pytest.mark.parametrize("url", ["", "tts", "http://user:secret@tts", "http://tts?x=1"])
def test_what_is_no_address_is_refused(url: str):
    with pytest.raises(ValueError, match="address") as caught:
        SpeechServer(url)
    assert "secret" not in str(caught.value)


def test_an_api_key_is_sent():
    answer = httpx.Response(200, json=ANSWER)
    server(answer, "k3y").voices()
    assert answer.headers["x-key"] == "Bearer k3y"
    with pytest.raises(ValueError, match="API key"):
        server(answer, "two words")
