"""Pages that list voices and register them.

If a registration is refused, the form comes back with the reason and with all that was typed into it.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import COUNTED_UPLOAD, VOICES_READ, VOICES_WRITE
from services.registry_api.dependencies import (
    SEARCHING,
    After,
    CallerDep,
    NamespaceDep,
    Services,
    ServicesDep,
    UploadSlotsDep,
)
from services.registry_api.operations.register import NewVersion, Registered
from services.registry_api.operations.sources import ClipSource
from services.registry_api.pages.forms import (
    address,
    checked_form,
    page_router,
    redirect_to,
    show,
    typed_text,
)
from services.registry_api.pages.sessions import is_partial
from services.registry_api.protocol.error_answers import status_of
from services.registry_api.wire import rendering
from services.registry_api.wire.fields import Fields
from services.registry_api.wire.forms import DASHBOARD, MAX_CONSENT, MAX_TEXT
from services.registry_api.wire.paging import cursor_before, find_voices, is_in_state
from services.registry_api.wire.uploads import register, register_source
from speaker_registry import sample_voice
from speaker_registry.errors import InvalidApiKey, InvalidRequest, SpeakerRegistryError, VoiceExists
from speaker_registry.labels import parse_filters
from speaker_registry.names import key_of_name, parse_speaker_name
from speaker_registry.schemas import ArtifactState

router = page_router("/voices")
_PAGE_SIZE = 50
_MAX_LABELS = 4
"""The list shows this many labels of a voice. The page of the voice shows all."""
State = Annotated[str, Query(pattern="^(|pending|processing|ready|failed)$")]
STATES: tuple[ArtifactState, ...] = ("ready", "processing", "pending", "failed")


@router.get("", dependencies=[VOICES_READ, SEARCHING])
def page_voices(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    q: Annotated[str, Query(max_length=128)] = "",
    state: State = "",
    profile: Annotated[str, Query(max_length=128)] = "",
    label: Annotated[str, Query(max_length=512)] = "",
    after: After = "",
) -> Response:
    """List voices by name: those that match a search, a state, a profile and labels."""
    profiles = services.profiles
    if profile:
        profiles.get(profile)
    labels = parse_filters(one.strip() for one in label.split(",")) if label.strip() else {}
    part = key_of_name(q)
    found = find_voices(
        services.speakers,
        services.store,
        namespace,
        after=after,
        limit=_PAGE_SIZE,
        matches=lambda speaker: (
            speaker.document.about.has_labels(labels)
            and is_in_state(profiles, speaker, profile or None, state or None)
        ),
        part=part or None,
    )
    filters = {"q": q, "state": state, "profile": profile, "label": label}
    searched_up_to = (
        found.last if found.more and len(found.found) < _PAGE_SIZE and not found.of_bucket else ""
    )
    leap = cursor_before(part) if part and searched_up_to else ""
    return show(
        request,
        "voices.html",
        voices=[rendering.voice(profiles, speaker) for speaker in found.found],
        filters=filters,
        after=after,
        next_page=address("/voices", after=found.last, **filters) if found.more else None,
        first_page=address("/voices", **filters),
        searched_up_to=searched_up_to,
        beginning_with=address("/voices", after=leap, **filters) if leap > searched_up_to else None,
        states=STATES,
        max_labels=_MAX_LABELS,
        profiles=sorted(profiles.names),
    )


@dataclass(frozen=True, slots=True)
class NewVoice:
    """The content of the form that registers a voice, as a person typed it, besides the clip."""

    name: str = ""
    ref_text: str = ""
    consent: str = ""
    description: str = ""
    voice_id: str = ""
    """The id of the voice to which the form adds a version. A person cannot change its name there."""

    @classmethod
    def typed(cls, fields: Fields) -> "NewVoice":
        return cls(
            name=typed_text(fields, "name"),
            ref_text=typed_text(fields, "ref_text"),
            consent=typed_text(fields, "consent"),
            description=typed_text(fields, DASHBOARD.description),
            voice_id=typed_text(fields, "voice_id"),
        )


@router.get("/@new", dependencies=[VOICES_WRITE])
def page_new_voice(
    request: Request,
    services: ServicesDep,
    name: Annotated[str, Query(max_length=512)] = "",
    voice_id: Annotated[str, Query(max_length=512)] = "",
) -> Response:
    """Show the form that registers a voice, or adds a version to the voice with this name and id. No voice
    can have the name of this page, because names have no `@`.
    """
    return _show_form(request, services, NewVoice(name=name, voice_id=voice_id))


def _show_form(
    request: Request,
    services: Services,
    typed: NewVoice,
    *,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    return show(
        request,
        "new_voice.html",
        status=status,
        typed=typed,
        problem=problem,
        limits=services.limits,
        max_text=MAX_TEXT,
        max_consent=MAX_CONSENT,
        text_needed=[one.name for one in services.profiles.required if one.ref_text_required],
    )


@router.post("", dependencies=[VOICES_WRITE, COUNTED_UPLOAD])
async def page_register(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    slots: UploadSlotsDep,
    caller: CallerDep,
) -> Response:
    """Register a voice from a form, as the API does, and redirect to its page.

    If it is refused, the form is shown again. A script that sent it keeps it on the screen.
    """
    async with checked_form(request) as fields:
        try:
            async with slots.hold():
                if fields.file("audio_sample") is None:
                    raise InvalidRequest("No audio file was chosen.", param="audio_sample")
                registered = await run_in_threadpool(
                    register, services, namespace, fields, DASHBOARD, by=caller.id
                )
        except SpeakerRegistryError as error:
            if is_partial(request) or isinstance(error, InvalidApiKey):
                raise
            status = status_of(error, compatible=False)
            return _show_form(request, services, NewVoice.typed(fields), problem=error.message, status=status)
    voice_id = rendering.voice_id(registered.speaker.document)
    again = None if registered.created else "yes"
    return redirect_to(f"/voices/{voice_id}", version=registered.version.number, known=again)


@router.post("/sample", dependencies=[VOICES_WRITE, COUNTED_UPLOAD])
async def page_register_sample(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    slots: UploadSlotsDep,
    caller: CallerDep,
) -> Response:
    """Register the sample voice of the package under a free name, and redirect to its page."""
    async with checked_form(request), slots.hold():
        registered = await run_in_threadpool(_register_sample, services, namespace, caller.id)
    return redirect_to(f"/voices/{rendering.voice_id(registered.speaker.document)}")


def _register_sample(services: Services, namespace: str, by: str) -> Registered:
    clip = sample_voice.clip()
    source = ClipSource(clip, services.decoder.decode(clip))
    for name in sample_voice.names():
        upload = NewVersion(
            name=parse_speaker_name(name),
            consent=sample_voice.CONSENT,
            ref_text=sample_voice.transcript(),
            expects="new",
        )
        with suppress(VoiceExists):
            return register_source(services, namespace, upload, source, by=by)
    raise VoiceExists("All names for sample voices are taken. Delete a sample voice first.")
