"""Tests of the example of a gateway, between a client of OpenAI's speech API, a registry and a TTS server
that remembers what it was sent.
"""

import asyncio
import base64
import importlib.util
import io
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Receive, Send

from speaker_registry import RegistryClient
from speaker_registry.artifact import Artifact, encode
from speaker_registry.errors import VoiceNotFound
from tests.http_server import http_server
from tests.integration.api.access import BOOTSTRAP, CLOSED, bearer, id_of, key
from tests.integration.api.conftest import Start
from tests.integration.api.registry import EMBEDDING, OTHER_CLIP, PROFILE, Registry
from tests.queue_workers import wait_until
from tests.relay import Relay

FILE = Path(__file__).parents[3] / "examples/gateway/gateway.py"
SPEECH = "/v1/audio/speech"


@pytest.fixture(scope="module")
def gateway() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("gateway", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gateway"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gateway"]


class Upstream:
    """A TTS server that says which bytes it has spoken."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.status = 200

    def answer(self, request: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        assert request.path == SPEECH
        self.documents.append(json.loads(body))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        return self.status, b"sound"


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


Open = Callable[..., TestClient]


@pytest.fixture
def connect(gateway: ModuleType, upstream: Upstream) -> Iterator[Open]:
    """Return a function that starts a gateway and returns a client of it, with `prompts` for the test."""
    with http_server(upstream.answer) as server:
        opened: list[tuple[TestClient, RegistryClient]] = []

        def make(url: str, send: str = "clip", server: str = server) -> TestClient:
            registry = RegistryClient(url, retries=0)
            prompts = gateway.Prompts(registry, PROFILE, send)
            client = TestClient(gateway.Gateway(prompts, server, poll_seconds=0.05).app)
            client.__enter__()
            opened.append((client, registry))
            wait_until(lambda: prompts._following._manifest is not None)
            return client

        yield make
        for client, registry in opened:
            client.__exit__(None, None, None)
            registry.close()


def say(client: TestClient, voice: object = "Alice", **fields: Any) -> Any:
    body = {"model": "tts-1", "input": "Hello.", "voice": voice, **fields}
    return client.post(SPEECH, json=body, headers={"authorization": "Bearer of-the-server"})


def samples_in(document: dict[str, Any]) -> np.ndarray:
    kind, _, text = document["ref_audio"].partition(",")
    assert kind == "data:audio/wav;base64"
    samples: np.ndarray = soundfile.read(io.BytesIO(base64.b64decode(text)), dtype="float32")[0]
    return samples


def stored(registry: Registry, name: str) -> np.ndarray:
    with RegistryClient(registry.url) as client:
        return client.samples(name).samples


def test_a_voice_of_the_registry_becomes_its_clip_and_transcript(
    start: Start, connect: Open, upstream: Upstream
):
    """Any server that clones from a clip in the request can speak with it, on any number of replicas."""
    registry = start()
    registry.ready("Alice", ref_text="Hi.")
    answer = say(connect(registry.url), speed=1.5)
    assert (answer.status_code, answer.content) == (200, b"sound")
    [document] = upstream.documents
    assert (samples_in(document) == stored(registry, "alice")).all()
    assert {key: one for key, one in document.items() if key != "ref_audio"} == {
        "model": "tts-1",
        "input": "Hello.",
        "ref_text": "Hi.",
        "speed": 1.5,
    }
    assert upstream.headers[0]["authorization"] == "Bearer of-the-server"


def test_a_voice_is_known_by_each_spelling_that_the_registry_accepts(
    start: Start, connect: Open, upstream: Upstream
):
    """The server may have a voice of its own under another spelling of the same name."""
    registry = start()
    registry.ready("Zo\u00eb")
    client = connect(registry.url)
    for spelling in ("zo\u00eb", "Zoe\u0308", "  ZOE\u0308 "):
        assert say(client, spelling).status_code == 200
    assert [document.keys() & {"voice", "ref_audio"} for document in upstream.documents] == [
        {"ref_audio"}
    ] * 3


def test_a_clip_without_a_transcript_is_sent_for_its_timbre_alone(
    start: Start, connect: Open, upstream: Upstream
):
    """Qwen3-TTS refuses it otherwise."""
    registry = start()
    registry.ready("alice")
    say(connect(registry.url))
    assert upstream.documents[0]["x_vector_only_mode"] is True
    assert "ref_text" not in upstream.documents[0]


def test_a_speaker_embedding_can_be_sent_instead(start: Start, connect: Open, upstream: Upstream):
    registry = start()
    registry.ready("alice", ref_text="Hi.")
    registry.upload("eve", clip=None, speaker_embedding=EMBEDDING)
    say(connect(registry.url, "embedding"))
    say(connect(registry.url), voice="eve")
    first, second = upstream.documents
    assert len(first["speaker_embedding"]) == 1024
    assert second["speaker_embedding"] == [0.25] * 1024
    assert not {"voice", "ref_audio", "ref_text"} & (first.keys() | second.keys())


@pytest.mark.parametrize(
    ("voice", "fields"),
    [
        ("nobody", {}),
        ("alice", {"ref_audio": "data:audio/wav;base64,AAAA"}),
        ("alice", {"speaker_embedding": [0.5]}),
        ({"id": "alice"}, {}),
        (None, {}),
    ],
    ids=["a voice of the server", "own clip", "own embedding", "no name", "none"],
)
def test_everything_else_passes_as_it_is(
    registry: Registry, connect: Open, upstream: Upstream, voice: object, fields: dict[str, Any]
):
    """The server's own voices go on to work."""
    registry.ready("alice")
    say(connect(registry.url), voice, **fields)
    assert upstream.documents == [{"model": "tts-1", "input": "Hello.", "voice": voice, **fields}]


