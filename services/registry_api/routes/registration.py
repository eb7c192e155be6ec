"""Routes that register voices and further versions of them. vLLM-Omni's route is in `audio_voices`."""

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import COUNTED_UPLOAD, VOICES_WRITE
from services.registry_api.dependencies import (
    CallerDep,
    NamespaceDep,
    Services,
    ServicesDep,
    UploadSlotsDep,
    VoiceName,
)
from services.registry_api.operations.register import voice_to_register
from services.registry_api.protocol.routing import Router
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer
from services.registry_api.wire.documented import request_body, responses
from services.registry_api.wire.fields import Fields, read_fields
from services.registry_api.wire.forms import NATIVE, NATIVE_VERSION, FieldNames, refuse_unknown
from services.registry_api.wire.uploads import Dedupe, IdempotencyKey, register, replayed
from services.shared.registry.lookup import find
from speaker_registry.errors import VoiceNotFound
from speaker_registry.names import SpeakerName, parse_speaker_name

router = Router(prefix="/v1/voices", tags=["voices"])

IfExists = Annotated[
    Literal["refuse", "add_version"],
    Query(description="What to do if the voice exists: refuse the upload (409), or add a version."),
]


@router.post(
    "",
    status_code=201,
    openapi_extra=request_body("create_voice"),
    responses=responses("create_voice"),
    dependencies=[VOICES_WRITE, COUNTED_UPLOAD],
)
async def create_voice(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    slots: UploadSlotsDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
    dedupe: Dedupe = True,
    if_exists: IfExists = "refuse",
) -> Response:
    """Register a voice from a reference clip or a speaker embedding. Extraction starts at once.

    If the voice exists, the upload is refused (409), unless `if_exists=add_version`. An upload whose source,
    transcript, consent and description equal those of the newest version returns that version with status
    200, unless `dedupe=false`. Unknown form fields are refused.
    """
    options: dict[str, Any] = {
        "idempotency_key": idempotency_key,
        "dedupe": dedupe,
        "by": caller.id,
        "expects": "any" if if_exists == "add_version" else "new",
    }
    async with read_fields(request) as fields, slots.hold():
        return await run_in_threadpool(_register, request, services, namespace, fields, NATIVE, **options)


@router.post(
    "/{name}/versions",
    status_code=201,
    openapi_extra=request_body("create_version"),
    responses=responses("create_version"),
    dependencies=[VOICES_WRITE, COUNTED_UPLOAD],
)
async def create_version(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    slots: UploadSlotsDep,
    caller: CallerDep,
    idempotency_key: IdempotencyKey = None,
    dedupe: Dedupe = True,
) -> Response:
    """Add a version to a voice. Extraction starts at once, and the old version is served until it is done.

    An upload whose source, transcript, consent and description equal those of the newest version returns that
    version with status 200, unless `dedupe=false`. Unknown form fields are refused.
    """
    options: dict[str, Any] = {
        "voice": await run_in_threadpool(_existing, services, namespace, name),  # before the body is read
        "idempotency_key": idempotency_key,
        "dedupe": dedupe,
        "by": caller.id,
        "expects": "existing",
    }
    async with read_fields(request) as fields, slots.hold():
        return await run_in_threadpool(
            _register, request, services, namespace, fields, NATIVE_VERSION, **options
        )


def _existing(services: Services, namespace: str, name: SpeakerName) -> SpeakerName:
    """Return the name that a further version of a voice gets: the one in the path, unless that is an id.

    Raises:
        VoiceNotFound, VoiceDamaged, VoiceUnreadable, Unavailable.
    """
    try:
        document = find(services.speakers, namespace, name).document
    except VoiceNotFound:
        raise voice_to_register(name) from None
    return name if name.key == document.key else parse_speaker_name(document.versions[0].name)


def _register(
    request: Request,
    services: Services,
    namespace: str,
    fields: Fields,
    names: FieldNames,
    **options: Any,
) -> Response:
    refuse_unknown(fields, names)
    registered = register(services, namespace, fields, names, **options)
    body = rendering.registered_version(services.profiles, registered)
    headers = {"Location": rendering.version_path(registered.version), **replayed(registered)}
    return answer(request, body, status=201 if registered.created else 200, headers=headers)
