"""Tests of what goes over the wire for each call, and of what comes back."""

import asyncio
import io
import json
import math
from pathlib import Path

import httpx
import numpy as np
import pytest

from speaker_registry import AsyncRegistryClient, errors
from tests.unit.sdk.conftest import Connect, on_one_client
from tests.unit.sdk.fake_registry import ECAPA, URL, FakeRegistry, error_answer, form_of

NAMES = ["alice", "Anna Lena", "50%", "what?", "no#1", "%2F", "声優さん", "a+b&c=d", "…", "Zoë"]


@on_one_client
@pytest.mark.parametrize("name", NAMES)
def test_any_name_reaches_the_registry_as_it_is(connect: Connect, registry: FakeRegistry, name: str):
    """`?` and `#` would cut a URL short and `%` be decoded twice: another voice, or none."""
    client = connect()
    registered = client.register(name, b"RIFF", consent="yes")
    assert registered.reference == f"{name}@1"
    registry.make_ready(name, registry.voices[name.lower()][0])
    assert client.get(name).name == name
    assert client.version(f"{name}@1").voice == name
    assert client.fetch(name, ECAPA).manifest.voice == name
    assert [version.version for version in client.versions(name)] == [1]
    client.delete(name)
    assert registry.voices == {}


@on_one_client
@pytest.mark.parametrize("name", ["", " ", "a/b", "a\\b", "..", "a\0b", "a\nb", "x" * 129])
def test_a_name_that_cannot_be_one_is_refused_before_anything_is_sent(
    connect: Connect, registry: FakeRegistry, name: str
):
    """`..` would lead to another route."""
    client = connect()
    for call in (client.get, client.delete, client.versions, lambda n: client.register(n, b"x", consent="y")):
        with pytest.raises(errors.InvalidVoiceName):
            call(name)
    assert registry.requests == []


@on_one_client
@pytest.mark.parametrize("text", ["", "..", ".", "a/b", "a b", "a?b", "ä"])
def test_a_profile_or_job_that_would_lead_elsewhere_is_refused(
    connect: Connect, registry: FakeRegistry, text: str
):
    """They become part of a path too."""
    client = connect()
    for call in (
        lambda: client.fetch("alice", text),
        lambda: client.descriptor("alice", text),
        lambda: client.job(text),
    ):
        with pytest.raises(errors.InvalidRequest):
            call()
    assert registry.requests == []


WHOLE_KEY = "sreg_4dtqrws3_" + "S" * 43 + "_0aB1cD"


@on_one_client
@pytest.mark.parametrize("text", ["4dtqrws3", WHOLE_KEY, f" {WHOLE_KEY}\n", WHOLE_KEY[:-3], "4dtqrws3_SSSS"])
def test_of_a_whole_key_only_the_id_is_sent(connect: Connect, registry: FakeRegistry, text: str):
    """Addresses end up in the logs of everything in between."""
    registry.faults.extend(error_answer(404, "api_key_not_found") for _ in range(2))
    client = connect()
    for call in (client.revoke_key, client.rotate_key):
        with pytest.raises(errors.ApiKeyNotFound):
            call(text)
    paths = [request.url.path for request in registry.requests]
    assert paths == ["/v1/keys/4dtqrws3", "/v1/keys/4dtqrws3/rotate"]
    assert not any("S" in str(request.url) for request in registry.requests)


@on_one_client
@pytest.mark.parametrize("text", ["", "..", "a/b", "4dtqrws", "4dtqrws34", "4DTQRWS3", "S" * 43, "sreg_SSS"])
def test_what_is_no_id_of_a_key_is_refused_without_showing_it(
    connect: Connect, registry: FakeRegistry, text: str
):
    """It may be a secret, or lead elsewhere."""
    client = connect()
    for call in (client.revoke_key, client.rotate_key):
        with pytest.raises(errors.InvalidRequest, match="8 characters of 0-9 and a-z") as caught:
            call(text)
        assert "S" * 9 not in str(caught.value)
    assert registry.requests == []


