"""Tests of `push` against a whole registry, with vLLM-Omni's own storage of uploaded voices as the server."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from speaker_registry import RegistryClient
from speaker_registry.errors import InvalidRequest, Unavailable
from speaker_registry.pushing.pusher import Pusher
from speaker_registry.pushing.speech_server import SpeechServer
from tests.integration.api.conftest import Start
from tests.integration.api.moving import Run, runner
from tests.integration.api.registry import OTHER_CLIP, PROFILE, Led, Registry
from tests.queue_workers import wait_until
from tests.vllm_omni_server import VoiceServer


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(capsys)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> VoiceServer:
    return VoiceServer(tmp_path / "speakers", monkeypatch)


@pytest.fixture
def url(server: VoiceServer) -> Iterator[str]:
    """Serve the server on a port, and yield its address."""
    running = uvicorn.Server(uvicorn.Config(server.app, log_level="critical", date_header=False))
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
        thread.start()
        stack.callback(thread.join, 30)
        stack.callback(setattr, running, "should_exit", True)
        wait_until(lambda: running.started)
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_the_command_makes_a_server_offer_what_the_registry_holds(
    start: Start, run: Run, server: VoiceServer, url: str
):
    """The whole way: registered, pushed, replaced, deleted."""
    registry = start()
    registry.ready("Alice", ref_text="Hi.")
    registry.ready("bob")
    first = run(registry, "push", url, "--profile", PROFILE, "--once")
    assert (first.status, first.document["written"], server.names) == (0, 2, {"alice@1", "bob@1"})
    assert server.speech.uploaded_speakers["alice@1"]["ref_text"] == "Hi."
    registry.ready("Alice", clip=OTHER_CLIP)
    registry.client.delete("/v1/voices/bob")
    second = run(registry, "push", url, "--profile", PROFILE)
    assert (second.document["written"], second.document["removed"]) == (1, 1)
    assert server.names == {"alice@1", "alice@2"}


def test_another_registry_at_the_same_address_takes_nothing_away(start: Start, server: VoiceServer, url: str):
    """A wrong DNS entry must not replace the voices of a server, neither under a sidecar that goes on nor
    under a job that is started again.
    """
    registry, other = start(), start()
    registry.ready("alice")
    other.ready("mallory")
    transport = Led(registry)
    with (
        RegistryClient("http://registry.test", transport=transport, retries=0) as client,
        SpeechServer(url) as speech,
    ):

        def pusher() -> Pusher:
            return Pusher(client, speech, profile=PROFILE)

        sidecar = pusher()
        sidecar.run()
        transport.registry = other
        with pytest.raises(Unavailable, match="another registry answered"):
            sidecar.run()
        with pytest.raises(InvalidRequest, match="'alice@1', that were pushed from another registry"):
            pusher().run()
        assert server.names == {"alice@1"}
        transport.registry = registry
        for one in (sidecar, pusher()):
            assert [outcome.state for outcome in one.run().outcomes] == ["unchanged"]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["tts", "--profile", PROFILE], 2, "address or the API key of the TTS server is not accepted"),
        (["http://127.0.0.1:1", "--profile", PROFILE], 3, "no answer from http://127.0.0.1:1"),
        (["http://127.0.0.1:1", "--profile", "nope"], 5, "nope"),
        (["http://127.0.0.1:1", "--profile", PROFILE, "--slots", "0"], 2, "accepted: whole numbers from 1"),
        (["http://127.0.0.1:1", "--profile", PROFILE, "--interval", "5"], 2, "--interval"),
    ],
)
def test_what_cannot_be_pushed_is_refused(
    registry: Registry, run: Run, words: list[str], status: int, message: str
):
    """Each error says what was wrong, and ends with the exit code of its kind."""
    outcome = run(registry, "push", *words)
    assert outcome.status == status
    assert message in outcome.document["error"]["message"]
