"""The parts of a stored document, and its serialization as canonical JSON with a digest of the rest.

A record keeps the members that this release does not know, including nested ones, because an older release
may rewrite the document of a newer one. Pure: no clock, no bucket, no Redis.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import from_json

from speaker_registry.artifact import TensorInfo, canonical_json, sha256_digest
from speaker_registry.schemas import PromotionPolicy

_DIGEST = "digest"

SizeInBytes = Annotated[int, Field(ge=0, le=10**12)]
"""The limit is larger than that of any upload, and small enough for Redis to add up sizes exactly."""

GIVEN_FINGERPRINT = "given"
"""The fingerprint of artifacts that a version was registered with. No encoder made them, so no new encoder
makes them stale.
"""


def seal(members: Mapping[str, Any]) -> bytes:
    """Return the stored form of a document: canonical JSON with the digest of all its other members.

    The members are encoded once, because encoding a document of a megabyte stops all threads meanwhile.
    """
    before = {name: value for name, value in members.items() if name < _DIGEST}
    after = {name: value for name, value in members.items() if name > _DIGEST}
    parts = [canonical_json(part)[1:-1].encode() for part in (before, after) if part]
    digest = f'"{_DIGEST}":"{sha256_digest(b"{" + b",".join(parts) + b"}")}"'
    parts.insert(1 if before else 0, digest.encode())
    return b"{" + b",".join(parts) + b"}"


def unseal(body: bytes) -> dict[str, Any]:
    """Return the members of a stored document, without the digest.

    The digest is checked on the stored JSON, so it holds whatever members and defaults another release has.
    Raises ValueError if the digest is wrong.
    """
    try:
        members: dict[str, Any] = from_json(body, allow_inf_nan=False)
        digest = members.pop(_DIGEST)
        verifies = _verifies(digest, body, members)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("the body is not a sealed JSON object") from None
    if not verifies:
        raise ValueError("the digest in the body is not that of its other members")
    return members


def _verifies(digest: object, body: bytes, members: Mapping[str, Any]) -> bool:
    """Return whether the digest in a body matches the rest of the body.

    Comparing the text of the body is faster, but fails if another program has reformatted the JSON.
    """
    without = body.replace(f'"{_DIGEST}":"{digest}",'.encode(), b"", 1)
    return digest == sha256_digest(without) or digest == sha256_digest(canonical_json(members).encode())


class Record(BaseModel):
    """A part of a stored document. Members that this release does not know are kept as they are."""

    model_config = ConfigDict(
        frozen=True,
        extra="allow",
        allow_inf_nan=False,  # JSON cannot express NaN and infinity, so they could not be read back
        hide_input_in_errors=True,  # errors are logged, and transcripts must not get into logs
    )

    def having(self, **members: Any) -> Self:
        """Return a copy of the record with new values for some members."""
        return self.model_copy(update=members)


class ClipRecord(Record):
    """The uploaded clip of a version."""

    sha256: str
    size: SizeInBytes
    mime_type: str
    seconds: float
    sample_rate: int
    channels: int
    rendition_sha256: str
    """The SHA-256 of the decoded mono rendition, which extractors read."""


class ArtifactRecord(Record):
    """One stored artifact of a version for a profile."""

    fingerprint: str
    build: int = Field(ge=1)
    """The build number, unique within (version, profile, fingerprint)."""
    object: str
    """The id of the attempt that stored the file. It is part of the object's key."""
    digest: str
    """`sha256:…` of the file."""
    content_digest: str
    size: SizeInBytes
    tensors: dict[str, TensorInfo]
    brought: bool = False
    """True if the artifact was uploaded, so that no encoder can make it again."""
    ahead: bool = False
    """True if the artifact was made ahead of the promotion of its encoder, which may never happen. It is
    served only while that encoder is the current one or a former one.
    """
    untrained: bool = False
    extractor: dict[str, Any] = {}
    """The inputs that made the artifact, if its fingerprint does not determine them. Otherwise they are in
    `SpeakerDocument.extractors`.
    """
    seconds_spent: float = 0.0


class FailureRecord(Record):
    """The reason why the last extraction of a version for a profile was given up."""

    fingerprint: str
    build: int = Field(ge=1)
    job: str
    code: str
    message: str = ""
    attempts: int = 0
    ahead: bool = False
    """True if the encoder had not been promoted, as for artifacts. Then only its campaign reports the
    failure.
    """


