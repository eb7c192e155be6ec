"""The upload form of `POST /v1/audio/voices`, parsed once at the door. Knows field names, not voices'
lives.
"""

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException
from starlette.requests import Request

from services.registry_api.limits import too_large
from services.shared.registrar import Upload
from speaker_registry.errors import InvalidEmbedding, InvalidRequest
from speaker_registry.names import parse_speaker_name

MAX_EMBEDDING = 4096
MAX_TEXT = 20_000
"""Characters of a transcript: thirty seconds of speech have a few hundred."""
_FIELDS = ("name", "consent", "audio_sample", "speaker_embedding", "ref_text", "speaker_description")

OPENAPI: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["name", "consent"],
                    "properties": {
                        "name": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 128,
                            "description": "No '/', '\\', '@', control characters. Compared lower-cased.",
                        },
                        "consent": {
                            "type": "string",
                            "description": "Who agreed, and to what; kept as it is.",
                        },
                        "audio_sample": {
                            "type": "string",
                            "format": "binary",
                            "description": "WAV, FLAC, MP3, OGG, AAC, M4A or WebM; 1 to 30 s; 10 MiB.",
                        },
                        "speaker_embedding": {
                            "type": "string",
                            "description": "Instead of audio: a JSON list of 1 to 4096 finite numbers.",
                        },
                        "ref_text": {"type": "string", "description": "What is said in the clip."},
                        "speaker_description": {"type": "string"},
                    },
                    "example": {
                        "name": "Alice",
                        "consent": "cons_1",
                        "audio_sample": "@alice.flac",
                        "ref_text": "The quick brown fox jumps over the lazy dog.",
                    },
                }
            }
        },
    }
}


@dataclass(frozen=True, slots=True)
class UploadForm:
    """A form in which exactly one source is given. `clip`: bytes as sent, not decoded yet. `embedding`:
    float32 [D].
    """

    upload: Upload
    clip: bytes | None
    embedding: np.ndarray | None


async def read_upload_form(request: Request, max_bytes: int, *, dedupe: bool) -> UploadForm:
    """Parse a form, or say which field is wrong.

    Raises:
        InvalidRequest, InvalidVoiceName, InvalidEmbedding, PayloadTooLarge.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in {"multipart/form-data", "application/x-www-form-urlencoded"}:
        raise InvalidRequest(
            f"Content-Type is {ascii(kind)[:80]}; accepted: multipart/form-data.", param="Content-Type"
        )
    try:
        async with request.form(max_files=1, max_fields=16, max_part_size=1024**2) as form:
            clip = await _clip(form, max_bytes)
            embedding = _embedding(_text(form, "speaker_embedding", limit=1024**2))
            upload = _upload(request, form, dedupe=dedupe)
    except (MultiPartException, HTTPException) as error:
        raise InvalidRequest(f"The form cannot be read: {_detail(error)}") from None
    if clip is not None and embedding is not None:
        raise InvalidRequest(
            "'audio_sample' and 'speaker_embedding' are mutually exclusive", param="audio_sample"
        )
    if clip is None and embedding is None:
        raise InvalidRequest(
            "Either 'audio_sample' or 'speaker_embedding' must be provided", param="audio_sample"
        )
    return UploadForm(upload, clip, embedding)


def _detail(error: MultiPartException | HTTPException) -> str:
    text = error.message if isinstance(error, MultiPartException) else str(error.detail)
    return ascii(text)[1:-1][:200]


def _upload(request: Request, form: FormData, *, dedupe: bool) -> Upload:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= 255:
        raise InvalidRequest(
            f"Idempotency-Key has {len(key)} characters; accepted: 1 to 255.", param="Idempotency-Key"
        )
    return Upload(
        name=parse_speaker_name(_required(form, "name")),
        consent=_required(form, "consent"),
        ref_text=_text(form, "ref_text", limit=MAX_TEXT),
        description=_text(form, "speaker_description", limit=MAX_TEXT),
        idempotency_key=key,
        dedupe=dedupe,
    )


def _required(form: FormData, field: str) -> str:
    text = _text(form, field, limit=MAX_TEXT)
    if text is None:
        sent = ", ".join(sorted({name for name in form if name in _FIELDS})) or "none of the known ones"
        raise InvalidRequest(f"Field '{field}' is missing or empty; sent were: {sent}.", param=field)
    return text


def _text(form: FormData, field: str, *, limit: int) -> str | None:
    """A text field; blank counts as absent."""
    values = form.getlist(field)
    if len(values) > 1:
        raise InvalidRequest(f"Field '{field}' is given {len(values)} times; accepted: once.", param=field)
    if not values:
        return None
    value = values[0]
    if isinstance(value, UploadFile):
        raise InvalidRequest(f"Field '{field}' is a file; accepted: text.", param=field)
    if len(value) > limit:
        raise InvalidRequest(f"Field '{field}' has {len(value)} characters; accepted: {limit}.", param=field)
    if "\0" in value:
        raise InvalidRequest(f"Field '{field}' contains a NUL character.", param=field)
    return value.strip() or None


async def _clip(form: FormData, max_bytes: int) -> bytes | None:
    values = form.getlist("audio_sample")
    if len(values) > 1:
        raise InvalidRequest(
            f"Field 'audio_sample' is given {len(values)} times; accepted: once.", param="audio_sample"
        )
    if not values or values[0] == "":
        return None
    value = values[0]
    if not isinstance(value, UploadFile):
        raise InvalidRequest("Field 'audio_sample' is text; accepted: a file.", param="audio_sample")
    if value.size is not None and value.size > max_bytes:
        raise too_large(max_bytes, str(value.size))
    return await value.read()


def _embedding(text: str | None) -> np.ndarray | None:
    """A JSON list of numbers as float32 [D], by vLLM-Omni's rules and in its words."""
    if text is None:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise _bad_embedding("must be valid JSON") from None
    if not isinstance(values, list) or not values:
        raise _bad_embedding("must be a non-empty list of numbers")
    if len(values) > MAX_EMBEDDING:
        raise _bad_embedding(f"exceeds maximum length ({MAX_EMBEDDING} elements): got {len(values)}")
    for position, value in enumerate(values):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _bad_embedding(
                f"must contain only numeric values: element {position} is {ascii(value)[:40]}"
            )
    with np.errstate(over="ignore"):
        embedding = np.array([_float(value) for value in values], dtype=np.float32)
    if not np.isfinite(embedding).all():
        position = int(np.flatnonzero(~np.isfinite(embedding))[0])
        raise _bad_embedding(f"values must be finite (no NaN or Inf): element {position} is not")
    return embedding


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _bad_embedding(what: str) -> InvalidEmbedding:
    return InvalidEmbedding(f"'speaker_embedding' {what}", param="speaker_embedding")
