"""The pages for signing in and out, the choice of a namespace, and the assets of all pages."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import RedirectResponse, Response

from services.registry_api.access.rules import ANY_KEY, PUBLIC, access_of, authenticate
from services.registry_api.dependencies import CallerDep
from services.registry_api.pages.forms import MAX_FIELD, checked_form, page_router, redirect_to, show
from services.registry_api.pages.rendering import ASSETS, MAX_NEXT, VERSIONS, own_page
from services.registry_api.pages.sessions import begin_session, end_session, show_namespace, use_key
from services.registry_api.protocol.error_answers import retry_after
from services.registry_api.protocol.signals import ERROR_CODE
from speaker_registry.errors import (
    InvalidApiKey,
    InvalidRequest,
    NotFound,
    RateLimited,
    SpeakerRegistryError,
    Unavailable,
)
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace

router = page_router()
_MEDIA_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain"}


@router.get("/assets/{name}", dependencies=[PUBLIC])
async def page_asset(name: str, version: Annotated[str, Query(alias="v", max_length=64)] = "") -> Response:
    """Get an asset, such as the stylesheet. If the request names its version, browsers may cache it for a
    year. During a roll-out, the version may be that of another release.
    """
    if name not in ASSETS:
        raise NotFound(f"There is no asset {ascii(name)[:80]}.")
    age = "public, max-age=31536000, immutable" if version == VERSIONS[name] else "no-cache"
    kind = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(ASSETS[name], media_type=kind, headers={"Cache-Control": age})


@router.get("/login", dependencies=[PUBLIC])
async def page_login(
    request: Request,
    following: Annotated[str, Query(alias="next", max_length=MAX_NEXT)] = "",
    ended: Annotated[str, Query(max_length=8)] = "",
) -> Response:
    """Show the form that asks for a key."""
    if not access_of(request).required:
        return redirect_to("")
    return ask_to_sign_in(request, following, ended=bool(ended))


@router.post("/login", dependencies=[PUBLIC])
async def page_sign_in(request: Request) -> Response:
    """Begin a session with a key."""
    async with checked_form(request) as fields:
        entered = fields.text("key", max_length=16_384) or ""
        following = own_page(fields.text("next", max_length=MAX_NEXT) or "")
    try:
        await sign_in_with(request, _entered_key(entered))
    except (InvalidApiKey, RateLimited) as error:
        return ask_to_sign_in(request, following, error)
    return RedirectResponse(following, status_code=303, headers={"Cache-Control": "no-store"})


def _entered_key(text: str) -> str:
    """Return the key that a person entered, without the spaces and the word `Bearer` that may have been
    copied with it. Raises `InvalidApiKey` if nothing else was entered.
    """
    key = text.strip()
    word, _, rest = key.partition(" ")
    if word.lower() == "bearer":
        key = rest.strip()
    if not key:
        raise InvalidApiKey("No API key was entered. Paste a complete key, which begins with 'sreg_'.")
    return key


async def sign_in_with(request: Request, key: str) -> None:
    """Begin a session with an API key or a token. Raises `InvalidApiKey`, `RateLimited` and `Unavailable`."""
    if not key.isascii() or not key.isprintable():
        raise InvalidApiKey("This is neither an API key nor a token: it contains characters that none has.")
    use_key(request, key)
    caller = await authenticate(access_of(request), request.scope)
    await begin_session(request, key=key, namespace="default" if caller.for_any_namespace else None)


def ask_to_sign_in(
    request: Request, following: str, problem: SpeakerRegistryError | None = None, *, ended: bool = False
) -> Response:
    """Show the sign-in page, with the error of the last attempt or a note that the session has ended."""
    if problem is not None:
        request.scope[ERROR_CODE] = problem.code  # for the access log
    statuses = {InvalidApiKey: 403, RateLimited: 429, Unavailable: 503}
    answer = show(
        request,
        "login.html",
        following=own_page(following),
        problem=problem.message if problem else None,
        ended=ended,
        provider=access_of(request).provider is not None,
        status=statuses[type(problem)] if problem else 200,
    )
    answer.headers.update(retry_after(problem) if problem else {})
    return answer


@router.post("/logout", dependencies=[ANY_KEY])
async def page_sign_out(request: Request) -> Response:
    """End the session."""
    async with checked_form(request):
        await end_session(request)
    return redirect_to("/login")


@router.post("/namespace", dependencies=[ANY_KEY])
async def page_choose_namespace(request: Request, caller: CallerDep) -> Response:
    """Make the pages show another namespace. This needs a key for any namespace."""
    async with checked_form(request) as fields:
        namespace = (fields.text("namespace", max_length=MAX_FIELD) or "").strip()
    if not caller.for_any_namespace or not is_namespace(namespace):
        raise InvalidRequest(
            f"The namespace is {ascii(namespace)[:80]}; accepted: {ACCEPTED_NAMESPACES}, with a key for any.",
            param="namespace",
        )
    show_namespace(request, namespace)
    return redirect_to("")
