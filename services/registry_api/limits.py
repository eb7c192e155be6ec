"""What every request must respect before any route sees it: its id, and the size and pace of its body. Pure
ASGI.
"""

import asyncio
import re
import secrets

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.problems import render
from speaker_registry.errors import InvalidRequest, PayloadTooLarge, SpeakerRegistryError

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestIds:
    """Takes the caller's `X-Request-Id` or makes one; answers and log lines carry it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if _REQUEST_ID.fullmatch(given) else f"req_{secrets.token_hex(12)}"
        scope["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        return await self._app(scope, receive, send_with_id)


class BodyLimit:
    """Refuses a body that declares too much, counts what really arrives, and does not wait for ever.

    Args:
        max_bytes: of a whole body.
        idle_seconds: between two pieces of it.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, idle_seconds: float = 30) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        if refusal := self._refusal(scope):
            return await self._answer(scope, receive, send, refusal)
        return await self._app(scope, _CountedBody(receive, self._max_bytes, self._idle_seconds), send)

    def _refusal(self, scope: Scope) -> SpeakerRegistryError | None:
        """What the headers alone say."""
        lengths = [value for name, value in scope["headers"] if name == b"content-length"]
        names = {name for name, _ in scope["headers"]}
        if b"content-encoding" in names:
            return InvalidRequest("A compressed body (Content-Encoding) is not accepted.")
        if len(lengths) > 1 or (lengths and b"transfer-encoding" in names):
            return InvalidRequest("More than one length of the body is given.")
        if lengths and not lengths[0].isdigit():
            return InvalidRequest(
                f"Content-Length {ascii(lengths[0].decode('latin-1'))[:40]} is not a number."
            )
        if lengths and int(lengths[0]) > self._max_bytes:
            return too_large(self._max_bytes, lengths[0].decode())
        return None

    async def _answer(self, scope: Scope, receive: Receive, send: Send, error: SpeakerRegistryError) -> None:
        response = render(Request(scope), error)
        response.headers["Connection"] = "close"  # the rest of the body is not read
        await response(scope, receive, send)


class _CountedBody:
    """`receive`, until the body is too large or too slow: then our error goes through whatever was reading
    it.
    """

    def __init__(self, receive: Receive, max_bytes: int, idle_seconds: float) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._idle_seconds = idle_seconds
        self._seen = 0
        self._done = False

    async def __call__(self) -> Message:
        message = await self._next()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            self._done = not message.get("more_body", False)
            if self._seen > self._max_bytes:
                raise too_large(self._max_bytes, f"more than {self._max_bytes}")
        return message

    async def _next(self) -> Message:
        if self._done:  # now it waits for the caller to hang up, however long the answer takes
            return await self._receive()
        try:
            return await asyncio.wait_for(self._receive(), self._idle_seconds)
        except TimeoutError:
            raise InvalidRequest(f"The body stopped for more than {self._idle_seconds:g} s.") from None


def too_large(max_bytes: int, got: str) -> PayloadTooLarge:
    """In vLLM-Omni's words."""
    return PayloadTooLarge(
        f"File size exceeds maximum limit of {max_bytes // 1024**2}MB. Got {got} bytes.", param="audio_sample"
    )
