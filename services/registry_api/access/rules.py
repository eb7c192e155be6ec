"""The rules of routes: which scopes a key needs for a route, or that the route needs no key.

`create_app` refuses a route without a rule. The key determines the namespace that a request is about. Objects
of other namespaces are not found.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Annotated, Any

import structlog
from anyio import from_thread
from fastapi import FastAPI, Request, Security
from fastapi.routing import RouteContext, iter_route_contexts
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer, SecurityScopes
from starlette.datastructures import Headers
from starlette.types import Scope

from services.registry_api.access.authentication import Access
from services.registry_api.access.rate_limits import REQUESTS, UPLOADS, closest
from services.registry_api.keys.api_keys import ALL_SCOPES
from services.registry_api.protocol.callers import OWN_NAMESPACE, Caller, address_of
from services.registry_api.protocol.headers import rate_headers
from services.registry_api.serving.recheck import set_check
from speaker_registry.errors import (
    ApiKeysOff,
    InvalidRequest,
    PermissionDenied,
    RateLimited,
    SpeakerRegistryError,
)
from speaker_registry.names import ACCEPTED_NAMESPACES, is_namespace
from speaker_registry.schemas import Rate

NAMESPACE_HEADER = "X-Speaker-Namespace"
"""Header that names the namespace of a request, if its key is for any namespace."""
CHECK_OF_SESSION = "check_of_session"
"""Member of the scope of a request for a page: a function that raises `InvalidApiKey` if the person's session
has ended.
"""

_bearer = HTTPBearer(
    auto_error=False,
    scheme_name="ApiKey",
    description="`Authorization: Bearer sreg_…`, or a JWT if the registry accepts an OpenID provider's.",
)


def tenant_of(access: Access, scope: Scope) -> str:
    """Return the tenant whose share of a process a request uses, from the request's head alone.

    The tenant is the namespace, or the address of the client if its key is not known.
    """
    headers = Headers(scope=scope)
    caller = access.cached_caller(_sent_key(headers))
    if caller is None:
        return f"address {client_address(scope)}"
    if caller.for_any_namespace:
        asked = headers.get(NAMESPACE_HEADER, OWN_NAMESPACE)
        return f"namespace {asked if is_namespace(asked) else OWN_NAMESPACE}"
    return f"namespace {caller.namespace}"


async def authenticate(access: Access, scope: Scope) -> Caller:
    """Authenticate a request by its head, once, and store its caller and its namespace in its scope. Also
    store the number of the last change of keys that the check took into account. From now on, the request is
    authenticated again whenever it has waited, and before it changes something: see `recheck`.

    Raises:
        InvalidApiKey, InvalidRequest, PermissionDenied, RateLimited, Unavailable.
    """
    if "caller" not in scope:
        headers = Headers(scope=scope)
        _refuse_repeated(headers)
        changes = access.key_changes
        caller = await access.authenticate(_sent_key(headers), client_address(scope))
        structlog.contextvars.bind_contextvars(key_id=caller.id)
        scope["namespace"] = _requested_namespace(caller, headers.get(NAMESPACE_HEADER))
        scope["caller"], scope["key_changes"] = caller, changes
    set_check(partial(authenticate_again, access, scope) if access.required else None)
    caller = scope["caller"]
    assert isinstance(caller, Caller)
    return caller


async def caller_of_now(access: Access, scope: Scope) -> Caller | None:
    """Return the caller of a request that is being answered, or None if the key is not valid any more, has
    other rights than before, or cannot be looked up for a while. The time at which the key ends may have
    changed.
    """
    try:
        caller = await authenticate_again(access, scope)
    except SpeakerRegistryError:
        return None
    return caller if caller.has_rights_of(scope["caller"]) else None


async def authenticate_again(access: Access, scope: Scope) -> Caller:
    """Authenticate a request whose key or session may have ended since `authenticate`, and return its caller
    of now.

    Raises:
        InvalidApiKey, RateLimited, Unavailable.
    """
    return await access.authenticate_again(_sent_key(Headers(scope=scope)), scope.get(CHECK_OF_SESSION))


@asynccontextmanager
async def waiting(request: Request) -> AsyncIterator[None]:
    """Count a request as waiting for as long as the context lasts, and refuse it afterwards if its key or its
    session has ended meanwhile.

    Raises:
        InvalidApiKey, RateLimited, Unavailable.
    """
    access, scope = access_of(request), request.scope
    with access.waiting_requests.hold(scope["caller"], scope["namespace"]):
        yield
    await authenticate_again(access, scope)


def _refuse_repeated(headers: Headers) -> None:
    """Raise `InvalidRequest` if a header that decides what a request may do is sent more than once.

    A proxy that checks requests and the registry could disagree on which one counts.
    """
    for name in ("Authorization", NAMESPACE_HEADER):
        if (count := len(headers.getlist(name))) > 1:
            raise InvalidRequest(
                f"The request has {count} headers {name}; accepted: at most one, because it would not be "
                "clear which of them counts.",
                param=name,
            )


def _sent_key(headers: Headers) -> str | None:
    scheme, _, sent = headers.get("authorization", "").partition(" ")
    return sent.strip() if scheme.lower() == "bearer" and sent.strip() else None


def client_address(scope: Scope) -> str:
    return address_of(scope["client"][0] if scope.get("client") else "")


async def _authorize(
    request: Request,
    accepted: SecurityScopes,
    _sent: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> None:
    """Authenticate a request, count it, and check the scopes of its key.

    Raises:
        InvalidApiKey, PermissionDenied, RateLimited
    """
    caller = await authenticate(access_of(request), request.scope)
    await count_request(request)
    if accepted.scopes and caller.scopes.isdisjoint(accepted.scopes):
        raise PermissionDenied(
            f"This API key has the scopes: {_list_scopes(caller.scopes)}; needed: "
            f"{' or '.join(accepted.scopes)}."
        )


async def _authorize_operator(
    request: Request,
    accepted: SecurityScopes,
    authorization: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> None:
    """Authorize a request about all namespaces, which only a key for any namespace may send."""
    await _authorize(request, accepted, authorization)
    caller = request.scope["caller"]
    if not caller.for_any_namespace:
        raise PermissionDenied(
            f"This API key is for namespace {caller.namespace!r}; needed: a key for any namespace ('*')."
        )


async def _authorize_key_management(
    request: Request,
    accepted: SecurityScopes,
    authorization: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)],
) -> None:
    """Authorize a request about API keys, as `_authorize` does, unless the registry requires no keys.

    Without required keys, any process on the machine could make a key with all rights, which would stay valid
    once keys are required.

    Raises:
        InvalidApiKey, PermissionDenied, RateLimited; ApiKeysOff: the registry requires no keys.
    """
    await _authorize(request, accepted, authorization)
    if not access_of(request).required:
        raise ApiKeysOff(
            "This registry requires no API keys, so they cannot be created, listed, rotated or revoked. "
            "Start it with SPEAKER_AUTH_REQUIRED=true and a bootstrap key first."
        )


async def count_request(request: Request) -> None:
    """Count a request. Raises `RateLimited`."""
    await _count(request, access_of(request), REQUESTS)


async def count_upload(request: Request) -> None:
    """Count an upload. Raises `RateLimited`."""
    await _count(request, access_of(request), UPLOADS)


def count_upload_in_thread(request: Request) -> Callable[[], None]:
    """Return a function that counts an upload from a thread of a request. It raises `RateLimited`."""
    return partial(from_thread.run, count_upload, request)


async def _count(request: Request, access: Access, what: str) -> None:
    """Count a request or upload against the limits of its key and its namespace.

    The answer's headers describe the limit on requests that is closer, or the limit that was exceeded. Raises
    `RateLimited`.
    """
    rates = access.rate_limits
    usages = []
    for limit in rates.limits_for(request.scope["caller"], request.scope["namespace"], what):
        try:
            usages.append(await rates.take(limit))
        except RateLimited as error:
            reset_seconds = int(error.retry_after_seconds or 0)
            exceeded = Rate(limit=limit.per_minute, remaining=0, reset_seconds=reset_seconds)
            _set_rate_headers(request, exceeded)
            raise
    if what == REQUESTS:
        _set_rate_headers(request, closest(usages))


def _set_rate_headers(request: Request, rate: Rate) -> None:
    request.scope["answer_headers"] = rate_headers(rate)


def access_of(request: Request) -> Access:
    access = request.app.state.parts.services.access  # `Parts` belongs to a layer above this one
    assert isinstance(access, Access)
    return access


def _list_scopes(scopes: Iterable[str]) -> str:
    return ", ".join(sorted(scopes)) or "none"


def _requested_namespace(caller: Caller, header: str | None) -> str:
    if caller.for_any_namespace:
        asked = header if header is not None else OWN_NAMESPACE
        if not is_namespace(asked):
            raise PermissionDenied(
                f"{NAMESPACE_HEADER} is {ascii(asked)[:80]}; accepted: {ACCEPTED_NAMESPACES}.",
                param=NAMESPACE_HEADER,
            )
        return asked
    if header is not None and header != caller.namespace:
        raise PermissionDenied(
            f"{NAMESPACE_HEADER} is {ascii(header)[:80]}; this API key is for {caller.namespace!r}.",
            param=NAMESPACE_HEADER,
        )
    return caller.namespace


def needs(*scopes: str) -> Any:
    """Return a rule: a key needs one of these scopes. Without scopes, every key is accepted."""
    assert ALL_SCOPES.issuperset(scopes), scopes
    return Security(_authorize, scopes=scopes)


COUNTED_UPLOAD = Security(count_upload)
"""Declares, after a route's rule, that the route takes an upload."""


