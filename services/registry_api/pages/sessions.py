"""Sessions of people who use the pages, in cookies. Pure ASGI.

The cookie holds the API key that a person signed in with, encrypted and signed (`keys.seal`). So each request
is authenticated by that key, as any other request is, and when the key ends, so does the session. Every page
has a session, including the sign-in page, because the token against forged forms is derived from it.

Browsers send the cookie only with requests that these pages make. A browser that follows a link from another
site therefore first gets a page that opens the requested page again. Over plain HTTP, browsers do not tell
that they follow such a link, and the sign-in page appears. So the session of a person who is not signed in
has a cookie of its own, which does not replace that of a person who is signed in.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.registry_api.access.rules import (
    CHECK_OF_SESSION,
    NAMESPACE_HEADER,
    access_of,
    authenticate,
)
from services.registry_api.dependencies import parts_of
from services.registry_api.keys.seal import SEALED_SECONDS, Seal
from services.registry_api.pages.cookies import cookie_header, sent_cookie
from services.registry_api.pages.rendering import (
    MAX_NEXT,
    SAFE_METHODS,
    failure_page,
    named_page,
    own_address,
    page_that_opens,
)
from services.registry_api.protocol.error_answers import render
from services.registry_api.protocol.routing import PAGES, is_page
from speaker_registry.errors import InvalidApiKey, PermissionDenied, SpeakerRegistryError, Unavailable

COOKIE = "speaker_registry_session"
FORM_COOKIE = "speaker_registry_form"
"""The cookie of a person who is not signed in, which the token of the sign-in form belongs to."""
CALLBACK = f"{PAGES}/login/callback"
"""The path to which the OpenID provider sends people back from its own site."""
_SENT_BY_PAGE = "X-Page-Token"
"""The header in which scripts send the token of the page that they are on. `base.html` names it, too."""
_SIGN_IN = f"{PAGES}/login"
_SIGN_OUT = f"{PAGES}/logout"
_ENDED = (
    "Your session has ended: you have signed out in another tab, its key was revoked or has expired, or the "
    "browser did not send its cookie. Nothing was stored."
)
_COPY = "Sign in in another tab, and copy what you typed here into a new form."
_MAX_KEY = 2700
"""Browsers silently drop cookies of more than 4,096 bytes, and sealing makes a key a third longer."""
_SCOPE_KEY = "page_session"
_SENT_KEY = "sent_sessions"
_WITH_NAVIGATION = frozenset({403, 404, 405})
"""Only pages with these errors have navigation. Other errors may come from a registry that is too busy."""
_UNTRUSTED = (b"authorization", NAMESPACE_HEADER.lower().encode())


@dataclass(frozen=True, slots=True)
class Session:
    """The content of a cookie."""

    key: str | None = None
    """The API key or token, or None if nobody has signed in."""
    namespace: str | None = None
    """The namespace that the pages show. None means that of the key."""
    nonce: str = ""
    id: str = ""
    """The id under which the end of the session is recorded. It is kept while a person is signed in."""

    @property
    def cookie(self) -> str:
        return FORM_COOKIE if self.key is None else COOKIE

    @property
    def token(self) -> str:
        """The token that each form carries. No other web page can read it."""
        return hmac.new(self.nonce.encode(), b"form", hashlib.sha256).hexdigest()


def session_of(request: Request) -> Session:
    session = request.scope[_SCOPE_KEY]
    assert isinstance(session, Session)
    return session


def seal_of(request: Request) -> Seal:
    return parts_of(request).seal


async def begin_session(request: Request, *, key: str, namespace: str | None) -> None:
    """Have the answer to a request start a session with an unpredictable id, and end the previous session.

    Raises:
        InvalidApiKey: the key is a token that fits in no cookie.
    """
    if len(key) > _MAX_KEY:
        raise InvalidApiKey(
            f"This token has {len(key)} characters; accepted: up to {_MAX_KEY}, because a browser must keep "
            "it in a cookie. Have the OpenID provider put fewer claims into it, or sign in with an API key."
        )
    await end_session(request)
    request.scope[_SCOPE_KEY] = _new_session(key, namespace)


def show_namespace(request: Request, namespace: str) -> None:
    """Have the pages of a session show another namespace. Forms of pages that show the former one become
    invalid.
    """
    session = session_of(request)
    request.scope[_SCOPE_KEY] = replace(_new_session(session.key, namespace), id=session.id)


async def end_session(request: Request) -> None:
    """End a session, so that neither its cookie nor a copy of the cookie is accepted any more."""
    session = session_of(request)
    if session.key is not None:
        await run_in_threadpool(seal_of(request).end, session.id)
    request.scope[_SCOPE_KEY] = _new_session(None, None)


def check_token(request: Request, sent: str | None) -> None:
    """Raise `PermissionDenied` unless a form carries its session's token."""
    sessions = [session_of(request)]
    if request.url.path == _SIGN_IN:  # the page may have been loaded by a link, without the session's cookie
        sessions += request.scope[_SENT_KEY]
    if not any(hmac.compare_digest(one.token.encode(), (sent or "").encode()) for one in sessions):
        raise PermissionDenied(
            "This form is no longer valid: you have signed in, signed out or chosen another namespace since "
            "its page was loaded, or the browser keeps no cookies of this site. Load its page again and "
            "repeat the step.",
            param="token",
        )


