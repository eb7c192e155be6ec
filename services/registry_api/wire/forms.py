"""Parses the upload form of `POST /v1/audio/voices` into values. Knows nothing about existing voices."""

import json
import math
import unicodedata
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.registry_api.operations.registration import Upload
from services.registry_api.protocol.parameters import unknown
from services.registry_api.serving.limits import clip_too_large
from services.registry_api.wire.fields import Fields
from speaker_registry.errors import InvalidEmbedding, InvalidRequest
from speaker_registry.names import parse_speaker_name

MAX_EMBEDDING = 4096
MAX_TEXT = 8_000
"""The longest transcript or description, in characters. Thirty seconds of speech have a few hundred."""
MAX_CONSENT = 2_000
"""The longest consent, in characters. Transcript and consent go into the artifact's header, escaped twice,
and that header is limited to 64 KiB.
"""
FORM_BYTES = 256 * 1024
"""Size limit in bytes for everything in a form besides the clip: names, texts and a speaker embedding."""
_FIELDS = ("name", "consent", "audio_sample", "speaker_embedding", "ref_text", "speaker_description")

OPENAPI: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "consent"],
                    "oneOf": [{"required": ["audio_sample"]}, {"required": ["speaker_embedding"]}],
                    "properties": {
                        "name": {
                            "type": "string",
                            "format": "voice-name",
                            "minLength": 1,
                            "maxLength": 128,
                            "description": "The voice's name, without '/', '\\', '@' and control characters. "
                            "Case does not matter. A further upload of the same name adds a version.",
                        },
                        "consent": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": MAX_CONSENT,
                            "pattern": "\\S",
                            "description": "Who consented to what, or the id of your record of that consent. "
                            "Stored with the version.",
                        },
                        "audio_sample": {
                            "type": "string",
                            "format": "binary",
                            "description": "The reference clip: WAV, FLAC, MP3, OGG, AAC, M4A or WebM, 1 to "
                            "30 seconds long and up to 10 MiB (10485760 bytes); the other fields do not "
                            "count.",
                        },
                        "speaker_embedding": {
                            "type": "string",
                            "format": "speaker-embedding",
                            "description": "A speaker embedding instead of a clip: a JSON array of 1 to 4096 "
                            "finite numbers.",
                        },
                        "ref_text": {
                            "type": "string",
                            "maxLength": MAX_TEXT,
                            "description": "The transcript of the clip. Some profiles require it.",
                        },
                        "speaker_description": {
                            "type": "string",
                            "maxLength": MAX_TEXT,
                            "description": "A free-text description of the voice.",
                        },
                    },
                },
                "example": {
                    "name": "Alice",
                    "consent": "cons_1",
                    "audio_sample": "@alice.flac",
                    "ref_text": "The quick brown fox jumps over the lazy dog.",
                },
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class UploadForm:
    """A parsed upload with exactly one source: a clip or a speaker embedding."""

    upload: Upload
    clip: bytes | None
    """The bytes as uploaded, not decoded yet."""
    embedding: np.ndarray | None
    """Float32 [D]."""


def parse_upload(
    fields: Fields, *, max_clip_bytes: int, idempotency_key: str | None, dedupe: bool
) -> UploadForm:
    """Parse the fields of an upload form.

    Raises:
        InvalidRequest, InvalidVoiceName, InvalidEmbedding, PayloadTooLarge.
    """
    upload = Upload(
        name=parse_speaker_name(_required(fields, "name", max_length=FORM_BYTES)),
        consent=_required(fields, "consent", max_length=MAX_CONSENT).strip(),
        ref_text=_text(fields, "ref_text"),
        description=_text(fields, "speaker_description"),
        idempotency_key=_checked_key(idempotency_key),
        dedupe=dedupe,
    )
    clip = _clip(fields, max_clip_bytes)
    embedding = _embedding(fields)
    if clip is not None and embedding is not None:
        raise InvalidRequest(
            "'audio_sample' and 'speaker_embedding' are mutually exclusive", param="audio_sample"
        )
    if clip is None and embedding is None:
        raise InvalidRequest(
            "Either 'audio_sample' or 'speaker_embedding' must be provided", param="audio_sample"
        )
    return UploadForm(upload, clip, embedding)


