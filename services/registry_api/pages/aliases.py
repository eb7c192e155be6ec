"""The aliases on a voice's page: setting, moving and removing them by hand, and undoing that."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_WRITE
from services.registry_api.dependencies import AT_STORE, CallerDep, NamespaceDep, ServicesDep
from services.registry_api.operations.alias import MovedAlias, move, reset_alias
from services.registry_api.operations.live_voice import Check
from services.registry_api.pages.deleted import path_of
from services.registry_api.pages.forms import (
    MAX_FIELD,
    MAX_REVISION,
    Revision,
    VoiceOfPage,
    checked_form,
    page_router,
    redirect_to,
    typed_number,
)
from services.registry_api.wire import rendering
from services.registry_api.wire.fields import Fields
from services.shared.model.document import SpeakerDocument, number_of
from speaker_registry.errors import AliasNotFound, InvalidRequest, PreconditionFailed
from speaker_registry.names import DEFAULT, MAX_VERSION, parse_alias
from speaker_registry.schemas import VoiceAlias

router = page_router("/voices/{name}/aliases")


@dataclass(frozen=True, slots=True)
class Former:
    """The state of an alias before the change after which a page is shown."""

    alias: str
    version: int
    """The number of the version to which the alias pointed, or 0 if there was no such alias."""
    by_itself: bool
    moved: int
    """The revision that the change made, or 0 if it removed the alias."""

    def can_come_back(self, document: SpeakerDocument) -> bool:
        """Return whether the alias has not changed since, and its former state can be restored."""
        is_live = any(one.number == self.version for one in document.versions)
        was_new = not self.version and self.moved > 0 and self.alias != DEFAULT
        return (is_live or was_new) and _moved(document, self.alias) == self.moved


async def _former(
    alias: Annotated[str, Query(max_length=MAX_FIELD)] = "",
    former: Annotated[int, Query(ge=0, le=MAX_VERSION)] = 0,
    by_itself: Annotated[str, Query(max_length=8)] = "",
    moved: Revision = 0,
) -> Former | None:
    """Parse the parameters that the routes below put into a page's address. Raises `InvalidReference`."""
    return Former(parse_alias(alias), former, bool(by_itself), moved) if alias else None


FormerDep = Annotated[Former | None, Depends(_former)]


def shown_aliases(document: SpeakerDocument) -> list[VoiceAlias]:
    """Return the aliases of a live voice, `default` first."""
    names = sorted(document.aliases, key=lambda name: (name != DEFAULT, name))
    return [rendering.alias(document, name) for name in names]


@router.post("", dependencies=[VOICES_WRITE, AT_STORE])
async def page_move_alias(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, caller: CallerDep
) -> Response:
    """Point an alias to a version, unless the alias has changed since the page was loaded.

    The form contains the former state of the alias, so that a second click on the same button leads to the
    same page.
    """
    async with checked_form(request) as fields:
        alias, number = _alias(fields), typed_number(fields, "version", least=1)
        by_itself = alias == DEFAULT and "by_itself" in fields.names
        former, was_by_itself = typed_number(fields, "former"), "former_by_itself" in fields.names
        seen = typed_number(fields, "moved", most=MAX_REVISION)

    def move_alias() -> MovedAlias:
        return move(
            services.speakers,
            services.profiles,
            namespace,
            name,
            alias,
            number,
            by=caller.id,
            check=_unmoved_since(alias, seen),
            then_by_itself=by_itself,
        )

    moved = await run_in_threadpool(move_alias)
    path = f"/voices/{rendering.voice_id(moved.document)}"
    if not former and moved.previous is not None:  # another caller had already set this alias to this version
        return redirect_to(path, version=number)
    return redirect_to(
        path,
        version=number,
        alias=alias,
        moved=_moved(moved.document, alias),
        former=former,
        by_itself="yes" if was_by_itself else None,
    )


@router.post("/remove", dependencies=[VOICES_WRITE, AT_STORE])
async def page_remove_alias(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceOfPage, caller: CallerDep
) -> Response:
    """Remove an alias other than `default`, unless the alias has changed since the page was loaded."""
    async with checked_form(request) as fields:
        alias, former = _alias(fields), typed_number(fields, "former")
        seen = typed_number(fields, "moved", most=MAX_REVISION)
    if alias == DEFAULT:
        raise InvalidRequest("`default` cannot be removed. Accepted: another alias.", param="alias")

    def remove_alias() -> None:
        with suppress(AliasNotFound):  # a second click on the same button
            reset_alias(
                services.speakers,
                services.profiles,
                namespace,
                name,
                alias,
                by=caller.id,
                check=_unmoved_since(alias, seen),
            )

    await run_in_threadpool(remove_alias)
    return redirect_to(path_of(name.name), version=former, alias=alias, former=former)


def _unmoved_since(alias: str, seen: int) -> Check:
    """Return a check that refuses a change if the alias has changed since a page was loaded.

    Args:
        seen: the revision that had last moved the alias when the page was loaded, or 0 if there was no such
            alias.
    """

    def check(document: SpeakerDocument) -> None:
        if _moved(document, alias) == seen:
            return
        if alias not in document.aliases:
            now = f"Alias `{alias}` was removed after the page with this button was loaded."
        elif not seen:
            now = f"There is an alias `{alias}` already, and it means version {number_of(document, alias)}."
        else:
            now = (
                f"`{alias}` has changed since the page with this button was loaded, and means version "
                f"{number_of(document, alias)} now."
            )
        raise PreconditionFailed(
            f"{now} Nothing was changed. Reload the page of the voice and decide again.", param="moved"
        )

    return check


def _moved(document: SpeakerDocument, alias: str) -> int:
    """Return the revision that moved an alias, or 0 if there is no such alias."""
    present = document.aliases.get(alias)
    return present.moved if present else 0


def _alias(fields: Fields) -> str:
    return parse_alias((fields.text("alias", max_length=MAX_FIELD) or "").strip())
