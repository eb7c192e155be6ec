"""The JSON documents of the API, as pydantic models. Times are Unix seconds and digests `sha256:<hex>`. A
*voice* here is a *speaker* in all other code.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from speaker_registry.artifact import TensorInfo, TensorSpec
from speaker_registry.names import NAMESPACE_PATTERN
from speaker_registry.notebooks import html_table
from speaker_registry.scopes import Scope

ArtifactState = Literal["pending", "processing", "ready", "failed"]
JobState = Literal["queued", "processing", "succeeded", "failed", "canceled", "superseded"]
FINISHED_STATES: frozenset[str] = frozenset({"succeeded", "failed", "canceled", "superseded"})
CampaignState = Literal["running", "paused", "complete", "promoted", "canceled"]
Source = Literal["audio", "embedding"]
Mode = Literal["icl", "xvec"]
Untrained = Annotated[bool, Field(default=False, exclude_if=lambda untrained: not untrained)]
"""Whether the weights are random, so that the voice is useless. Documents leave it out unless it is true."""
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


class ArtifactStatus(Schema):
    """The state of the artifact of one version for one profile."""

    profile: str
    state: ArtifactState
    current: bool | None = None
    """True if the artifact was made by the profile's current encoder, and False if a former one made it. None
    if there is no artifact.
    """
    digest: str | None = None
    untrained: Untrained = False
    """True if the artifact was made with random weights, or will be if there is none yet. Absent otherwise.
    """
    job_id: str | None = None
    """Id of the job that makes the artifact, while there is one."""
    error: str | None = None
    """Tells why the extraction failed, or why this artifact cannot be extracted."""
    reason: str | None = None
    """Tells why a pending extraction does not start: no worker serves the profile at the moment."""


def _artifact_table(caption: str, artifacts: Iterable[ArtifactStatus]) -> str:
    rows = [(one.profile, one.state, one.error or one.reason or "") for one in artifacts]
    return html_table(caption, ("profile", "state", "reason"), rows)


class AudioProperties(Schema):
    """Properties of a clip as it was uploaded."""

    digest: str
    size: int
    """Size of the uploaded file in bytes."""
    mime_type: str
    seconds: float
    sample_rate: int
    """Samples per second (Hz)."""
    channels: int
    url: str | None = None
    """URL of the clip's bytes. Fetching them requires the scope `audio:read`."""


class PendingPicture(Schema):
    """Tells that a picture of a clip is not drawn yet."""

    object: Literal["voice.picture"] = "voice.picture"
    voice: str
    version: int
    picture: str
    """Name of the picture: `waveform.svg` or `mel.png`."""
    state: Literal["pending"] = "pending"
    reason: str
    """Tells why there is no picture yet, and what to do."""


class VoiceVersion(Schema):
    object: Literal["voice.version"] = "voice.version"
    id: str
    voice_id: str
    """Id of the voice that the version belongs to."""
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
    """The worst state among the profiles that the version must have to be complete. From worst to best:
    failed, processing, pending, ready.
    """
    held_back: str | None = None
    """Tells why the alias `default` will not move to this version, although it is newer."""
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be. Absent otherwise."""

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show instead of the `repr`."""
        weights = ", untrained" if self.untrained else ""
        return _artifact_table(f"{self.voice}@{self.version}: {self.state}{weights}", self.artifacts)


class RegisteredVersion(VoiceVersion):
    """Answer to the upload of a clip or an embedding: the version, and what the upload has done."""

    created: bool
    """False if no version was added, because the upload was repeated or equals the newest version. The answer
    then describes the existing version.
    """
    jobs: dict[str, str]
    """Maps each profile to the id of the job that extracts it."""