def test_empty_fields_do_not_take_the_place_of_the_voice(start: Start, connect: Open, upstream: Upstream):
    """Many clients send every field that they know. The server would speak with a voice of its own."""
    registry = start()
    registry.ready("alice", ref_text="Hi.")
    client = connect(registry.url)
    for empty in ({"ref_audio": None, "speaker_embedding": None}, {"ref_audio": "", "ref_text": None}):
        say(client, **empty)
        document = upstream.documents[-1]
        assert (samples_in(document) == stored(registry, "alice")).all()
        assert document["ref_text"] == "Hi."
        assert not {"voice", "speaker_embedding"} & document.keys()


@pytest.mark.parametrize("own", ["Hi.", None], ids=["with a transcript", "without"])
def test_the_transcript_is_that_of_the_clip(start: Start, connect: Open, upstream: Upstream, own: str | None):
    """With another text than the clip's own, a server would continue the clip wrongly."""
    registry = start()
    registry.ready("alice", ref_text=own)
    say(connect(registry.url), ref_text="Something else.")
    assert upstream.documents[0].get("ref_text") == own


def test_another_embedding_of_the_same_version_is_noticed(start: Start, connect: Open, upstream: Upstream):
    """A promotion, a forced extraction and an upload make another one."""
    registry = start()
    registry.ready("alice")
    client = connect(registry.url, "embedding")
    say(client)
    made = Artifact.parse(registry.file("alice").content)
    other = encode(made.tensors | {"speaker_embedding": np.full(1024, 0.125, np.float32)}, made.manifest)
    path = f"/v1/voices/alice/versions/1/artifacts/{PROFILE}"
    assert registry.client.put(path, content=other).status_code == 201
    wait_until(lambda: say(client) and upstream.documents[-1]["speaker_embedding"] == [0.125] * 1024)


def test_a_number_that_was_given_again_is_not_the_former_version(
    start: Start, gateway: ModuleType, upstream: Upstream
):
    """After a registry was restored from a backup, another clip may get the number of a lost one."""
    registry = start()
    registry.ready("alice")
    with RegistryClient(registry.url) as client:
        prompts = gateway.Prompts(client, PROFILE, "clip")
        prompts.look()
        entry = prompts.entry_of("alice")
        prompt = prompts.fetch(entry)
        assert prompts.kept(entry) == prompt
        assert prompts.kept(entry.model_copy(update={"version_id": "of_another_clip"})) is None


