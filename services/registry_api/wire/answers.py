"""Builds answers: JSON bodies, an ETag for every GET, and 304 for clients that have the current state."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from services.registry_api.dependencies import parts_of
from services.registry_api.operations.live_voice import Check
from services.registry_api.protocol.conditions import content_range, matches, part_of
from services.registry_api.serving.concurrency_limits import ByteBudget
from services.shared.model.document import SpeakerDocument
from services.shared.model.records import Version
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import PreconditionFailed
from speaker_registry.schemas import Page

Item = TypeVar("Item")

SAFETENSORS = "application/vnd.safetensors"
"""The media type of artifacts and samples."""
SENDING_BYTES = 128 * 1024**2
"""The files that one process has begun to send may occupy this many bytes together, half of them for each
namespace.
"""
_MOST_COUNTED_BYTES = SENDING_BYTES // 4
"""A larger file counts as this many bytes, so that it can be sent at all."""
_PIECE_BYTES = 64 * 1024
"""uvicorn writes no further piece as long as the client has more than this many bytes to read."""


def tag_of(body: BaseModel | dict[str, Any]) -> str:
    """Return the ETag that `answer` gives to this body."""
    return _tag_of_content(json_bytes(body))


def _tag_of_content(content: bytes) -> str:
    """Return the ETag of a JSON answer: a weak one, because `compression` may compress the answer."""
    return f'W/"{hashlib.sha256(content).hexdigest()[:32]}"'


def answer(
    request: Request,
    body: BaseModel | dict[str, Any] | bytes,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    """Return the body as JSON. GET and HEAD get an ETag, or 304 if `If-None-Match` names it."""
    content = json_bytes(body)
    headers = dict(headers or {})
    if request.method not in {"GET", "HEAD"}:
        return Response(content, status_code=status, headers=headers, media_type="application/json")
    headers["ETag"] = tag = _tag_of_content(content)
    if status == 200 and matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(content, status_code=status, headers=headers, media_type="application/json")


def page_of(shown: Sequence[Item], cursor: Callable[[Item], object], *, more: bool = False) -> Page[Item]:
    """Return a page of a list.

    Args:
        cursor: returns the text by which a client names an item, to ask for the page after it.
        more: whether items follow after the page.
    """
    first, last = (str(cursor(shown[0])), str(cursor(shown[-1]))) if shown else (None, None)
    return Page(data=list(shown), first_id=first, last_id=last, has_more=more)


def answer_to_question(request: Request, body: BaseModel) -> Response:
    """Return the answer to a POST that changes nothing as JSON, or 304 if `If-None-Match` names its ETag."""
    content = json_bytes(body)
    tag = _tag_of_content(content)
    if matches(request.headers.get("if-none-match"), tag):
        return not_modified(tag)
    return Response(content, headers={"ETag": tag}, media_type="application/json")


def not_modified(tag: str) -> Response:
    """Return 304 for a JSON answer with this ETag."""
    return Response(status_code=304, headers={"ETag": tag})


def file_headers(digest: str, version: Version) -> dict[str, str]:
    """Return the headers of an answer that consists of stored bytes with this digest (`sha256:…`).

    They name the version that the bytes belong to, and the digest by which callers check them.
    """
    encoded = base64.b64encode(bytes.fromhex(digest.removeprefix("sha256:"))).decode()
    return {
        "ETag": f'"{digest}"',
        "Content-Digest": f"sha-256=:{encoded}:",
        "Accept-Ranges": "bytes",
        "X-Voice-Version": str(version.number),
        "X-Voice-Created-At": str(version.created_at),
    }


def answer_without_bytes(
    request: Request, headers: dict[str, str], size: int, media_type: str
) -> Response | None:
    """Return the answer to a request that can be answered without reading the stored bytes, else None.

    A client whose `If-None-Match` names the ETag gets 304. HEAD gets the headers of the bytes, or
    `PreconditionFailed` is raised as in `answer_with_bytes`.
    """
    if matches(request.headers.get("if-none-match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    if request.method == "HEAD":
        _check_tag(request, headers["ETag"])
        return Response(headers=headers | {"Content-Length": str(size)}, media_type=media_type)
    return None


def answer_with_bytes(request: Request, data: bytes, headers: dict[str, str], media_type: str) -> Response:
    """Return stored bytes, or the part of them that `Range` asks for.

    Raises `PreconditionFailed` if `If-Match` is given and does not name the ETag. A client that fetches a
    file in parts would otherwise get parts of two files. Sending the answer raises `RateLimited` or
    `Unavailable` before its head if clients have too many bytes to read already.
    """
    _check_tag(request, headers["ETag"])
    sending = parts_of(request).sending
    whole = request.headers.get("if-range", headers["ETag"]) == headers["ETag"]
    part = part_of(len(data), request.headers.get("range", "")) if whole else None
    if part is None:
        return _File(sending, data, headers=headers, media_type=media_type)
    headers["Repr-Digest"] = headers.pop("Content-Digest")  # RFC 9530: the digest of the whole
    headers["Content-Range"] = content_range(part, len(data)).decode()
    data = data[part.start : part.stop]
    return _File(sending, data, status_code=206, headers=headers, media_type=media_type)


class _File(Response):
    """An answer whose bytes count until the client has read nearly all of them.

    It is sent in pieces, because the connection would keep all of a single message in memory until the client
    reads it.
    """

    def __init__(self, sending: ByteBudget, data: bytes, **rest: Any) -> None:
        super().__init__(data, **rest)
        self._sending = sending

    async def __call__(self, scope: Scope, _: Receive, send: Send) -> None:
        owner, size = (scope["caller"], scope["namespace"]), min(len(self.body), _MOST_COUNTED_BYTES)
        self._sending.acquire(owner, size)  # may refuse the request, so it comes before the head
        try:
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            body = memoryview(self.body)  # its slices share the memory
            for start in range(0, max(1, len(body)), _PIECE_BYTES):
                end = start + _PIECE_BYTES
                piece, more = body[start:end], end < len(body)
                await send({"type": "http.response.body", "body": piece, "more_body": more})
        finally:
            self._sending.release(owner, size)


def json_bytes(body: BaseModel | dict[str, Any] | bytes) -> bytes:
    """Return the body as JSON. Bytes are JSON already."""
    if isinstance(body, bytes):
        return body
    if isinstance(body, BaseModel):
        return body.model_dump_json().encode()
    return canonical_json(body).encode()


def check_if_match(request: Request, body: BaseModel) -> None:
    """Raise `PreconditionFailed` if `If-Match` is given and does not name the current ETag of `body`."""
    _check_tag(request, tag_of(body))


def _check_tag(request: Request, tag: str) -> None:
    given = request.headers.get("if-match")
    if given is not None and not matches(given, tag):
        raise PreconditionFailed(
            f"If-Match is {ascii(given)[:100]}; the current ETag is {tag}.", param="If-Match"
        )


def only_new(request: Request) -> bool:
    """Return whether `If-None-Match: *` asks that a write replaces and continues nothing that exists."""
    return request.headers.get("if-none-match", "").strip() == "*"


def check_of(request: Request, shown: Callable[[SpeakerDocument], BaseModel]) -> Check | None:
    """Return a check of `If-Match` for an operation, or None if the request has no such header.

    Args:
        shown: returns the body that GET would answer for a document, to which the ETag belongs.
    """
    if "if-match" not in request.headers:
        return None
    return lambda document: check_if_match(request, shown(document))