@on_one_client
@pytest.mark.parametrize(
    ("speaker", "version", "path"),
    [
        ("alice", None, "default"),
        ("alice@3", None, "3"),
        ("alice", 3, "3"),
        ("alice", "3", "3"),
        ("alice@prod", None, "prod"),
        ("alice", "prod", "prod"),
    ],
)
def test_a_version_can_be_named_in_two_ways(
    connect: Connect, registry: FakeRegistry, speaker: str, version: int | str | None, path: str
):
    """`alice@3` in configuration files, `version=3` in code."""
    for _ in range(3):
        registry.add_version("alice")
    registry.aliases["alice"]["prod"] = 3
    connect().fetch(speaker, ECAPA, version=version)
    assert registry.paths() == [f"GET /v1/voices/alice/versions/{path}/artifacts/{ECAPA}/file"]


@pytest.mark.parametrize(
    ("method", "asked", "other"),
    [
        ("get", ["alice"], "bob"),
        ("version", ["alice"], "bob/versions/1"),
        ("version", ["alice@2"], "alice/versions/1"),
        ("descriptor", ["alice", ECAPA], f"bob/versions/1/artifacts/{ECAPA}"),
    ],
)
def test_an_answer_about_another_voice_or_version_is_refused(
    connect: Connect, registry: FakeRegistry, method: str, asked: list[str], other: str
):
    """A proxy that mixes up two answers must not turn one voice into another."""
    for name in ("alice", "alice", "bob"):
        registry.add_version(name)
    client = connect()
    getattr(client, method)(*asked)
    registry.faults.append(lambda request: registry(httpx.Request("GET", f"{URL}/v1/voices/{other}")))
    with pytest.raises(errors.Unavailable, match=rf"asked for {asked[0]}.* but the answer is about '"):
        getattr(client, method)(*asked)


@on_one_client
@pytest.mark.parametrize("version", ["", "Prod", "../x", "0", "a b", True])
def test_a_reference_that_cannot_be_one_is_refused(
    connect: Connect, registry: FakeRegistry, version: str | bool
):
    """True is 1 to Python, but nobody means version 1 by it."""
    registry.add_version("alice")
    client = connect()
    client.fetch("alice", ECAPA, version=1)
    with pytest.raises(errors.InvalidReference):
        client.fetch("alice", ECAPA, version=version)
    with pytest.raises(errors.InvalidReference, match="both"):
        client.fetch("alice@1", ECAPA, version=1)


def test_an_upload_carries_everything_it_was_given(connect: Connect, registry: FakeRegistry):
    """An upload reveals neither the file's name nor anything else of this machine."""
    connect().register("Álice", b"RIFF\0\xff", consent="I agree", ref_text="Grüß Gott", description="warm")
    (request,) = registry.requests
    assert form_of(request) == {
        "name": "Álice".encode(),
        "consent": b"I agree",
        "ref_text": "Grüß Gott".encode(),
        "description": b"warm",
        "audio": b"RIFF\0\xff",
    }
    assert b'filename="clip"' in request.content


def test_a_clip_may_be_a_path_its_bytes_or_an_open_file(
    connect: Connect, registry: FakeRegistry, tmp_path: Path
):
    """The SDK accepts the form that the caller happens to have."""
    path = tmp_path / "secret-person.wav"
    path.write_bytes(b"RIFF1")
    client = connect()
    for audio in (path, str(path), b"RIFF1", io.BytesIO(b"RIFF1")):
        client.register("alice", audio, consent="yes")
    assert [form_of(request)["audio"] for request in registry.requests] == [b"RIFF1"] * 4
    assert not any(b"secret-person" in request.content for request in registry.requests)


def test_a_clip_opened_as_text_is_refused(connect: Connect, registry: FakeRegistry):
    """Its bytes are lost already."""
    with pytest.raises(errors.InvalidRequest, match="binary"):
        connect().register("alice", io.StringIO("RIFF"), consent="yes")


def test_a_clip_beyond_all_reason_is_not_read_to_its_end(connect: Connect, registry: FakeRegistry):
    """`/dev/zero` must not fill the memory."""

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            assert 0 < size < 2**30
            return bytes(size)

    with pytest.raises(errors.PayloadTooLarge):
        connect().register("alice", Endless(), consent="yes")
    assert registry.requests == []