def test_a_new_version_and_a_deletion_are_noticed(start: Start, connect: Open, upstream: Upstream):
    registry = start()
    registry.ready("alice", ref_text="Hi.")
    client = connect(registry.url)
    say(client)
    registry.ready("alice", clip=OTHER_CLIP, ref_text="Ho.")
    wait_until(lambda: say(client) and upstream.documents[-1].get("ref_text") == "Ho.")
    assert len(samples_in(upstream.documents[-1])) != len(samples_in(upstream.documents[0]))
    registry.client.delete("/v1/voices/alice")
    wait_until(lambda: say(client) and upstream.documents[-1].get("voice") == "Alice")


def test_a_known_voice_needs_no_registry(start: Start, connect: Open, upstream: Upstream):
    """Speech must not end when the registry is away, and one that is new fails with a reason."""
    registry = start()
    registry.ready("alice", ref_text="Hi.")
    registry.ready("bob", ref_text="Ho.")
    with Relay(registry.port) as relay:
        relay.open()
        client = connect(relay.url)
        say(client)
        relay.close()
        assert say(client).status_code == 200
        refused = say(client, "bob")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert [one["ref_text"] for one in upstream.documents] == ["Hi.", "Hi."]


def test_a_known_voice_takes_no_thread(
    start: Start, connect: Open, upstream: Upstream, gateway: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    """All threads may be waiting for a registry that answers slowly, for voices that are not in memory."""
    registry = start()
    registry.ready("alice")
    client = connect(registry.url)
    assert say(client).status_code == 200

    async def no_thread_is_free(*_: object) -> None:
        raise AssertionError("all threads wait")

    monkeypatch.setattr(gateway.Gateway, "_fetched", no_thread_is_free)
    assert say(client).status_code == 200
    assert say(client, "of-the-server").status_code == 200
    assert [sorted(one.keys() & {"voice", "ref_audio"}) for one in upstream.documents] == [
        ["ref_audio"],
        ["ref_audio"],
        ["voice"],
    ]


def client_of(app: ASGIApp) -> httpx.AsyncClient:
    """Return a client whose requests the gateway answers in this process, many at once."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://g", timeout=30)


def knowing_all_voices(fetch: Callable[[str], object]) -> SimpleNamespace:
    """Return the prompts of a registry that has every voice, which `fetch` gets."""
    return SimpleNamespace(look=lambda: None, entry_of=lambda voice: voice, kept=lambda _: None, fetch=fetch)


def test_a_crowd_of_new_voices_is_fetched_by_few_threads(gateway: ModuleType):
    """Each thread takes address space, and a gateway with little of it would end or hang."""
    lock, fetching, most = threading.Lock(), 0, 0

    def fetch(_: str) -> object:
        nonlocal fetching, most
        with lock:
            fetching += 1
            most = max(most, fetching)
        time.sleep(0.02)
        with lock:
            fetching -= 1
        raise VoiceNotFound("gone")

    async def ask_at_once() -> set[int]:
        between = gateway.Gateway(knowing_all_voices(fetch), "http://tts.test")
        async with client_of(between.app) as client:
            asked = (client.post(SPEECH, json={"voice": f"v{number}"}) for number in range(40))
            return {one.status_code for one in await asyncio.gather(*asked)}

    assert asyncio.run(ask_at_once()) == {404}
    assert 1 < most <= gateway.MAX_FETCHES


def test_a_request_does_not_wait_long_until_it_may_fetch_its_voice(
    gateway: ModuleType, monkeypatch: pytest.MonkeyPatch
):
    """While the registry hangs, the last of a crowd would otherwise wait for minutes."""
    monkeypatch.setattr(gateway, "MAX_FETCHES", 1)
    monkeypatch.setattr(gateway, "MAX_WAIT_SECONDS", 0.1)
    answers = threading.Event()

    def fetch(_: str) -> object:
        answers.wait(20)
        raise VoiceNotFound("gone")

    async def ask_in_turn() -> list[int]:
        between = gateway.Gateway(knowing_all_voices(fetch), "http://tts.test")
        async with client_of(between.app) as client:
            first = asyncio.create_task(client.post(SPEECH, json={"voice": "first"}))
            await asyncio.sleep(0.05)
            try:
                second = await asyncio.wait_for(client.post(SPEECH, json={"voice": "second"}), 5)
            finally:
                answers.set()
            third = await client.post(SPEECH, json={"voice": "third"})
            return [one.status_code for one in (await first, second, third)]

    assert asyncio.run(ask_in_turn()) == [404, 503, 404]


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't start new thread")])
@pytest.mark.parametrize("step", ["fetching", "sending"])
def test_a_gateway_that_is_short_of_memory_or_threads_says_so(
    gateway: ModuleType, caplog: pytest.LogCaptureFixture, step: str, error: Exception
):
    """Clients of OpenAI's API can read the refusal, and try again. An operator can read where it comes from:
    the look-up of the server's address takes a thread as well, and other causes have the same errors.
    """

    def fail(_: object) -> Any:
        raise error

    def fetch(voice: str) -> object:
        return fail(voice) if step == "fetching" else {"ref_audio": "data:,"}

    short = gateway.Gateway(knowing_all_voices(fetch), "http://tts.test")
    short._http = httpx.AsyncClient(base_url="http://tts.test", transport=httpx.MockTransport(fail))
    refused = say(TestClient(short.app))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    [logged] = [one for one in caplog.records if one.name == "gateway"]
    assert logged.exc_info is not None


def test_no_error_ends_the_looks_at_the_registry(gateway: ModuleType, caplog: pytest.LogCaptureFixture):
    """Deleted voices would otherwise be spoken with until the gateway is started again."""
    looks: list[str] = []

    def look() -> None:
        looks.append("at the registry")
        if len(looks) == 1:
            raise MemoryError

    prompts = SimpleNamespace(look=look)
    with TestClient(gateway.Gateway(prompts, "http://tts.test", poll_seconds=0.01).app):
        wait_until(lambda: len(looks) > 1)
    [logged] = [one for one in caplog.records if one.name == "gateway"]
    assert logged.exc_info is not None


def test_before_the_registry_has_answered_no_voice_passes(gateway: ModuleType, upstream: Upstream):
    """The server may have another voice of that name."""
    with http_server(upstream.answer) as server, RegistryClient("http://127.0.0.1:1", retries=0) as registry:
        prompts = gateway.Prompts(registry, PROFILE, "clip")
        with TestClient(gateway.Gateway(prompts, server).app) as client:
            refused = say(client)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
            assert say(client, speaker_embedding=[0.5]).status_code == 200
    assert [one["voice"] for one in upstream.documents] == ["Alice"]


def test_a_key_that_is_revoked_opens_nothing_any_more(start: Start, gateway: ModuleType, upstream: Upstream):
    """Trying again does not help, and without a reason only the gateway's log would tell."""
    registry = start(access=CLOSED)
    registry.upload("alice", headers=bearer(BOOTSTRAP, "mine"))
    token = key(registry, "engine", "audio:read", namespace="mine")
    with http_server(upstream.answer) as server, RegistryClient(registry.url, api_key=str(token)) as client:
        prompts = gateway.Prompts(client, PROFILE, "clip")
        with TestClient(gateway.Gateway(prompts, server, poll_seconds=0.05).app) as gate:
            wait_until(lambda: say(gate).is_success)
            spoken = len(upstream.documents)
            registry.client.delete(f"/v1/keys/{id_of(token)}", headers=bearer(BOOTSTRAP))
            wait_until(lambda: "refuses the gateway's key. This API key is revoked" in say(gate).text)
            assert say(gate).status_code == 503
    assert all("ref_audio" in one for one in upstream.documents[:spoken])


def test_what_a_server_can_read_passes_as_it_is(start: Start, connect: Open, upstream: Upstream):
    """Half of a character that takes two is valid JSON, and headers may have bytes beyond ASCII."""
    body = b'{"input": "\\ud83d", "voice": "nobody"}'
    answer = connect(start().url).post(SPEECH, content=body, headers={"authorization": "Bearer é".encode()})
    assert answer.status_code == 200
    assert upstream.documents == [{"input": "\ud83d", "voice": "nobody"}]
    assert upstream.headers[0]["authorization"].encode("latin-1") == "Bearer é".encode()


@asynccontextmanager
async def gateway_before(
    gateway: ModuleType, answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[ASGIApp]:
    """Run a gateway before a server that answers each connection with a function."""
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield gateway.Gateway(SimpleNamespace(), f"http://{host}:{port}").app


async def ask_for_speech(app: ASGIApp, afterwards: Receive, send: Send) -> None:
    """Ask for speech as an ASGI server does. `afterwards` tells what the client does after its request."""
    messages = iter([{"type": "http.request", "body": b'{"input": "Hello."}', "more_body": False}])

    async def receive() -> Message:
        return next(messages, None) or await afterwards()

    scope = {"type": "http", "method": "POST", "path": SPEECH, "headers": [], "query_string": b""}
    await asyncio.wait_for(app(scope, receive, send), 20)


def test_any_number_of_requests_reach_the_server_at_once(gateway: ModuleType):
    """It is the server's to say how many are too many. Clients that read slowly would otherwise hold up all
    others in the gateway.
    """
    all_wait = asyncio.Barrier(150)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        await all_wait.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def ask_at_once() -> set[int]:
        async with (
            gateway_before(gateway, answer) as app,
            client_of(app) as client,
        ):
            asked = (client.post(SPEECH, json={"input": "Hello."}) for _ in range(all_wait.parties))
            answers = await asyncio.wait_for(asyncio.gather(*asked), 60)
        return {one.status_code for one in answers}

    assert asyncio.run(ask_at_once()) == {200}


def test_a_client_that_leaves_ends_its_request_to_the_server(gateway: ModuleType):
    """A server that has not begun to answer would otherwise go on to speak for nobody."""
    arrived, left = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        arrived.set()
        if not await reader.read():
            left.set()
        writer.close()

    async def leave() -> dict[str, Any]:
        await arrived.wait()
        return {"type": "http.disconnect"}

    async def send(_: object) -> None:
        pass

    async def ask_and_leave() -> None:
        async with gateway_before(gateway, answer) as app:
            await ask_for_speech(app, leave, send)
            await asyncio.wait_for(left.wait(), 20)

    asyncio.run(ask_and_leave())


def test_an_answer_that_breaks_off_is_told_in_one_line(gateway: ModuleType, caplog: pytest.LogCaptureFixture):
    """The client must not take the part that it has got for the whole."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nso")
        writer.close()

    sent: list[dict[str, Any]] = []

    async def stay() -> dict[str, Any]:
        await asyncio.sleep(60)
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def ask() -> None:
        async with gateway_before(gateway, answer) as app:
            await ask_for_speech(app, stay, send)

    asyncio.run(ask())
    assert [one.get("body") for one in sent] == [None, b"so"], "nothing says that this is the end"
    [line] = [one.getMessage() for one in caplog.records if one.name == "gateway"]
    assert line.startswith("The TTS server's answer broke off: peer closed connection")


def test_what_the_server_refuses_is_told(start: Start, connect: Open, upstream: Upstream):
    """A client sees the server's own status, and that of a gateway if there is none."""
    registry = start()
    upstream.status = 422
    assert say(connect(registry.url)).status_code == 422
    gone = say(connect(registry.url, server="http://127.0.0.1:1"))
    assert (gone.status_code, gone.json()["error"]["code"]) == (502, "bad_gateway")


def test_a_page_of_a_proxy_is_not_passed_on_as_speech(gateway: ModuleType):
    """A player would be given HTML with the status 200, and nobody would learn what is wrong."""
    prompts = gateway.Prompts(RegistryClient("http://127.0.0.1:1"), PROFILE, "clip")
    prompts._entries = {}  # the registry has answered, and has no voices
    between = gateway.Gateway(prompts, "http://tts.test")
    page = httpx.MockTransport(lambda _: httpx.Response(200, html="<html>Sign in</html>"))
    between._http = httpx.AsyncClient(base_url="http://tts.test", transport=page)
    refused = say(TestClient(between.app))
    assert (refused.status_code, refused.json()["error"]["code"]) == (502, "bad_gateway")
    assert refused.json()["error"]["message"] == (
        "The TTS server answers 200 with the content type 'text/html; charset=utf-8' in place of speech. "
        "Check whether a proxy answers in its place"
    )


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"[1]", 400, "the body is b'[1]'; accepted: a JSON object with 'input' and 'voice'"),
        (b"[" * 100_000, 400, "accepted: a JSON object"),
        (b'{"speed": NaN}', 400, "accepted: JSON that can be sent on"),
        (b" " * 1024**2 + b"{}", 413, "the body has more than 1048576 bytes, which is the maximum"),
    ],
    ids=["list", "deep", "not a number", "large"],
)
def test_a_body_that_cannot_be_meant_is_refused(
    registry: Registry, connect: Open, upstream: Upstream, body: bytes, status: int, message: str
):
    answer = connect(registry.url).post(SPEECH, content=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]
    assert upstream.documents == []


