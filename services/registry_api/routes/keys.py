"""Routes of API keys (create, list, get, rotate, revoke) and of the caller's quota."""

from typing import Annotated

from fastapi import Depends, Path, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rate_limits import REQUESTS, UPLOADS, RateLimits
from services.registry_api.access.rules import ADMIN, ANY_KEY, NAMESPACE_HEADER
from services.registry_api.dependencies import (
    AT_STORE,
    After,
    CallerDep,
    Limit,
    NamespaceDep,
    Services,
    ServicesDep,
)
from services.registry_api.keys.api_keys import ANY_NAMESPACE
from services.registry_api.keys.key_rules import key_not_found
from services.registry_api.keys.make import make
from services.registry_api.keys.revoke import revoke
from services.registry_api.keys.rotate import rotate
from services.registry_api.protocol.callers import Caller
from services.registry_api.wire import key_rendering
from services.registry_api.wire.answers import answer, page_of
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.forms import check_characters
from services.shared.model.document import Counts
from services.shared.view.copies import ViewIncomplete
from speaker_registry.errors import InvalidRequest, PermissionDenied
from speaker_registry.schemas import ApiKeyRequest, Quota, Usage

router = DocumentedRouter(prefix="/v1", tags=["keys and quotas"])

KeyId = Annotated[str, Path(description="The id of a key: the 8 letters and digits after `sreg_`.")]
MAX_GRACE_SECONDS = 90 * 86_400


async def _whose_keys(request: Request, caller: CallerDep, namespace: NamespaceDep) -> str:
    """Return the namespace whose keys a request may see, or `*` for all namespaces."""
    if caller.for_any_namespace and NAMESPACE_HEADER not in request.headers:
        return ANY_NAMESPACE
    return namespace


WhoseKeysDep = Annotated[str, Depends(_whose_keys)]


async def _refuse_body(request: Request) -> None:
    """Refuse every body except an empty one and `{}`. Its fields are probably meant as query parameters. If
    they were ignored, keys that the caller believes to have ended would stay valid.
    """
    body = await request.body()
    if body.strip() not in {b"", b"{}"}:
        raise InvalidRequest(
            f"The body has {len(body)} bytes; accepted: none, because this route takes its parameters from "
            "the query.",
            param="body",
        )


_NO_BODY = Depends(_refuse_body)


@router.post("/keys", status_code=201, dependencies=[ADMIN, AT_STORE])
def create_key(
    request: Request, services: ServicesDep, caller: CallerDep, namespace: NamespaceDep, wanted: ApiKeyRequest
) -> Response:
    """Create an API key. The secret is shown in this answer and never again.

    A key for one namespace can create keys for that namespace, with limits up to the registry's default for
    every key. Only a key for any namespace can create keys for `*` (any namespace) or with higher limits. A
    key expires no later than the key that created it: without `expires_at` it expires together with that key,
    and a later `expires_at` is refused. If the answer is lost, look for the key in the list, because a
    repeated request creates another key.
    """
    check_characters("name", wanted.name)
    _check_limits(services.access.rate_limits, caller, wanted)
    keys = services.keys
    token, made = make(
        keys,
        name=wanted.name,
        namespace=_namespace_for(caller, namespace, wanted.namespace),
        scopes=wanted.scopes,
        created_by=caller.id,
        expires_at=wanted.expires_at,
        requests_per_minute=wanted.requests_per_minute,
        uploads_per_minute=wanted.uploads_per_minute,
        by_operator=caller.for_any_namespace,
    )
    return answer(request, key_rendering.new_key(keys, made, token), status=201, headers=_NOT_KEPT)


def _check_limits(rates: RateLimits, caller: Caller, wanted: ApiKeyRequest) -> None:
    """Raise `PermissionDenied` if a tenant requests higher limits than the registry gives every key."""
    if caller.for_any_namespace:
        return
    for what, asked in ((REQUESTS, wanted.requests_per_minute), (UPLOADS, wanted.uploads_per_minute)):
        most = rates.default_per_minute(what)
        if most is not None and asked is not None and asked > most:
            raise PermissionDenied(
                f"'{what}_per_minute' is {asked}; accepted from keys for {caller.namespace!r}: up to {most}.",
                param=f"{what}_per_minute",
            )


def _namespace_for(caller: Caller, namespace: str, wanted: str | None) -> str:
    if wanted is None:
        return namespace
    if not caller.for_any_namespace and caller.namespace != wanted:
        raise PermissionDenied(
            f"'namespace' is {ascii(wanted)[:80]}; this API key creates keys only for {caller.namespace!r}.",
            param="namespace",
        )
    return wanted


_NOT_KEPT = {"Cache-Control": "no-store"}


