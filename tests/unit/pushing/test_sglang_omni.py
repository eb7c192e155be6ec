"""Tests of the pusher with a stand-in for SGLang-Omni, which has the server's names, limits and answers.

The stand-in follows the routes and limits of `sglang_omni/serve/` in github.com/sgl-project/sglang-omni:
`openai_api.py` has the routes, `speech_voices.py` (as of commit 01782f8f) stores the voices, and
`speech_limits.py` and `speech_errors.py` have the limits and the form of errors. The package needs a GPU, so
it cannot run here.
"""

import io
import re
from email.utils import formatdate
from typing import Annotated, Any

import numpy as np
import pytest
import soundfile
from fastapi import FastAPI, File, Form, Request, Response, UploadFile
from fastapi.responses import JSONResponse
from starlette.middleware.base import RequestResponseEndpoint

from speaker_registry.pushing.pusher import Pusher
from speaker_registry.pushing.speech_server import SpeechServer
from tests.unit.pushing.test_pusher import LATER, Client, reason, states
from tests.unit.sdk.fake_registry import QWEN
from tests.unit.sdk.test_following import entry
from tests.vllm_omni_server import InProcess

NAME = re.compile(r"(?=.*[A-Za-z0-9])[A-Za-z0-9_.-]+")
WRONG_NAME = "name must contain only letters, numbers, '.', '_', and '-'"
PATH = "/v1/audio/voices"
MAX_CLIP_BYTES = 10 * 1024**2
MAX_BODY_BYTES = MAX_CLIP_BYTES + 64 * 1024
MEDIA_TYPES = {
    *("audio/aac", "audio/flac", "audio/mp4", "audio/mpeg", "audio/ogg", "audio/wav", "audio/webm"),
    *("audio/x-wav", "video/mp4", "video/webm"),
}


class Server:
    """SGLang-Omni's storage of uploaded voices, as far as a client sees it."""

    def __init__(self, most: int = 1000) -> None:
        self.most, self.now, self._last = most, 1_000_000.0, 0
        self.voices: dict[str, dict[str, Any]] = {}
        self.overwritten: list[str] = []
        self.app = FastAPI()
        self.app.middleware("http")(_limit_body)
        self.app.get(PATH)(self._list)
        self.app.post(PATH)(self._upload)
        self.app.delete(PATH + "/{name}")(self._delete)

    def _list(self) -> JSONResponse:
        names = sorted({"default", *(one["name"] for one in self.voices.values())}, key=str.lower)
        uploaded = [self.voices[key] for key in sorted(self.voices)]
        shown = {"voices": names, "uploaded_voices": uploaded, "cache_stats": {"hits": 0}}
        return JSONResponse(shown, headers={"date": formatdate(self.now, usegmt=True)})

    def _upload(
        self,
        audio_sample: Annotated[UploadFile, File()],
        consent: Annotated[str, Form()],
        name: Annotated[str, Form()],
        ref_text: Annotated[str | None, Form()] = None,
        speaker_description: Annotated[str | None, Form()] = None,
    ) -> JSONResponse:
        clip = audio_sample.file.read()
        fault = _fault_of_name(name) or _fault_of_clip(clip, audio_sample.content_type)
        if fault is None and not consent.strip():
            fault = refused("consent must be non-empty", "consent")
        key = name.strip().lower()
        if fault is None and key not in self.voices and len(self.voices) >= self.most:
            fault = refused(f"Uploaded voice limit reached ({self.most})", "name")
        if fault is not None:
            return fault
        self._last = max(int(self.now), self._last + 1)
        voice = {"name": name.strip(), "consent": consent.strip(), "created_at": self._last}
        voice |= {"file_size": len(clip), "mime_type": audio_sample.content_type}
        texts = {"ref_text": ref_text, "speaker_description": speaker_description}
        voice |= {field: text.strip() for field, text in texts.items() if text and text.strip()}
        warning = {}
        if key in self.voices:
            self.overwritten.append(key)
            warning = {"warning": f"Voice '{name.strip()}' overwritten"}
        self.voices[key] = voice
        return JSONResponse(voice | warning)

    def _delete(self, name: str) -> JSONResponse:
        if not NAME.fullmatch(name.strip()):
            return refused(WRONG_NAME, "name")
        if self.voices.pop(name.strip().lower(), None) is None:
            return JSONResponse({"success": False, "error": f"Voice '{name}' not found"}, 404)
        return JSONResponse({"success": True, "message": f"Voice '{name}' deleted successfully"})


async def _limit_body(request: Request, proceed: RequestResponseEndpoint) -> Response:
    """Refuse an upload that is too large before its form is parsed."""
    if request.method == "POST" and int(request.headers.get("content-length", 0)) > MAX_BODY_BYTES:
        return refused(f"request body must be at most {MAX_BODY_BYTES} bytes", "audio_sample", 413)
    return await proceed(request)


def _fault_of_name(name: str) -> JSONResponse | None:
    if not NAME.fullmatch(name.strip()):
        return refused(WRONG_NAME, "name")
    if name.strip().lower() == "default":
        return refused("name is reserved for a preset voice", "name")
    return None


def _fault_of_clip(clip: bytes, media_type: str | None) -> JSONResponse | None:
    if not clip:
        return refused("audio_sample must not be empty", "audio_sample")
    if len(clip) > MAX_CLIP_BYTES:
        return refused(f"audio_sample must be at most {MAX_CLIP_BYTES} bytes", "audio_sample")
    if media_type not in MEDIA_TYPES:
        return refused(f"audio_sample MIME type must be one of: {MEDIA_TYPES}", "audio_sample")
    try:
        samples, rate = soundfile.read(io.BytesIO(clip))
    except soundfile.LibsndfileError:
        return refused("audio_sample could not be decoded as a supported audio format", "audio_sample")
    seconds = len(samples) / rate
    if seconds < 1.0:
        return refused("audio_sample must be at least 1.0s", "audio_sample")
    if seconds > 30.0:
        return refused("audio_sample must be at most 30.0s", "audio_sample")
    if np.max(np.abs(samples)) <= 1e-5:
        return refused("audio_sample must contain non-silent speech reference audio", "audio_sample")
    return None


def refused(message: str, param: str, status: int = 400) -> JSONResponse:
    kind = "RequestTooLargeError" if status == 413 else "BadRequestError"
    error = {"message": message, "type": kind, "param": param, "code": status}
    return JSONResponse({"error": error}, status)


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def server() -> Server:
    return Server()


def pusher_of(client: Client, server: Server, **options: Any) -> Pusher:
    speech = SpeechServer("http://tts.test", transport=InProcess(server.app))
    options = {"clock": lambda: server.now, **options}
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
    server.now += LATER + 2  # the server never gives two uploads the same second, so its times run ahead
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
