"""Routes that register voices and further versions of them. vLLM-Omni's route is in `audio_voices`."""

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response

from services.registry_api.access.rules import COUNTED_UPLOAD, VERSIONS_RESTORE, VOICES_WRITE
from services.registry_api.dependencies import (
    CallerDep,
    NamespaceDep,
    Services,
    ServicesDep,
    UploadSlotsDep,
    VersionNumber,
    VoiceName,
)
from services.registry_api.operations.register import voice_to_register
from services.registry_api.wire import rendering
from services.registry_api.wire.answers import answer, only_new
from services.registry_api.wire.documented import DocumentedRouter
from services.registry_api.wire.fields import Fields, read_fields
from services.registry_api.wire.forms import (
    NATIVE,
    NATIVE_RESTORED,
    NATIVE_VERSION,
    FieldNames,
    refuse_unknown,
)
from services.registry_api.wire.uploads import Dedupe, IdempotencyKey, register, replayed
from services.shared.registry.lookup import find
from speaker_registry.errors import PreconditionFailed, VoiceExists, VoiceNotFound
from speaker_registry.names import SpeakerName, parse_speaker_name

router = DocumentedRouter(prefix="/v1/voices", tags=["voices"])

IfExists = Annotated[
    Literal["refuse", "add_version"],
    Query(description="What to do if the voice exists: refuse the upload (409), or add a version."),
]


@router.post("", status_code=201, dependencies=[VOICES_WRITE, COUNTED_UPLOAD])
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
    200, unless `dedupe=false`. Unknown form fields are refused. Honours `If-None-Match: *`, which refuses the
    upload (412) if the voice exists, whatever `if_exists` says. An upload that equals the newest version is
    still answered with 200, unless `dedupe=false`.
    """
    return await _receive(
        request,
        services,
        namespace,
        slots,
        NATIVE,
        idempotency_key=idempotency_key,
        dedupe=dedupe,
        by=caller.id,
        expects="any" if if_exists == "add_version" else "new",
        only_new=only_new(request),
    )


@router.post("/{name}/versions", status_code=201, dependencies=[VOICES_WRITE, COUNTED_UPLOAD])
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
    return await _receive(
        request,
        services,
        namespace,
        slots,
        NATIVE_VERSION,
        voice=await run_in_threadpool(_existing, services, namespace, name),  # before the body is read
        idempotency_key=idempotency_key,
        dedupe=dedupe,
        by=caller.id,
        expects="existing",
    )


@router.put("/{name}/versions/{ref}", status_code=201, dependencies=[VERSIONS_RESTORE, COUNTED_UPLOAD])
async def restore_version(
    request: Request,
    services: ServicesDep,
    namespace: NamespaceDep,
    name: VoiceName,
    number: VersionNumber,
    slots: UploadSlotsDep,
    caller: CallerDep,
) -> Response:
    """Register a version under a given number, creation time and id, as it was in another registry.

    The voice need not exist. Its versions must come in their order: the number must be greater than every
    number that the voice has ever had, and `created_at` later than every time, and not in the future. The
    `id` is optional, and must not be that of another version of the voice. The artifacts of another registry
    stay the same byte for byte if they are uploaded to a version with the same name, number, time, texts and
    id. The same request again changes nothing and is answered with 200. Quotas, the registration policy and
    extraction are those of every upload. Honours `If-None-Match: *`, which refuses the version (412) if the
    voice exists, also if it has no version with this number.
    """
    return await _receive(
        request,
        services,
        namespace,
        slots,
        NATIVE_RESTORED,
        voice=await run_in_threadpool(_named, services, namespace, name),  # before the body is read
        number=number,
        by=caller.id,
        only_new=only_new(request),
    )


def _named(services: Services, namespace: str, name: SpeakerName) -> SpeakerName:
    """Return the name that a version gets: that of `_existing`, or the one in the path for a new voice."""
    try:
        return _existing(services, namespace, name)
    except VoiceNotFound:
        return name


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


async def _receive(
    request: Request,
    services: Services,
    namespace: str,
    slots: UploadSlotsDep,
    names: FieldNames,
    **options: Any,
) -> Response:
    """Read a form and register it. `options` are those of `_register`."""
    async with read_fields(request) as fields, slots.hold():
        return await run_in_threadpool(_register, request, services, namespace, fields, names, **options)


def _register(
    request: Request,
    services: Services,
    namespace: str,
    fields: Fields,
    names: FieldNames,
    *,
    only_new: bool = False,
    **options: Any,
) -> Response:
    """Register a form.

    Args:
        only_new: whether `If-None-Match` refuses the upload if the voice exists.
        options: those of `uploads.register`.
    """
    refuse_unknown(fields, names)
    if only_new:
        options["expects"] = "new"
    try:
        registered = register(services, namespace, fields, names, **options)
    except VoiceExists as error:
        if not only_new:
            raise
        message = f"If-None-Match is '*'. {error.message}"
        raise PreconditionFailed(message, param="If-None-Match") from None
    body = rendering.registered_version(services.profiles, registered)
    headers = {"Location": rendering.version_path(registered.version), **replayed(registered)}
    return answer(request, body, status=201 if registered.created else 200, headers=headers)
