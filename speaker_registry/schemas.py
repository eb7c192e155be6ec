"""What crosses the wire as JSON. Times are Unix seconds, digests `sha256:<hex>`. *Voice* here is *speaker*
everywhere else.
"""

from typing import Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from speaker_registry.artifact import TensorInfo, TensorSpec
from speaker_registry.names import NAMESPACE_PATTERN
from speaker_registry.scopes import Scope

ArtifactState = Literal["pending", "processing", "ready", "failed"]
JobState = Literal["queued", "processing", "succeeded", "failed", "canceled", "superseded"]
FINISHED_STATES: frozenset[str] = frozenset({"succeeded", "failed", "canceled", "superseded"})
Source = Literal["audio", "embedding"]
Mode = Literal["icl", "xvec"]
Item = TypeVar("Item")


class Schema(BaseModel):
    """Base of all answers: extra keys of a newer server are ignored, values are never edited."""

    model_config = ConfigDict(frozen=True)


class ErrorBody(Schema):
    message: str
    type: str
    param: str | None = None
    code: str | int
    """String code; on `/v1/audio/*` the HTTP status as vLLM-Omni sends it, with the string in `reason`."""
    reason: str | None = None
    request_id: str | None = None


class ErrorEnvelope(Schema):
    error: ErrorBody


class Page(Schema, Generic[Item]):
    """One page of a list. Ask for the next with `after=last_id`."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class ArtifactStatus(Schema):
    """Where one version stands with one profile."""

    profile: str
    state: ArtifactState
    stale: bool = False
    """A ready artifact exists, made with an older fingerprint than the profile's current one."""
    digest: str | None = None
    job_id: str | None = None
    """The running job, while there is one."""
    error: str | None = None
    """Why it failed, or why nothing can be extracted."""
    reason: str | None = None
    """Why nothing happens for now although it is pending: no worker serves the profile."""


class AudioProperties(Schema):
    """The clip as it was uploaded."""

    digest: str
    size: int
    """Bytes."""
    mime_type: str
    seconds: float
    sample_rate: int
    """Hz."""
    channels: int
    url: str | None = None
    """Of its bytes, for keys with `audio:read`."""


class VoiceVersion(Schema):
    object: Literal["voice.version"] = "voice.version"
    id: str
    voice: str
    version: int
    created_at: int
    source: Source
    audio: AudioProperties | None = None
    embedding_dim: int | None = None
    ref_text: str | None = None
    consent: str
    description: str | None = None
    artifacts: list[ArtifactStatus]
    state: ArtifactState
    """The worst over the required profiles: failed, processing, pending, ready."""
    held_back: str | None = None
    """Why `default` will not move to this version although it is newer."""


class Voice(Schema):
    """A voice and the version that its name stands for now (alias `default`)."""

    object: Literal["voice"] = "voice"
    id: str
    name: str
    """As typed."""
    key: str
    """Its identity: NFC, trimmed, lower-cased."""
    created_at: int
    """Of the default version."""
    version: int
    """Of the default version."""
    latest: int
    """The newest version, ready or not."""
    versions: int
    """How many there are."""
    aliases: dict[str, int]
    state: ArtifactState
    """Of the default version."""
    artifacts: list[ArtifactStatus]
    """Of the default version."""
    held_back: str | None = None
    """Why `default` will not move to the newest version."""


class ArtifactDescriptor(Schema):
    """All an engine needs to decide whether and what to fetch, in one read."""

    object: Literal["voice.artifact"] = "voice.artifact"
    voice: str
    voice_id: str
    version: int
    version_id: str
    created_at: int
    profile: str
    model_type: str
    mode: Mode | None = None
    state: ArtifactState
    stale: bool = False
    digest: str | None = None
    content_digest: str | None = None
    size: int | None = None
    tensors: dict[str, TensorInfo] = Field(default_factory=dict)
    ref_text: str | None = None
    audio_digest: str | None = None
    fingerprint: str | None = None
    extractor: dict[str, Any] = Field(default_factory=dict)
    untrained: bool = False
    custom_weights: bool = False
    """Made with weights that are meant to differ from the published ones."""
    url: str | None = None
    """Path of the file, relative to the registry's root."""
    job_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """Why nothing happens for now although it is pending: no worker serves the profile."""


