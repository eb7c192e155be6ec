"""The versions that belong in a synced folder: one of each voice."""

from dataclasses import dataclass

from speaker_registry.errors import VoiceDeleted, VoiceNotFound
from speaker_registry.schemas import Voice

GONE = frozenset({VoiceNotFound.code, VoiceDeleted.code})
"""Codes of the errors that say that there is no such voice any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The version of a voice that belongs in a folder."""

    voice: Voice
    version: int
    created_at: int
    """Creation time of the version in Unix seconds."""
    sha256: str | None = None
    """SHA-256 of the file that belongs in the folder, if it is known before the file is fetched."""
    missing: str | None = None
    """The reason why nothing can be fetched now. None if the file can be fetched."""
    untrained: bool = False
    """True if the file was made with random weights."""

    @property
    def reference(self) -> str:
        """Reference to exactly this version, also if the name is deleted and registered again."""
        return f"{self.voice.id}@{self.version}"
