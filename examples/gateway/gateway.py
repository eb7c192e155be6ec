"""A gateway that gives TTS servers with OpenAI's speech API the voices of a registry.

A request for the voice `wren` goes on to the server with the clip and the transcript of `wren`, or with its
speaker embedding. Everything else passes through as it is, in both directions. The page docs/gateway.md
describes it.
"""

import base64
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from speaker_registry import RegistryClient
from speaker_registry.errors import InvalidRequest, PayloadTooLarge, SpeakerRegistryError, Unavailable
from speaker_registry.following import Following
from speaker_registry.names import key_of_name

log = logging.getLogger("gateway")

SPEECH = "/v1/audio/speech"
MAX_BODY_BYTES = 1024**2
MAX_PROMPTS = 256
"""The number of voices that are kept in memory. A clip of ten seconds takes 1 to 3 MB."""
OWN_VOICE = ("ref_audio", "speaker_embedding")
"""A request with one of these fields brings its own voice."""
_SENT_ON = ("accept", "authorization", "x-request-id")
_SENT_BACK = ("content-type", "retry-after", "x-request-id")
_STATUS = {InvalidRequest: 400, PayloadTooLarge: 413}

Prompt = Mapping[str, Any]
"""The fields of a speech request that stand for a voice."""


class Prompts:
    """Knows which voices there are, and what a server must be sent for each.

    Args:
        profile: The profile of the model that the server serves.
        send: `clip` or `embedding`.
    """

    def __init__(self, client: RegistryClient, profile: str, send: str) -> None:
        if send not in {"clip", "embedding"}:
            raise ValueError(f"send is {send[:40]!a}; accepted: clip, embedding")
        self._client, self._profile, self._send = client, profile, send
        self._following = Following(client, profile)
        self._references: Mapping[str, str] | None = None
        """Key of the name -> reference to the version that it means now. None before the first look."""
        self._kept: OrderedDict[str, Prompt] = OrderedDict()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Learn what has changed, and forget what was deleted. Raises `SpeakerRegistryError`."""
        self._following.look()
        entries = self._following.voices.values()
        references = {key_of_name(one.voice): one.reference for one in entries}
        with self._lock:
            self._references = references
            for gone in self._kept.keys() - set(references.values()):
                del self._kept[gone]

    def reference_of(self, voice: str) -> str | None:
        """Return the reference to the version that a voice means now, or None if the registry has no such
        voice.

        Raises `Unavailable` before the first look: the server may have a voice of its own under the same
        name, and must not speak with that one.
        """
        references = self._references
        if references is None:
            raise Unavailable("The registry has not answered yet, so its voices are unknown. Try again soon.")
        return references.get(key_of_name(voice.strip()))

    def kept(self, reference: str) -> Prompt | None:
        """Return the fields for a version if they are in memory."""
        with self._lock:
            return self._kept.get(reference)

    def fetch(self, reference: str) -> Prompt:
        """Ask the registry for the fields for a version, and keep them. Raises `SpeakerRegistryError`."""
        prompt = self._fetched(reference)
        with self._lock:
            if reference in (self._references or {}).values():
                self._kept[reference] = prompt
            while len(self._kept) > MAX_PROMPTS:
                self._kept.popitem(last=False)
        return prompt

    def _fetched(self, reference: str) -> Prompt:
        version = self._client.version(reference)
        if self._send == "embedding" or version.source == "embedding":
            tensors = self._client.fetch(reference, self._profile).tensors
            if "speaker_embedding" not in tensors:
                raise InvalidRequest(
                    f"voice {reference!a} has no speaker embedding for {self._profile}, but {sorted(tensors)}"
                )
            return {"speaker_embedding": tensors["speaker_embedding"].reshape(-1).tolist()}
        wav = self._client.samples(reference).to_wav()
        prompt: dict[str, Any] = {"ref_audio": "data:audio/wav;base64," + base64.b64encode(wav).decode()}
        if version.ref_text:
            return prompt | {"ref_text": version.ref_text}
        # Qwen3-TTS refuses a clip without a transcript unless it is told to take the voice's timbre only.
        return prompt | ({"x_vector_only_mode": True} if self._following.model_type == "qwen3_tts" else {})


class Gateway:
    """The application.

    Args:
        server: The address of the TTS server, without `/v1`.
        poll_seconds: How often the registry is asked what has changed.
    """

    def __init__(self, prompts: Prompts, server: str, poll_seconds: float = 5.0) -> None:
        self._prompts, self._poll_seconds = prompts, poll_seconds
        timeout = httpx.Timeout(300, connect=5)
        # httpx would open 100 connections at most, and clients that read slowly would hold up all others.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
        self._http = httpx.AsyncClient(base_url=server, timeout=timeout, limits=limits)
        self._over = threading.Event()
        self.app = Starlette(routes=[Route(SPEECH, self.speech, methods=["POST"])], lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        thread = threading.Thread(target=self._follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            await self._http.aclose()

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                self._prompts.look()
            except SpeakerRegistryError as error:
                log.warning("The registry cannot be followed now, known voices stay. %s", error.message)
            self._over.wait(self._poll_seconds)

    async def speech(self, request: Request) -> Response:
        """Put the voice of the registry into a request, and pass the server's answer on as it comes."""
        try:
            document = _parsed(await _body_of(request))
            content = _encoded(await self._with_prompt(document))
        except SpeakerRegistryError as error:
            return _refused(_STATUS.get(type(error), 503), error.message, error.code)
        return await self._passed_on(request, content)

    async def _with_prompt(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the name of a voice by the fields that stand for it."""
        voice = document.get("voice")
        if not isinstance(voice, str) or any(document.get(field) for field in OWN_VOICE):
            return document
        reference = self._prompts.reference_of(voice)
        if reference is None:
            return document
        # Only what has to be fetched takes a thread: all threads may be waiting for a registry that is slow.
        prompt = self._prompts.kept(reference) or await run_in_threadpool(self._prompts.fetch, reference)
        # Clients may send all fields that they know, empty or not. The clip and its transcript go together.
        return {key: one for key, one in document.items() if key not in {"voice", *OWN_VOICE}} | prompt

    async def _passed_on(self, request: Request, content: bytes) -> Response:
        given = ((name, request.headers.get(name)) for name in _SENT_ON)
        headers = {name: one.encode("latin-1") for name, one in given if one is not None}
        headers["content-type"] = b"application/json"
        sent = self._http.build_request("POST", SPEECH, content=content, headers=headers)
        try:
            answer = await self._http.send(sent, stream=True)
        except httpx.TransportError as error:
            return _refused(502, f"The TTS server does not answer: {type(error).__name__}", "bad_gateway")
        if answer.is_success and _is_page(kind := answer.headers.get("content-type", "")):
            await answer.aclose()
            return _refused(
                502,
                f"{self._http.base_url} answers {answer.status_code} with the content type {kind[:80]!a} in "
                "place of speech. Check whether a proxy answers there in place of the TTS server",
                "bad_gateway",
            )
        return StreamingResponse(
            answer.aiter_bytes(),
            answer.status_code,
            {name: answer.headers[name] for name in _SENT_BACK if name in answer.headers},
            background=BackgroundTask(answer.aclose),
        )


def _is_page(content_type: str) -> bool:
    """Return whether an answer is a page, such as the login of a proxy, which no client can play."""
    return content_type.partition(";")[0].strip().lower() == "text/html"


async def _body_of(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise PayloadTooLarge(f"the body has more than {MAX_BODY_BYTES} bytes, which is the maximum")
    return bytes(body)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body is {body[:40]!a}; accepted: a JSON object with 'input' and 'voice'")
    return document


def _encoded(document: Mapping[str, Any]) -> bytes:
    """Encode a document in ASCII, so that a lone surrogate in a text passes on as it came."""
    try:
        return json.dumps(document, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise InvalidRequest(
            "the body has a number such as NaN, or is nested too deeply; accepted: JSON that can be sent on"
        ) from None


def _refused(status: int, message: str, code: str) -> Response:
    """Answer with an error in OpenAI's envelope."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    error = {"message": message, "type": kind, "param": None, "code": code}
    return JSONResponse({"error": error}, status)


def create_app() -> Starlette:
    """Make the application from environment variables: `uvicorn --factory gateway:create_app`."""
    send = os.environ.get("GATEWAY_SEND", "clip")
    prompts = Prompts(RegistryClient(timeout=20), os.environ["GATEWAY_PROFILE"], send)
    return Gateway(prompts, os.environ["GATEWAY_SERVER"]).app
