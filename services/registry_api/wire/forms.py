"""Parses the upload forms of all routes that take clips into values. This module knows nothing about existing
voices.
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from services.registry_api.operations.register import Expects, NewVersion
from services.registry_api.protocol.parameters import unknown
from services.registry_api.serving.limits import clip_too_large
from services.registry_api.wire.fields import Fields
from services.shared.model.numbering import Numbering
from speaker_registry.embeddings import MAX_EMBEDDING
from speaker_registry.errors import InvalidEmbedding, InvalidRequest
from speaker_registry.names import (
    VERSION_ID_PATTERN,
    SpeakerName,
    VoiceId,
    parse_speaker_name,
    parse_voice_id,
)
from speaker_registry.schemas.voices import MAX_DESCRIPTION
from speaker_registry.validation import quoted_json

MAX_TEXT = MAX_DESCRIPTION
"""The longest transcript or description, in characters. Thirty seconds of speech have a few hundred."""
MAX_CONSENT = 2_000
"""The longest consent, in characters. Transcript and consent go into the artifact's header, escaped twice,
and that header is limited to 64 KiB.
"""
FORM_BYTES = 256 * 1024
"""Size limit in bytes for everything in a form besides the clip: names, texts and a speaker embedding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldNames:
    """The names of the fields of an upload form. `consent` and `ref_text` have these names in every form."""

    clip: str
    embedding: str
    description: str
    name: str | None = "name"
    """Name of the field for the voice's name. None if the path names the voice."""
    created_at: str | None = None
    """Name of the field for the version's creation time. None if the registry gives the time."""
    id: str | None = None
    """Name of the field for the version's id. None if the registry gives the id."""
    voice_id: str | None = None
    """Name of the optional field for the id of the voice that gets the version. None if the name decides."""

    def __iter__(self) -> Iterator[str]:
        named = ("name",) if self.name else ()
        given = filter(None, (self.created_at, self.id, self.voice_id))
        return iter((*named, *given, "consent", self.clip, self.embedding, "ref_text", self.description))


COMPATIBLE = FieldNames(clip="audio_sample", embedding="speaker_embedding", description="speaker_description")
"""The field names in vLLM-Omni's form."""
DASHBOARD = replace(COMPATIBLE, voice_id="voice_id")
"""The field names in the form of the dashboard."""
NATIVE = FieldNames(clip="audio", embedding="embedding", description="description", voice_id="voice_id")
NATIVE_VERSION = replace(NATIVE, name=None)
"""The field names in the form for a further version of a voice."""
NATIVE_RESTORED = replace(NATIVE_VERSION, created_at="created_at", id="id")
"""The field names in the form for a version whose number is in the path."""
_VERSION_ID = re.compile(VERSION_ID_PATTERN)
_UNIX_SECONDS = re.compile(r"[1-9][0-9]{0,11}")


@dataclass(frozen=True, slots=True)
class UploadForm:
    """A parsed upload with exactly one source: a clip or a speaker embedding."""

    upload: NewVersion
    clip: bytes | None
    """The uploaded bytes of the clip, not decoded yet."""
    embedding: np.ndarray | None
    """The speaker embedding: float32 [D]."""


def parse_upload(
    fields: Fields,
    names: FieldNames,
    *,
    max_clip_bytes: int,
    voice: SpeakerName | None,
    idempotency_key: str | None,
    dedupe: bool,
    expects: Expects,
    number: int | None = None,
) -> UploadForm:
    """Parse the fields of an upload form.

    Args:
        voice: the name of the voice, if the form does not have it.
        number: the number that the version must get. The form then has the creation time, too, and may have
            the id.

    Raises:
        InvalidRequest, InvalidVoiceName, InvalidEmbedding, PayloadTooLarge.
    """
    form = _Form(fields, names)
    upload = NewVersion(
        name=voice or parse_speaker_name(form.required("name", max_length=FORM_BYTES)),
        consent=form.required("consent", max_length=MAX_CONSENT).strip(),
        ref_text=form.text("ref_text"),
        description=form.text(names.description),
        idempotency_key=_checked_key(idempotency_key),
        dedupe=dedupe,
        expects=expects,
        voice_id=form.voice_id(names.voice_id) if names.voice_id else None,
        numbering=None
        if number is None
        else Numbering(number, form.unix_seconds("created_at"), form.version_id("id")),
    )
    clip = form.clip(max_clip_bytes)
    embedding = form.embedding()
    if (clip is None) == (embedding is None):
        either = f"'{names.clip}' and '{names.embedding}' are mutually exclusive"
        neither = f"Either '{names.clip}' or '{names.embedding}' must be provided"
        raise InvalidRequest(neither if clip is None else either, param=names.clip)
    return UploadForm(upload, clip, embedding)


def refuse_unknown(fields: Fields, names: FieldNames) -> None:
    """Raises `InvalidRequest` for a field that the form does not have, and names the one probably meant."""
    for error in _unknown_fields(fields, names):
        raise error


def ignored(fields: Fields, names: FieldNames) -> list[str]:
    """Return a warning for each unknown field, which names the field that was probably meant.

    Unknown fields are no error, because clients of vLLM-Omni may send some. But without a warning, a mistyped
    optional field would stay unnoticed until the voice sounds wrong.
    """
    return [f"{error.message} The field was ignored." for error in _unknown_fields(fields, names)]


