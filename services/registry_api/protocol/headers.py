"""Headers that are added to every answer. Pure ASGI.

They tell browsers and caches how to treat the answer safely, and carry what the route's rule adds, such as
rate limits.
"""

from collections.abc import Sequence

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.protocol.routing import is_page
from speaker_registry.schemas import Rate

Headers = Sequence[tuple[bytes, bytes]]

SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_UNSHARED = (b"cache-control", b"private, no-cache")
"""Only the client itself may keep an answer, and it must check each time whether the answer has changed.
Answers for which something else holds have a `Cache-Control` of their own.
"""
_NO_PAGE = b"default-src 'none'; frame-ancestors 'none'"
"""Policy for answers that are not pages. A browser that shows such an answer runs nothing in it."""
_DOCS_PAGE = (
    b"default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; "
    b"img-src 'self' data:; frame-ancestors 'none'"
)
"""Policy for the page of documentation, which an inline script starts."""
_PAGES = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self' blob:; "
    b"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Policy for the pages for people, which have no inline script and no inline style. `blob:` allows them to
play a clip that was chosen or recorded but not sent yet.
"""


_RATE_LINES = (
    b"ratelimit-limit: %d\r\nratelimit-remaining: %d\r\nratelimit-reset: %d\r\nratelimit-policy: %d;w=60\r\n"
)


def rate_lines(limit: int | None, remaining: int | None, reset_seconds: int) -> bytes:
    """Return the headers of a rate limit as lines of an HTTP head, which is cheaper for answers from
    memory.
    """
    if limit is None:
        return b""
    return _RATE_LINES % (limit, remaining or 0, reset_seconds, limit)


def rate_headers(rate: Rate) -> Headers:
    """Return the headers that describe a rate limit; none if there is no limit."""
    if rate.limit is None:
        return ()
    return (
        (b"ratelimit-limit", b"%d" % rate.limit),
        (b"ratelimit-remaining", b"%d" % (rate.remaining or 0)),
        (b"ratelimit-reset", b"%d" % rate.reset_seconds),
        (b"ratelimit-policy", b"%d;w=60" % rate.limit),
    )


class AnswerHeaders:
    """Middleware that adds the safety headers of a path, `Cache-Control` where it is missing, and the headers
    in `scope["answer_headers"]`, when the answer begins.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *safe_headers(scope["path"])]
                if not any(name.lower() == b"cache-control" for name, _ in headers):
                    headers.append(_UNSHARED)
                message["headers"] = [*headers, *scope.get("answer_headers", ())]
            await send(message)

        return await self._app(scope, receive, send_with_headers)


def safe_headers(path: str) -> Sequence[tuple[bytes, bytes]]:
    """Return the headers for the answer to a request for this path."""
    if is_page(path):
        # Without a referrer of its own, a browser sends forms with `Origin: null`.
        return (*SAFE_HEADERS, (b"referrer-policy", b"same-origin"), (b"content-security-policy", _PAGES))
    page = _DOCS_PAGE if path.startswith("/docs") else _NO_PAGE
    return (*SAFE_HEADERS, (b"referrer-policy", b"no-referrer"), (b"content-security-policy", page))
