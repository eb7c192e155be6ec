"""vLLM-Omni's storage of uploaded voices behind HTTP routes, without a model.

The class that stores the voices, with its limits and messages, is vLLM-Omni's own (see `vllm_omni_readers`).
Only the routes are written here, because vLLM-Omni's need a GPU. They have the same statuses and answers.
"""

import asyncio
import email.utils
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, File, Form, HTTPException, Request, Response, UploadFile
from fastapi.responses import JSONResponse

from tests.vllm_omni_readers import readers

_LISTED = ("name", "consent", "created_at", "file_size", "mime_type", "embedding_source", "embedding_dim")
_PATH = "/v1/audio/voices"


class VoiceServer:
    """A server as vLLM-Omni runs it, with one API process at first.

    Args:
        folder: The folder of the uploads. What is there is found again by `start`.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.processes = 1
        self.later = 0.0
        """Seconds that are added to the time in the head of each answer."""
        self.fault: int | None = None
        """A status that answers everything, as a proxy in front may do."""
        self.requests: list[tuple[str, int]] = []
        """Method and status of each request."""
        self.app = _routes(self)
        self.start()

    def start(self, max_uploaded: int = 1000) -> None:
        """Start the server, or start it again."""
        self._monkeypatch.setenv("SPEAKER_SAMPLES_DIR", str(self._folder))
        self._monkeypatch.setenv("SPEAKER_MAX_UPLOADED", str(max_uploaded))
        self.speech: Any = object.__new__(readers().serving_speech.OmniOpenAIServingSpeech)
        self.speech._adapter = None
        self.speech._init_speaker_storage()

    @property
    def names(self) -> set[str]:
        return set(self.speech.uploaded_speakers)

    def transport(self) -> httpx.BaseTransport:
        """Return a transport that leads to this server without a network."""
        return InProcess(self.app)

    def count(self, method: str) -> int:
        """Return how many requests there were with this method."""
        return sum(one == method for one, _ in self.requests)

    def check_topology(self, operation: str) -> None:
        if self.processes > 1:
            raise HTTPException(
                409, f"{operation} is not supported with --api-server-count > 1 because the operation uses …"
            )


class InProcess(httpx.BaseTransport):
    """A transport that leads to an application in this process, without a network."""

    def __init__(self, app: FastAPI) -> None:
        self._asgi = httpx.ASGITransport(app)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        async def send() -> httpx.Response:
            content = request.read()
            sent = httpx.Request(request.method, request.url, headers=request.headers, content=content)
            answer = await self._asgi.handle_async_request(sent)
            return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

        return asyncio.run(send())


def _error(message: str, kind: str = "BadRequestError", status: int = 400) -> JSONResponse:
    error = {"message": message, "type": kind, "param": None, "code": status}
    return JSONResponse({"error": error}, status)


def _listed(name: str, info: dict[str, Any]) -> dict[str, Any]:
    defaults = {"name": name, "consent": "", "created_at": 0, "file_size": 0, "mime_type": ""}
    defaults |= {"embedding_source": "audio", "embedding_dim": None}
    entry = {key: info.get(key, defaults[key]) for key in _LISTED}
    return entry | {key: info[key] for key in ("ref_text", "speaker_description") if info.get(key)}


def _routes(server: VoiceServer) -> FastAPI:
    app = FastAPI()

    @app.middleware("http")
    async def observe(request: Request, answer: Any) -> Response:
        response: Response = (
            await answer(request) if server.fault is None else _error("no", status=server.fault)
        )
        server.requests.append((request.method, response.status_code))
        response.headers["date"] = email.utils.formatdate(time.time() + server.later, usegmt=True)
        return response

    @app.get(_PATH)
    async def list_voices() -> JSONResponse:
        speech = server.speech
        uploaded = [_listed(*one) for one in speech.uploaded_speakers.items()]
        return JSONResponse({"voices": sorted(speech._get_available_voices()), "uploaded_voices": uploaded})

    @app.post(_PATH)
    async def upload_voice(
        consent: Annotated[str, Form()],
        name: Annotated[str, Form()],
        audio_sample: Annotated[UploadFile | None, File()] = None,
        speaker_embedding: Annotated[str | None, Form()] = None,
        ref_text: Annotated[str | None, Form()] = None,
        speaker_description: Annotated[str | None, Form()] = None,
    ) -> JSONResponse:
        server.check_topology("Runtime voice upload")
        speech = server.speech
        try:
            if speaker_embedding is not None and audio_sample is not None:
                return _error("'audio_sample' and 'speaker_embedding' are mutually exclusive")
            if speaker_embedding is not None:
                result = await speech.upload_voice_embedding(speaker_embedding, consent, name)
            elif audio_sample is not None:
                facts = {"ref_text": ref_text, "speaker_description": speaker_description}
                result = await speech.upload_voice(audio_sample, consent, name, **facts)
            else:
                return _error("Either 'audio_sample' or 'speaker_embedding' must be provided")
        except ValueError as error:
            return _error(str(error))
        return JSONResponse({"success": True, "voice": result})

    @app.delete(_PATH + "/{name}")
    async def delete_voice(name: str) -> JSONResponse:
        server.check_topology("Runtime voice deletion")
        if not await server.speech.delete_voice(name):
            return _error(f"Voice '{name}' not found", "NotFoundError", 404)
        return JSONResponse({"success": True, "message": f"Voice '{name}' deleted successfully"})

    return app
