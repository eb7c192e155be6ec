"""The parts that the documents of the API have in common: their base, lists and errors."""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Untrained = Annotated[bool, Field(default=False, exclude_if=lambda untrained: not untrained)]
"""True if the weights are random, so that the voice is useless. Documents leave it out unless it is true."""
Item = TypeVar("Item")


class Schema(BaseModel):
    """Base of all answers. Keys that only a newer server sends are ignored, and instances are immutable."""

    model_config = ConfigDict(frozen=True)


class RequestBody(BaseModel):
    """Base of all JSON bodies of requests. Unknown fields are refused, and so are values of another type, as
    `true` and `"5"` are for a number.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _first_unknown(cls, data: Any) -> Any:
        """Drop all unknown fields but the first, which is refused. Describing thousands takes seconds."""
        if not isinstance(data, dict):
            return data
        first = next((name for name in data if name not in cls.model_fields), None)
        return {name: data[name] for name in data if name == first or name in cls.model_fields}


class ErrorBody(Schema):
    message: str
    type: str
    param: str | None = None
    code: str | int
    """The error's string code. On `/v1/audio/*` this is the HTTP status, as vLLM-Omni sends it, and the
    string code is in `reason`.
    """
    reason: str | None = None
    request_id: str | None = None


class ErrorEnvelope(Schema):
    error: ErrorBody


class Page(Schema, Generic[Item]):
    """One page of a list. The next page is requested with `after=last_id`."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Fault(Schema):
    """Says why something is not there."""

    code: str
    message: str
