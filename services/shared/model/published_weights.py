"""Which weights a profile is made with, and on what terms: `weights.yaml`, read. Knows no file's content."""

from collections.abc import Mapping
from functools import cache
from importlib.resources import files as resources
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter

_Repo = Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
_File = Annotated[str, StringConstraints(pattern=r"^\w[\w.-]*(/\w[\w.-]*)*$")]
_Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class PublishedWeights(BaseModel):
    """One model repository, as far as an extractor needs it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repo: _Repo
    """On the Hugging Face hub."""
    commit: str | None = Field(None, pattern="^[0-9a-f]{40}$")
    """The one that is taken unless somebody names another; None: somebody must."""
    licence: str
    """SPDX identifier where there is one."""
    notes: str | None = None
    """What a user must know before they use the weights commercially, or where they come from."""
    files: Mapping[_File, _Sha256 | None]
    """Name in the repository -> sha256 (hex), or None where it is not known."""


@cache
def published_weights() -> Mapping[str, PublishedWeights]:
    """By profile."""
    text = (resources("services.shared.model") / "weights.yaml").read_text(encoding="utf-8")
    return TypeAdapter(dict[str, PublishedWeights]).validate_python(yaml.safe_load(text))
