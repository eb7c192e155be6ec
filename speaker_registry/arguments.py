"""Arguments of calls, checked and encoded as they are sent: bodies, form fields and headers.

An argument that the registry would refuse raises here, with the message that the registry would send. This
module knows no paths and sends nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from numpy.typing import ArrayLike
from pydantic import BaseModel, ValidationError

from speaker_registry.embeddings import embedding_json
from speaker_registry.errors import InvalidRequest
from speaker_registry.schemas import ApiKeyRequest, CampaignRequest, EncoderPromotion
from speaker_registry.validation import invalid_value_message

Body = TypeVar("Body", bound=BaseModel)


def key_request(
    name: str,
    scopes: Iterable[str],
    *,
    namespace: str | None,
    expires_at: int | None,
    requests_per_minute: int | None,
    uploads_per_minute: int | None,
) -> ApiKeyRequest:
    """Build the request for a new API key. Raises `InvalidRequest` with the message that the registry would
    send.
    """
    return request_body(
        ApiKeyRequest,
        name=name,
        scopes=list(scopes),
        namespace=namespace,
        expires_at=expires_at,
        requests_per_minute=requests_per_minute,
        uploads_per_minute=uploads_per_minute,
    )


def promotion_request(fingerprint: str, *, when: str, force: bool) -> EncoderPromotion:
    """Build the request to promote an encoder. Raises `InvalidRequest` with the message that the registry
    would send.
    """
    return request_body(EncoderPromotion, fingerprint=fingerprint, when=when, force=force)


def campaign_request(fingerprint: str, *, sample: int, rate: float | None) -> CampaignRequest:
    """Build the request to start a campaign. Raises `InvalidRequest` with the message that the registry would
    send.
    """
    return request_body(CampaignRequest, fingerprint=fingerprint, sample=sample, rate=rate)


def request_body(model: type[Body], **values: object) -> Body:
    """Build the body of a request. Raises `InvalidRequest` with the message that the registry would send."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        fault = error.errors()[0]
        said = invalid_value_message(fault, fault["loc"], model.model_json_schema())
        raise InvalidRequest(said, param=str(fault["loc"][0])) from None


def checked_idempotency_key(text: str) -> str:
    """Check that a key can be sent in a header, where a line break would begin another header."""
    if not (1 <= len(text) <= 255 and text.isascii() and text.isprintable()):
        raise InvalidRequest(
            f"idempotency_key is {text[:40]!a}; accepted: 1 to 255 printable ASCII characters",
            param="idempotency_key",
        )
    return text


def condition(if_match: str | None) -> dict[str, str]:
    """Return the header that makes a change conditional, whose value must not begin another header."""
    if if_match is None:
        return {}
    if not (if_match.isascii() and if_match.isprintable()):
        raise InvalidRequest(f"if_match is {if_match[:40]!a}; accepted: an ETag", param="if_match")
    return {"if-match": if_match}


def only_if_new(only_new: bool) -> dict[str, str]:
    """Return the header with which the registry refuses to change a voice that exists."""
    return {"if-none-match": "*"} if only_new else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upload:
    """What a caller uploads as a version of a voice."""

    clip: bytes | None
    embedding: ArrayLike | None
    consent: str
    ref_text: str | None
    description: str | None

    def fields(self, **more: str | None) -> dict[str, str]:
        """Return the form fields besides the clip, and `more` fields. Those that are None are left out.

        Raises:
            InvalidRequest: There is not exactly one of clip and embedding.
            InvalidEmbedding: The embedding is not one row of finite numbers.
        """
        if (self.clip is None) == (self.embedding is None):
            raise InvalidRequest("give either audio or an embedding", param="audio")
        embedding = None if self.embedding is None else embedding_json(self.embedding)
        texts = {"consent": self.consent, "ref_text": self.ref_text, "description": self.description}
        return given(**more, **texts, embedding=embedding)


def given(**values: str | None) -> dict[str, str]:
    """Return the arguments that are not None."""
    return {key: value for key, value in values.items() if value is not None}