class Voice(Schema):
    """A voice and its default version, which is the one that its bare name means at the moment."""

    object: Literal["voice"] = "voice"
    id: str
    name: str
    """The name as it was typed."""
    key: str
    """The identity of the name: trimmed, lower-cased, in Unicode normal form NFC."""
    created_at: int
    """Creation time of the default version."""
    version: int
    """Number of the default version."""
    latest: int
    """Number of the newest version, whether ready or not."""
    versions: int
    """Number of versions of this voice."""
    aliases: dict[str, int]
    state: ArtifactState
    """State of the default version."""
    artifacts: list[ArtifactStatus]
    """Artifacts of the default version."""
    held_back: str | None = None
    """Tells why the alias `default` will not move to the newest version."""
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be. Absent otherwise."""

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show instead of the `repr`."""
        weights = ", untrained" if self.untrained else ""
        title = f"{self.name}: {self.state}{weights}, version {self.version} of {self.versions}"
        return _artifact_table(title, self.artifacts)


class ArtifactDescriptor(Schema):
    """Everything an engine needs to decide whether to fetch an artifact, in one document."""

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
    current: bool | None = None
    """True if the artifact was made by the profile's current encoder, and False if a former one made it. None
    if there is no artifact.
    """
    digest: str | None = None
    content_digest: str | None = None
    size: int | None = None
    tensors: dict[str, TensorInfo] = Field(default_factory=dict)
    ref_text: str | None = None
    audio_digest: str | None = None
    fingerprint: str | None = None
    extractor: dict[str, Any] = Field(default_factory=dict)
    untrained: Untrained = False
    """True if the artifact was made with random weights, or will be."""
    custom_weights: bool = False
    """True if the weights differ from the published ones on purpose, such as fine-tuned weights."""
    url: str | None = None
    """Path of the artifact's file, relative to the registry's root."""
    immutable_url: str | None = None
    """Path of the same bytes by their digest. Its answer may be kept for good."""
    job_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """Tells why a pending extraction does not start: no worker serves the profile at the moment."""


MAX_RESOLVED = 500
"""Pairs of a voice and a profile that one request may ask about."""
MAX_PROFILES = 64
"""Profiles that one request may name."""


class ResolveRequest(BaseModel):
    """Request body that names voices and profiles. Every voice is resolved for every profile."""

    model_config = ConfigDict(extra="forbid")

    voices: list[Annotated[str, Field(max_length=512)]] = Field(min_length=1, max_length=MAX_RESOLVED)
    """Each is a name or a voice's id, optionally with `@` and a version or an alias: `alice`, `alice@3`."""
    profiles: list[Annotated[str, Field(max_length=128)]] = Field(min_length=1, max_length=MAX_PROFILES)
    """Names of profiles."""


class Fault(Schema):
    """Why something is not there."""

    code: str
    message: str


class ResolvedArtifact(Schema):
    """What a reference to a voice stands for now, and the state of its artifact for a profile."""

    voice: str
    """The reference as it was given."""
    profile: str
    version: int | None = None
    """The number of the version, or None if there is none."""
    version_id: str | None = None
    created_at: int | None = None
    state: ArtifactState | None = None
    """The state of the artifact, or None if there is no version or nothing makes its artifact."""
    digest: str | None = None
    """Digest of the artifact's file, if it is ready."""
    size: int | None = None
    """Size of the file in bytes."""
    current: bool | None = None
    """True if the artifact was made by the profile's current encoder, and False if a former one made it. None
    if there is no artifact.
    """
    untrained: Untrained = False
    """True if the artifact was made with random weights. Absent otherwise."""
    error: Fault | None = None
    """Why there is no artifact and none is being made."""


class Resolution(Schema):
    """What many references stand for, in the order in which they were given."""

    object: Literal["list"] = "list"
    data: list[ResolvedArtifact]


class RegistryEvent(Schema):
    """Something that changed. Fields that an event has nothing to say about are left out."""

    object: Literal["event"] = "event"
    id: str
    """Names the place behind this event in the stream."""
    type: str
    at: float
    """When it happened (Unix seconds)."""
    voice_slug: str | None = None
    """The voice: its name's key if that is plain, else `x-` and a hash of it. See `names.slug_of`."""
    voice_id: str | None = None
    version_id: str | None = None
    version: int | None = None
    """The number of a version that was created."""
    alias: str | None = None
    profile: str | None = None
    fingerprint: str | None = None
    job_id: str | None = None
    state: str | None = None
    """The new state of a job."""


