"""Tests of the pusher with a stand-in for SGLang-Omni, which has the server's names, limits and answers."""

import io
import re
from email.utils import formatdate
from typing import Annotated, Any

import pytest
import soundfile
from fastapi import FastAPI, File, Form, UploadFile
from fastapi.responses import JSONResponse

from speaker_registry.pushing.pusher import Pusher
from speaker_registry.pushing.speech_server import SpeechServer
from tests.unit.pushing.test_pusher import LATER, Client, reason, states
from tests.unit.sdk.fake_registry import QWEN
from tests.unit.sdk.test_following import entry
from tests.vllm_omni_server import InProcess

NAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9_.-]+")
PATH = "/v1/audio/voices"


class Server:
    """SGLang-Omni's storage of uploaded voices, as far as a client sees it."""

    def __init__(self, most: int = 1000) -> None:
        self.most, self.now = most, 1_000_000.0
        self.voices: dict[str, dict[str, Any]] = {}
        self.overwritten: list[str] = []
        self.app = FastAPI()
        self.app.get(PATH)(self._list)
        self.app.post(PATH)(self._upload)
        self.app.delete(PATH + "/{name}")(self._delete)

    def _list(self) -> JSONResponse:
        names = sorted({"default", *(one["name"] for one in self.voices.values())}, key=str.lower)
        shown = {"voices": names, "uploaded_voices": list(self.voices.values()), "cache_stats": {}}
        return JSONResponse(shown, headers={"date": formatdate(self.now, usegmt=True)})

    def _upload(
        self,
        consent: Annotated[str, Form()],
        name: Annotated[str, Form()],
        audio_sample: Annotated[UploadFile, File()],
        ref_text: Annotated[str | None, Form()] = None,
    ) -> JSONResponse:
        key = name.strip().lower()
        samples, rate = soundfile.read(io.BytesIO(audio_sample.file.read()))
        if not NAME.fullmatch(name.strip()) or key == "default":
            return refused("name must contain only letters, numbers, '.', '_', and '-'", "name")
        if not 1.0 <= len(samples) / rate <= 30.0:
            return refused("audio_sample must be at least 1.0s", "audio_sample")
        if key not in self.voices and len(self.voices) >= self.most:
            return refused(f"Uploaded voice limit reached ({self.most})", "name")
        self.overwritten += [key] if key in self.voices else []
        voice = {"name": name.strip(), "consent": consent, "created_at": int(self.now), "ref_text": ref_text}
        self.voices[key] = voice
        return JSONResponse({"success": True, "voice": voice})

    def _delete(self, name: str) -> JSONResponse:
        if self.voices.pop(name.lower(), None) is None:
            return refused("no such voice", "name", 404)
        return JSONResponse({"success": True})


def refused(message: str, param: str, status: int = 400) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": status}
    return JSONResponse({"error": error}, status)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def server() -> Server:
    return Server()


def pusher_of(client: Client, server: Server, **options: Any) -> Pusher:
    speech = SpeechServer("http://tts.test", transport=InProcess(server.app))
    return Pusher(client, speech, profile=QWEN, kind="sglang-omni", **options)  # type: ignore[arg-type]


def test_voices_arrive_are_replaced_and_leave(client: Client, server: Server):
    """SGLang-Omni overwrites a voice in place, so each version has a name of its own."""
    client.voices = [entry("Alice", 2, ref_text="Hi."), entry("bob")]
    pusher = pusher_of(client, server)
    assert states(pusher) == {"Alice@2": "written", "bob@1": "written"}
    assert (server.voices.keys(), server.voices["alice.v2"]["ref_text"]) == ({"alice.v2", "bob.v1"}, "Hi.")
    client.voices = [entry("Alice", 3)]
    assert states(pusher) == {"Alice@3": "written"}
    assert server.voices.keys() == {"alice.v2", "alice.v3"}
    server.now += LATER
    assert states(pusher) == {"Alice@3": "unchanged"}
    assert (server.voices.keys(), server.overwritten) == ({"alice.v3"}, [])


def test_a_later_pusher_finds_what_a_former_one_has_pushed(client: Client, server: Server):
    client.voices = [entry("alice")]
    pusher_of(client, server).run()
    assert states(pusher_of(client, server)) == {"alice@1": "unchanged"}
    client.voices = []
    pusher_of(client, server).run()
    assert server.voices == {}


@pytest.mark.parametrize(
    ("voice", "seconds", "why"),
    [
        (entry("Über uns"), 1.5, "accepts no name such as '\\xfcber uns.v1'"),
        (entry("eve", source="embedding"), 1.5, "SGLang-Omni takes only clips"),
        (entry("brief"), 0.9, "the server refuses it: audio_sample must be at least 1.0s"),
    ],
)
def test_what_it_cannot_have_is_reported_and_keeps_no_other_out(
    client: Client, server: Server, voice: Any, seconds: float, why: str
):
    """One voice that does not fit must not cost the others."""
    client.voices, client.seconds = [voice], seconds
    pusher = pusher_of(client, server)
    assert why in reason(pusher)
    client.voices, client.seconds = [voice, entry("alice")], 1.5
    pusher.run()
    assert server.voices.keys() == {"alice.v1"}


def test_voices_without_a_ready_artifact_are_pushed_too(client: Client, server: Server):
    """The server clones from the clip, so all voices of a namespace can be pushed."""
    client.voices = [entry("alice", state="failed"), entry("bob", state=None)]
    assert states(pusher_of(client, server)) == {"alice@1": "written", "bob@1": "written"}


def test_a_full_server_says_so(client: Client):
    client.voices = [entry("alice"), entry("bob")]
    assert reason(pusher_of(client, Server(most=1))) == (
        "the server refuses it: Uploaded voice limit reached (1)"
    )
