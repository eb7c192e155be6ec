"""The records of an exported namespace: what its JSON members may say, and the digest of its content."""

import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from speaker_registry.artifact import canonical_json
from speaker_registry.errors import SpeakerRegistryError
from speaker_registry.fetching import MAX_FILE_BYTES
from speaker_registry.labels import changed_labels
from speaker_registry.moving.candidates import Texts
from speaker_registry.names import (
    DIGEST_PATTERN,
    MAX_NAME_LENGTH,
    MAX_VERSION,
    NAMESPACE_PATTERN,
    VERSION_ID_PATTERN,
    parse_alias,
)
from speaker_registry.schemas import PromotionPolicy

FORMAT: Literal["speaker-registry-export"] = "speaker-registry-export"
Digest = Annotated[str, Field(pattern=DIGEST_PATTERN)]
Size = Annotated[int, Field(gt=0, le=MAX_FILE_BYTES)]


class ArchiveRecord(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ManifestRecord(ArchiveRecord):
    """The first member of an archive, `manifest.json`."""

    format: Literal["speaker-registry-export"] = FORMAT
    schema_version: Literal[1] = 1
    namespace: str = Field(pattern=f"^{NAMESPACE_PATTERN}$")
    """The namespace that was exported."""


class ArtifactRecord(ArchiveRecord):
    """An artifact of a version. Its member is the file as the registry served it."""

    profile: str = Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}$")
    digest: Digest
    size: Size
    content_digest: Digest
    """Digest of the tensors alone, which another registry keeps."""
    fingerprint: str = Field(max_length=100)


class VersionRecord(ArchiveRecord):
    """A version of a voice."""

    name: str = Field(max_length=MAX_NAME_LENGTH)
    version: int = Field(ge=1, le=MAX_VERSION)
    created_at: int = Field(ge=0)
    """Unix seconds."""
    id: Annotated[
        str | None, Field(pattern=f"^{VERSION_ID_PATTERN}$", exclude_if=lambda one: one is None)
    ] = None
    """Id of the version, which its artifacts have in their headers. None in archives of former releases."""
    source: Literal["audio", "embedding"]
    digest: Digest
    """Digest of the clip as uploaded, or of the safetensors file with the embedding."""
    size: Size
    consent: str = Field(min_length=1, max_length=2_000)
    ref_text: str | None = Field(max_length=8_000)
    description: str | None = Field(max_length=8_000)
    artifacts: list[ArtifactRecord] = Field(max_length=64)

    @property
    def texts(self) -> Texts:
        return Texts(consent=self.consent, ref_text=self.ref_text, description=self.description)


class VoiceRecord(ArchiveRecord):
    """The description, labels, pin and promotion policy of a voice, and the aliases that were set by hand.

    A voice without any of these has no such record.
    """

    description: str | None = Field(default=None, max_length=8_000)
    labels: dict[str, str] = Field(default_factory=dict)
    pinned: bool = False
    promotion: Annotated[PromotionPolicy, Field(exclude_if=lambda policy: policy == "on_ready")] = "on_ready"
    """Absent from archives unless it is `manual`, so that the digests of former exports hold."""
    aliases: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict, max_length=64)
    """Alias -> place of its version among those of the archive. `default` is here if it was moved by
    hand, or moves only by hand.

    The oldest version has the place 1, because the registry that imports the archive may assign new version
    numbers.
    """

    @property
    def has_content(self) -> bool:
        about = self.description or self.labels or self.pinned or self.promotion != "on_ready"
        return bool(about or self.aliases)

    def without_aliases(self) -> Self:
        return self.model_copy(update={"aliases": {}})

    def placed(self, numbers: Sequence[int]) -> Self:
        """Replace the version numbers in `aliases` by places. Aliases of other versions are left out.

        Args:
            numbers: The numbers of the archived versions, oldest first.
        """
        places = {number: place for place, number in enumerate(numbers, start=1)}
        aliases = {alias: places[number] for alias, number in self.aliases.items() if number in places}
        return self.model_copy(update={"aliases": aliases})

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        try:
            changed_labels({}, self.labels)
            for alias in self.aliases:
                parse_alias(alias)
        except SpeakerRegistryError as error:
            raise ValueError(error.message) from None
        return self


class EndRecord(ArchiveRecord):
    """The last member of an archive, `end.json`. An archive without it was cut short."""

    voices: int
    versions: int
    content: Digest
    """Digest of everything that survives a move to another registry, see `ContentDigest`."""


class ContentDigest:
    """The digest of a namespace's content: names, order of versions, sources, texts and tensors.

    It leaves out what a registry may assign by itself: version numbers, times and ids where it does not keep
    those of an archive. It also leaves out the digests of artifact files, whose headers contain these.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, record: VersionRecord) -> None:
        artifacts = sorted([one.profile, one.fingerprint, one.content_digest] for one in record.artifacts)
        content = [
            record.name,
            record.source,
            record.digest,
            record.consent,
            record.ref_text,
            record.description,
        ]
        self._hash.update(canonical_json([*content, artifacts]).encode() + b"\n")

    def add_voice(self, record: VoiceRecord) -> None:
        self._hash.update(canonical_json(record.model_dump(mode="json")).encode() + b"\n")

    def __str__(self) -> str:
        return "sha256:" + self._hash.hexdigest()


class RecordsDigest:
    """The digest of the bytes of all records of an archive, in their order.

    It shows damage to what `ContentDigest` leaves out.
    """

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, name: str, data: bytes) -> None:
        self._hash.update(f"{name} {len(data)}\n".encode() + data)

    def __str__(self) -> str:
        return "sha256:" + self._hash.hexdigest()
