"""Streams all voices of a namespace as one JSON document. This module knows no routes.

The document holds three lists over all voices. The first is sent while it is made. The two others are shorter
and are kept meanwhile, in temporary files once they grow. So a list takes the same memory for any number of
voices, and a page is made only after the client has read the page before it.
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

_IN_MEMORY_BYTES = 128 * 1024
"""The size up to which each of the two later lists stays in memory. Longer ones go to a temporary file."""
_CHUNK_BYTES = 64 * 1024

DEFAULT_VOICE = "default"
"""The voice that vLLM-Omni always lists, even if it was never uploaded."""


class WholeList(StreamingResponse):
    """A streamed list of all voices. It has no ETag, which would have to be known before the first voice is
    sent.

    Args:
        first: the first page, which has been found already.
        find: returns the page after a cursor.
        entries: returns for each voice of a page, in order: its key, its entry in `uploaded_voices`, and its
            entry in `data`.
        lists: the queue for making pages. It admits one list at a time to the processor.
        tenant: the namespace, for a fair share of that queue.
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
        super().__init__(self._body, media_type="application/json")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._body.aclose()  # also if the caller disconnected in the middle

    async def _made(self) -> AsyncGenerator[bytes, None]:
        with closing(_SpooledItems()) as data, closing(_SpooledItems()) as voices:
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

    async def _pages(self, data: "_SpooledItems", voices: "_SpooledItems") -> AsyncIterator[bytes]:
        """Yield the items of `uploaded_voices` page by page, and collect the two other lists."""
        separator = b""
        keys = _KeysWithDefault(voices)
        made = await self._make_when_admitted(lambda: self._make(data, keys))
        while True:
            if made:
                yield separator + made
                separator = b","
            if not self._page.more:
                break
            made = await self._make_when_admitted(lambda: self._next(data, keys))
        keys.end()

    async def _make_when_admitted(self, make: Callable[[], bytes]) -> bytes:
        """Make a page once the queue admits this list, then pause for as long as that took, so that other
        requests get half of the time.
        """
        async with self._lists.slot(self._tenant):
            began = time.monotonic()
            made = await run_in_threadpool(make)
            await asyncio.sleep(time.monotonic() - began)
        return made

    def _next(self, data: "_SpooledItems", keys: "_KeysWithDefault") -> bytes:
        self._page = self._find(self._page.last)
        if self._page.of_bucket:
            log.warning("list.cut_off", reason="the view went away")
            raise Unavailable("The view went away.", retry_after_seconds=1)
        return self._make(data, keys)

    def _make(self, data: "_SpooledItems", keys: "_KeysWithDefault") -> bytes:
        self._first_id = self._first_id or self._page.first
        uploaded = []
        for key, entry, short in self._entries(self._page):
            uploaded.append(json_bytes(entry))
            data.add(json_bytes(short))
            keys.add(key)
        return b",".join(uploaded)


class _SpooledItems:
    """Items of a JSON list that are sent later, spooled to a temporary file."""

    def __init__(self) -> None:
        self._file = SpooledTemporaryFile(_IN_MEMORY_BYTES)  # noqa: SIM115 - closed by `close`
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


class _KeysWithDefault:
    """Spools keys in sorted order, and adds `default` at its place if it is missing."""

    def __init__(self, spooled: _SpooledItems) -> None:
        self._spooled = spooled
        self._there = False

    def add(self, key: str) -> None:
        if key > DEFAULT_VOICE:
            self.end()
        self._there = self._there or key == DEFAULT_VOICE
        self._spooled.add(canonical_json(key).encode())

    def end(self) -> None:
        if not self._there:
            self._there = True
            self._spooled.add(canonical_json(DEFAULT_VOICE).encode())
