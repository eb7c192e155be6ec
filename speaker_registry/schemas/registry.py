"""API keys, quotas, events and the health of a registry."""

from typing import Literal

from pydantic import Field, field_validator

from speaker_registry.names import NAMESPACE_PATTERN, is_visible
from speaker_registry.schemas.common import RequestBody, Schema
from speaker_registry.scopes import Scope


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
    """Limit of uploads per minute with this key. None means the limit that the registry sets for every key.
    """


class NewApiKey(ApiKey):
    """A newly made API key, with its secret."""

    key: str = Field(repr=False)
    """The secret key. It is shown only in this answer and stored nowhere."""


class ApiKeyRequest(RequestBody):
    """Request body that describes a new API key."""

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

    @field_validator("name")
    @classmethod
    def _check_visible(cls, name: str) -> str:
        if not is_visible(name):
            raise ValueError("it has no visible character; accepted: text of 1 to 128 characters")
        return name


class Usage(Schema):
    """The used amount of a resource, and its limit. If `limit` is None, only the available storage limits
    it.
    """

    used: int
    limit: int | None = None


class Rate(Schema):
    """A limit per minute. If `limit` is None, only the capacity of the registry limits the rate."""

    limit: int | None = None
    remaining: int | None = None
    reset_seconds: int
    """Seconds until the next minute begins, and with it a new count."""


class Quota(Schema):
    """Limits and current usage. Read this before bulk work to see how much will be accepted."""

    object: Literal["quota"] = "quota"
    namespace: str
    key_id: str | None = None
    """Id of the API key of the request, or the subject of its token. `anonymous` if no key is needed."""
    scopes: list[str] = Field(default_factory=list)
    """The rights of the key, such as `voices:write`."""
    voices: Usage
    bytes: Usage
    """Size of all clips, embeddings, texts and uploaded artifacts, as they were sent. Artifacts that the
    registry makes itself do not count.
    """
    text_bytes: Usage
    """Size of the names, consents, transcripts and descriptions of all versions, in UTF-8."""
    deleted_bytes: Usage | None = None
    """Like `bytes`, of versions that were deleted and are kept until their grace period ends. None if the
    registry does not limit them.
    """
    deleted_text_bytes: Usage | None = None
    """Like `text_bytes`, of the same versions, and 1 KiB for the record of each."""
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


class Health(Schema):
    """The state of a registry: whether it can serve requests, and what keeps it from that."""

    status: str
    """`ok` or `unavailable`."""
    parts: dict[str, str]
    """Name of each part -> `ok`, or what is wrong with it."""
    details: dict[str, str] = Field(default_factory=dict)
    """Name of each required profile that no worker serves -> what that means."""
    version: str | None = None
    """Version of the registry."""


class RegistryEvent(Schema):
    """A change in the registry. Fields that do not apply to an event are left out."""

    object: Literal["event"] = "event"
    id: str
    """Position in the stream behind this event. A reader that resumes from it gets the events that follow."""
    type: str
    at: float
    """Time of the event (Unix seconds)."""
    voice_slug: str | None = None
    """The voice: its name's key if that is plain, else `x-` and a hash of it. See `names.slug_of`."""
    voice_id: str | None = None
    """An id of the voice, which routes accept until the voice is deleted. In `voice.deleted` and
    `versions.removed` it is the `id` of the voice. In other events it may be made from the id of another of
    its versions.
    """
    version_id: str | None = None
    version: int | None = None
    """The number of a version that was created."""
    alias: str | None = None
    profile: str | None = None
    fingerprint: str | None = None
    former_fingerprint: str | None = None
    """The fingerprint that was current before a promotion."""
    job_id: str | None = None
    state: str | None = None
    """The new state of a job."""
