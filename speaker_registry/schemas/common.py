"""The parts that the documents of the API have in common: their base, lists and errors."""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Untrained = Annotated[bool, Field(default=False, exclude_if=lambda untrained: not untrained)]
"""True if the weights are random, so that the voice is useless. Documents leave it out unless it is true."""
Item = TypeVar("Item")


class Schema(BaseModel):
    """Base of all answers. Keys that only a newer server sends are ignored, and instances are immutable."""

    model_config = ConfigDict(frozen=True)


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
