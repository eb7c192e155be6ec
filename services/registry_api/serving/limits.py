"""Limits on every request before a route sees it: its id, its head, and the size and speed of its body.
Pure ASGI.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote_to_bytes

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.callers import Caller
from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.routing import RESOLVE, clip_field_of, sent_path, takes_file
from services.registry_api.serving.concurrency_limits import ByteBudget, ConcurrencyLimits
from services.registry_api.serving.recheck import check_after_wait
from services.shared.configuration.uploads import UploadLimits
from speaker_registry.errors import InvalidRequest, PayloadTooLarge, SpeakerRegistryError
from speaker_registry.schemas import MAX_REFERENCE_LENGTH, MAX_RESOLVED

MAX_HEAD_BYTES = 16 * 1024
"""Largest accepted size of path, query and headers together. Chunk extensions and trailers of a body have the
same limit.
"""
MAX_JSON_BYTES = 64 * 1024
"""Largest accepted body that neither is an upload nor resolves voices."""
MAX_RESOLVE_BYTES = MAX_JSON_BYTES + 4 * MAX_REFERENCE_LENGTH * MAX_RESOLVED
"""Largest accepted body that resolves voices. The longest list that the route accepts fits in UTF-8. As
`\\uXXXX` its characters take up to three times as much, but names have at most a quarter of that length.
"""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_TURNS_TO_READ = 5
"""The number of turns in which the event loop reads what waits in the kernel, and wakes the task that waits
for it. It is small, so that a slow body has no time to continue meanwhile.
"""
_TooLarge = Callable[[int, str], PayloadTooLarge]
"""Returns the error for a body that is too large, from the accepted size and the size in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyTimeouts:
    """Bounds how slowly the body of a request may arrive."""

    idle_seconds: float = 30
    """Longest pause between two pieces of the body."""
    start_seconds: float = 30
    """The body may arrive at any speed for this long. After that it must keep up with `bytes_per_second`."""
    bytes_per_second: float = 16 * 1024
    """Lowest average speed of the body so far. 10 MiB take 670 s at most."""

    def seconds_for(self, size: int) -> float:
        """Return the deadline for a body of more than `size` bytes, in seconds after the request's head."""
        return self.start_seconds + size / self.bytes_per_second

    @property
    def accepted(self) -> str:
        """The accepted speed in words, for error messages."""
        return (
            f"pauses of {self.idle_seconds:g} s, and after {self.start_seconds:g} s at least "
            f"{self.bytes_per_second:g} bytes a second"
        )


def is_request_id(given: bytes) -> bool:
    """Return whether a client's request id is accepted."""
    return _REQUEST_ID.fullmatch(given) is not None


