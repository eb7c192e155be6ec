"""Follows a registry: which voices the engines of a profile should hold, and what has changed since the last
look.

It does not know what is done with the voices. Looking costs one small request per page as long as nothing
changes, so it may be done every few seconds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from speaker_registry.errors import SpeakerRegistryError, VersionNotFound, VoiceDeleted, VoiceNotFound
from speaker_registry.manifests import Manifest, ManifestEntry
from speaker_registry.schemas import VoiceVersion

FindVersion = Callable[[str], VoiceVersion]
"""Returns the version that a reference names, as `RegistryClient.version` does."""


class ManifestReader(Protocol):
    """The part of `RegistryClient` that is needed to follow a registry."""

    def manifest(self, profile: str, known: Manifest | None = None) -> Manifest: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The changes between two looks. A name that was deleted and registered again is a new voice."""

    added: tuple[ManifestEntry, ...] = ()
    changed: tuple[ManifestEntry, ...] = ()
    """Voices that are new, or have another version, artifact or state, as they are now."""
    removed: tuple[ManifestEntry, ...] = ()
    """Voices that were removed, as they were at the previous look."""

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


class Following:
    """Follows the voices of one profile in the namespace of a client's API key. Not safe for threads."""

    def __init__(self, client: ManifestReader, profile: str) -> None:
        self._client, self._profile = client, profile
        self._manifest: Manifest | None = None
        self._voices: dict[str, ManifestEntry] = {}

    @property
    def voices(self) -> Mapping[str, ManifestEntry]:
        """The voices by their ids, as they were at the last look."""
        return self._voices

    @property
    def manifest(self) -> Manifest:
        """The manifest, as it was at the last look. There must have been one."""
        assert self._manifest is not None, "the registry was looked at"
        return self._manifest

    def look(self) -> Changes:
        """Ask the registry which voices have changed since the last look.

        Raises:
            SpeakerRegistryError: The registry cannot be reached or refuses the API key. The voices stay as
                they were, and the next look tells everything that has changed meanwhile.
        """
        manifest = self._client.manifest(self._profile, self._manifest)
        if manifest is self._manifest:
            return Changes()
        before, self._voices = self._voices, {one.voice_id: one for one in manifest}
        self._manifest = manifest
        return _difference(before, self._voices)


def _difference(before: Mapping[str, ManifestEntry], now: Mapping[str, ManifestEntry]) -> Changes:
    return Changes(
        added=tuple(one for voice_id, one in now.items() if voice_id not in before),
        changed=tuple(one for voice_id, one in now.items() if before.get(voice_id, one) != one),
        removed=tuple(one for voice_id, one in before.items() if voice_id not in now),
    )


def is_deleted(find: Callable[[], VoiceVersion], is_same: Callable[[str], bool]) -> bool:
    """Return whether a version was deleted, or lost when the registry was restored from a backup.

    A follower that cannot replace a version yet asks this, because it must not go on with a deleted one. If
    the registry has no answer, the version counts as one that is still there.

    Args:
        find: Asks the registry for the version.
        is_same: Returns whether an id of a version is that of the version in question.
    """
    try:
        return not is_same(find().id)
    except SpeakerRegistryError as error:
        return isinstance(error, VersionNotFound | VoiceNotFound | VoiceDeleted)
