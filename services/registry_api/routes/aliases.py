"""Routes of aliases: list, get, move and remove the names that stand for versions of a voice."""

from typing import Annotated

from fastapi import Depends, Path, Request
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_READ, VOICES_WRITE
from services.registry_api.dependencies import (
    AT_STORE,
    After,
    CallerDep,
    Limit,
    NamespaceDep,
    ServicesDep,
    VoiceName,
)
from services.registry_api.operations.alias import move, reset_alias
from services.registry_api.operations.live_voice import Check
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, check_of, only_new, page_of, tag_of
from services.registry_api.wire.documented import DocumentedRouter
from services.shared.model.document import SpeakerDocument, number_of
from services.shared.registry.lookup import find
from speaker_registry.errors import PreconditionFailed
from speaker_registry.names import parse_alias
from speaker_registry.schemas import AliasMove, MovedAlias, VoiceAlias

router = DocumentedRouter(prefix="/v1/voices/{name}/aliases", tags=["voices"])


async def _alias(
    alias: Annotated[
        str,
        Path(
            description="`default` or another alias. `latest` is reserved.",
            examples=["default"],
            json_schema_extra={"format": "voice-alias"},
        ),
    ],
) -> str:
    """Parse the alias in a path. Raises `InvalidReference`."""
    return parse_alias(alias)


Alias = Annotated[str, Depends(_alias)]


@router.get("", dependencies=[VOICES_READ])
def list_aliases(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    limit: Limit = 20,
    after: After = "",
) -> Response:
    """List the aliases of a voice by name, each with its version. The computed `latest` is left out."""
    document = find(services.speakers, namespace, name).document
    names = sorted(one for one in document.aliases if one > after)
    shown = [rendering.alias(document, one) for one in names[:limit]]
    return answer(request, page_of(shown, lambda one: one.alias, more=len(names) > limit))


@router.get("/{alias}", dependencies=[VOICES_READ])
def get_alias(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, alias: Alias
) -> Response:
    """Get an alias: its version, whether somebody moved it by hand, and the revision that moved it."""
    return answer(request, rendering.alias(find(services.speakers, namespace, name).document, alias))


@router.put("/{alias}", dependencies=[VOICES_WRITE, AT_STORE])
def move_alias(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    alias: Alias,
    wanted: AliasMove,
    caller: CallerDep,
) -> Response:
    """Point an alias to a version, or make a new alias. Engines find that version from now on.

    Nothing is extracted, so a move to an older version and back costs nothing. `default` then stays until it
    is moved again or deleted, whatever is registered meanwhile. Honours `If-Match`, compared with the ETag of
    the alias, and `If-None-Match: *`, which moves no alias that exists. A move that would change nothing
    is answered with 200 whatever these headers say. The answer has the ETag of the alias.
    """
    moved = move(
        services.speakers,
        services.profiles,
        namespace,
        name,
        alias,
        wanted.version,
        by=caller.id,
        check=_check_of_move(request, alias),
    )
    shown = rendering.alias(moved.document, alias)
    return answer(
        request,
        MovedAlias(**dict(shown), previous_version=moved.previous),
        headers={"ETag": tag_of(shown)},
    )


@router.delete("/{alias}", status_code=204, dependencies=[VOICES_WRITE, AT_STORE])
def remove_alias(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    alias: Alias,
    caller: CallerDep,
) -> Response:
    """Remove an alias. Honours `If-Match`.

    `default` is not removed, but moves by itself again: at once to the newest version that may have it. It
    stays if the promotion policy of the voice is `manual`.
    """
    reset_alias(
        services.speakers,
        services.profiles,
        namespace,
        name,
        alias,
        by=caller.id,
        check=_check(request, alias),
    )
    return Response(status_code=204)


def _check_of_move(request: Request, alias: str) -> Check | None:
    """Return a check of `If-Match` and `If-None-Match: *`, or None if the request has neither header."""
    check = _check(request, alias)
    if not only_new(request):
        return check

    def check_new(document: SpeakerDocument) -> None:
        if check is not None:
            check(document)
        if alias in document.aliases:
            raise PreconditionFailed(
                f"If-None-Match is '*', and alias '{alias}' points to version {number_of(document, alias)}.",
                param="If-None-Match",
            )

    return check_new


def _check(request: Request, alias: str) -> Check | None:
    """Return a check of `If-Match` against the alias in a document, or None if the request has no such
    header.
    """

    def shown(document: SpeakerDocument) -> VoiceAlias:
        if alias not in document.aliases:
            raise PreconditionFailed(
                f"If-Match is given, and there is no alias '{alias}' yet.", param="If-Match"
            )
        return rendering.alias(document, alias)

    return check_of(request, shown)
