"""Sends people to the OpenID provider to sign in, and handles their return.

The data of a sign-in is in a sealed cookie of its own, which only the browser that began the sign-in has. The
cookie is `SameSite=Lax`, because people return from the provider's site, and is only sent to the paths of
signing in. Each sign-in has a cookie of its own, named by its state, because people may sign in on several
pages at once when their session has ended.
"""

import json
from dataclasses import asdict
from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from services.registry_api.access.provider_sign_in import (
    BEGIN_AGAIN,
    SIGN_IN_SECONDS,
    ProviderSignIn,
    SignIn,
)
from services.registry_api.access.rules import PUBLIC, access_of, client_address
from services.registry_api.keys.seal import Seal
from services.registry_api.pages.cookies import cookie_header, sent_cookie, sent_cookies
from services.registry_api.pages.rendering import MAX_NEXT, own_page, page_that_opens
from services.registry_api.pages.sessions import CALLBACK, seal_of
from services.registry_api.pages.signing_in import ask_to_sign_in, sign_in_with
from services.registry_api.protocol.routing import PAGES, Router
from speaker_registry.errors import InvalidApiKey, NotFound, RateLimited, Unavailable

router = Router(
    prefix=f"{PAGES}/login", include_in_schema=False, default_response_class=Response, any_query=True
)
"""Providers add parameters of their own to the address to which people return."""
COOKIE = "speaker_registry_sign_in_"
"""Names of the cookies of sign-ins begin with this."""
_MAX_COOKIES_BYTES = 3500
"""The oldest sign-ins beyond this are forgotten. Proxies accept about 8 KB of cookies, of which a session may
take half.
"""
_UNKNOWN = (
    "This sign-in cannot be completed: it did not begin in this browser, began more than ten minutes ago, "
    "has been completed already, or was lost when the registry's Redis was restarted. Begin again."
)
_Parameter = Annotated[str, Query(max_length=8192)]


@router.get("/provider", dependencies=[PUBLIC])
async def page_to_provider(
    request: Request, following: Annotated[str, Query(alias="next", max_length=MAX_NEXT)] = ""
) -> Response:
    """Redirect a person to the provider."""
    _provider(request)  # 404 if there is none
    sign_in = SignIn.new(own_page(following))
    try:
        address = await access_of(request).begin_sign_in(sign_in, _callback(request))
    except Unavailable as error:
        return ask_to_sign_in(request, following, error)
    sealed = await run_in_threadpool(seal_of(request).seal, json.dumps(asdict(sign_in)).encode())
    answer = RedirectResponse(address, status_code=303, headers={"Cache-Control": "no-store"})
    _set_cookie(request, answer, _cookie_of(sign_in.state), sealed)
    for name in _forgotten(request, len(sealed)):
        _set_cookie(request, answer, name, "")
    return answer


@router.get("/callback", dependencies=[PUBLIC])
async def page_from_provider(
    request: Request,
    code: _Parameter = "",
    state: _Parameter = "",
    error: _Parameter = "",
    iss: _Parameter = "",
) -> Response:
    """Begin a session for a person who returns from the provider."""
    provider, sign_in = _provider(request), await run_in_threadpool(_begun, request, state)
    following = sign_in.following if sign_in else ""
    try:
        if sign_in is None:
            raise InvalidApiKey(_UNKNOWN)
        if iss not in {"", provider.issuer}:
            raise InvalidApiKey(
                f"This answer comes from another provider than the one that was asked. {BEGIN_AGAIN}"
            )
        if error or not code:
            raise _refusal(error)
        address = client_address(request.scope)
        token = await access_of(request).finish_sign_in(sign_in, code, _callback(request), address)
        await sign_in_with(request, token)
        response = page_that_opens(request, following)
    except (RateLimited, Unavailable) as problem:  # the person may reload the page, with the same sign-in
        return ask_to_sign_in(request, following, problem)
    except InvalidApiKey as problem:
        response = ask_to_sign_in(request, following, problem)
    if sign_in:
        _set_cookie(request, response, _cookie_of(state), "")
    return response


def _refusal(error: str) -> InvalidApiKey:
    """Return the error for a person whom the provider did not sign in.

    Args:
        error: the provider's code (RFC 6749, section 4.1.2.1), or nothing.
    """
    if error == "access_denied":
        return InvalidApiKey(
            "The provider did not sign you in: you canceled the sign-in, or you may not use this registry "
            "('access_denied'). Begin again, or ask the operator of this registry for access."
        )
    reason = ascii(error)[:80] if error else "its answer has neither a code nor an error"
    return InvalidApiKey(f"The provider did not sign you in: {reason}. {BEGIN_AGAIN}")


def _provider(request: Request) -> ProviderSignIn:
    provider = access_of(request).provider
    if provider is None:
        raise NotFound("This registry has no OpenID provider to sign in at. Use an API key.")
    return provider


def _begun(request: Request, state: str) -> SignIn | None:
    """Return the sign-in with this state, or None if this browser did not begin it, or too long ago."""
    sealed = sent_cookie(request, _cookie_of(state))
    sign_in = _opened(seal_of(request), sealed) if sealed else None
    return sign_in if sign_in and sign_in.belongs_to(state) else None


def _opened(seal: Seal, sealed: str) -> SignIn | None:
    opened = seal.open(sealed, SIGN_IN_SECONDS)
    try:
        return SignIn(**json.loads(opened)) if opened else None
    except TypeError:  # the cookie holds other sealed data
        return None


def _cookie_of(state: str) -> str:
    return COOKIE + state[:16]


def _forgotten(request: Request, size: int) -> list[str]:
    """Return the cookies of the oldest sign-ins, which must make room for a new one of `size` bytes."""
    forgotten, room = [], _MAX_COOKIES_BYTES - size
    for name, value in reversed(sent_cookies(request, COOKIE).items()):
        room -= len(name) + len(value)
        if room < 0:
            forgotten.append(name)
    return forgotten


def _callback(request: Request) -> str:
    """Return the callback address, which must be registered at the provider for this client."""
    return f"{request.url.scheme}://{request.url.netloc}{CALLBACK}"


def _set_cookie(request: Request, response: Response, name: str, value: str) -> None:
    """Have the browser keep a cookie for the time of a sign-in, or remove it if the value is empty."""
    seconds = SIGN_IN_SECONDS if value else 0
    cookie = cookie_header(request, name, value, path=f"{PAGES}/login", seconds=seconds, same_site="Lax")
    response.headers.append("Set-Cookie", cookie)
