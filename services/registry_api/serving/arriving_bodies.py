"""Counts requests whose bodies are still arriving, because each occupies a connection however little it
sends. Pure ASGI. This module does not know how many there may be.
"""

import asyncio
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from starlette.types import Message, Receive

_BRIEF_SECONDS = 0.1
"""A request is counted only if its body makes it wait later than this long after it began, so that a burst of
requests with short bodies is not refused.
"""


class ArrivingBody:
    """Replaces `receive`, and counts a request from when its body is late until the body is complete.

    It is a context manager, and the request is not counted after the end of the context.

    Args:
        receive: the function to replace.
        counted: the request is counted within this context. Entering it raises `RateLimited` if there are too
            many such requests. The error passes through the code that was reading the body.
    """

    def __init__(self, receive: Receive, counted: AbstractContextManager[None]) -> None:
        self._receive = receive
        self._counted = counted
        self._held = ExitStack()
        self._counts_from = asyncio.get_running_loop().time() + _BRIEF_SECONDS
        self._is_decided = False
        """True once the request is counted or refused, or does not need to be counted."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    async def __call__(self) -> Message:
        message = await (self._receive() if self._is_decided else self._receive_in_time())
        if not message.get("more_body", False):  # the body is complete, or the client has disconnected
            self._is_decided = True
            self._held.close()
        return message

    async def _receive_in_time(self) -> Message:
        """Receive a message, and count the request if the message does not come in time."""
        receiving = asyncio.ensure_future(self._receive())
        try:
            left = self._counts_from - asyncio.get_running_loop().time()
            await asyncio.wait([receiving], timeout=max(0.0, left))
            if not receiving.done():
                self._is_decided = True  # also if the request is refused: a context cannot be entered twice
                self._held.enter_context(self._counted)
            return await receiving
        finally:
            receiving.cancel()