async def _public() -> None:
    """The rule of a route that needs no key."""


PUBLIC = Security(_public)

VOICES_READ = needs("voices:read", "engine")
VOICES_WRITE = needs("voices:write")
VOICES_DELETE = needs("voices:delete")
ARTIFACTS_READ = needs("artifacts:read", "engine")
AUDIO_READ = needs("audio:read")
JOBS_READ = needs("jobs:read", "engine")
JOBS_WRITE = needs("jobs:write", "engine")
JOBS_CANCEL = needs("jobs:write")
"""The scope `engine` does not allow canceling, because a TTS server only asks for artifacts, and other
callers may wait for the same job.
"""
ADMIN = Security(_authorize_key_management, scopes=("admin",))
VERSIONS_RESTORE = needs("admin")
METRICS = Security(_authorize_operator, scopes=("admin",))
PROFILES_PROMOTE = Security(_authorize_operator, scopes=("admin",))
CAMPAIGNS = Security(_authorize_operator, scopes=("admin",))
ANY_KEY = needs()


_DOCUMENTATION = frozenset({"/openapi.json", "/docs", "/docs/oauth2-redirect", "/static-offline-docs"})
"""Paths that FastAPI adds. Their answers are the same for every caller, and hold no secrets."""


def accepted_scopes(route: RouteContext) -> frozenset[str] | None:
    """Return the scopes of which a key needs one. Empty means that every key is accepted, and None that no
    key is needed.

    Raises:
        ValueError: the route has no rule.
    """
    for dependency in route.dependencies or ():
        if dependency.dependency is _public:
            return None
        if dependency.dependency in {_authorize, _authorize_operator, _authorize_key_management}:
            return frozenset(getattr(dependency, "scopes", None) or ())
    raise ValueError(f"{sorted(route.methods or ())} {route.path} has no rule: see `rules.needs`")


def without_security(document: dict[str, Any]) -> dict[str, Any]:
    """Remove the security requirements from the OpenAPI document, for a registry that requires no keys."""
    for operations in document["paths"].values():
        for operation in operations.values():
            operation.pop("security", None)
    document["components"].pop("securitySchemes", None)
    return document


def our_routes(app: FastAPI) -> list[RouteContext]:
    """Return all routes except those of FastAPI's documentation."""
    return [route for route in iter_route_contexts(app.routes) if route.path not in _DOCUMENTATION]


def check_rules(app: FastAPI) -> None:
    """Raise ValueError if a route has no rule."""
    for route in our_routes(app):
        accepted_scopes(route)