def use_key(request: Request, key: str) -> None:
    """Have the rest of a request authenticated by a key that came in its form."""
    request.scope["headers"] = [*_trusted(request.scope), *_credentials(Session(key=key))]


class PageSessions:
    """Middleware for the paths of pages: puts the session's key in place of the header that programs send,
    refuses forms of other web pages, and shows errors as pages.
    """

    def __init__(self, app: ASGIApp, *, seal: Seal) -> None:
        self._app = app
        self._seal = seal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not is_page(scope["path"]):
            return await self._app(scope, receive, send)
        request = Request(scope)
        if _comes_from_elsewhere(request):
            return await _page_that_reloads(request)(scope, receive, send)
        try:
            found = scope[_SENT_KEY] = await self._read(request)
            session = scope[_SCOPE_KEY] = found[0] if found else _new_session(None, None)
            if found and _shows_former_session(request, session):
                reload = Response(headers={"HX-Refresh": "true", "Cache-Control": "no-store"})
                return await reload(scope, receive, send)
            scope["headers"] = [*_trusted(scope), *_credentials(session)]
            if session.key is not None:
                scope[CHECK_OF_SESSION] = partial(self._check_open, request, session)
            _check_origin(scope)
        except SpeakerRegistryError as error:
            return await self._answer_with(request, render(request, error), receive, send)
        answer = _PageAnswer(request, send, lambda: self._cookies(request, found))
        return await self._app(scope, receive, answer.send)

    async def _answer_with(self, request: Request, response: Response, receive: Receive, send: Send) -> None:
        request.scope.setdefault(_SCOPE_KEY, _new_session(None, None))
        await response(request.scope, receive, _PageAnswer(request, send, _no_cookies).send)

    async def _read(self, request: Request) -> list[Session]:
        """Return the sessions that the browser sent. That of a person who is signed in comes first."""
        sent = [value for name in (COOKIE, FORM_COOKIE) if (value := sent_cookie(request, name))]
        # Signing out must end a session also where the clock differs so much that it opens no other page.
        # Otherwise its cookie, and copies of it, would still be accepted by other processes.
        signs_out = request.method == "POST" and request.url.path == _SIGN_OUT
        max_seconds = None if signs_out else SEALED_SECONDS
        return await run_in_threadpool(self._open, sent, max_seconds) if sent else []

    async def _check_open(self, request: Request, session: Session) -> None:
        """Raise `InvalidApiKey` if the session of a request has ended since the request began."""
        if session not in await self._read(request):
            raise InvalidApiKey("This session has ended.")

    def _open(self, sent: list[str], max_seconds: int | None) -> list[Session]:
        sessions = (_parsed(self._seal.open(value, max_seconds)) for value in sent)
        return [session for session in sessions if session is not None]

    async def _cookies(self, request: Request, sent: list[Session]) -> list[str]:
        """Return the headers that make a browser keep the session, or none if it keeps it already.

        A session that it replaces is removed. No other is, because another tab may have signed in meanwhile.
        """
        session = session_of(request)
        if session in sent[:1]:
            return []
        content = json.dumps(asdict(session)).encode()
        sealed = await run_in_threadpool(self._seal.seal, content, session.id)
        replaced = {one.cookie for one in sent} - {session.cookie}
        return [
            _cookie(request, session.cookie, sealed, SEALED_SECONDS),
            *(_cookie(request, name, "", 0) for name in replaced),
        ]