@on_one_client
@pytest.mark.parametrize(
    "embedding", [[0.1, -2.5], (0.1, -2.5), np.array([0.1, -2.5]), np.array([0.1, -2.5], np.float32)]
)
def test_an_embedding_is_sent_number_by_number(connect: Connect, registry: FakeRegistry, embedding: object):
    """float32 goes over as JSON and must come back to the last bit."""
    connect().register("alice", embedding=embedding, consent="yes")
    form = form_of(registry.requests[0])
    assert "audio" not in form
    sent = json.loads(form["embedding"])
    assert np.array_equal(np.array(sent, np.float32), np.array([0.1, -2.5], np.float32))


@on_one_client
@pytest.mark.parametrize(
    "embedding",
    [
        *([], [[1.0]], [1.0, float("nan")], ["x"], {"a": 1}, 3.0, [1.0, [2.0]]),
        *(["0.1"], [1.0, True], np.array([True]), [10**400], [1e39]),
        *([1j], np.array([1j]), [1.0, None], np.ma.array([1.0, 2.0], mask=[False, True]), [0.5] * 4097),
        *(np.array([1, 2], kind) for kind in ("datetime64[ns]", "timedelta64[ns]", "timedelta64[s]")),
        *([np.datetime64(1, "ns")], [np.timedelta64(1, "ns")]),
    ],
)
def test_what_is_no_vector_is_refused_before_it_is_sent(
    connect: Connect, registry: FakeRegistry, embedding: object
):
    """NaN is no JSON, and one NaN makes a voice that says nothing."""
    with pytest.raises(errors.InvalidEmbedding):
        connect().register("alice", embedding=embedding, consent="yes")
    assert registry.requests == []


class WithGradient:
    """Stands in for a tensor of torch that requires gradients."""

    def __array__(self, *_: object, **__: object) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def test_a_tensor_with_a_gradient_is_refused_with_what_to_call(connect: Connect, registry: FakeRegistry):
    """Embeddings often come straight from a model."""
    with pytest.raises(errors.InvalidEmbedding, match=r"tensor\.detach\(\)"):
        connect().register("alice", embedding=WithGradient(), consent="yes")
    assert registry.requests == []


def test_an_upload_is_either_a_clip_or_an_embedding(connect: Connect, registry: FakeRegistry):
    """Both would leave open which of them the voice is."""
    for given in ({}, {"audio": b"x", "embedding": [1.0]}):
        with pytest.raises(errors.InvalidRequest, match="either"):
            connect().register("alice", consent="yes", **given)


def test_an_upload_whose_answer_is_lost_makes_one_version(connect: Connect, registry: FakeRegistry):
    """The first attempt arrived; only its answer did not."""

    def answer_lost(request: httpx.Request) -> httpx.Response:
        registry(request)
        raise httpx.ReadError("reset")

    registry.faults.append(answer_lost)
    assert connect().register("alice", b"RIFF", consent="yes").version == 1
    assert len(registry.voices["alice"]) == 1
    keys = {request.headers["idempotency-key"] for request in registry.requests}
    assert len(keys) == 1
    assert len(keys.pop()) >= 32


def test_a_deletion_whose_answer_is_lost_is_a_deletion(connect: Connect, registry: FakeRegistry):
    """The repetition finds nothing, and that is what was wanted; only the first attempt may complain."""

    def answer_lost(request: httpx.Request) -> httpx.Response:
        registry(request)
        raise httpx.ReadError("reset")

    registry.add_version("alice")
    registry.faults.append(answer_lost)
    client = connect()
    client.delete("alice")
    assert registry.voices == {}
    with pytest.raises(errors.VoiceNotFound):
        client.delete("alice")
    registry.faults.append(httpx.Response(503))
    with pytest.raises(errors.VoiceNotFound):
        client.get("alice")


def test_two_uploads_are_two_versions(connect: Connect, registry: FakeRegistry):
    """A key made once per process would make the second one vanish."""
    client = connect()
    assert client.register("alice", b"one", consent="yes").version == 1
    assert client.register("alice", b"two", consent="yes").version == 2


