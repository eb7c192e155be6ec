"""Voices, their versions and clips."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from speaker_registry.labels import LABEL_CHANGES_SCHEMA
from speaker_registry.names import MAX_VERSION
from speaker_registry.notebooks import html_table
from speaker_registry.schemas.common import RequestBody, Schema, Untrained

ArtifactState = Literal["pending", "processing", "ready", "failed"]
Source = Literal["audio", "embedding"]
PromotionPolicy = Literal["on_ready", "manual"]
"""Says when the alias `default` of a voice moves to a newer version: by itself once the version is ready, or
only by hand.
"""


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


MAX_DESCRIPTION = 8_000


class VoiceEdit(RequestBody):
    """Request body that changes the description, the labels, the pin or the promotion policy of a voice.
    Members that it leaves out stay unchanged.
    """

    description: str | None = Field(default=None, max_length=MAX_DESCRIPTION)
    """Free text about the voice. Null removes it."""
    labels: dict[str, str | None] = Field(
        default_factory=dict, max_length=1000, json_schema_extra=LABEL_CHANGES_SCHEMA
    )
    """Labels to set. Null as the value removes a label. The voice has up to 32 labels after the change."""
    pinned: bool = False
    """Marks a voice that matters more than others."""
    promotion: PromotionPolicy = "on_ready"
    """With `manual`, the alias `default` moves only by hand. With `on_ready`, it moves by itself to a newer
    version once that is ready, and at once if that is ready already.
    """


class VoiceChange(Schema):
    """One change that a person or a key made to a voice, or the promotion of an encoder, which changed what
    the voice serves.
    """

    object: Literal["voice.change"] = "voice.change"
    revision: int
    """The revision of the voice's record that the change made. A promotion does not change the record; it has
    the revision of the last change before it.
    """
    at: int
    by: str
    """Id of the caller that made the change, such as that of an API key."""
    did: str
    """The kind of change: `register`, `bring`, `alias`, `edit`, `cancel`, `delete_version`, `delete` or
    `undelete`. Kinds of promotions, which alone have a `profile`, are `promote`, `roll_back` and
    `replace_untrained`, see `ProfileChange`.
    """
    version: int | None = None
    """Number of the version that the change was about, if it was about one."""
    alias: str | None = None
    """The alias that was moved or removed."""
    profile: str | None = None
    """The profile whose encoder was promoted."""
    fingerprint: str | None = None
    """The encoder that was promoted."""
    former_fingerprint: str | None = None
    """The encoder that was current before the promotion."""


class VoiceAlias(Schema):
    """A name for one version of a voice, such as `prod` in `alice@prod`."""

    object: Literal["voice.alias"] = "voice.alias"
    voice: str
    alias: str
    version: int
    """Number of the version that the alias stands for."""
    by_hand: bool
    """True if somebody moved the alias. `default` then does not move by itself until it is removed."""
    moved: int
    """The revision of the voice's record in which the alias was moved. It is different for each state of an
    alias.
    """


class MovedAlias(VoiceAlias):
    """Answer to a move: the alias as it is then, and where it pointed before."""

    previous_version: int | None = None
    """Number of the version to which the alias pointed before. None if the alias is new."""


class AliasMove(RequestBody):
    """Request body that names the version to which an alias is moved."""

    version: int = Field(ge=1, le=MAX_VERSION)


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
    description: str | None = None
    """Free text about the voice as a whole. Each version may have one of its own."""
    labels: dict[str, str] = Field(default_factory=dict)
    pinned: bool = False
    promotion: PromotionPolicy = "on_ready"
    """Tells when the alias `default` moves to a newer version: by itself once the version is ready
    (`on_ready`), or only by hand (`manual`).
    """
    untrained: Untrained = False
    """True if one of the artifacts was made with random weights, or will be. Absent otherwise."""

    def _repr_html_(self) -> str:
        """Return the HTML table that notebooks show instead of the `repr`."""
        weights = ", untrained" if self.untrained else ""
        title = f"{self.name}: {self.state}{weights}, version {self.version} of {self.versions}"
        return _artifact_table(title, self.artifacts)
