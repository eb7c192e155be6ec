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

import anyio
import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Send

from speaker_registry import RegistryClient
from speaker_registry.errors import (
    InvalidApiKey,
    InvalidRequest,
    PayloadTooLarge,
    PermissionDenied,
    SpeakerRegistryError,
    Unavailable,
    VersionNotFound,
    VoiceNotFound,
)
from speaker_registry.following import Following
from speaker_registry.manifests import ManifestEntry
from speaker_registry.names import key_of_name

log = logging.getLogger("gateway")

SPEECH = "/v1/audio/speech"
MAX_BODY_BYTES = 1024**2
MAX_PROMPTS = 256
"""The number of voices that are kept in memory. A clip of ten seconds takes 1 to 3 MB."""
MAX_FETCHES = 8
"""The number of voices that are fetched at once. Each takes a thread, with tens of MB of address space."""
MAX_WAIT_SECONDS = 20.0
"""Longest time that a request waits until it may fetch its voice. While the registry does not answer, each
fetch takes as long as the timeout of its client.
"""
OWN_VOICE = ("ref_audio", "speaker_embedding")
"""A request with one of these fields brings its own voice."""
_REPLACED = {"voice", "ref_text", *OWN_VOICE}
"""Clients may send all fields that they know, empty or not. A clip and its transcript go together."""
_SENT_ON = ("accept", "authorization", "x-request-id")
_SENT_BACK = ("content-type", "location", "retry-after", "x-request-id")
_CLIENT_HAS_LEFT = 499
"""The status that nginx logs for a client that did not wait. Nobody receives it."""
_STATUS = {InvalidRequest: 400, VoiceNotFound: 404, PayloadTooLarge: 413}
_NOT_FETCHED = "The registry does not answer, and this voice is not in memory."
_SHORTAGE = (MemoryError, RuntimeError)
"""The errors of a process that is short of memory or threads. A thread that cannot be started raises
RuntimeError.
"""

Prompt = Mapping[str, Any]
"""The fields of a speech request that stand for a voice."""
_Content = tuple[str, str | None]
"""The id of a version, and the digest of its artifact if the embedding in it is sent."""


