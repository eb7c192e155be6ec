"""Documents about artifacts, and about the versions that references to voices stand for."""

from typing import Annotated, Any, Literal

from pydantic import Field

from speaker_registry.artifact import TensorInfo
from speaker_registry.schemas.common import Fault, RequestBody, Schema, Untrained
from speaker_registry.schemas.voices import ArtifactState

Mode = Literal["icl", "xvec"]
MAX_RESOLVED = 500
"""Maximum number of pairs of a voice and a profile in one request."""
MAX_PROFILES = 64
"""Maximum number of profiles in one request."""
MAX_REFERENCE_LENGTH = 512
"""Maximum number of characters of a reference to a voice in a request that resolves voices."""


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


class ExtractionRequest(RequestBody):
    """Request body that names the artifacts of a version to be made."""

    profiles: list[str] | None = Field(default=None, min_length=1, max_length=MAX_PROFILES)
    """Profiles to extract. Defaults to all profiles that the version must have."""
    force: bool = False
    """Make the artifacts again, even if they exist, have failed or were canceled."""


class ResolveRequest(RequestBody):
    """Request body that names voices and profiles. Every voice is resolved for every profile."""

    voices: list[Annotated[str, Field(max_length=MAX_REFERENCE_LENGTH)]] = Field(
        min_length=1, max_length=MAX_RESOLVED
    )
    """Each is a name or a voice's id, optionally with `@` and a version or an alias: `alice`, `alice@3`."""
    profiles: list[Annotated[str, Field(max_length=128)]] = Field(min_length=1, max_length=MAX_PROFILES)
    """Names of profiles."""


class ResolvedArtifact(Schema):
    """Says what a reference to a voice stands for now, and the state of its artifact for a profile."""

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
    """The reason why there is no artifact and none is being made."""


class Resolution(Schema):
    """Says what many references stand for, in the order in which they were given."""

    object: Literal["list"] = "list"
    data: list[ResolvedArtifact]
