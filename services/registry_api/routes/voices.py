"""Routes of voices: list, get and delete voices, and list and get their versions."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_DELETE, VOICES_READ
from services.registry_api.dependencies import (
    AT_STORE,
    SEARCHING,
    After,
    Limit,
    NamespaceDep,
    Reference,
    ServicesDep,
    Usable,
    VoiceName,
)
from services.registry_api.protocol.routing import Router
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, check_if_match
from services.registry_api.wire.examples import voices as examples
from services.registry_api.wire.paging import find_voices
from services.shared.index.reading import IndexedSpeaker
from services.shared.registry.status import Statuses
from speaker_registry.names import key_of_name, parse_reference
from speaker_registry.schemas import ArtifactState, Page, Voice, VoiceVersion

router = Router(prefix="/v1/voices", tags=["voices"])


@router.get("", responses=examples.VOICES, dependencies=[VOICES_READ, SEARCHING])
def list_voices(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    limit: Limit = 20,
    after: After = "",
    profile: Usable = None,
    state: Annotated[ArtifactState | None, Query(description="Only voices in this state.")] = None,
    q: Annotated[
        str | None,
        Query(max_length=128, description="Only voices whose name contains this text. Case does not matter."),
    ] = None,
) -> Response:
    """List voices by name.

    `profile` keeps only voices that this profile can use. `state` keeps only voices in that state; if
    `profile` is given, the state for that profile counts. A search examines a limited number of voices per
    page, so a page may have fewer voices than `limit`, or none, while `has_more` is true: pass its `last_id`
    as `after` to continue the search.
    """
    statuses = services.operations.statuses
    if profile is not None:
        services.parts.catalogue.get(profile)
    part = key_of_name(q) if q is not None else None
    page = find_voices(
        services.operations.pages,
        namespace,
        after=after,
        limit=limit,
        matches=lambda indexed: _matches(statuses, indexed, profile, state),
        part=part,
    )
    shown = [rendering.voice(statuses, indexed) for indexed in page.found]
    return answer(
        request,
        Page[Voice](data=shown, first_id=page.first, last_id=page.last or None, has_more=page.more),
    )


def _matches(statuses: Statuses, indexed: IndexedSpeaker, profile: str | None, state: str | None) -> bool:
    version = indexed.speaker.default
    if profile is None:
        return state is None or statuses.state(indexed, version) == state
    status = statuses.of_profile(indexed, version, profile)
    return not status.unsupported and state in {None, status.state}


@router.get("/{name}", responses=examples.VOICE, dependencies=[VOICES_READ])
def get_voice(request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName) -> Response:
    """Get a voice, with the version that its name currently resolves to."""
    indexed = services.operations.speakers.find(namespace, name)
    return answer(request, rendering.voice(services.operations.statuses, indexed))


@router.delete("/{name}", status_code=204, responses=examples.DELETE, dependencies=[VOICES_DELETE, AT_STORE])
def delete_voice(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName
) -> Response:
    """Delete a voice with all its versions. From now on its name is not found. Honours `If-Match`."""
    operations = services.operations

    def check(indexed: IndexedSpeaker) -> None:
        check_if_match(request, rendering.voice(operations.statuses, indexed))

    conditional = "if-match" in request.headers
    operations.deletions.delete(namespace, name, check=check if conditional else None)
    return Response(status_code=204)


@router.get("/{name}/versions", responses=examples.VERSIONS, dependencies=[VOICES_READ])
def list_versions(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    limit: Limit = 20,
    after: Annotated[int, Query(ge=0, description="`last_id` of the previous page.")] = 0,
) -> Response:
    """List the versions of a voice, newest first.

    For the next page, pass `last_id` as `after`. A page ends early after about 1 MiB of texts: `has_more`
    says whether there are more versions.
    """
    operations = services.operations
    indexed, page, more = operations.pages.versions(namespace, name, before=after or None, limit=limit)
    shown = [rendering.version(operations.statuses, indexed, one) for one in page]
    return answer(
        request,
        Page[VoiceVersion](
            data=shown,
            first_id=str(shown[0].version) if shown else None,
            last_id=str(shown[-1].version) if shown else None,
            has_more=more,
        ),
    )


@router.get("/{name}/versions/{ref}", responses=examples.VERSION, dependencies=[VOICES_READ])
def get_version(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Get a version by its number or an alias."""
    operations = services.operations
    indexed, version = operations.speakers.find_version(namespace, name, parse_reference(ref))
    return answer(request, rendering.version(operations.statuses, indexed, version))
