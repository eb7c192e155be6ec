"""Routes of voices and their versions: list, get and delete them; edit and undelete voices; their history."""

from dataclasses import replace
from typing import Annotated

from fastapi import Query, Request
from pydantic import Field
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_DELETE, VOICES_READ, VOICES_WRITE
from services.registry_api.dependencies import (
    AT_STORE,
    SEARCHING,
    After,
    AfterChange,
    AfterNumber,
    CallerDep,
    Limit,
    NamespaceDep,
    Reference,
    Services,
    ServicesDep,
    Usable,
    VersionNumber,
    VoiceName,
)
from services.registry_api.operations.delete import delete, delete_version
from services.registry_api.operations.edit import edit
from services.registry_api.operations.live_voice import Check
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, check_of, page_of, tag_of
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.forms import parse_description
from services.registry_api.wire.paging import (
    find_voices,
    is_in_state,
    newest_changes,
    newest_versions,
    position_in_history,
)
from services.registry_api.wire.uploads import limits_of, undelete
from services.shared.model.document import SpeakerDocument
from services.shared.registry.lookup import find, find_version, locate, not_found
from speaker_registry.labels import parse_filters
from speaker_registry.names import SpeakerName, key_of_name
from speaker_registry.schemas import ArtifactState, Page, Voice, VoiceChange, VoiceEdit, VoiceVersion

router = DocumentedRouter(prefix="/v1/voices", tags=["voices"])


@router.get("", dependencies=[VOICES_READ, SEARCHING])
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
    label: Annotated[
        list[Annotated[str, Field(json_schema_extra={"format": "label-filter"})]],
        Query(
            max_length=32, description="Only voices with this label, as `team=blue`. All given must match."
        ),
    ] = [],  # noqa: B006 - never changed
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
    labels = parse_filters(label)
    page = find_voices(
        services.speakers,
        services.store,
        namespace,
        after=after,
        limit=limit,
        matches=lambda speaker: (
            speaker.document.about.has_labels(labels) and is_in_state(profiles, speaker, profile, state)
        ),
        part=key_of_name(q) if q is not None else None,
    )
    shown = [rendering.voice(profiles, speaker) for speaker in page.found]
    return answer(
        request,
        Page[Voice](data=shown, first_id=page.first, last_id=page.last or None, has_more=page.more),
    )


@router.get("/{name}", dependencies=[VOICES_READ])
def get_voice(request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName) -> Response:
    """Get a voice, with the version that its name currently resolves to."""
    speaker = find(services.speakers, namespace, name)
    return answer(request, rendering.voice(services.profiles, speaker))


@router.patch("/{name}", dependencies=[VOICES_WRITE, AT_STORE])
def edit_voice(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    wanted: VoiceEdit,
    caller: CallerDep,
) -> Response:
    """Change a voice's description, labels, pin or promotion policy. Members that the body leaves out stay
    unchanged.

    Keys and values of labels have the form of Kubernetes' labels, and a voice has up to 32. No version
    changes, and nothing is extracted. With `"promotion": "manual"`, the alias `default` moves only by hand.
    With `on_ready`, it moves by itself again, and at once if a newer version is ready. Honours `If-Match`,
    compared with the ETag of the voice; the answer has the new one. An edit that would change nothing is
    answered with 200 whatever `If-Match` says.
    """
    members = {one: getattr(wanted, one) for one in wanted.model_fields_set - {"labels"}}
    if "description" in members:
        members["description"] = parse_description(wanted.description or "")
    speaker = edit(
        services.speakers,
        services.profiles,
        namespace,
        name,
        labels=wanted.labels,
        members=members,
        limits=limits_of(services.settings),
        by=caller.id,
        check=_check_of_voice(request, services, namespace, name),
    )
    shown = rendering.voice(services.profiles, speaker)
    return answer(request, shown, headers={"ETag": tag_of(shown)})