def test_a_registration_says_whether_it_is_new(connect: Connect, registry: FakeRegistry):
    """The same clip again is the version that is there."""
    version = {
        "id": "019a",
        "voice_id": "voice_1",
        "voice": "alice",
        "version": 3,
        "created_at": 7,
        "source": "audio",
        "consent": "yes",
        "artifacts": [{"profile": ECAPA, "state": "pending", "reason": "no worker", "untrained": True}],
        "state": "pending",
        "held_back": "it lacks an artifact",
        "untrained": True,
    }
    registry.faults.append(httpx.Response(200, json={**version, "created": False, "jobs": {}}))
    registered = connect().register("alice", b"RIFF", consent="yes")
    assert registered.model_dump() == {
        "id": "voice_1",
        "name": "alice",
        "version": 3,
        "version_id": "019a",
        "created_at": 7,
        "created": False,
        "jobs": {},
        "reason": "no worker",
        "held_back": "it lacks an artifact",
        "untrained": True,
    }
    assert registered.reference == "alice@3"


def test_lists_are_read_page_by_page_to_their_end(connect: Connect, registry: FakeRegistry):
    """A fleet has more voices than a page."""
    for number in range(250):
        registry.add_version(f"v{number:03}")
    voices = list(connect().list())
    assert [voice.name for voice in voices] == [f"v{number:03}" for number in range(250)]
    assert len(registry.requests) == 3


def test_a_limit_ends_a_list_early(connect: Connect, registry: FakeRegistry):
    """Nobody who wants five should pay for a thousand."""
    for number in range(250):
        registry.add_version(f"v{number:03}")
    client = connect()
    assert len(list(client.list(limit=5))) == 5
    assert registry.requests[-1].url.params["limit"] == "5"
    assert len(list(client.list(limit=101))) == 101
    assert len(list(client.list(limit=100))) == 100
    assert len(registry.requests) == 4
    with pytest.raises(errors.InvalidRequest):
        client.list(limit=0)


def test_a_registry_that_ignores_the_limit_does_not_overrun_it(connect: Connect, registry: FakeRegistry):
    """`limit` is what the caller has room for."""
    page = {"data": [registry._profile(str(number)) for number in range(3)], "has_more": False}
    for number in range(3):
        registry.add_version(f"v{number}")
    page["data"] = [registry._voice(f"v{number}") for number in range(3)]
    registry.faults.append(httpx.Response(200, json=page))
    assert len(list(connect().list(limit=2))) == 2


@pytest.mark.parametrize("cursors", ["aa", "abb", "aba", "abcdbcd"])
@pytest.mark.parametrize("is_empty", [True, False], ids=["empty", "full"])
def test_a_list_that_leads_back_is_an_error(
    connect: Connect, registry: FakeRegistry, cursors: str, is_empty: bool
):
    """It would be read for ever. If it ended there, it would seem whole, and a sync would remove the files of
    the voices that are missing.
    """
    registry.add_version("alice")
    page = {"data": [] if is_empty else [registry._voice("alice")], "has_more": True}
    registry.faults.extend(httpx.Response(200, json={**page, "last_id": cursor}) for cursor in cursors * 4)
    with pytest.raises(errors.Unavailable, match="a list that leads back"):
        list(connect().list())


def test_a_list_that_leads_nowhere_is_an_error(connect: Connect, registry: FakeRegistry):
    """The registry says that there is more."""
    registry.faults.append(httpx.Response(200, json={"data": [], "has_more": True, "last_id": None}))
    with pytest.raises(errors.Unavailable, match="a list that leads back"):
        list(connect().list())


def test_filters_are_sent_only_if_they_are_set(connect: Connect, registry: FakeRegistry):
    """An empty filter is not the same as none."""
    registry.add_version("alice", "processing")
    client = connect()
    list(client.list(profile=ECAPA, state="ready", q="al&ice"))
    assert dict(registry.requests[-1].url.params) == {
        "profile": ECAPA, "state": "ready", "q": "al&ice", "limit": "100",
    }  # fmt: skip
    list(client.jobs(created_after=0))
    assert dict(registry.requests[-1].url.params) == {"created_after": "0", "limit": "100"}
    found = list(client.jobs(voice="alice"))
    assert dict(registry.requests[-1].url.params) == {"voice": "alice", "limit": "100"}
    assert client.job(found[0].id).state == "processing"
    assert [profile.id for profile in client.profiles()] == [ECAPA]


