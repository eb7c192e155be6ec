"""The documents of vLLM-Omni's routes, `/v1/audio/voices`."""

from typing import Literal

from pydantic import BaseModel, ConfigDict

from speaker_registry.schemas.common import Page, Schema, Untrained
from speaker_registry.schemas.voices import ArtifactState


class UploadedVoice(BaseModel):
    """One entry of vLLM-Omni's `uploaded_voices`, with fields of this registry added. The fields `ref_text`,
    `speaker_description`, `reason` and `untrained` are present only if they are set.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    consent: str
    created_at: int
    file_size: int | None = None
    mime_type: str | None = None
    embedding_source: str
    embedding_dim: int | None = None
    id: str
    version: int
    cache_status: ArtifactState
    current: bool
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be. Absent otherwise."""
    reason: str | None = None
    """Tells why a pending extraction does not start: no worker serves a profile at the moment."""


class OpenAIVoice(Schema):
    """A voice in the form of OpenAI's API."""

    object: Literal["audio.voice"] = "audio.voice"
    id: str
    name: str
    created_at: int


class VoiceList(Page[OpenAIVoice]):
    """Answer of `GET /v1/audio/voices`. It combines vLLM-Omni's list with OpenAI's."""

    voices: list[str]
    """Sorted name keys of all voices, and `default`."""
    uploaded_voices: list[UploadedVoice]


class NewVoice(BaseModel):
    """The object `voice` in the answer to an upload. It has `mime_type` and `file_size` if a clip was
    uploaded, or `embedding_source` and `embedding_dim` if an embedding was uploaded. The fields `ref_text`,
    `speaker_description`, `reason`, `held_back` and `untrained` are present only if they are set.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    consent: str
    created_at: int
    id: str
    version: int
    cache_status: ArtifactState
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be. Absent otherwise."""
    reason: str | None = None
    """Tells why a pending extraction does not start: no worker serves a profile at the moment."""
    held_back: str | None = None
    """Tells why the alias `default` will not move to this version, although it is newer."""
    job_id: str | None
    jobs: dict[str, str]
    """Maps each profile to the id of the job that extracts it."""


class Uploaded(OpenAIVoice):
    """Answer of `POST /v1/audio/voices`."""

    success: Literal[True]
    voice: NewVoice
    created: bool
    """False if no version was added, because the request was repeated or equals the newest version. The
    answer then describes the existing version.
    """
    warnings: list[str] | None = None
    """Form fields that were ignored, each with the field that was probably meant. Absent if there are none.
    """


class CacheStatus(Schema):
    """Answer of `/v1/audio/voices/{name}/cache`."""

    voice: str
    cache_status: ArtifactState
    message: str | None = None
    job_id: str | None = None
    version: int | None = None
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be. Absent otherwise."""
    reason: str | None = None
    """Tells why a pending extraction does not start: no worker serves a profile at the moment."""


class Deleted(Schema):
    """Answer of `DELETE /v1/audio/voices/{name}`."""

    success: Literal[True] = True
    message: str
    id: str | None
    """Id of the deleted voice. None if the voice's records could not be read."""
    object: Literal["audio.voice"] = "audio.voice"
    deleted: Literal[True] = True