def _unknown_fields(fields: Fields, names: FieldNames) -> list[InvalidRequest]:
    return [unknown("Field", name, tuple(names)) for name in sorted(fields.names - {*names})]


def _checked_key(key: str | None) -> str | None:
    if key is not None and not 1 <= len(key) <= 255:
        raise InvalidRequest(
            f"Idempotency-Key has {len(key)} characters; accepted: 1 to 255.", param="Idempotency-Key"
        )
    return key


class _Form:
    """Reads the fields of a form by their names on one route. Errors show these names."""

    def __init__(self, fields: Fields, names: FieldNames) -> None:
        self._fields = fields
        self._names = names

    def required(self, field: str, *, max_length: int) -> str:
        """Return a required text unchanged. A name of blanks passes: `parse_speaker_name` refuses it."""
        text = self._fields.text(field, max_length=max_length)
        if not text or (field != "name" and not text.strip()):
            raise InvalidRequest(f"Field '{field}' is missing or empty; {self._received()}.", param=field)
        if field != "name":
            check_characters(field, text)
        return text

    def _received(self) -> str:
        """Describe which fields were received. A mistyped one may be why a required field is missing."""
        received, accepted = self._fields.names, tuple(self._names)
        known = ", ".join(sorted(received & {*accepted})) or "none of the known ones"
        unknown = [ascii(name)[:40] for name in sorted(received - {*accepted})]
        if not unknown:
            return f"received: {known}"
        return f"received: {known}; unknown: {', '.join(unknown)}; accepted: {', '.join(accepted)}"

    def text(self, field: str) -> str | None:
        """Return an optional text without surrounding blanks, or None if it is blank or absent."""
        text = self._fields.text(field, max_length=MAX_TEXT)
        if text is None or not text.strip():
            return None
        check_characters(field, text)
        return text.strip()

    def unix_seconds(self, field: str) -> int:
        """Return a required time in the form in which the API shows it."""
        text = self.required(field, max_length=MAX_TEXT)
        if not _UNIX_SECONDS.fullmatch(text):
            raise InvalidRequest(
                f"Field '{field}' is {ascii(text)[:40]}; accepted: Unix seconds as a whole number, such as "
                "1790000000.",
                param=field,
            )
        return int(text)

    def version_id(self, field: str) -> str | None:
        """Return the optional id of a version, in the form in which the API shows it."""
        text = self.text(field)
        if text is not None and not _VERSION_ID.fullmatch(text):
            raise InvalidRequest(
                f"Field '{field}' is {ascii(text)[:40]}; accepted: the `id` of a version, which has 32 "
                "characters of 0-9 and a-f.",
                param=field,
            )
        return text

    def voice_id(self, field: str) -> VoiceId | None:
        """Return the optional id of a voice."""
        text = self.text(field)
        found = parse_voice_id(text) if text else None
        if text and not found:
            raise InvalidRequest(
                f"Field '{field}' is {ascii(text)[:40]}; accepted: the `id` of a voice.", param=field
            )
        return found

    def clip(self, max_bytes: int) -> bytes | None:
        file = self._fields.file(self._names.clip)
        if file is None:
            return None
        if file.size is not None and file.size > max_bytes:
            raise clip_too_large(max_bytes, file.size, field=self._names.clip)
        return file.file.read()

    def embedding(self) -> np.ndarray | None:
        """Parse a JSON array of numbers as float32 [D]. Rules and messages are vLLM-Omni's."""
        field = self._names.embedding
        text = self._fields.text(field, max_length=FORM_BYTES)
        if text is None or not text.strip():
            return None
        try:
            return _parse_embedding(text)
        except ValueError as error:
            raise InvalidEmbedding(f"'{field}' {error}", param=field) from None


def parse_description(text: str) -> str | None:
    """Return the description of a voice without blanks around it. None if it is empty.

    Raises `InvalidRequest` if it has control characters.
    """
    check_characters("description", text)
    return text.strip() or None


def check_characters(field: str, text: str) -> None:
    """Raise `InvalidRequest` if a text has control characters."""
    for character in text:
        if unicodedata.category(character) == "Cc" and character not in "\t\n\r":
            raise InvalidRequest(
                f"Field '{field}' contains the control character {character!a}; accepted: text.", param=field
            )


def _parse_embedding(text: str) -> np.ndarray:
    """Parse an embedding: float32 [D]. Raises ValueError with a message that continues after the field's
    name.
    """
    try:
        values = json.loads(text.removeprefix("\ufeff"))  # some editors begin files with this mark
    except (ValueError, RecursionError):
        raise ValueError(f"must be valid JSON: it is {ascii(text)[:40]}") from None
    if not isinstance(values, list) or not values:
        raise ValueError(f"must be a non-empty list of numbers: it is {quoted_json(values)[:40]}")
    if len(values) > MAX_EMBEDDING:
        raise ValueError(f"exceeds maximum length ({MAX_EMBEDDING} elements): it has {len(values)}")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(
                f"must contain only numeric values: element {position} is {quoted_json(value)[:40]}"
            )
    with np.errstate(over="ignore"):
        embedding = np.array([_float(value) for value in values], dtype=np.float32)
    if not np.isfinite(embedding).all():
        position = int(np.flatnonzero(~np.isfinite(embedding))[0])
        raise ValueError(f"values must be finite (no NaN or Inf): element {position} is not, as 32-bit float")
    return embedding


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf
