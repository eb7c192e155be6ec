"""The page of a deleted voice, which shows until when the voice can be restored, and its history."""

from urllib.parse import quote

from fastapi import Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import VOICES_DELETE
from services.registry_api.dependencies import (
    AT_STORE,
    CallerDep,
    NamespaceDep,
    Services,
    ServicesDep,
    VoiceName,
)
from services.registry_api.pages.forms import (
    MAX_FIELD,
    MAX_REVISION,
    checked_form,
    page_router,
    redirect_to,
    show,
    typed_number,
)
from services.registry_api.pages.history import past_of
from services.registry_api.wire import rendering
from services.registry_api.wire.uploads import undelete
from services.shared.model.document import SpeakerDocument
from services.shared.model.speaker import SpeakerId
from services.shared.registry.lookup import not_found
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import PreconditionFailed, VoiceExists
from speaker_registry.names import SpeakerName

router = page_router("/voices/{name}/undelete")


@router.post("", dependencies=[VOICES_DELETE, AT_STORE])
async def page_undelete(
    request: Request, services: ServicesDep, namespace: NamespaceDep, name: VoiceName, caller: CallerDep
) -> Response:
    """Restore the voice that was deleted last under a name, unless another one was deleted since the page was
    loaded. Redirect to its page.

    The form contains the id of the voice's first version, so that a second click on the button leads to the
    same page.
    """
    async with checked_form(request) as fields:
        seen = typed_number(fields, "life", most=MAX_REVISION)
        first_id = fields.text("first_id", max_length=MAX_FIELD) or ""

    def check(document: SpeakerDocument) -> None:
        if document.last_deleted is None or document.last_deleted.life != seen:
            raise PreconditionFailed(
                f"Voice '{name.name}' was deleted again after the page with this button was loaded. Nothing "
                "was changed. Reload the page of the voice and decide again.",
                param="life",
            )

    def bring_back() -> FoundSpeaker:
        try:
            return undelete(services, namespace, name, by=caller.id, check=check)
        except VoiceExists:
            named = services.speakers.read(SpeakerId.of(namespace, name))
            if named.document.is_known_by(first_id):
                return named
            raise

    speaker = await run_in_threadpool(bring_back)
    return redirect_to(f"/voices/{rendering.voice_id(speaker.document)}")


def path_of(name: str) -> str:
    """Return the path of the page of a voice, which may be deleted, by its name or id."""
    return f"/voices/{quote(name, safe='')}"


def show_deleted(
    request: Request, services: Services, document: SpeakerDocument, name: SpeakerName, *, past: str
) -> Response:
    """Show a deleted voice that can still be restored. Raises `VoiceNotFound` for any other voice.

    Args:
        document: the document of a voice that is not live.
    """
    life = document.last_deleted
    until = life.deleted_at + round(services.deleted_grace_seconds) if life else 0
    if life is None or services.speakers.now() > until:
        raise not_found(name)
    return show(
        request,
        "deleted.html",
        name=life.versions[-1].name,
        action=f"{path_of(life.versions[-1].name)}/undelete",
        life=life.life,
        first_id=life.first or life.versions[0].id,
        deleted_at=life.deleted_at,
        until=until,
        versions=len(life.versions),
        **past_of(request, services, document, path_of(name.name), past=past),
    )