class ExtractionRequest(BaseModel):
    """Request body that names the artifacts of a version to be made."""

    model_config = ConfigDict(extra="forbid")

    profiles: list[str] | None = Field(default=None, min_length=1, max_length=MAX_PROFILES)
    """Profiles to extract. Defaults to all profiles that the version must have."""
    force: bool = Field(default=False, strict=True)
    """Make the artifacts again, even if they exist, have failed or were canceled."""


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
    """True if the weights are random. None if the profile's encoder has changed since, or was never
    announced.
    """
    custom_weights: bool | None = None
    """True if the weights differ from the published ones on purpose. None if the profile's encoder has
    changed since, or was never announced.
    """
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
    """Tells why a queued job does not start (no worker serves the profile at the moment), or that the job was
    lost with Redis.
    """
    retry_after: float | None = None
    """Seconds to wait before asking again. None once the job has finished."""


class JobCounts(Schema):
    """The number of jobs in each state. Jobs are kept for 30 days."""

    queued: int
    processing: int
    succeeded: int
    failed: int
    canceled: int
    superseded: int


class JobRate(Schema):
    """The jobs that ended lately."""

    seconds: int
    """The length of the time until now in which these jobs ended."""
    succeeded: int
    failed: int
    per_second: float
    """The number of jobs that succeeded per second."""


class ProfileJobs(Schema):
    """The jobs of one profile."""

    profile: str
    counts: JobCounts
    oldest_queued_at: float | None = None
    """When the queued job that waits for the longest time was created, in Unix seconds."""
    oldest_processing_at: float | None = None
    """When the oldest of the jobs that are being processed was created, in Unix seconds."""
    rates: list[JobRate]
    """The jobs that ended within the last minute, hour and day."""


class JobSummary(Schema):
    """The jobs of a namespace, counted."""

    object: Literal["job_summary"] = "job_summary"
    counts: JobCounts
    oldest_queued_at: float | None = None
    """When the queued job that waits for the longest time was created, in Unix seconds."""
    oldest_processing_at: float | None = None
    """When the oldest of the jobs that are being processed was created, in Unix seconds."""
    rates: list[JobRate]
    """The jobs that ended within the last minute, hour and day."""
    profiles: list[ProfileJobs]
    """The same for each profile that has jobs, by name."""


class FailedProof(Schema):
    """A worker that does not serve a profile, because its encoder computes wrong results."""

    worker: str
    device: str
    """The worker's device: `cpu`, `cuda` or `cuda:N`."""
    reason: str
    """Names the tensor that differs, and by how much."""


class CandidateEncoder(Schema):
    """An encoder that live workers have and that is not the current one of its profile. Its workers make
    nothing until an operator promotes it.
    """

    fingerprint: str
    untrained: bool = False
    custom_weights: bool = False
    """True if the weights differ from the published ones on purpose, such as fine-tuned weights."""
    workers: int
    """Number of live workers that have this encoder."""
    differs: dict[str, tuple[Any, Any]] = Field(default_factory=dict)
    """Each input of the fingerprint that differs -> its value for the current encoder and for this one. A
    value is None if that encoder has no such input.
    """
    coverage: float | None = None
    """The share of voices, from 0 to 1, that its last campaign has covered. None if it had no campaign."""


