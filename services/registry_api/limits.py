"""What every request must respect before any route sees it: its id, its head, the size and pace of its
body. Pure ASGI.
"""

import asyncio
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.problems import render
from services.registry_api.routing import UPLOAD
from services.shared.settings import UploadLimits
from speaker_registry.errors import InvalidRequest, PayloadTooLarge, SpeakerRegistryError, Unavailable

MAX_HEAD_BYTES = 16 * 1024
"""Path, query and headers together."""
MAX_JSON_BYTES = 64 * 1024
"""Of a body that is no upload: it is read before anybody knows whose it is."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How slowly a body may arrive."""

    idle_seconds: float = 30
    """Between two pieces of it."""
    whole_seconds: float = 600
    """From the first to the last: 10 MiB at 140 kbit/s."""


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


class RequestLimits:
    """Refuses what a request's head alone gives away, then counts the body as it really arrives, and does not
    wait for it for ever. One per process.

    Args:
        uploads: how large a clip may be, and what all bodies that are here at the same time may take.
        form_bytes: what a body may hold besides the clip.
    """

    def __init__(self, app: ASGIApp, *, uploads: UploadLimits, form_bytes: int, pace: Pace) -> None:
        self._app = app
        self._uploads = uploads
        self._form_bytes = form_bytes
        self._pace = pace
        self._held_bytes = 0
        """Of uploads that are not answered yet."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        upload = _is_upload(scope)
        largest = self._uploads.max_bytes + self._form_bytes if upload else MAX_JSON_BYTES
        if refusal := _fault_of_head(scope) or _fault_of_length(scope) or self._fault_of_size(scope, largest):
            return await render(Request(scope), refusal)(scope, receive, send)
        hold = self._hold if upload else None
        body = _CountedBody(receive, largest, self._too_large, hold, self._pace)
        try:
            return await self._app(scope, body, send)
        finally:
            self._held_bytes -= body.held

    def _fault_of_size(self, scope: Scope, largest: int) -> SpeakerRegistryError | None:
        """By what is said of it."""
        said = [int(value) for name, value in scope["headers"] if name == b"content-length"]
        return self._too_large(largest, str(said[0])) if said and said[0] > largest else None

    def _too_large(self, largest: int, got: str) -> PayloadTooLarge:
        if largest > MAX_JSON_BYTES:
            return too_large(self._uploads.max_bytes, got)
        return PayloadTooLarge(f"The body has {got} bytes; accepted here: {largest}.")

    def _hold(self, size: int) -> None:
        """Raises `Unavailable` if there is no room for so much more."""
        if self._held_bytes + size > self._uploads.held_bytes:
            raise Unavailable(
                "Too many uploads are arriving at the same time. Send it again in a moment.",
                retry_after_seconds=1,
            )
        self._held_bytes += size


def _is_upload(scope: Scope) -> bool:
    return scope["method"] == "PUT" or (scope["method"], scope["path"]) == UPLOAD


def _fault_of_length(scope: Scope) -> SpeakerRegistryError | None:
    headers = [name for name, _ in scope["headers"]]
    lengths = [value for name, value in scope["headers"] if name == b"content-length"]
    if b"content-encoding" in headers:
        return InvalidRequest(
            "A compressed body (Content-Encoding) is not accepted: send it as it is.",
            param="Content-Encoding",
        )
    if len(lengths) > 1 or (lengths and b"transfer-encoding" in headers):
        return InvalidRequest(
            "The body's length is given twice; accepted: Content-Length or Transfer-Encoding: chunked.",
            param="Content-Length",
        )
    if lengths and not lengths[0].isdigit():
        shown = ascii(lengths[0].decode("latin-1"))[:40]
        return InvalidRequest(
            f"Content-Length is {shown}; accepted: a number of bytes.", param="Content-Length"
        )
    return None


def _fault_of_head(scope: Scope) -> SpeakerRegistryError | None:
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    size += len(path) + len(scope["query_string"])
    if size > MAX_HEAD_BYTES:
        return InvalidRequest(f"Path and headers take {size} bytes; accepted: {MAX_HEAD_BYTES}.")
    if b"%2f" in path.lower():  # the routes would see a path of other parts than the caller wrote
        return InvalidRequest("The path holds a '/' written as %2F. Accepted: names without path separators.")
    if not _is_utf8(unquote_to_bytes(path)):
        return InvalidRequest("The path is not UTF-8. Accepted: UTF-8, percent-encoded.")
    return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class _CountedBody:
    """`receive`, until the body is too large or too slow, or there is no room for it: then our error goes
    through whatever was reading it.

    Args:
        largest: bytes. too_large: what is raised if more come, given that and what came. hold: makes room
        for so many; None: no need.
    """

    def __init__(
        self,
        receive: Receive,
        largest: int,
        too_large: Callable[[int, str], PayloadTooLarge],
        hold: Callable[[int], None] | None,
        pace: Pace,
    ) -> None:
        self._receive = receive
        self._largest = largest
        self._too_large = too_large
        self._hold = hold
        self._pace = pace
        self._deadline = asyncio.get_running_loop().time() + pace.whole_seconds
        self._seen = 0
        self._done = False
        self.held = 0
        """Bytes that room was made for."""

    async def __call__(self) -> Message:
        message = await self._next()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._seen += size
            self._done = not message.get("more_body", False)
            if self._seen > self._largest:
                raise self._too_large(self._largest, f"more than {self._largest}")
            if self._hold is not None:
                self._hold(size)
                self.held += size
        return message

    async def _next(self) -> Message:
        if self._done:  # now it waits for the caller to hang up, however long the answer takes
            return await self._receive()
        left = self._deadline - asyncio.get_running_loop().time()
        try:
            return await asyncio.wait_for(self._receive(), min(left, self._pace.idle_seconds))
        except TimeoutError:
            raise InvalidRequest(
                f"The body arrives too slowly. Accepted: pauses of {self._pace.idle_seconds:g} s, and "
                f"{self._pace.whole_seconds:g} s for all of it."
            ) from None


def too_large(max_clip_bytes: int, got: str) -> PayloadTooLarge:
    """In vLLM-Omni's words."""
    return PayloadTooLarge(
        f"File size exceeds maximum limit of {max_clip_bytes / 1024**2:g}MB. Got {got} bytes.",
        param="audio_sample",
    )