async def _no_cookies() -> list[str]:
    """Leave the browser's cookies as they are."""
    return []


class _PageAnswer:
    """Sends the answer to a request for a page. Adds the cookies, and turns an error into a page.

    An answer whose cookie cannot be made is not sent: its forms would belong to no session.
    """

    def __init__(self, request: Request, send: Send, cookies: Callable[[], Awaitable[list[str]]]) -> None:
        self._request = request
        self._send = send
        self._cookies = cookies
        self._refusal: Message | None = None
        self._body = b""
        self._is_replaced = False

    async def send(self, message: Message) -> None:
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            if _is_refusal(message):
                self._refusal = message
                return
            try:
                await self._add_cookies(message)
            except Unavailable as error:
                await self._replace_with(error)
                return
        elif self._refusal is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._send_refusal(self._refusal)
            return
        await self._send(message)

    async def _replace_with(self, error: Unavailable) -> None:
        self._is_replaced = True
        answer = render(self._request, error)
        self._body = bytes(answer.body)
        start: Message = {"status": answer.status_code, "headers": answer.raw_headers}
        await self._send_refusal(start)

    async def _add_cookies(self, message: Message) -> None:
        if self._request.url.path.startswith(f"{PAGES}/assets/"):
            return  # any cache may keep this answer for a year
        for cookie in await self._cookies():
            MutableHeaders(scope=message).append("Set-Cookie", cookie)

    async def _send_refusal(self, refused: Message) -> None:
        request, status = self._request, refused["status"]
        if status == 401:
            # The browser keeps its cookie. Another tab may have signed in since this request was sent, or
            # show a sign-in page whose form belongs to the cookie. A cookie whose key has ended opens
            # no page.
            self._cookies = _no_cookies
            response = _sign_in_first(request, session_of(request).key is not None)
        else:
            await _recognize(request, status)
            response = _as_page(request, status, self._body)
        headers = MutableHeaders(raw=[*response.raw_headers, *_kept(refused)])
        status = response.status_code
        start: Message = {"type": "http.response.start", "status": status, "headers": headers.raw}
        with suppress(Unavailable):  # no form on a page of an error needs a session that begins here
            await self._add_cookies(start)
        await self._send(start)
        await self._send({"type": "http.response.body", "body": bytes(response.body)})


def is_partial(request: Request) -> bool:
    """Return whether a script asks for a part of the page that is on the screen."""
    return request.headers.get("hx-request") == "true"


def _shows_former_session(request: Request, session: Session) -> bool:
    """Return whether a script asks for a part of a page that shows another namespace, or belongs to another
    key, than the session has by now. Another tab may have changed that.
    """
    return (
        request.method in SAFE_METHODS and request.headers.get(_SENT_BY_PAGE, session.token) != session.token
    )


def _is_refusal(message: Message) -> bool:
    kind = Headers(raw=message["headers"]).get("content-type", "")
    return message["status"] >= 400 and kind.startswith(("application/json", "application/problem+json"))


def _kept(refused: Message) -> list[tuple[bytes, bytes]]:
    kept = {b"retry-after", b"allow", b"connection"}
    return [(name, value) for name, value in refused["headers"] if name.lower() in kept]


