"""Answers the requests that the server cannot finish: those that it cancels when its time to stop is over,
and those for which the system starts no thread. This module is pure ASGI.
"""

import asyncio

import structlog
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.signals import route_of
from services.shared.bucket.documents import SEND_AGAIN
from services.shared.model.threads import is_thread_refused
from speaker_registry.errors import Unavailable

log = structlog.get_logger()

# Another thread may have carried out the request, or may still do so, and a repeat of it may make another key
# or version.
_STOPPED = (
    "The server stopped before it had finished this request, which may have been carried out nevertheless. "
    f"{SEND_AGAIN}"
)
_NO_THREAD = (
    "The server cannot start a thread that it needs for this request, which may have been carried out "
    f"nevertheless. {SEND_AGAIN}"
)


class UnfinishedRequests:
    """Middleware that answers an unfinished request with 503, so that its client sends it again.

    Without it, uvicorn would answer a canceled request with 500 and log a traceback. An answer that has
    already begun is cut off: `Cycle` closes the connection of a canceled request.
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
            reason = _STOPPED
        except RuntimeError as error:
            if begun or not is_thread_refused(error):
                raise
            log.error("request.no_thread", route=route_of(scope))
            reason = _NO_THREAD
        refusal = Unavailable(reason, retry_after_seconds=1)
        return await render(Request(scope), refusal)(scope, receive, send)
