"""Parts that all pages share: parameters, checked forms, rendered answers and redirects."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request
from starlette.responses import RedirectResponse, Response

from services.registry_api.dependencies import VoiceName
from services.registry_api.pages.live import TOKEN, is_region
from services.registry_api.pages.rendering import page
from services.registry_api.pages.sessions import check_token, session_of
from services.registry_api.protocol.routing import PAGES, Router
from services.registry_api.wire.fields import Fields, read_fields
from services.registry_api.wire.forms import FORM_BYTES
from services.shared.registry.lookup import IdBeforeName
from speaker_registry.errors import InvalidRequest
from speaker_registry.names import MAX_VERSION, SpeakerName, parse_voice_id

MAX_FIELD = 512
MAX_REVISION = 10**15
Revision = Annotated[int, Query(ge=0, le=MAX_REVISION)]
"""A revision of a voice's record, or 0."""


async def _voice_of_page(request: Request, name: VoiceName) -> SpeakerName:
    """Return the voice in a page's address. Pages link to voices by their ids, which may be names of others.

    A form is about the voice that its page showed. It must not change a voice that has this id as its name.
    """
    if parse_voice_id(name.key) is None:
        return name
    return IdBeforeName(name.name, name.key, or_name=request.method != "POST")


VoiceOfPage = Annotated[SpeakerName, Depends(_voice_of_page)]


def page_router(prefix: str = "") -> Router:
    """Return a router for pages. Pages are for people, and are not part of the documented API."""
    return Router(prefix=f"{PAGES}{prefix}", include_in_schema=False, default_response_class=Response)


def show(request: Request, template: str, **values: Any) -> Response:
    """Render a page with the token of the request's session, or its live region for all sessions."""
    region = is_region(request)
    token = TOKEN if region else session_of(request).token
    return page(request, template, token=token, region=region, **values)


@asynccontextmanager
async def checked_form(request: Request) -> AsyncIterator[Fields]:
    """Parse a form of these pages, and return its fields without the token, with the line ends that were
    typed. So a text counts as the same one, and as equally long, as if it came by the API.

    Raises `PermissionDenied` if it was not sent by a page of this session.
    """
    async with read_fields(request) as fields:
        check_token(request, fields.text("token", max_length=MAX_FIELD))
        yield fields.without("token").with_typed_line_ends()


def typed_text(fields: Fields, field: str) -> str:
    """Return what a person typed into a field, or an empty text. Its length is checked later, when what was
    typed can be shown again.
    """
    return fields.text(field, max_length=FORM_BYTES) or ""


def typed_number(fields: Fields, field: str, *, least: int = 0, most: int = MAX_VERSION) -> int:
    """Return the number in a field. Raises `InvalidRequest` if it holds anything else."""
    text = fields.text(field, max_length=MAX_FIELD) or ""
    if not (text.isascii() and text.isdigit() and least <= int(text[:16]) <= most):
        raise InvalidRequest(
            f"Field '{field}' is {text[:40]!a}; accepted: a number from {least} to {most}.", param=field
        )
    return int(text[:16])


def redirect_to(path: str, **query: str | int | None) -> Response:
    """Return a redirect to a page, as the answer to a form. Reloading that page does not repeat the form."""
    return RedirectResponse(address(path, **query), status_code=303, headers={"Cache-Control": "no-store"})


def address(path: str, **query: str | int | None) -> str:
    """Return the address of a page, leaving out empty parameters."""
    wanted = {name: value for name, value in query.items() if value}
    return f"{PAGES}{path}" + (f"?{urlencode(wanted)}" if wanted else "")
