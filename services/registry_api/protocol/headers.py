"""What every answer carries besides its own headers: how a browser must treat it, and what a route's rule had
to say. Pure ASGI.
"""

from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_NO_PAGE = b"default-src 'none'; frame-ancestors 'none'"
"""Nothing here is one: a browser that is made to show an answer runs nothing of it."""
_DOCS_PAGE = (
    b"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; frame-ancestors 'none'"
)
"""The page of documentation starts itself by a script in it."""


class AnswerHeaders:
    """Adds them. Whatever is in `scope["answer_headers"]` by then goes along."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = (*safe_headers(scope["path"]), *scope.get("answer_headers", ()))
                message["headers"] = [*message.get("headers", ()), *added]
            await send(message)

        return await self._app(scope, receive, send_with_headers)


def safe_headers(path: str) -> Sequence[tuple[bytes, bytes]]:
    page = _DOCS_PAGE if path.startswith("/docs") else _NO_PAGE
    return (*SAFE_HEADERS, (b"content-security-policy", page))
