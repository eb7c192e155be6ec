"""The parameters of all routes that take clips, and the registration of the forms that they get."""

from typing import Annotated

from fastapi import Header, Query

from services.registry_api.dependencies import Services
from services.registry_api.operations.registration import Expects, Registered
from services.registry_api.wire.fields import Fields
from services.registry_api.wire.forms import FieldNames, UploadForm, parse_upload
from services.shared.telemetry import tracing
from speaker_registry.errors import EmbeddingWidthMismatch, InvalidAudio
from speaker_registry.names import SpeakerName

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        description="Makes the request safe to repeat. A request with the same key returns the version that "
        "the first attempt made, until the voice is deleted. If the first attempt returned an existing "
        "version with the same clip and texts, the key is remembered for half an hour, unless Redis is lost. "
        "A different request with the same key is refused (422). Keys of different voices are independent.",
        json_schema_extra={"minLength": 1, "maxLength": 255},
    ),
]
Dedupe = Annotated[
    bool, Query(description="Whether an upload that equals the newest version returns that version.")
]


def register(
    services: Services,
    namespace: str,
    fields: Fields,
    names: FieldNames,
    *,
    voice: SpeakerName | None = None,
    idempotency_key: str | None = None,
    dedupe: bool = True,
    expects: Expects = "any",
) -> Registered:
    """Parse an upload form and register its source. Errors name the field by its name on the route.

    Args:
        voice: the name of the voice, if the form does not have it.

    Raises:
        What `parse_upload`, the decoder and `Registrations` raise.
    """
    form = parse_upload(
        fields,
        names,
        max_clip_bytes=services.limits.max_bytes,
        voice=voice,
        idempotency_key=idempotency_key,
        dedupe=dedupe,
        expects=expects,
    )
    try:
        return _registered(services, namespace, form)
    except InvalidAudio as error:
        error.param = names.clip
        raise
    except EmbeddingWidthMismatch as error:
        error.param = names.embedding
        raise


def _registered(services: Services, namespace: str, form: UploadForm) -> Registered:
    registrations = services.operations.registrations
    if form.embedding is not None:
        return registrations.register_embedding(namespace, form.upload, form.embedding)
    assert form.clip is not None, "a form has one source"
    with tracing.span("decode"):
        decoded = services.decoder.decode(form.clip)
    return registrations.register_clip(namespace, form.upload, form.clip, decoded)


def replayed(registered: Registered) -> dict[str, str]:
    """Return the header of an answer that says that no version was added."""
    return {} if registered.created else {"Idempotent-Replayed": "true"}
