"""The manifest of a profile: the voices that its engines should hold, and the pages that it comes in."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from speaker_registry.schemas import ArtifactState, Page, Schema, Source, Untrained

Pinned = Annotated[bool, Field(exclude_if=lambda pinned: not pinned)]

MAX_PAGE = 500
"""Maximum number of voices that the registry looks at for one page."""


class ManifestEntry(Schema):
    """A voice that an engine should hold: the version that its bare name means now, and its artifact."""

    voice: str
    """The name as it was typed."""
    voice_id: str
    """Id of the voice. A name that is deleted and registered again gets another id."""
    version: int
    version_id: str
    created_at: int
    """Creation time of the version (Unix seconds). Among the versions of one name it only rises."""
    source: Source
    state: ArtifactState | None = None
    """State of the artifact, or None if nothing makes it."""
    digest: str | None = None
    """Digest of the artifact's file, if the artifact is ready."""
    size: int | None = None
    """Size of the file in bytes."""
    untrained: Untrained = False
    """True if the artifact was made with random weights. Absent otherwise."""
    ref_text: str | None = None
    """Transcript of the clip."""
    pinned: Pinned = False
    """True if the voice matters more than others, so that it is loaded first. Absent otherwise."""

    @property
    def reference(self) -> str:
        """Reference to exactly this version, also if the name is deleted and registered again."""
        return f"{self.voice_id}@{self.version}"


class ManifestPage(Page[ManifestEntry]):
    """A page of the voices that an engine of a profile should hold.

    If one page has all voices, the pinned ones come first on it. Otherwise pages of the pinned voices come
    first, and after them pages of all voices, the pinned ones included, in the order of their names.
    """

    registry: str
    """Identity of the registry's bucket. Another bucket has another one."""
    namespace: str
    profile: str
    model_type: str
    """The model type of the profile. vLLM-Omni names its speaker caches after it."""
    data: list[ManifestEntry] = Field(max_length=MAX_PAGE)


@dataclass(frozen=True, slots=True)
class ReceivedPage:
    """A page of a manifest, as it was last received."""

    etag: str | None
    page: ManifestPage


@dataclass(frozen=True, slots=True)
class Manifest:
    """All voices that an engine of a profile should hold, as they were last read."""

    registry: str
    """Identity of the registry that the pages come from."""
    namespace: str
    profile: str
    model_type: str
    pages: Mapping[str, ReceivedPage] = field(repr=False)
    """Maps the cursor after which a page begins to the page."""

    def __iter__(self) -> Iterator[ManifestEntry]:
        """Return each voice once: the pinned voices and then the others, each in the order of their names."""
        return iter(sorted(self._by_id().values(), key=lambda entry: not entry.pinned))

    def __len__(self) -> int:
        return len(self._by_id())

    def _by_id(self) -> dict[str, ManifestEntry]:
        """Return the voices by their ids. Of a voice that is on two pages, the later page was read later."""
        return {entry.voice_id: entry for received in self.pages.values() for entry in received.page.data}
