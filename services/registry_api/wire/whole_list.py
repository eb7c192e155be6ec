"""All voices of a namespace as one JSON document that is sent while it is made. Knows no routes.

The document holds three lists that go over all voices. The first is sent as it is made; the two others, which
are short, are kept meanwhile, in a temporary file once they are long. So the memory that a list takes does
not grow with the voices, and a page is made only when the one before it was read.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import closing
from tempfile import SpooledTemporaryFile
from typing import Any

import structlog
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from services.registry_api.serving.fair_queue import FairQueue
from services.registry_api.wire.answers import json_bytes
from services.registry_api.wire.paging import VoicePage
from speaker_registry.artifact import canonical_json
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

_KEPT_BYTES = 128 * 1024
"""Of each of the two lists that wait, in memory. What is more goes to a temporary file."""
_CHUNK_BYTES = 64 * 1024

DEFAULT_VOICE = "default"
"""vLLM-Omni lists it among the voices, whether it was uploaded or not."""


class WholeList(StreamingResponse):
    """It has no ETag: that would have to be known before the first voice is sent.

    Args:
        first: the first page, which has been found already. find: the page after a cursor. entries: of a
            page, in its order: each voice's key, and what `uploaded_voices` and `data` say of it. lists: in
            which the list waits to make each page, so that one at a time takes the processor. tenant: whose
            list it is.
    """

    def __init__(
        self,
        first: VoicePage,
        find: Callable[[str], VoicePage],
        entries: Callable[[VoicePage], Iterator[tuple[str, dict[str, Any], dict[str, Any]]]],
        lists: FairQueue,
        tenant: str,
    ) -> None:
        self._page = first
        self._find = find
        self._entries = entries
        self._lists = lists
        self._tenant = tenant
        self._first_id: str | None = None
        self._body = self._made()
        headers = {"Cache-Control": "private, no-cache"}
        super().__init__(self._body, media_type="application/json", headers=headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._body.aclose()  # also where the caller hung up in the middle

    async def _made(self) -> AsyncGenerator[bytes, None]:
        with closing(_Kept()) as data, closing(_Kept()) as voices:
            yield b'{"object":"list","uploaded_voices":['
            async for part in self._pages(data, voices):
                yield part
            yield b'],"data":['
            async for part in data.read():
                yield part
            yield b'],"voices":['
            async for part in voices.read():
                yield part
            ids = {"first_id": self._first_id, "last_id": self._page.last or None, "has_more": False}
            yield b"]," + json_bytes(ids)[1:]

    async def _pages(self, data: "_Kept", voices: "_Kept") -> AsyncIterator[bytes]:
        """`uploaded_voices`, a page at a time."""
        separator = b""
        keys = _WithDefault(voices)
        made = await self._in_turn(lambda: self._make(data, keys))
        while True:
            if made:
                yield separator + made
                separator = b","
            if not self._page.more:
                break
            made = await self._in_turn(lambda: self._next(data, keys))
        keys.end()

    async def _in_turn(self, make: Callable[[], bytes]) -> bytes:
        """Takes half of the time, and leaves the other half to other requests."""
        async with self._lists.slot(self._tenant):
            began = time.monotonic()
            made = await run_in_threadpool(make)
            await asyncio.sleep(time.monotonic() - began)
        return made

    def _next(self, data: "_Kept", keys: "_WithDefault") -> bytes:
        self._page = self._find(self._page.last)
        if self._page.of_facts:
            log.warning("list.cut_off", reason="the index went away")
            raise Unavailable("The index went away.", retry_after_seconds=1)
        return self._make(data, keys)

    def _make(self, data: "_Kept", keys: "_WithDefault") -> bytes:
        self._first_id = self._first_id or self._page.first
        uploaded = []
        for key, entry, short in self._entries(self._page):
            uploaded.append(json_bytes(entry))
            data.add(json_bytes(short))
            keys.add(key)
        return b",".join(uploaded)


class _Kept:
    """Items of a JSON list that are sent later."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_KEPT_BYTES)  # noqa: SIM115 - closed by `close`
        self._empty = True

    def add(self, item: bytes) -> None:
        self._file.write(item if self._empty else b"," + item)
        self._empty = False

    async def read(self) -> AsyncIterator[bytes]:
        self._file.seek(0)
        async for part in iterate_in_threadpool(iter(lambda: self._file.read(_CHUNK_BYTES), b"")):
            yield part

    def close(self) -> None:
        self._file.close()


class _WithDefault:
    """Keys in their order, with `default` in its place."""

    def __init__(self, kept: _Kept) -> None:
        self._kept = kept
        self._there = False

    def add(self, key: str) -> None:
        if key > DEFAULT_VOICE:
            self.end()
        self._there = self._there or key == DEFAULT_VOICE
        self._kept.add(canonical_json(key).encode())

    def end(self) -> None:
        if not self._there:
            self._there = True
            self._kept.add(canonical_json(DEFAULT_VOICE).encode())
