"""Answers the requests that the server cancels when its time to stop is over. This module is pure ASGI."""

import asyncio

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.error_answers import render
from services.shared.bucket.documents import SEND_AGAIN
from speaker_registry.errors import Unavailable

log = structlog.get_logger()


class CanceledRequests:
    """Middleware that answers a canceled request with 503, so that its client sends it again elsewhere.

    uvicorn would answer 500, and would log an error with a traceback. An answer that has begun is cut off,
    for which `Cycle` closes the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        begun = False

        async def send_and_note(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            return await self._app(scope, receive, send_and_note)
        except asyncio.CancelledError:
            if begun:
                log.warning("answer.cut_off")
                raise
            # A thread may still finish the request, and a repeat of it may make another key or version.
            error = Unavailable(
                "The server stopped before it had finished this request, which may have been carried out "
                f"nevertheless. {SEND_AGAIN}",
                retry_after_seconds=1,
            )
            return await render(Request(scope), error)(scope, receive, send)