class EncoderPromotion(BaseModel):
    """Request body that names the encoder to make the current one of a profile."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    """The fingerprint of a candidate, or of a former encoder to go back to."""
    when: Literal["now", "complete"] = "now"
    """When the encoder becomes the current one: at once, or when its campaign has covered every voice. That
    campaign is started if there is none.
    """
    force: bool = Field(default=False, strict=True)
    """Promote the encoder even if no live worker has it. The profile is then without a worker."""


DEFAULT_SAMPLE = 20


class CampaignRequest(BaseModel):
    """Request body that starts a campaign."""

    model_config = ConfigDict(extra="forbid")

    fingerprint: str = Field(pattern="^sha256:[0-9a-f]{64}$")
    """The fingerprint of a candidate, or of a former encoder."""
    sample: int = Field(default=DEFAULT_SAMPLE, ge=1, le=200, strict=True)
    """The number of voices whose old and new artifacts are compared, from the first that are ready."""
    rate: float | None = Field(default=None, ge=0.01, le=1000, strict=True, allow_inf_nan=False)
    """The highest number of voices for each second. None sets no limit."""


class CampaignProgress(Schema):
    """The voices of a campaign, counted by what became of them."""

    voices: int
    """Number of voices of all namespaces, as far as it is known."""
    ready: int
    """Number of voices of which the encoder has made all that is needed."""
    failed: int
    """Number of voices whose extraction failed. They keep their last artifact."""
    skipped: int
    """Number of voices that need no artifact of the profile, or can have none."""
    under_way: int
    """Number of voices that are being extracted."""


class TensorDistance(Schema):
    """How near the new values of a tensor are to the old ones. 1 means that they are equal."""

    measure: Literal["cosine", "equal"]
    """`cosine`: the cosine between the numbers. `equal`: the share of codes that are equal."""
    mean: float
    """Mean over the voices of the sample."""
    lowest: float
    """The value of the voice with the greatest distance."""


class CampaignSample(Schema):
    """The first voices of a campaign, whose old and new artifacts were compared."""

    wanted: int
    compared: int
    tensors: dict[str, TensorDistance]


class Campaign(Schema):
    """A campaign: the workers of an encoder extract every voice ahead of its promotion."""

    object: Literal["campaign"] = "campaign"
    id: str
    profile: str
    fingerprint: str
    state: CampaignState
    """`complete`: every voice was reached. `promoted`: the encoder is the current one."""
    rate: float | None = None
    """The highest number of voices for each second. None sets no limit."""
    promotes: bool
    """True if the encoder is promoted once it has covered every voice."""
    progress: CampaignProgress
    coverage: float
    """The share of voices that lack nothing, from 0 to 1."""
    per_second: float | None = None
    """Number of voices that were done in each of the last seconds. None if nothing is being done."""
    eta_seconds: float | None = None
    """The time that the rest takes at this rate. None if that is not known."""
    sample: CampaignSample
    reason: str | None = None
    """Tells why nothing is begun now, or why the encoder was not promoted."""
    created_at: float
    changed_at: float
    """Time of the last change of the state."""

    @property
    def over(self) -> bool:
        """Return whether the campaign has ended."""
        return self.state not in {"running", "paused"}


class Profile(Schema):
    """The artifact that one engine needs, and the workers that can make it now."""

    object: Literal["profile"] = "profile"
    id: str
    model_type: str
    description: str
    required: bool
    """True if this profile is extracted for every upload."""
    tensors: dict[str, TensorSpec]
    sample_rate: int
    frame_rate: float | None = None
    ref_text_required: bool = False
    model: str
    """Name of the repository that holds the weights."""
    licence: str
    """Licence of the weights, as SPDX identifier if there is one."""
    licence_notes: str | None = None
    not_extractable: str | None = None
    """Tells why no worker can make this artifact. None if workers can make it."""
    fingerprint: str | None = None
    """Fingerprint of the profile's current encoder. None as long as no worker has announced one."""
    extractor: dict[str, Any] = Field(default_factory=dict)
    untrained: bool = False
    custom_weights: bool = False
    """True if the weights differ from the published ones on purpose, such as fine-tuned weights."""
    workers: int = 0
    """Number of live workers that have the current encoder loaded and warmed up."""
    former: list[str] = Field(default_factory=list)
    """Fingerprints that were current before, the newest first. Promote one to go back."""
    candidates: list[CandidateEncoder] = Field(default_factory=list)
    """Encoders that live workers have and that are not the current one."""
    failed_proofs: list[FailedProof] = Field(default_factory=list)
    """Workers that do not serve this profile, because their encoder failed its proof in the last ten minutes.
    """


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


