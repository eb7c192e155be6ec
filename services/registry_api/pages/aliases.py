"""The aliases on a voice's page: moving `default` by hand, and putting the former one back."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_WRITE
from services.registry_api.dependencies import AT_STORE, CallerDep, NamespaceDep, ServicesDep, VoiceName
from services.registry_api.operations.alias import MovedAlias, move
from services.registry_api.pages.forms import (
    MAX_FIELD,
    Revision,
    checked_form,
    lead_to,
    page_router,
)
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import tag_of
from services.registry_api.wire.fields import Fields
from services.shared.model.document import SpeakerDocument
from speaker_registry.errors import InvalidRequest, PreconditionFailed
from speaker_registry.names import DEFAULT, MAX_VERSION
from speaker_registry.schemas import VoiceAlias

router = page_router("/voices/{name}/default")


@dataclass(frozen=True, slots=True)
class Former:
    """The state of `default` before the move that led to a page."""

    version: int
    by_itself: bool
    moved: int
    """The revision that this move made."""

    def was_before(self, document: SpeakerDocument) -> bool:
        """Return whether `default` was not moved since, and can be put back."""
        is_live = any(one.number == self.version for one in document.versions)
        return is_live and document.aliases[DEFAULT].moved == self.moved


async def _former(
    former: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
    by_itself: Annotated[str, Query(max_length=8)] = "",
    moved: Revision = 0,
) -> Former:
    """Read from a page's address what `page_move_default` put there."""
    return Former(former, bool(by_itself), moved)


FormerDep = Annotated[Former, Depends(_former)]


def shown_aliases(document: SpeakerDocument) -> list[VoiceAlias]:
    """Return the aliases of a live voice, `default` first."""
    names = sorted(document.aliases, key=lambda name: (name != DEFAULT, name))
    return [rendering.alias(document, name) for name in names]


def tag_of_default(document: SpeakerDocument) -> str:
    """Return the ETag that the API tells for `default`. Every move makes another one."""
    return tag_of(rendering.alias(document, DEFAULT))


@router.post("", dependencies=[VOICES_WRITE, AT_STORE])
async def page_move_default(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, caller: CallerDep
) -> Response:
    """Point `default` to a version, unless it is not any more what the page showed.

    What it was is in the form, so that a second click on the same button leads to the same page.
    """
    async with checked_form(request) as fields:
        number, by_itself = _number(fields, "version"), "by_itself" in fields.names
        former, was_by_itself = _number(fields, "former"), "former_by_itself" in fields.names
        tag = fields.text("if_match", max_length=MAX_FIELD)

    def check(document: SpeakerDocument) -> None:
        if tag_of_default(document) != tag:
            raise PreconditionFailed(
                "`default` was moved after the page with this button was loaded, and means version "
                f"{document.default.number} now. Nothing was changed. Load the page of the voice again to "
                "decide anew.",
                param="if_match",
            )

    def move_default() -> MovedAlias:
        return move(
            services.speakers,
            services.profiles,
            namespace,
            name,
            DEFAULT,
            number,
            by=caller.id,
            check=check,
            then_by_itself=by_itself,
        )

    moved = await run_in_threadpool(move_default)
    return lead_to(
        f"/voices/{rendering.voice_id(moved.document)}",
        version=number,
        moved=moved.document.aliases[DEFAULT].moved,
        former=former,
        by_itself="yes" if was_by_itself else None,
    )


def _number(fields: Fields, field: str) -> int:
    text = fields.text(field, max_length=MAX_FIELD) or ""
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) <= MAX_VERSION):
        raise InvalidRequest(
            f"Field '{field}' is {text[:40]!a}; accepted: the number of a version.", param=field
        )
    return int(text[:12])
