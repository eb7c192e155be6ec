"""Sends people to the OpenID provider to sign in, and handles their return.

The data of a sign-in is in a sealed cookie of its own, which only the browser that began the sign-in has. The
cookie is `SameSite=Lax`, because people return from the provider's site, and is only sent to the paths of
signing in. A browser keeps the last two sign-ins, because people may sign in on several pages at once when
their session has ended.
"""

import json
import time
from dataclasses import asdict
from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from services.registry_api.access.provider_sign_in import SIGN_IN_SECONDS, ProviderSignIn, SignIn
from services.registry_api.access.rules import PUBLIC, access_of, client_address
from services.registry_api.keys.seal import Seal
from services.registry_api.pages.cookies import cookie_header, sent_cookie
from services.registry_api.pages.rendering import MAX_NEXT, own_page, page_that_opens
from services.registry_api.pages.sessions import CALLBACK, seal_of
from services.registry_api.pages.signing_in import ask_to_sign_in, sign_in_with
from services.registry_api.protocol.routing import PAGES, Router
from speaker_registry.errors import InvalidApiKey, NotFound, RateLimited, Unavailable

router = Router(
    prefix=f"{PAGES}/login", include_in_schema=False, default_response_class=Response, any_query=True
)
"""Providers add parameters of their own to the address to which people return."""
COOKIE = "speaker_registry_sign_in"
_COOKIES = (COOKIE, f"{COOKIE}_2")
"""No more than two, because proxies accept about 8 KB of cookies, of which a session may take half."""
_Parameter = Annotated[str, Query(max_length=8192)]


@router.get("/provider", dependencies=[PUBLIC])
async def page_to_provider(
    request: Request, following: Annotated[str, Query(alias="next", max_length=MAX_NEXT)] = ""
) -> Response:
    """Redirect a person to the provider."""
    _provider(request)
    sign_in = SignIn.new(own_page(following), time.time())
    try:
        address = await access_of(request).begin_sign_in(sign_in, _callback(request))
    except Unavailable as error:
        return ask_to_sign_in(request, following, error)
    sealed = await run_in_threadpool(seal_of(request).seal, json.dumps(asdict(sign_in)).encode())
    begun = await run_in_threadpool(_begun, request)
    oldest = min(_COOKIES, key=lambda name: begun[name].began_at if name in begun else 0)
    headers = {"Cache-Control": "no-store", "Set-Cookie": _cookie(request, oldest, sealed, SIGN_IN_SECONDS)}
    return RedirectResponse(address, status_code=303, headers=headers)


@router.get("/callback", dependencies=[PUBLIC])
async def page_from_provider(
    request: Request,
    code: _Parameter = "",
    state: _Parameter = "",
    error: _Parameter = "",
    iss: _Parameter = "",
) -> Response:
    """Begin a session for a person who returns from the provider."""
    provider, begun, now = _provider(request), await run_in_threadpool(_begun, request), time.time()
    mine = [name for name, one in begun.items() if one.belongs_to(state, now)]
    sign_in = begun[mine[0]] if mine else None
    following = sign_in.following if sign_in else ""
    try:
        if sign_in is None or iss not in {"", provider.issuer}:
            raise InvalidApiKey(
                "This sign-in did not begin in this browser, or more than ten minutes ago. Begin again."
            )
        if error:
            raise InvalidApiKey(f"The provider did not sign you in: {ascii(error)[:80]}.")
        if not code:
            raise InvalidApiKey(
                "The provider did not sign you in: its answer has neither a code nor an error."
            )
        address = client_address(request.scope)
        token = await access_of(request).finish_sign_in(sign_in, code, _callback(request), address)
        await sign_in_with(request, token)
        response = page_that_opens(request, following)
    except (RateLimited, Unavailable) as problem:  # the person may reload the page, with the same sign-in
        return ask_to_sign_in(request, following, problem)
    except InvalidApiKey as problem:
        response = ask_to_sign_in(request, following, problem)
    for name in mine:
        response.headers.append("Set-Cookie", _cookie(request, name, "", 0))
    return response


def _provider(request: Request) -> ProviderSignIn:
    provider = access_of(request).provider
    if provider is None:
        raise NotFound("This registry has no OpenID provider to sign in at. Use an API key.")
    return provider


def _begun(request: Request) -> dict[str, SignIn]:
    """Return the sign-ins that this browser began, by the names of their cookies."""
    sent = {name: sent_cookie(request, name) for name in _COOKIES}
    opened = {name: _opened(seal_of(request), sealed) for name, sealed in sent.items() if sealed}
    return {name: sign_in for name, sign_in in opened.items() if sign_in}


def _opened(seal: Seal, sealed: str) -> SignIn | None:
    opened = seal.open(sealed)
    try:
        return SignIn(**json.loads(opened)) if opened else None
    except TypeError:  # the cookie holds other sealed data
        return None


def _callback(request: Request) -> str:
    """Return the callback address, which must be registered at the provider for this client."""
    return f"{request.url.scheme}://{request.url.netloc}{CALLBACK}"


def _cookie(request: Request, name: str, value: str, seconds: int) -> str:
    return cookie_header(request, name, value, path=f"{PAGES}/login", seconds=seconds, same_site="Lax")
