"""The page of API keys, which makes, rotates and revokes keys. A new key is shown once."""

import re
import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import ADMIN
from services.registry_api.dependencies import AT_STORE, After, CallerDep, Services, ServicesDep
from services.registry_api.keys.api_keys import ApiKey, Token
from services.registry_api.keys.make import make
from services.registry_api.keys.revoke import revoke
from services.registry_api.keys.rotate import rotate
from services.registry_api.pages.forms import (
    MAX_FIELD,
    address,
    checked_form,
    page_router,
    redirect_to,
    show,
)
from services.registry_api.protocol.callers import Caller
from services.registry_api.wire import key_rendering
from services.registry_api.wire.fields import Fields
from services.registry_api.wire.forms import check_characters
from speaker_registry.errors import InvalidRequest, PermissionDenied
from speaker_registry.names import NAMESPACE_PATTERN
from speaker_registry.schemas import ApiKeyRequest
from speaker_registry.scopes import SCOPES

router = page_router("/keys")
_PAGE_SIZE = 50
_POSITION = re.compile(r"([0-9]{1,15})-([0-9a-z]{1,64})")
_LIFETIMES = (30, 90, 365)
"""Offered lifetimes in days."""
_OVERLAPS = {86_400: "in 1 day", 3600: "in 1 hour", 7 * 86_400: "in 7 days", 0: "at once"}
"""Offered times until a key that was rotated ends, in seconds."""
SCOPE_MEANINGS = {
    "voices:read": "see voices",
    "voices:write": "register voices",
    "voices:delete": "delete voices",
    "artifacts:read": "download artifacts",
    "audio:read": "hear and download clips",
    "jobs:read": "see jobs",
    "jobs:write": "start and cancel jobs",
    "engine": "all that a TTS server needs",
    "admin": "manage keys, read metrics",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of the list that a page shows. Its forms carry it, so that people come back to it."""

    q: str = ""
    """Part of a key's name or of its id."""
    after: str = ""
    """The position after which the page begins. It stays valid when the key at this position is gone."""

    @classmethod
    def sent(cls, fields: Fields) -> "_Part":
        """Return the part in a form. Raises `InvalidRequest`."""
        part = cls(*(fields.text(name, max_length=MAX_FIELD) or "" for name in ("q", "after")))
        part.position()
        return part

    def position(self) -> tuple[int, str] | None:
        """Return the position after which the page begins, or None for the first page. Raises
        `InvalidRequest`.
        """
        if not self.after:
            return None
        parts = _POSITION.fullmatch(self.after)
        if parts is None:
            raise InvalidRequest(
                f"{self.after[:80]!a} is no position in the list of keys; accepted: the one in the previous "
                "page's link to the next page.",
                param="after",
            )
        return int(parts[1]), parts[2]

    def of(self, keys: list[ApiKey]) -> list[ApiKey]:
        """Return the keys that match and come after the position, newest first."""
        wanted, position = self.q.strip().casefold(), self.position()
        return [
            key
            for key in reversed(keys)
            if (position is None or key.position < position)
            and wanted in f"{key.record.name}\nsreg_{key.record.id}…".casefold()
        ]


@router.get("", dependencies=[ADMIN])
def page_keys(
    request: Request,
    services: ServicesDep,
    caller: CallerDep,
    q: Annotated[str, Query(max_length=128)] = "",
    after: After = "",
) -> Response:
    """List the keys of the caller's namespace, or of all namespaces, newest first."""
    return _show_keys(request, services, caller, _Part(q, after))


@router.post("", dependencies=[ADMIN, AT_STORE])
async def page_make_key(request: Request, services: ServicesDep, caller: CallerDep) -> Response:
    """Make a key and show it. It is shown in this answer and never again."""
    async with checked_form(request) as fields:
        wanted = _wanted(fields)
    return await run_in_threadpool(_make, request, services, caller, wanted)


def _make(request: Request, services: Services, caller: Caller, wanted: ApiKeyRequest) -> Response:
    namespace = wanted.namespace or request.scope["namespace"]
    if not caller.for_any_namespace and namespace != caller.namespace:
        raise PermissionDenied(
            f"The namespace is {ascii(namespace)[:80]}; your key makes keys only for {caller.namespace!r}.",
            param="namespace",
        )
    token, made = make(
        services.keys,
        name=wanted.name,
        namespace=namespace,
        scopes=wanted.scopes,
        created_by=caller.id,
        expires_at=wanted.expires_at,
        by_operator=caller.for_any_namespace,
    )
    return _show_keys(request, services, caller, _Part(), new=(token, made))


def _wanted(fields: Fields) -> ApiKeyRequest:
    days = fields.text("days", max_length=4) or ""
    if days and days not in map(str, _LIFETIMES):
        raise InvalidRequest(f"The lifetime is {days!a}; accepted: {_LIFETIMES} days.", param="days")
    scopes = [scope for scope in SCOPES if f"scope:{scope}" in fields.names]
    if not scopes:
        raise InvalidRequest("No scope was chosen; accepted: one or more.", param="scopes")
    name = (fields.text("name", max_length=MAX_FIELD) or "").strip()
    check_characters("name", name)
    try:
        return ApiKeyRequest.model_validate(
            {
                "name": name,
                "scopes": scopes,
                "namespace": (fields.text("namespace", max_length=MAX_FIELD) or "").strip() or None,
                "expires_at": int(time.time()) + int(days) * 86_400 if days else None,
            }
        )
    except ValidationError as error:
        field = str(error.errors()[0]["loc"][0])
        accepted = (
            "1 to 128 characters, one of them visible" if field == "name" else f"{NAMESPACE_PATTERN}, or *"
        )
        raise InvalidRequest(f"The {field} is not accepted; accepted: {accepted}.", param=field) from None


@router.post("/{key_id}/revoke", dependencies=[ADMIN, AT_STORE])
async def page_revoke_key(
    request: Request, services: ServicesDep, caller: CallerDep, key_id: str
) -> Response:
    """Revoke a key, and the keys that it made if the form says so."""
    async with checked_form(request) as fields:
        descendants, part = "descendants" in fields.names, _Part.sent(fields)
    await run_in_threadpool(_revoke, services, caller, key_id, descendants)
    return redirect_to("/keys", q=part.q, after=part.after)


def _revoke(services: Services, caller: Caller, key_id: str, descendants: bool) -> None:
    services.keys.get(key_id, caller.namespace)
    revoke(services.keys, key_id, by=caller.id, with_descendants=descendants)


@router.post("/{key_id}/rotate", dependencies=[ADMIN, AT_STORE])
async def page_rotate_key(
    request: Request, services: ServicesDep, caller: CallerDep, key_id: str
) -> Response:
    """Make a key with the rights of an old one, which ends at the time in the form, and show the new key
    once.
    """
    async with checked_form(request) as fields:
        overlap, part = fields.text("overlap", max_length=8) or "", _Part.sent(fields)
    if overlap not in map(str, _OVERLAPS):
        raise InvalidRequest(
            f"The old key's end is {overlap!a}; accepted: {', '.join(map(str, _OVERLAPS))} seconds.",
            param="overlap",
        )
    return await run_in_threadpool(_rotate, request, services, caller, part, key_id, int(overlap))


def _rotate(
    request: Request, services: Services, caller: Caller, part: _Part, key_id: str, grace_seconds: int
) -> Response:
    token, made = rotate(
        services.keys,
        services.keys.get(key_id, caller.namespace),
        grace_seconds=grace_seconds,
        by=caller.id,
        by_operator=caller.for_any_namespace,
    )
    former = services.keys.read(key_id)
    return _show_keys(request, services, caller, part, new=(token, made), former=former)


def _show_keys(
    request: Request,
    services: Services,
    caller: Caller,
    part: _Part,
    *,
    new: tuple[Token, ApiKey] | None = None,
    former: ApiKey | None = None,
) -> Response:
    keys = services.keys
    found = part.of(keys.all(caller.namespace))
    shown, more = found[:_PAGE_SIZE], len(found) > _PAGE_SIZE
    used = services.key_uses.last([key.record.id for key in (*shown, *([former] if former else []))])
    return show(
        request,
        "keys.html",
        keys=[key_rendering.key(keys, key, used) for key in shown],
        part=part,
        next_page=address("/keys", q=part.q, after="{}-{}".format(*shown[-1].position)) if more else None,
        first_page=address("/keys", q=part.q),
        new=key_rendering.new_key(keys, new[1], new[0]) if new else None,
        former=key_rendering.key(keys, former, used) if former else None,
        scopes=SCOPE_MEANINGS,
        lifetimes=_LIFETIMES,
        overlaps=_OVERLAPS,
        status=201 if new else 200,
    )