class ExtractionRequest(BaseModel):
    """Which artifacts of a version are to be made."""

    model_config = ConfigDict(extra="forbid")

    profiles: list[str] | None = Field(default=None, min_length=1, max_length=64)
    """All that the version must have, without it."""
    force: bool = Field(default=False, strict=True)
    """Make them again even where they are there, have failed or were canceled."""


class JobError(Schema):
    code: str
    message: str
    retryable: bool
    attempt: int


class JobProgress(Schema):
    stage: str
    done: int
    total: int


class Job(Schema):
    object: Literal["job"] = "job"
    id: str
    kind: Literal["extract"] = "extract"
    state: JobState
    voice: str
    version: int
    version_id: str
    profile: str
    fingerprint: str | None = None
    untrained: bool | None = None
    """None where the profile's encoder has changed since, or was never announced."""
    custom_weights: bool | None = None
    """Made with weights that are meant to differ from the published ones. None as for `untrained`."""
    attempt: int
    max_attempts: int
    progress: JobProgress
    queue: str
    created_at: float
    started_at: float | None = None
    finished_at: float | None = None
    worker: str | None = None
    error: JobError | None = None
    reason: str | None = None
    """Why nothing happens for now although it is queued: no worker serves the profile."""
    retry_after: float | None = None
    """Seconds after which asking again makes sense; None once it has finished."""


class FailedProof(Schema):
    """A worker that does not serve a profile, because its encoder computes something else than it should."""

    worker: str
    device: str
    """`cpu`, `cuda` or `cuda:N`."""
    reason: str
    """Which tensor differs, and by how much."""


class Profile(Schema):
    """What one engine needs, and who can make it now."""

    object: Literal["profile"] = "profile"
    id: str
    model_type: str
    description: str
    required: bool
    """Extracted for every upload."""
    tensors: dict[str, TensorSpec]
    sample_rate: int
    frame_rate: float | None = None
    ref_text_required: bool = False
    model: str
    """Repository of the weights."""
    licence: str
    """Of the weights, as SPDX identifier where there is one."""
    licence_notes: str | None = None
    not_extractable: str | None = None
    """Why no worker can make this artifact; None where one can."""
    fingerprint: str | None = None
    """Of the worker that announced it last; None while none ever did."""
    extractor: dict[str, Any] = Field(default_factory=dict)
    untrained: bool = False
    custom_weights: bool = False
    """Made with weights that are meant to differ from the published ones."""
    workers: int = 0
    """Live workers that serve it, loaded and warm."""
    failed_proofs: list[FailedProof] = Field(default_factory=list)
    """Workers that do not serve it, because their encoder failed its proof within the last ten minutes."""