@router.get("/keys", dependencies=[ADMIN])
def list_keys(
    request: Request, services: ServicesDep, whose: WhoseKeysDep, limit: Limit = 20, after: After = ""
) -> Response:
    """List the API keys of the caller's namespace, oldest first. Ended keys stay listed for a month.

    A key for any namespace lists the keys of the namespace in `X-Speaker-Namespace`, or all keys without it.
    """
    keys = services.keys
    found = keys.all(whose)
    ids = [key.record.id for key in found]
    start = ids.index(after) + 1 if after in ids else 0
    if after and not start:
        raise key_not_found(after, whose)
    page = found[start : start + limit]
    used = services.key_uses.last([key.record.id for key in page])
    shown = [key_rendering.key(keys, key, used) for key in page]
    return answer(request, page_of(shown, lambda one: one.id, more=len(found) > start + limit))


@router.get("/keys/{key_id}", dependencies=[ADMIN])
def get_key(request: Request, services: ServicesDep, whose: WhoseKeysDep, key_id: KeyId) -> Response:
    """Get an API key that the list of keys contains."""
    key = services.keys.get(key_id, whose)
    return answer(request, key_rendering.key(services.keys, key, services.key_uses.last([key_id])))


@router.delete("/keys/{key_id}", status_code=204, dependencies=[ADMIN, _NO_BODY, AT_STORE])
def revoke_key(
    services: ServicesDep,
    caller: CallerDep,
    whose: WhoseKeysDep,
    key_id: KeyId,
    children: Annotated[
        bool, Query(description="Also revoke all keys that this key created, directly or indirectly.")
    ] = False,
) -> Response:
    """Revoke an API key. The answer comes when no API process accepts the key any more.

    Without `children`, the keys that it created stay valid. A key that was revoked without them can be
    revoked again with `children=true`.
    """
    services.keys.get(key_id, whose)
    revoke(services.keys, key_id, by=caller.id, with_descendants=children)
    return Response(status_code=204)


@router.post("/keys/{key_id}/rotate", status_code=201, dependencies=[ADMIN, _NO_BODY, AT_STORE])
def rotate_key(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    whose: WhoseKeysDep,
    key_id: KeyId,
    grace_seconds: Annotated[
        int,
        Query(
            ge=0,
            le=MAX_GRACE_SECONDS,
            description="How many seconds the old key stays valid. Default: one day.",
        ),
    ] = 86_400,
) -> Response:
    """Replace an API key: create one with the same rights, and end the old key after a grace period.

    Both keys are valid during `grace_seconds`. If the old key has an expiry, the new one gets a
    lifetime of the same length, but expires no later than the API key that makes this request. If it would
    then expire before the old key, the request is refused with 403. A revoked or expired key cannot be
    rotated. A repeated request creates another key.
    """
    keys = services.keys
    old = keys.get(key_id, whose)
    token, made = rotate(
        keys, old, grace_seconds=grace_seconds, by=caller.id, by_operator=caller.for_any_namespace
    )
    return answer(request, key_rendering.new_key(keys, made, token), status=201, headers=_NOT_KEPT)


@router.get("/quota", dependencies=[ANY_KEY])
async def get_quota(
    request: Request, services: ServicesDep, caller: CallerDep, namespace: NamespaceDep
) -> Response:
    """Get all limits and what is left of them, for example before bulk work, and what the API key may do."""
    used = await run_in_threadpool(services.speakers.usage, namespace)
    if used is None:
        raise ViewIncomplete
    return answer(request, await _quota(services, caller, namespace, used))


async def _quota(services: Services, caller: Caller, namespace: str, used: Counts) -> Quota:
    settings, rates = services.settings, services.access.rate_limits
    own_requests, all_requests = await rates.usage(caller, namespace, REQUESTS)
    own_uploads, all_uploads = await rates.usage(caller, namespace, UPLOADS)
    return Quota(
        namespace=namespace,
        key_id=caller.id,
        scopes=sorted(caller.scopes),
        voices=Usage(used=used.voices, limit=settings.max_uploaded),
        bytes=Usage(used=used.bytes, limit=settings.max_stored_bytes),
        text_bytes=Usage(used=used.text_bytes, limit=settings.max_text_bytes),
        deleted_bytes=Usage(used=used.deleted_bytes, limit=settings.max_stored_bytes),
        deleted_text_bytes=Usage(used=used.deleted_text_bytes, limit=settings.max_text_bytes),
        max_versions=settings.max_versions,
        max_builds=settings.max_builds,
        max_clip_bytes=services.limits.max_bytes,
        requests_per_minute=own_requests,
        uploads_per_minute=own_uploads,
        namespace_requests_per_minute=all_requests,
        namespace_uploads_per_minute=all_uploads,
    )
