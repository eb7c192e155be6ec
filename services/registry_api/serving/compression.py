"""Compresses long JSON answers for clients that accept gzip. Pure ASGI.

Only JSON is compressed. Files are dense already, and their ETags and digests are those of their plain bytes.
The ETags of JSON answers are weak, so that compressed and plain answers can share them.
"""

import re

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.gzip import GZipResponder
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MIN_BYTES = 1024
"""Size in bytes from which answers are compressed. Shorter ones fit into one packet with their headers."""
_LEVEL = 4
"""A list of 300 voices shrinks from 128 to 24 kB in 2 ms; at level 9 it takes 10 ms to save another 1 kB."""
_FILES = re.compile(r".*/(file|audio)|/v1/blobs/.*", re.DOTALL)
"""The paths of artifacts and clips. Engines fetch them all the time."""
_QUALITY = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")


class JsonCompression:
    """Middleware that compresses the answers that `is_compressible` accepts, and adds `Vary` for caches."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or _FILES.fullmatch(scope["path"]):
            return await self._app(scope, receive, send)
        if accepts_gzip(Headers(scope=scope).get("accept-encoding", "")):
            return await _Compressing(self._app, MIN_BYTES, _LEVEL)(scope, receive, send)

        async def send_plain(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_vary(message)
            await send(message)

        return await self._app(scope, receive, send_plain)


class _Compressing(GZipResponder):
    """Compresses one answer if it is compressible."""

    async def send_with_compression(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = Headers(raw=message["headers"])
            if not is_compressible(headers):
                _add_vary(message)
                self.exclude_content_types = (_media_type(headers),)
        await super().send_with_compression(message)


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether an `Accept-Encoding` header names gzip as accepted (RFC 9110, 12.5.3)."""
    for one in accept_encoding.lower().split(","):
        coding, _, quality = one.partition(";")
        if coding.strip() == "gzip":
            return not _QUALITY.fullmatch(quality)
    return False


def is_compressible(headers: Headers) -> bool:
    """Return whether an answer with these headers may be compressed and is long enough to be worth it.

    Answers with `no-store` are not compressed: they may hold a secret that could be guessed from how well the
    answer compresses.
    """
    length = headers.get("content-length")
    return (
        _media_type(headers) == "application/json"
        and "content-encoding" not in headers
        and "no-store" not in headers.get("cache-control", "")
        and (length is None or int(length) >= MIN_BYTES)
    )


def _add_vary(message: Message) -> None:
    """Add `Vary: Accept-Encoding` to JSON answers and to 304.

    Short answers carry it as well, because the same URL may have a long answer for another request.
    """
    headers = MutableHeaders(raw=message["headers"])
    if message["status"] == 304 or _media_type(headers) == "application/json":
        headers.add_vary_header("Accept-Encoding")


def _media_type(headers: Headers) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()