class UploadedVoice(BaseModel):
    """One entry of vLLM-Omni's `uploaded_voices`, with ours added. `ref_text`, `speaker_description` and
    `reason` only if set.
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
    stale: bool
    reason: str | None = None
    """Why nothing happens for now although it is pending: no worker serves a profile."""


class OpenAIVoice(Schema):
    """A voice as OpenAI lists it."""

    object: Literal["audio.voice"] = "audio.voice"
    id: str
    name: str
    created_at: int


class VoiceList(Page[OpenAIVoice]):
    """Answer of `GET /v1/audio/voices`: vLLM-Omni's list, and OpenAI's."""

    voices: list[str]
    """Keys, sorted, and `default`."""
    uploaded_voices: list[UploadedVoice]


class NewVoice(BaseModel):
    """`voice` in the answer to an upload: `mime_type` and `file_size` of a clip, or `embedding_source` and
    `embedding_dim`; `ref_text`, `speaker_description` and `reason` only if set.
    """

    model_config = ConfigDict(extra="allow")

    name: str
    consent: str
    created_at: int
    id: str
    version: int
    cache_status: ArtifactState
    reason: str | None = None
    """Why nothing happens for now although it is pending: no worker serves a profile."""
    job_id: str | None
    jobs: dict[str, str]
    """Profile -> the job that extracts it."""


class Uploaded(OpenAIVoice):
    """Answer of `POST /v1/audio/voices`."""

    success: Literal[True]
    voice: NewVoice
    created: bool
    """False: this very request was served before, and this is what came of it."""
    warnings: list[str] | None = None
    """Fields of the form that were ignored, with what was probably meant. Only if there are any."""


class CacheStatus(Schema):
    """Answer of `/v1/audio/voices/{name}/cache`."""

    voice: str
    cache_status: ArtifactState
    message: str | None = None
    job_id: str | None = None
    version: int | None = None
    reason: str | None = None
    """Why nothing happens for now although it is pending: no worker serves a profile."""


class Deleted(Schema):
    """Answer of `DELETE /v1/audio/voices/{name}`."""

    success: Literal[True] = True
    message: str
    id: str | None
    """None of a voice whose records could not be read."""
    object: Literal["audio.voice"] = "audio.voice"
    deleted: Literal[True] = True


class ApiKey(Schema):
    """What is known of an API key; not the key itself."""

    object: Literal["api_key"] = "api_key"
    id: str
    """Also what the key begins with, after `sreg_`."""
    name: str
    """Whatever tells people what it is for."""
    namespace: str
    """Whose voices it is for; `*`: any, named in each request by `X-Speaker-Namespace`."""
    scopes: list[str]
    created_at: int
    created_by: str
    """Key that made it, or subject of the token."""
    expires_at: int | None = None
    """Not accepted from then on."""
    state: Literal["active", "expired", "revoked"]
    last_used_at: int | None = None
    """To the minute; None also where Redis was lost since."""
    requests_per_minute: int | None = None
    uploads_per_minute: int | None = None
    """None: what the registry allows every key."""


class NewApiKey(ApiKey):
    """Answer to making one."""

    key: str = Field(repr=False)
    """The key. It is shown this once and stored nowhere."""


class ApiKeyRequest(BaseModel):
    """What a new API key is to be."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    scopes: list[Scope] = Field(min_length=1)
    namespace: str | None = Field(default=None, pattern=rf"^({NAMESPACE_PATTERN}|\*)$")
    """The caller's own without it."""
    expires_at: int | None = Field(default=None, ge=0, le=10**11)
    """Unix seconds; for ever without it."""
    requests_per_minute: int | None = Field(default=None, gt=0, le=10**9)
    uploads_per_minute: int | None = Field(default=None, gt=0, le=10**9)


class Usage(Schema):
    """How much of something there may be. `limit` None: as much as there is room for."""

    used: int
    limit: int | None = None


class Rate(Schema):
    """How often something may be done in a minute. `limit` None: as often as it can be served."""

    limit: int | None = None
    remaining: int | None = None
    reset_seconds: int
    """Until the next minute begins."""


class Quota(Schema):
    """What is left before something is refused: to be asked before bulk work."""

    object: Literal["quota"] = "quota"
    namespace: str
    voices: Usage
    bytes: Usage
    """Of clips, embeddings, texts and brought artifacts, as they were sent. Artifacts that the registry makes
    do not count.
    """
    text_bytes: Usage
    """Of the names, consents, transcripts and descriptions of all versions, in UTF-8."""
    max_versions: int
    """Of one voice."""
    max_builds: int
    """How often one artifact may be made by force, or brought."""
    max_clip_bytes: int
    requests_per_minute: Rate
    """Of this key."""
    uploads_per_minute: Rate
    """Of this key."""
    namespace_requests_per_minute: Rate
    namespace_uploads_per_minute: Rate