@pytest.mark.parametrize(("wait", "sent"), [(0, None), (0.2, "1"), (30, "30"), (500, "60")])
def test_a_long_poll_asks_for_whole_seconds_up_to_a_minute(
    connect: Connect, registry: FakeRegistry, wait: float, sent: str | None
):
    """The route takes no other numbers."""
    registry.faults.append(error_answer(404, "job_not_found"))
    with pytest.raises(errors.JobNotFound):
        connect().job("job_1", wait=wait)
    assert registry.requests[0].url.params.get("wait") == sent


def test_the_time_outs_of_an_attempt_leave_room_for_the_wait(connect: Connect, registry: FakeRegistry):
    """Every long poll would otherwise end as a time-out."""
    registry.faults.extend(error_answer(404, "job_not_found") for _ in range(3))
    for timeout, wait, read, connecting in ((100, 50, 80, 5), (10, 50, 60, 5), (3, 0, 3, 3)):
        with pytest.raises(errors.JobNotFound):
            connect(timeout=timeout).job("job_1", wait=wait)
        found = registry.requests[-1].extensions["timeout"]
        assert (found["read"], found["connect"]) == (read, connecting)


@on_one_client
@pytest.mark.parametrize("body", [b"<html>", b"{}", b"[]", b"null", b'{"name": 3}', b"\xff", b"[" * 100_000])
def test_an_answer_that_is_none_of_ours_is_told_apart(connect: Connect, registry: FakeRegistry, body: bytes):
    """A login page with status 200 is a wrong address, not a bug in the caller."""
    registry.faults.append(httpx.Response(200, content=body))
    with pytest.raises(errors.Unavailable, match="speaker registry at this address"):
        connect().get("alice")


def test_a_page_of_a_proxy_is_not_taken_for_a_deletion(connect: Connect, registry: FakeRegistry):
    """A proxy answers anything with 200 and a page. The voice would be taken for gone."""
    registry.add_version("alice")
    registry.faults.append(httpx.Response(200, text="<html>Please sign in</html>"))
    with pytest.raises(errors.Unavailable, match="status 200 in place of 204: is there a speaker registry"):
        connect(retries=0).delete("alice")
    assert "alice" in registry.voices
    # The registry itself answers so if an earlier attempt, whose answer was lost, has deleted the voice.
    registry.faults.extend(
        [httpx.ConnectError("refused"), httpx.Response(404, text="<html>default backend</html>")]
    )
    with pytest.raises(errors.Unavailable, match="404"):
        connect().delete("alice")
    assert "alice" in registry.voices


def test_facts_of_a_newer_registry_are_ignored(connect: Connect, registry: FakeRegistry):
    """An SDK in an engine image is older than the registry."""
    registry.add_version("alice")
    registry.faults.append(httpx.Response(200, json={**registry._voice("alice"), "mood": "cheerful"}))
    assert connect().get("alice").name == "alice"


def test_an_answer_of_unreasonable_length_is_not_read(connect: Connect, registry: FakeRegistry):
    """A malicious server must not be able to fill an engine's memory."""
    registry.faults.append(httpx.Response(200, content=b" " * (10 * 1024**2 + 1)))
    with pytest.raises(errors.PayloadTooLarge):
        connect().get("alice")
    assert len(registry.requests) == 1


def test_the_key_goes_into_the_header_and_nowhere_else(connect: Connect, registry: FakeRegistry):
    """Logs and tracebacks show objects and messages."""
    client = connect(api_key="sk-very-secret")
    registry.faults.extend([error_answer(403, "forbidden"), httpx.ConnectError("refused")])
    for _ in range(2):
        with pytest.raises(errors.SpeakerRegistryError) as caught:
            client.get("alice")
        assert "secret" not in repr(caught.value) + str(caught.value)
    assert registry.requests[0].headers["authorization"] == "Bearer sk-very-secret"
    assert "secret" not in repr(client)
    assert "secret" not in repr(client.cache)