class Prompts:
    """Knows which voices there are, and what a server must be sent for each.

    Args:
        profile: The profile of the model that the server serves.
        send: `clip` or `embedding`.
    """

    def __init__(self, client: RegistryClient, profile: str, send: str) -> None:
        self._client, self._profile, self._send = client, profile, send
        self._following = Following(client, profile)
        self._entries: Mapping[str, ManifestEntry] | None = None
        """Key of the name -> what it means now. None before the first look, and while the key is refused."""
        self._refusal = ""
        """Why the registry refused the key, if it did."""
        self._kept: OrderedDict[_Content, Prompt] = OrderedDict()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Learn what has changed, and forget what was deleted, or everything if the registry refuses the key.
        Raises `SpeakerRegistryError`.
        """
        try:
            self._following.look()
        except (InvalidApiKey, PermissionDenied) as error:
            with self._lock:
                self._entries, self._refusal = None, error.message
                self._kept.clear()
            raise
        entries = {key_of_name(one.voice): one for one in self._following.voices.values()}
        with self._lock:
            self._entries = entries
            for gone in self._kept.keys() - set(map(self._content_of, entries.values())):
                del self._kept[gone]

    def entry_of(self, voice: str) -> ManifestEntry | None:
        """Return what a voice means now, or None if the registry has no such voice for the profile.

        Raises `Unavailable` if the voices are unknown: the server may have a voice of its own under the same
        name, and must not speak with that one.
        """
        entries = self._entries
        if entries is None:
            why = (
                f"It refuses the gateway's key. {self._refusal}"
                if self._refusal
                else "It has not answered yet."
            )
            raise Unavailable(f"The voices of the registry are unknown. {why}")
        return entries.get(key_of_name(voice.strip()))

    def kept(self, entry: ManifestEntry) -> Prompt | None:
        """Return the fields for a voice if they are in memory."""
        with self._lock:
            return self._kept.get(self._content_of(entry))

    def fetch(self, entry: ManifestEntry) -> Prompt:
        """Ask the registry for the fields for a voice, and keep them. Raises `SpeakerRegistryError`."""
        try:
            found, prompt = self._fetched(entry)
        except (VoiceNotFound, VersionNotFound) as error:
            # The registry names the voice by its id, which the gateway's callers do not know.
            raise type(error)(f"Voice '{entry.voice}' has no version {entry.version} any more") from None
        with self._lock:
            # Something may have changed since the look. The next one tells of it.
            if found in map(self._content_of, (self._entries or {}).values()):
                self._kept[found] = prompt
            while len(self._kept) > MAX_PROMPTS:
                self._kept.popitem(last=False)
        return prompt

    def _content_of(self, entry: ManifestEntry) -> _Content:
        """Return what tells the fields for a voice from all others. A number is not enough, because it can be
        given again after the registry was restored from a backup, nor is a version: an encoder that is
        promoted makes another embedding of it.
        """
        sends_clip = self._send == "clip" and entry.source == "audio"
        return entry.version_id, None if sends_clip else entry.digest

    def _fetched(self, entry: ManifestEntry) -> tuple[_Content, Prompt]:
        version = self._client.version(entry.reference)
        if self._send == "embedding" or version.source == "embedding":
            artifact = self._client.fetch(entry.reference, self._profile)
            if "speaker_embedding" not in artifact.tensors:
                raise InvalidRequest(
                    f"voice {entry.voice!a} has no speaker embedding for {self._profile}, but "
                    f"{sorted(artifact.tensors)}"
                )
            embedding = artifact.tensors["speaker_embedding"].reshape(-1).tolist()
            return (version.id, artifact.digest), {"speaker_embedding": embedding}
        wav = self._client.samples(entry.reference).to_wav()
        prompt: dict[str, Any] = {"ref_audio": "data:audio/wav;base64," + base64.b64encode(wav).decode()}
        if version.ref_text:
            prompt["ref_text"] = version.ref_text
        elif self._following.manifest.model_type == "qwen3_tts":
            # It refuses a clip without a transcript unless it is told to take the voice's timbre only.
            prompt["x_vector_only_mode"] = True
        return (version.id, None), prompt


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
        self._fetches = anyio.Semaphore(MAX_FETCHES)
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
                log.warning("The registry cannot be followed now. %s", error.message)
            except Exception:
                # Without this thread, deleted voices would be spoken with for good.
                log.exception("The registry cannot be followed now.")
            self._over.wait(self._poll_seconds)

    async def speech(self, request: Request) -> Response:
        """Put the voice of the registry into a request, and pass the server's answer on as it comes."""
        try:
            document = _parsed(await _body_of(request))
            content = _encoded(await self._with_prompt(document))
            return await self._passed_on(request, content)
        except SpeakerRegistryError as error:
            return _refused(_STATUS.get(type(error), 503), error.message, error.code)
        except httpx.TransportError as error:
            return _refused(502, f"The TTS server does not answer: {type(error).__name__}", "bad_gateway")
        except _SHORTAGE:
            log.exception("A request is refused, probably for lack of memory or threads.")
            return _refused(503, "The gateway is short of memory or threads. Try again later.", "unavailable")

    async def _with_prompt(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Replace the name of a voice by the fields that stand for it."""
        voice = document.get("voice")
        if not isinstance(voice, str) or any(document.get(field) for field in OWN_VOICE):
            return document
        entry = self._prompts.entry_of(voice)
        if entry is None:
            return document
        # Only what has to be fetched takes a thread: all threads may be waiting for a registry that is slow.
        prompt = self._prompts.kept(entry) or await self._fetched_in_turn(entry)
        return {key: one for key, one in document.items() if key not in _REPLACED} | prompt

    async def _fetched_in_turn(self, entry: ManifestEntry) -> Prompt:
        """Fetch the fields for a voice once fewer than `MAX_FETCHES` others are being fetched. Raises
        `Unavailable` if that takes too long.
        """
        try:
            with anyio.fail_after(MAX_WAIT_SECONDS):
                await self._fetches.acquire()
        except TimeoutError:
            raise Unavailable(_NOT_FETCHED) from None
        try:
            return await anyio.to_thread.run_sync(self._fetched, entry)
        finally:
            self._fetches.release()

    def _fetched(self, entry: ManifestEntry) -> Prompt:
        """Fetch the fields for a voice, unless another request has done so while this one waited."""
        try:
            return self._prompts.kept(entry) or self._prompts.fetch(entry)
        except Unavailable as error:
            log.warning("%s could not be fetched. %s", entry.reference, error.message)
            raise Unavailable(_NOT_FETCHED) from None

    async def _passed_on(self, request: Request, content: bytes) -> Response:
        """Send a request to the server. Raises the errors of `_answer_to`."""
        given = ((name, request.headers.get(name)) for name in _SENT_ON)
        headers = {name: one.encode("latin-1") for name, one in given if one is not None}
        headers["content-type"] = b"application/json"
        sent = self._http.build_request("POST", SPEECH, content=content, headers=headers)
        answer = await self._answer_to(sent, request)
        if answer is None:
            return Response(status_code=_CLIENT_HAS_LEFT)
        if answer.is_success and _is_page(kind := answer.headers.get("content-type", "")):
            await answer.aclose()
            return _refused(
                502,
                f"The TTS server answers {answer.status_code} with the content type {kind[:80]!a} in place "
                "of speech. Check whether a proxy answers in its place",
                "bad_gateway",
            )
        return _PassedOn(
            answer.aiter_bytes(),
            answer.status_code,
            {name: answer.headers[name] for name in _SENT_BACK if name in answer.headers},
            background=BackgroundTask(answer.aclose),
        )

    async def _answer_to(self, sent: httpx.Request, request: Request) -> httpx.Response | None:
        """Send a request to the server, and return its answer. Return None if the client leaves first: the
        server's connection is then closed, so that it need not speak for nobody.

        Raises `httpx.TransportError` if the server does not answer, and the errors of a shortage: the look-up
        of the server's address takes a thread.
        """
        answer: httpx.Response | None = None
        failure: Exception | None = None

        async def end_when_the_client_leaves() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(end_when_the_client_leaves)
            try:
                answer = await self._http.send(sent, stream=True)
            except (httpx.TransportError, *_SHORTAGE) as error:
                failure = error  # the group would put it into an ExceptionGroup
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure
        return answer


class _PassedOn(StreamingResponse):
    """An answer that breaks off where the server's does. The client's connection is then closed before the
    end of the answer, so that the client does not take the part for the whole.
    """

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except httpx.RequestError as error:
            log.warning("The TTS server's answer broke off: %s", str(error) or type(error).__name__)


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
    """Make the application from environment variables: `uvicorn --factory gateway:create_app`.

    Raises `SystemExit` with one line if a variable is missing or not accepted.
    """
    try:
        server, profile, send = _server(), _variable("GATEWAY_PROFILE"), _send()
        prompts = Prompts(RegistryClient(timeout=20), profile, send)
    except ValueError as error:
        raise SystemExit(f"gateway: {error}") from None
    return Gateway(prompts, server).app


def _server() -> str:
    text = _variable("GATEWAY_SERVER")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(
            f"GATEWAY_SERVER is {text[:80]!a}; accepted: an address that begins with http:// or https://"
        )
    return text


def _send() -> str:
    send = os.environ.get("GATEWAY_SEND", "clip")
    if send not in {"clip", "embedding"}:
        raise ValueError(f"GATEWAY_SEND is {send[:40]!a}; accepted: clip, embedding")
    return send


def _variable(name: str) -> str:
    if not (value := os.environ.get(name)):
        raise ValueError(f"{name} is not set; docs/gateway.md lists the variables")
    return value