def _check_of_voice(request: Request, services: Services, namespace: str, name: SpeakerName) -> Check | None:
    """Return a check of `If-Match` against the voice in a document, or None if the request has no such
    header.
    """

    def shown(document: SpeakerDocument) -> Voice:
        seen = locate(services.speakers, namespace, name)
        return rendering.voice(services.profiles, replace(seen, document=document))

    return check_of(request, shown)


@router.delete("/{name}", status_code=204, dependencies=[VOICES_DELETE, AT_STORE])
def delete_voice(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, caller: CallerDep
) -> Response:
    """Delete a voice with all its versions. From now on its name is not found. Honours `If-Match`."""
    delete(
        services.speakers,
        services.jobs,
        namespace,
        name,
        by=caller.id,
        check=_check_of_voice(request, services, namespace, name),
    )
    return Response(status_code=204)


@router.post("/{name}/undelete", dependencies=[VOICES_DELETE, AT_STORE])
def undelete_voice(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, caller: CallerDep
) -> Response:
    """Undelete the voice that was deleted last under a name, with its versions, numbers and aliases.

    That is possible until the grace period ends (a day, unless the operator says otherwise) and while nobody
    registered the name again. The id of that voice is accepted in place of the name. Artifacts that the voice
    lacks by now are extracted.
    """
    speaker = undelete(services, namespace, name, by=caller.id)
    return answer(request, rendering.voice(services.profiles, speaker))


@router.get("/{name}/history", dependencies=[VOICES_READ])
def list_changes(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    limit: Limit = 20,
    after: AfterChange = "",
) -> Response:
    """List the changes that people and API keys have made to a voice, newest first: the last 100 changes.
    Between them are the promotions of encoders that changed what the voice serves.

    Artifacts that workers publish are left out, and so are requests that changed nothing. The history of a
    deleted voice is kept as long as the voice can be undeleted, and is erased with it.
    """
    before = position_in_history(after)
    document = locate(services.speakers, namespace, name, also_deleted=True).document
    if not document.live and not document.history:
        raise not_found(name)
    found, more = newest_changes(document, services.profiles, before=before, limit=limit)
    return answer(
        request,
        Page[VoiceChange](
            data=[rendering.change(one) for one in found],
            first_id=str(found[0].position) if found else None,
            last_id=str(found[-1].position) if found else None,
            has_more=more,
        ),
    )


@router.get("/{name}/versions", dependencies=[VOICES_READ])
def list_versions(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    limit: Limit = 20,
    after: AfterNumber = 0,
) -> Response:
    """List the versions of a voice, newest first.

    For the next page, pass `last_id` as `after`.
    """
    speaker = find(services.speakers, namespace, name)
    page, more = newest_versions(speaker.document, before=after or None, limit=limit)
    shown = [rendering.version(services.profiles, speaker, one) for one in page]
    return answer(request, page_of(shown, lambda one: one.version, more=more))


@router.get("/{name}/versions/{ref}", dependencies=[VOICES_READ])
def get_version(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, ref: Reference
) -> Response:
    """Get a version by its number or an alias."""
    speaker, version = find_version(services.speakers, services.profiles, namespace, name, ref)
    return answer(request, rendering.version(services.profiles, speaker, version))


@router.delete(
    "/{name}/versions/{ref}", name="delete_version", status_code=204, dependencies=[VOICES_DELETE, AT_STORE]
)
def delete_one_version(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    number: VersionNumber,
    caller: CallerDep,
) -> Response:
    """Delete one version by its number. Honours `If-Match`.

    A version that an alias points to is refused, unless it is the last one, which takes the voice along. A
    single version cannot be undeleted. The voice keeps its `id`, also if its first version is deleted.
    """

    def shown(document: SpeakerDocument) -> VoiceVersion:
        seen = replace(locate(services.speakers, namespace, name), document=document)
        return rendering.version(services.profiles, seen, document.numbered(number))

    delete_version(
        services.speakers,
        services.jobs,
        namespace,
        name,
        number,
        by=caller.id,
        check=check_of(request, shown),
    )
    return Response(status_code=204)