def test_the_application_is_made_from_the_environment(gateway: ModuleType, monkeypatch: pytest.MonkeyPatch):
    """The command on the page of the gateway uses this."""
    for name, value in {
        "SPEAKER_REGISTRY_URL": "http://127.0.0.1:1",
        "GATEWAY_PROFILE": PROFILE,
        "GATEWAY_SERVER": "http://127.0.0.1:1",
    }.items():
        monkeypatch.setenv(name, value)
    assert [route.path for route in gateway.create_app().routes] == [SPEECH]


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("GATEWAY_SERVER", "", "GATEWAY_SERVER is not set"),
        ("GATEWAY_SERVER", "tts:8000", "'tts:8000'; accepted: an address that begins with http://"),
        ("GATEWAY_SERVER", "http://", "'http://'; accepted"),
        ("GATEWAY_SERVER", "http://tts:eight", "'http://tts:eight'; accepted"),
        ("GATEWAY_PROFILE", "", "GATEWAY_PROFILE is not set"),
        ("GATEWAY_SEND", "both", "'both'; accepted: clip, embedding"),
        ("SPEAKER_REGISTRY_URL", "", "no registry address"),
    ],
)
def test_a_variable_that_cannot_be_used_ends_the_start_with_one_line(
    gateway: ModuleType, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
):
    """A traceback that ends in a KeyError would not say where the name belongs."""
    for name in ("SPEAKER_REGISTRY_URL", "GATEWAY_SERVER"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.setenv("GATEWAY_PROFILE", PROFILE)
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit, match=f"^gateway: .*{told}"):
        gateway.create_app()


def test_a_voice_that_was_deleted_since_the_last_look_is_not_found(
    start: Start, gateway: ModuleType, upstream: Upstream
):
    """A client that is told 503 would try again in vain."""
    registry = start()
    registry.ready("alice")
    with http_server(upstream.answer) as server, RegistryClient(registry.url, retries=0) as client:
        prompts = gateway.Prompts(client, PROFILE, "clip")
        with TestClient(gateway.Gateway(prompts, server, poll_seconds=600).app) as gate:
            wait_until(lambda: bool(prompts._entries))
            client.delete("alice")
            refused = say(gate)
            prompts.look()  # the next one, after which the name is the server's own again
            assert say(gate).status_code == 200
    assert (refused.status_code, refused.json()["error"]["code"]) == (404, "voice_not_found")
    assert refused.json()["error"]["message"] == "Voice 'alice' has no version 1 any more"