async def _recognize(request: Request, status: int) -> None:
    """Authenticate the caller of a request that failed before its route did so, so that the page has
    navigation.

    No request is refused here: without a valid session, the page has no navigation.
    """
    access = access_of(request)
    if status not in _WITH_NAVIGATION or is_partial(request):
        return
    if session_of(request).key is None and access.required:
        return  # authenticating without a key would count as a failure of the address
    with suppress(SpeakerRegistryError):
        await authenticate(access, request.scope)


def _as_page(request: Request, status: int, body: bytes) -> Response:
    answer = json.loads(body) if body else {}
    message = answer.get("detail") or answer.get("error", {}).get("message", "The request failed.")
    token = session_of(request).token
    return failure_page(request, status, message, token=token, partial=is_partial(request))


def _sign_in_first(request: Request, ended: bool) -> Response:
    """Redirect a browser to the sign-in page, and from there back to the page that it asked for.

    A form that a script sends stays on the screen, so that nothing that was typed into it is lost. Without
    scripts, a page tells how to come back to it. Signing out loses nothing, so it leads to the sign-in page.

    Args:
        ended: a person was signed in, but their key is not valid any more.
    """
    safe = request.method in SAFE_METHODS
    if not safe and request.url.path != _SIGN_OUT:
        partial, token = is_partial(request), session_of(request).token
        return failure_page(
            request, 401, f"{_ENDED} {_COPY}" if partial else _ENDED, token=token, partial=partial
        )
    query = {"ended": "yes"} if ended else {}
    following = named_page(request, "hx-current-url") if is_partial(request) else own_address(request)
    if safe and following not in (None, PAGES) and len(following) <= MAX_NEXT:
        query["next"] = following
    target = f"{PAGES}/login" + (f"?{urlencode(query)}" if query else "")
    headers = {"Location": target, "Cache-Control": "no-store"}
    if is_partial(request):
        return Response(status_code=401, headers={"HX-Redirect": target, "Cache-Control": "no-store"})
    return Response(status_code=303, headers=headers)


def _check_origin(scope: Scope) -> None:
    """Raise `PermissionDenied` if a form comes from another web page."""
    if scope["method"] in SAFE_METHODS:
        return
    headers = Headers(scope=scope)
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site is not None and site != "same-origin":
        raise PermissionDenied("This form was sent by another web page; accepted: forms of these pages.")
    if site is None and origin is not None and origin.partition("://")[2] != headers.get("host"):
        raise PermissionDenied("This form was sent by another web page; accepted: forms of these pages.")


def _trusted(scope: Scope) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name not in _UNTRUSTED]


def _credentials(session: Session) -> list[tuple[bytes, bytes]]:
    values: Mapping[bytes, str | None] = {
        b"authorization": f"Bearer {session.key}" if session.key else None,
        NAMESPACE_HEADER.lower().encode(): session.namespace,
    }
    return [(name, value.encode()) for name, value in values.items() if value is not None]


def _new_session(key: str | None, namespace: str | None) -> Session:
    return Session(key, namespace, nonce=secrets.token_hex(16), id=secrets.token_hex(16))


def _parsed(opened: bytes | None) -> Session | None:
    """Return the session that was in a cookie, or None if the cookie held other sealed data."""
    try:
        return Session(**json.loads(opened)) if opened is not None else None
    except TypeError:
        return None


def _cookie(request: Request, name: str, value: str, seconds: int) -> str:
    return cookie_header(request, name, value, path=PAGES, seconds=seconds, same_site="Strict")


def _comes_from_elsewhere(request: Request) -> bool:
    """Return whether a browser follows a link from another site to a page, and therefore omits the cookie."""
    return (
        request.method == "GET"
        and request.headers.get("sec-fetch-mode") == "navigate"
        and request.headers.get("sec-fetch-site") in {"cross-site", "same-site"}
        and sent_cookie(request, COOKIE) is None
        and request.url.path != CALLBACK
    )


def _page_that_reloads(request: Request) -> Response:
    """Return a page of ours that opens the requested page again. The browser keeps its session."""
    request.scope[_SCOPE_KEY] = _new_session(None, None)
    return page_that_opens(request, own_address(request))