def ignored(fields: Fields) -> list[str]:
    """Return a warning for each unknown field, which names the field that was probably meant.

    Unknown fields are no error, because clients of vLLM-Omni may send some. But without a warning, a mistyped
    optional field would stay unnoticed until the voice sounds wrong.
    """
    names = sorted(fields.names - {*_FIELDS})
    return [f"{unknown('Field', name, _FIELDS).message} The field was ignored." for name in names]


def _checked_key(key: str | None) -> str | None:
    if key is not None and not 1 <= len(key) <= 255:
        raise InvalidRequest(
            f"Idempotency-Key has {len(key)} characters; accepted: 1 to 255.", param="Idempotency-Key"
        )
    return key


def _required(fields: Fields, field: str, *, max_length: int) -> str:
    """Return a required text unchanged. A name of blanks passes: `parse_speaker_name` refuses it."""
    text = fields.text(field, max_length=max_length)
    if not text or (field != "name" and not text.strip()):
        raise InvalidRequest(f"Field '{field}' is missing or empty; {_received(fields)}.", param=field)
    if field != "name":
        _check_characters(field, text)
    return text


def _received(fields: Fields) -> str:
    """Describe which fields were received. A mistyped one may be why a required field is missing."""
    known = ", ".join(sorted(fields.names & {*_FIELDS})) or "none of the known ones"
    unknown = [ascii(name)[:40] for name in sorted(fields.names - {*_FIELDS})]
    if not unknown:
        return f"received: {known}"
    return f"received: {known}; unknown: {', '.join(unknown)}; accepted: {', '.join(_FIELDS)}"


def _text(fields: Fields, field: str) -> str | None:
    """Return an optional text without surrounding blanks, or None if it is blank or absent."""
    text = fields.text(field, max_length=MAX_TEXT)
    if text is None or not text.strip():
        return None
    _check_characters(field, text)
    return text.strip()


def _check_characters(field: str, text: str) -> None:
    for character in text:
        if unicodedata.category(character) == "Cc" and character not in "\t\n\r":
            raise InvalidRequest(
                f"Field '{field}' contains the control character {character!a}; accepted: text.", param=field
            )


def _clip(fields: Fields, max_bytes: int) -> bytes | None:
    file = fields.file("audio_sample")
    if file is None:
        return None
    if file.size is not None and file.size > max_bytes:
        raise clip_too_large(max_bytes, file.size)
    return file.file.read()


def _embedding(fields: Fields) -> np.ndarray | None:
    """Parse a JSON array of numbers as float32 [D]. Rules and messages are vLLM-Omni's."""
    text = fields.text("speaker_embedding", max_length=FORM_BYTES)
    if text is None or not text.strip():
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad_embedding(f"must be valid JSON: it is {ascii(text)[:40]}") from None
    if not isinstance(values, list) or not values:
        raise _bad_embedding(f"must be a non-empty list of numbers: it is {ascii(values)[:40]}")
    if len(values) > MAX_EMBEDDING:
        raise _bad_embedding(f"exceeds maximum length ({MAX_EMBEDDING} elements): it has {len(values)}")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad_embedding(
                f"must contain only numeric values: element {position} is {ascii(value)[:40]}"
            )
    with np.errstate(over="ignore"):
        embedding = np.array([_float(value) for value in values], dtype=np.float32)
    if not np.isfinite(embedding).all():
        position = int(np.flatnonzero(~np.isfinite(embedding))[0])
        raise _bad_embedding(
            f"values must be finite (no NaN or Inf): element {position} is not, as 32-bit float"
        )
    return embedding


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _bad_embedding(what: str) -> InvalidEmbedding:
    return InvalidEmbedding(f"'speaker_embedding' {what}", param="speaker_embedding")
