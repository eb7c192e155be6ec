"""The parameters of all routes that take clips, and the registration of the forms that they receive."""

from typing import Annotated

from fastapi import Header, Query

from services.registry_api.dependencies import Services
from services.registry_api.operations import register as registering
from services.registry_api.operations import undelete as undeleting
from services.registry_api.operations.live_voice import Check
from services.registry_api.operations.register import Expects, Limits, NewVersion, Registered
from services.registry_api.operations.sources import ClipSource, EmbeddingSource, Source, profiles_taking
from services.registry_api.wire.fields import Fields
from services.registry_api.wire.forms import FieldNames, UploadForm, parse_upload
from services.shared.configuration.registry import RegistrySettings
from services.shared.registry.speakers import FoundSpeaker
from services.shared.telemetry import tracing
from speaker_registry.errors import EmbeddingWidthMismatch, InvalidAudio
from speaker_registry.names import SpeakerName

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes the request safe to repeat. A request with the same key returns the version that "
        "the first attempt made, until that version or the voice is deleted. If the first attempt returned "
        "an existing version with the same clip and texts, the key is remembered for half an hour, unless "
        "Redis is lost. A different request with the same key is refused (422). Keys of different voices are "
        "independent.",
        json_schema_extra={"minLength": 1, "maxLength": 255},
    ),
]
Dedupe = Annotated[
    bool, Query(description="Whether an upload that equals the newest version returns that version.")
]


NO_LIMIT = 2**62
"""Stands for a limit that is not set."""


def register(
    services: Services,
    namespace: str,
    fields: Fields,
    names: FieldNames,
    *,
    by: str,
    voice: SpeakerName | None = None,
    idempotency_key: str | None = None,
    dedupe: bool = True,
    expects: Expects = "any",
    number: int | None = None,
) -> Registered:
    """Parse an upload form and register its source. Errors name the field by its name on the route.

    Args:
        by: the id of the caller.
        voice: the name of the voice, if the form does not have it.
        number: the number that the version must get, if an operator wants one.

    Raises:
        The errors of `parse_upload`, the decoder and `operations.register`.
    """
    form = parse_upload(
        fields,
        names,
        max_clip_bytes=services.limits.max_bytes,
        voice=voice,
        idempotency_key=idempotency_key,
        dedupe=dedupe,
        expects=expects,
        number=number,
    )
    try:
        return register_source(services, namespace, form.upload, _source(services, form), by=by)
    except InvalidAudio as error:
        error.param = names.clip
        raise
    except EmbeddingWidthMismatch as error:
        error.param = names.embedding
        raise


def register_source(
    services: Services, namespace: str, upload: NewVersion, source: Source, *, by: str
) -> Registered:
    """Register a source within the limits of the settings. Raises the errors of `operations.register`."""
    return registering.register(
        services.speakers,
        services.blobs,
        services.jobs,
        services.profiles,
        limits=limits_of(services.settings),
        namespace=namespace,
        upload=upload,
        source=source,
        by=by,
    )


def undelete(
    services: Services, namespace: str, name: SpeakerName, *, by: str, check: Check | None = None
) -> FoundSpeaker:
    """Undelete a voice within the limits of the settings. Raises the errors of `operations.undelete`."""
    return undeleting.undelete(
        services.speakers,
        services.jobs,
        services.profiles,
        namespace,
        name,
        limits=limits_of(services.settings),
        grace_seconds=services.deleted_grace_seconds,
        by=by,
        check=check,
    )


def _source(services: Services, form: UploadForm) -> Source:
    if form.embedding is not None:
        taking = profiles_taking(services.catalogue, form.embedding)
        return EmbeddingSource(form.embedding, taking, services.clock.new_id)
    assert form.clip is not None, "a form has one source"
    with tracing.span("decode"):
        return ClipSource(form.clip, services.decoder.decode(form.clip))


def limits_of(settings: RegistrySettings) -> Limits:
    """Return the limits of a namespace and of a voice."""
    return Limits(
        voices=settings.max_uploaded,
        bytes=settings.max_stored_bytes or NO_LIMIT,
        text_bytes=settings.max_text_bytes,
        versions=settings.max_versions,
        immutable=settings.registration_policy == "immutable",
    )


def replayed(registered: Registered) -> dict[str, str]:
    """Return the header that tells that an upload added no version, or no header if it added one."""
    return {} if registered.created else {"Idempotent-Replayed": "true"}