def test_address_and_key_come_from_the_environment_unless_given(
    connect: Connect, registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
):
    """One image, many deployments."""
    registry.faults.extend(error_answer(404, "voice_not_found") for _ in range(2))
    monkeypatch.setenv("SPEAKER_REGISTRY_URL", "http://elsewhere.test/prefix/")
    monkeypatch.setenv("SPEAKER_REGISTRY_API_KEY", "from-environment\n")
    for options in ({"url": None}, {"url": "http://registry.test", "api_key": "given"}):
        with pytest.raises(errors.VoiceNotFound):
            connect(**options).get("alice")
    first, second = registry.requests
    assert str(first.url) == "http://elsewhere.test/prefix/v1/voices/alice"
    assert first.headers["authorization"] == "Bearer from-environment"
    assert str(second.url) == "http://registry.test/v1/voices/alice"
    assert second.headers["authorization"] == "Bearer given"


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("timeout", value) for value in (math.nan, 0, math.inf, "60")),
        *(("retries", value) for value in (-1, "3", None)),
    ],
)
def test_a_number_that_cannot_be_meant_is_refused_at_once(connect: Connect, option: str, value: object):
    """A call would otherwise wait for ever, or fail with an error of another library."""
    with pytest.raises(ValueError, match=f"{option} is .*accepted"):
        connect(**{option: value})


def test_cookies_are_not_kept(connect: Connect):
    """A broken proxy could fill the memory of an engine, and the heads of its requests, with them."""
    cookies = []

    def answer(request: httpx.Request) -> httpx.Response:
        cookies.append(request.headers.get("cookie"))
        return httpx.Response(404, headers={"set-cookie": f"number-{len(cookies)}=1; Path=/"})

    client = connect(transport=httpx.MockTransport(answer), retries=0)
    for _ in range(2):
        with pytest.raises(errors.Unavailable):
            client.get("alice")
    assert cookies == [None, None]


def test_without_a_key_no_header_is_sent(connect: Connect, registry: FakeRegistry):
    """`Bearer ` alone is a malformed header to some proxies."""
    registry.add_version("alice")
    connect().get("alice")
    assert "authorization" not in registry.requests[0].headers


@pytest.mark.parametrize(
    "url",
    [
        None,
        "",
        "registry:8000",
        "ftp://host",
        "http://",
        "http://u:hunter2@host",
        "http://h/?a=b",
        "http://h:x",
    ],
)
def test_an_address_that_cannot_be_one_is_refused_at_once(connect: Connect, url: str | None):
    """A password in the address is not repeated."""
    with pytest.raises(ValueError, match="registry address") as caught:
        connect(url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("key", ["line\nbreak", "schlüssel", "two words", "nul\0"])
def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(connect: Connect, key: str):
    """A line break would start a header of its own."""
    with pytest.raises(ValueError, match="API key") as caught:
        connect(api_key=key)
    assert key not in str(caught.value)


def test_a_closed_client_says_so(connect: Connect):
    """httpx's own error names neither the client nor the registry."""
    client = connect()
    client.close()
    with pytest.raises(RuntimeError, match="was closed, and sends no more requests"):
        client.get("alice")


def test_a_client_in_a_second_event_loop_says_so(registry: FakeRegistry):
    """Its connections belong to the first one."""
    registry.add_version("alice")
    client = AsyncRegistryClient(URL, transport=httpx.MockTransport(registry))
    asyncio.run(client.get("alice"))
    with pytest.raises(RuntimeError, match="has sent requests in another event loop"):
        asyncio.run(client.get("alice"))


def test_pauses_that_the_registry_asks_for_are_reported(connect: Connect, registry: FakeRegistry):
    """A program can tell its user why a call takes long. After a lost connection nobody asked for a pause."""
    paused = []
    client = connect(on_pause=lambda error, seconds: paused.append((error.code, seconds)))
    registry.faults += [
        httpx.ConnectError("no route"),
        error_answer(429, "rate_limited", headers={"retry-after": "20"}),
    ]
    assert list(client.list()) == []
    [(code, seconds)] = paused
    assert code == "rate_limited"
    assert 20 <= seconds <= 28