class Version(Record):
    """One source of a speaker (a clip or a given embedding), with everything that was made from it."""

    vuid: str
    """The id under which this registry stores the version. No other version has ever had it."""
    given_id: Annotated[str | None, Field(exclude_if=lambda given: given is None)] = None
    """The id that the version had in the registry from which it was moved. Callers see it as `id`. Nothing
    is stored under it, because versions of several voices may have the same one.
    """
    number: int = 0
    """The number is 0 until a change adds the version to a document."""
    created_at: int = 0
    name: str
    """The name as the uploading caller typed it."""
    source: Literal["audio", "embedding"]
    consent: str
    ref_text: str | None = None
    description: str | None = None
    clip: ClipRecord | None = None
    embedding_width: int | None = None
    request: str | None = None
    """Hash of the registering request's content. An equal request is answered with the same version."""
    idempotency: str | None = None
    """Hash of the request's Idempotency-Key."""
    artifacts: dict[str, tuple[ArtifactRecord, ...]] = {}
    """The artifacts by profile, in the order in which they were added."""
    failures: dict[str, tuple[FailureRecord, ...]] = {}
    """The reasons why extractions were given up, by profile, one for each encoder, newest last."""
    builds: dict[str, dict[str, int]] = {}
    """The highest build that was made or canceled, by profile and fingerprint. It never falls."""

    def artifact(self, profile: str, fingerprint: str | None = None) -> ArtifactRecord | None:
        """Return the artifact to serve: the highest build with `fingerprint`. If that is None, return the
        highest build of any encoder that was not made ahead.

        A given embedding is served itself, even if a former release has let another artifact be uploaded.
        """
        made = self.artifacts.get(profile, ())
        current = {fingerprint, GIVEN_FINGERPRINT}
        found = [
            one for one in made if (one.fingerprint in current if fingerprint is not None else not one.ahead)
        ]
        if self.source == "embedding":
            found = [one for one in found if one.fingerprint == GIVEN_FINGERPRINT] or found
        return max(found, key=lambda one: one.build, default=None)

    def failure(self, profile: str, fingerprint: str | None = None) -> FailureRecord | None:
        """Return why the extraction with `fingerprint` was given up, or None if it was not.

        Args:
            fingerprint: if None, the last failure of any encoder counts, except failures ahead of a
                promotion.
        """
        failed = reversed(self.failures.get(profile, ()))
        found = (
            one
            for one in failed
            if (one.fingerprint == fingerprint if fingerprint is not None else not one.ahead)
        )
        return next(found, None)

    def highest_build(self, profile: str, fingerprint: str) -> int:
        """Return the highest build that was ever made or canceled; 0 if there was none."""
        return self.builds.get(profile, {}).get(fingerprint, 0)

    def outcome(self, profile: str, fingerprint: str, build: int) -> Literal["succeeded", "canceled"] | None:
        """Return what became of a build: it was made, or overtaken by a later one, or it was canceled.
        A build whose bytes were lost since counts as canceled. Returns None while its number is not used.
        """
        if build > self.highest_build(profile, fingerprint):
            return None
        made = self.artifacts.get(profile, ())
        later = any(one.fingerprint == fingerprint and one.build >= build for one in made)
        return "succeeded" if later else "canceled"

    def with_used_build(self, profile: str, fingerprint: str, build: int) -> Self:
        """Record that a build's number is used."""
        of_profile = self.builds.get(profile, {})
        highest = max(build, self.highest_build(profile, fingerprint))
        return self.having(builds={**self.builds, profile: {**of_profile, fingerprint: highest}})

    @property
    def id(self) -> str:
        """Return the id that callers see, which is also in the headers of artifacts."""
        return self.given_id or self.vuid

    @property
    def served(self) -> frozenset[str]:
        """Return the profiles for which the version has an artifact with any fingerprint.

        Artifacts that were made ahead do not count, because they are not served before their encoder is
        promoted.
        """
        return frozenset(profile for profile in self.artifacts if self.artifact(profile) is not None)

    @property
    def names_of_bytes(self) -> frozenset[str]:
        """Return the ids of everything in the bucket that this version names."""
        made = (one.object for of_profile in self.artifacts.values() for one in of_profile)
        return frozenset({self.vuid, *made})

    @property
    def uploaded_bytes(self) -> int:
        """Return the number of bytes of the clip and of uploaded artifacts, which count against the quota.

        Artifacts that workers made do not count.
        """
        made = (one for of_profile in self.artifacts.values() for one in of_profile)
        return sum(one.size for one in made if one.brought) + (self.clip.size if self.clip else 0)

    @property
    def text_bytes(self) -> int:
        """Return the number of bytes of the texts. They count against two quotas."""
        texts = (self.name, self.consent, self.ref_text, self.description)
        return sum(len(text.encode()) for text in texts if text)


class Alias(Record):
    """A movable name for one version of a speaker."""

    vuid: str
    by_hand: bool = False
    """True if a caller moved the alias. It then stays until a caller undoes the move."""
    moved: int
    """The revision that moved the alias."""


class About(Record):
    """The texts that describe a voice. No version and no artifact depends on them."""

    description: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    pinned: bool = False
    promotion: PromotionPolicy = "on_ready"
    """With `manual`, the alias `default` moves only by hand. `promotion` holds the rule."""

    @property
    def text_bytes(self) -> int:
        """Return the number of bytes of the texts."""
        texts = [self.description or "", *self.labels, *self.labels.values()]
        return sum(len(text.encode()) for text in texts)

    def has_labels(self, wanted: Mapping[str, str]) -> bool:
        """Return whether the voice has all these labels, with these values."""
        return wanted.items() <= self.labels.items()