class ApiKey(Schema):
    """Properties of an API key. The secret key itself is not among them."""

    object: Literal["api_key"] = "api_key"
    id: str
    """Id of the API key. The key itself begins with `sreg_` and this id."""
    name: str
    """Free text that tells people what the key is for."""
    namespace: str
    """The namespace whose voices the key can use. With `*` the key can use any namespace, and each request
    names one in the header `X-Speaker-Namespace`.
    """
    scopes: list[str]
    created_at: int
    created_by: str
    """Id of the API key that made this key, or the subject of the token."""
    expires_at: int | None = None
    """Time from which on the key is refused. None if the key does not expire."""
    state: Literal["active", "expired", "revoked"]
    last_used_at: int | None = None
    """Time of the last use, rounded to the minute. None if the key was never used, or if Redis was lost
    since.
    """
    requests_per_minute: int | None = None
    uploads_per_minute: int | None = None
    """None means the limit that the registry sets for every key."""


class NewApiKey(ApiKey):
    """A newly made API key, with its secret."""

    key: str = Field(repr=False)
    """The secret key. It is shown only in this answer and stored nowhere."""


class ApiKeyRequest(BaseModel):
    """Request body that describes a new API key."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=128)
    scopes: list[Scope] = Field(min_length=1)
    namespace: str | None = Field(default=None, pattern=rf"^({NAMESPACE_PATTERN}|\*)$")
    """Defaults to the caller's own namespace."""
    expires_at: int | None = Field(default=None, ge=0, le=10**11)
    """Expiry time in Unix seconds. Without it, the key expires together with the key that makes it, if that
    does.
    """
    requests_per_minute: int | None = Field(default=None, gt=0, le=10**9)
    uploads_per_minute: int | None = Field(default=None, gt=0, le=10**9)


class Usage(Schema):
    """The used amount of a resource, and its limit. If `limit` is None, only the available room limits it."""

    used: int
    limit: int | None = None


class Rate(Schema):
    """A limit per minute. If `limit` is None, only the capacity of the registry limits the rate."""

    limit: int | None = None
    remaining: int | None = None
    reset_seconds: int
    """Seconds until the next minute begins, and with it a new count."""


class Health(Schema):
    """Whether a registry can serve requests, and what keeps it from that."""

    status: str
    """`ok` or `unavailable`."""
    parts: dict[str, str]
    """Name of each part -> `ok`, or what is wrong with it."""
    details: dict[str, str] = Field(default_factory=dict)
    """Name of each required profile that no worker serves -> what that means."""
    version: str | None = None
    """Version of the registry."""


class Quota(Schema):
    """Limits and current usage. Read this before bulk work to see what will not be refused."""

    object: Literal["quota"] = "quota"
    namespace: str
    key_id: str | None = None
    """Id of the API key of the request, or the subject of its token. `anonymous` if no key is needed."""
    scopes: list[str] = Field(default_factory=list)
    """What the key may do."""
    voices: Usage
    bytes: Usage
    """Size of all clips, embeddings, texts and uploaded artifacts, as they were sent. Artifacts that the
    registry makes itself do not count.
    """
    text_bytes: Usage
    """Size of the names, consents, transcripts and descriptions of all versions, in UTF-8."""
    max_versions: int
    """Maximum number of versions of one voice."""
    max_builds: int
    """Maximum number of times that one artifact can be made again with `force` or uploaded."""
    max_clip_bytes: int
    requests_per_minute: Rate
    """Limit of requests with this API key."""
    uploads_per_minute: Rate
    """Limit of uploads with this API key."""
    namespace_requests_per_minute: Rate
    namespace_uploads_per_minute: Rate
