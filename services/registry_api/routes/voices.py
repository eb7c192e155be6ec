"""Routes of voices: list, get and delete voices, and list and get their versions."""

from dataclasses import replace
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_DELETE, VOICES_READ
from services.registry_api.dependencies import (
    AT_STORE,
    SEARCHING,
    After,
    CallerDep,
    Limit,
    NamespaceDep,
    Reference,
    ServicesDep,
    Usable,
    VoiceName,
)
from services.registry_api.operations.delete import delete
from services.registry_api.protocol.routing import Router
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, check_if_match
from services.registry_api.wire.examples import voices as examples
from services.registry_api.wire.paging import find_voices, newest_versions
from services.shared.model.document import SpeakerDocument
from services.shared.registry.lookup import find, find_version, locate
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.names import key_of_name
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
    profiles = services.profiles
    if profile is not None:
        profiles.get(profile)
    page = find_voices(
        services.speakers,
        services.store,
        namespace,
        after=after,
        limit=limit,
        matches=lambda speaker: _matches(profiles, speaker, profile, state),
        part=key_of_name(q) if q is not None else None,
    )
    shown = [rendering.voice(profiles, speaker) for speaker in page.found]
    return answer(
        request,
        Page[Voice](data=shown, first_id=page.first, last_id=page.last or None, has_more=page.more),
    )


def _matches(profiles: Profiles, speaker: FoundSpeaker, profile: str | None, state: str | None) -> bool:
    version = speaker.document.default
    if profile is None:
        return state is None or profiles.state(speaker, version) == state
    status = profiles.status(speaker, version, profiles.get(profile))
    return not status.unsupported and state in {None, status.state}


@router.get("/{name}", responses=examples.VOICE, dependencies=[VOICES_READ])
def get_voice(request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName) -> Response:
    """Get a voice, with the version that its name currently resolves to."""
    speaker = find(services.speakers, namespace, name)
    return answer(request, rendering.voice(services.profiles, speaker))


@router.delete("/{name}", status_code=204, responses=examples.DELETE, dependencies=[VOICES_DELETE, AT_STORE])
def delete_voice(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, caller: CallerDep
) -> Response:
    """Delete a voice with all its versions. From now on its name is not found. Honours `If-Match`."""

    def check(document: SpeakerDocument) -> None:
        seen = locate(services.speakers, namespace, name)
        check_if_match(request, rendering.voice(services.profiles, replace(seen, document=document)))

    delete(
        services.speakers,
        services.jobs,
        namespace,
        name,
        by=caller.id,
        check=check if "if-match" in request.headers else None,
    )
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

    For the next page, pass `last_id` as `after`.
    """
    speaker = find(services.speakers, namespace, name)
    page, more = newest_versions(speaker.document, before=after or None, limit=limit)
    shown = [rendering.version(services.profiles, speaker, one) for one in page]
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
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, ref)
    return answer(request, rendering.version(services.profiles, speaker, version))