class RequestIds:
    """Middleware that adds a request id to answers and log lines: `X-Request-Id` or a new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        request_id = given.decode() if is_request_id(given) else f"req_{secrets.token_hex(12)}"
        scope["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", request_id.encode())]
            await send(message)

        return await self._app(scope, receive, send_with_id)


class RequestLimits:
    """Middleware that refuses requests by their heads, and counts and times their bodies as they arrive.

    A process has one.

    Args:
        uploads: how large a clip may be, and how many bytes all bodies may occupy at once.
        form_bytes: how many bytes a body may hold besides the clip.
        body_timeouts: how slowly a body may arrive.
        arriving: how many uploads of one caller may have begun to arrive and not be answered yet.
        shared: whether callers are distinguished by their keys. If so, each namespace gets at most half of
            the bytes for all bodies.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        uploads: UploadLimits,
        form_bytes: int,
        body_timeouts: BodyTimeouts,
        arriving: ConcurrencyLimits | None = None,
        shared: bool = False,
    ) -> None:
        self._app = app
        self._uploads = uploads
        self._form_bytes = form_bytes
        self._timeouts = body_timeouts
        share = max(uploads.held_bytes // 2, uploads.max_bytes + form_bytes) if shared else None
        self._upload_budget = _UploadBudget(
            ByteBudget("arriving uploads", uploads.held_bytes, of_namespace=share),
            arriving or ConcurrencyLimits("arriving uploads"),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        upload = _is_upload(scope)
        largest = self._uploads.max_bytes + self._form_bytes if upload else _max_json_bytes(scope)
        clip_field = clip_field_of(scope)
        too_large: _TooLarge = partial(self._form_too_large, clip_field) if clip_field else _body_too_large
        refusal = (
            _fault_of_head(scope) or _fault_of_encoding(scope) or _fault_of_size(scope, largest, too_large)
        )
        if refusal:
            return await render(Request(scope), refusal)(scope, receive, send)
        if not upload:
            body = _CountedBody(receive, largest, too_large, None, self._timeouts)
            return await self._app(scope, body, send)
        with self._upload_budget.reservation(scope) as reserve:
            body = _CountedBody(receive, largest, too_large, reserve, self._timeouts)
            return await self._app(scope, body, send)

    def _form_too_large(self, clip_field: str, _: int, got: str) -> PayloadTooLarge:
        max_clip_bytes = self._uploads.max_bytes
        return PayloadTooLarge(
            f"{_vllm_omni_message(max_clip_bytes, got)} This counts the whole form. Accepted: a clip of up "
            f"to {_exactly(max_clip_bytes)}, and {self._form_bytes} bytes for all else in the form.",
            param=clip_field,
        )


class _UploadBudget:
    """Bounds the bytes of uploads that are not answered yet, over all callers and for each namespace.

    Must only be used from the event loop.
    """

    def __init__(self, sizes: ByteBudget, uploads: ConcurrencyLimits) -> None:
        self._sizes = sizes
        self._uploads = uploads

    @contextmanager
    def reservation(self, scope: Scope) -> Iterator[Callable[[int], None]]:
        """Yield a function that reserves a number of further bytes for this request.

        All reserved bytes are freed at the end of the context. The function raises `RateLimited` if a limit
        of the caller is reached, and `Unavailable` if the bytes for all callers are used up.
        """
        reserved = 0
        owner: tuple[Caller, str] | None = None

        def reserve(size: int) -> None:
            nonlocal reserved, owner
            if owner is None and "caller" in scope:  # set by `access.rules` before the body is read
                found = scope["caller"], scope["namespace"]
                self._uploads.acquire(*found)
                owner = found
            self._sizes.acquire(owner, size)
            reserved += size

        try:
            yield reserve
        finally:
            self._sizes.release(owner, reserved)
            if owner is not None:
                self._uploads.release(*owner)


def _is_upload(scope: Scope) -> bool:
    return takes_file(scope) or clip_field_of(scope) is not None


def _max_json_bytes(scope: Scope) -> int:
    return MAX_RESOLVE_BYTES if scope["path"] == RESOLVE else MAX_JSON_BYTES


def _fault_of_size(scope: Scope, largest: int, too_large: _TooLarge) -> SpeakerRegistryError | None:
    """Return an error if the body is too large by its Content-Length."""
    lengths = [int(value) for name, value in scope["headers"] if name == b"content-length"]
    return too_large(largest, str(lengths[0])) if lengths and lengths[0] > largest else None


def _body_too_large(largest: int, got: str) -> PayloadTooLarge:
    return PayloadTooLarge(f"The body has {got} bytes; accepted here: {largest}.")


def _fault_of_encoding(scope: Scope) -> SpeakerRegistryError | None:
    if any(name == b"content-encoding" for name, _ in scope["headers"]):
        return InvalidRequest(
            "A compressed body (Content-Encoding) is not accepted: send the body uncompressed.",
            param="Content-Encoding",
        )
    return None


def _fault_of_head(scope: Scope) -> SpeakerRegistryError | None:
    path = sent_path(scope)
    size = sum(len(name) + len(value) for name, value in scope["headers"])
    size += len(path) + len(scope["query_string"])
    if size > MAX_HEAD_BYTES:
        return InvalidRequest(f"Path and headers take {size} bytes; accepted: {MAX_HEAD_BYTES}.")
    hosts = sum(name == b"host" for name, _ in scope["headers"])
    if hosts > 1:  # a proxy in front may go by another one
        return InvalidRequest(f"The request has {hosts} Host headers; accepted: one.", param="Host")
    if b"%2f" in path.lower():  # routes would split the path where the caller did not mean to
        return InvalidRequest("The path holds a '/' written as %2F. Accepted: names without path separators.")
    if not _is_utf8(unquote_to_bytes(path)):
        return InvalidRequest("The path is not UTF-8. Accepted: UTF-8, percent-encoded.")
    if not _is_utf8(unquote_to_bytes(scope["query_string"])):
        return InvalidRequest("The query is not UTF-8. Accepted: UTF-8, percent-encoded.")
    return None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


class _CountedBody:
    """Replaces `receive`, and raises an error when the body is too large, too slow, or exceeds a budget, and
    if the caller may not go on when the body is complete (see `recheck`).

    The error passes through the code that was reading the body.

    Args:
        receive: the function to replace.
        largest: how many bytes are accepted.
        too_large: returns the error to raise for a larger body, from `largest` and the size in words.
        reserve: called with the size of each piece of the body, and raises if it exceeds a budget. None:
            there is no budget.
        timeouts: how slowly the body may arrive.
    """

    def __init__(
        self,
        receive: Receive,
        largest: int,
        too_large: _TooLarge,
        reserve: Callable[[int], None] | None,
        timeouts: BodyTimeouts,
    ) -> None:
        self._receive = receive
        self._largest = largest
        self._too_large = too_large
        self._reserve = reserve
        self._timeouts = timeouts
        self._began = asyncio.get_running_loop().time()
        self._excused_seconds = 0.0
        """Delays that the client did not cause."""
        self._seen = 0
        self._done = False

    async def __call__(self) -> Message:
        if self._done:  # the client may take any time to disconnect, however long the answer takes
            return await self._receive()
        message = await self._receive_in_time()
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self._seen += size
            self._done = not message.get("more_body", False)
            if self._seen > self._largest:
                raise self._too_large(self._largest, f"more than {self._largest}")
            if self._reserve is not None:
                self._reserve(size)
            if self._done and self._seen:  # without a body, this may wait for the client to hang up
                await check_after_wait(self._began)
        return message

    async def _receive_in_time(self) -> Message:
        clock = asyncio.get_running_loop().time
        waits_since = clock()
        deadline = self._began + self._excused_seconds + self._timeouts.seconds_for(self._seen)
        receiving = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait([receiving], timeout=min(deadline - waits_since, self._timeouts.idle_seconds))
            if not receiving.done():
                await _read_what_has_arrived()
                self._excused_seconds += clock() - waits_since
            if not receiving.done():
                raise InvalidRequest(f"The body arrives too slowly. Accepted: {self._timeouts.accepted}.")
            return receiving.result()
        finally:
            receiving.cancel()


async def _read_what_has_arrived() -> None:
    """Let the event loop read what waits in the kernel.

    If the process was stopped, or the event loop was blocked, a time limit ends before the loop has read it.
    """
    for _ in range(_TURNS_TO_READ):
        await asyncio.sleep(0)


def clip_too_large(max_clip_bytes: int, size: int, *, field: str) -> PayloadTooLarge:
    """Return the error for a clip that is too large by itself, without the form's other fields."""
    return PayloadTooLarge(
        f"{_vllm_omni_message(max_clip_bytes, str(size))} Accepted: clips of up to "
        f"{_exactly(max_clip_bytes)}; the form's other fields do not count.",
        param=field,
    )


def _vllm_omni_message(max_clip_bytes: int, got: str) -> str:
    """Return the sentence that clients of vLLM-Omni look for. The sentence says MB, but means MiB."""
    return f"File size exceeds maximum limit of {max_clip_bytes / 1024**2:g}MB. Got {got} bytes."


def _exactly(size: int) -> str:
    return f"{size} bytes ({size / 1024**2:g} MiB)"
