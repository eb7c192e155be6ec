"""Follows a registry: which voices the engines of a profile should hold.

It does not know what is done with the voices. Looking costs one small request per page as long as nothing
changes, so it may be done every few seconds.
"""

from collections.abc import Callable, Mapping

from speaker_registry.client import RegistryClient
from speaker_registry.errors import SpeakerRegistryError, VersionNotFound, VoiceDeleted, VoiceNotFound
from speaker_registry.manifests import Manifest, ManifestEntry
from speaker_registry.schemas import VoiceVersion

FindVersion = Callable[[str], VoiceVersion]
"""Returns the version that a reference names, as `RegistryClient.version` does."""


class Following:
    """Follows the voices of one profile in the namespace of a client's API key. Not safe for threads."""

    def __init__(self, client: RegistryClient, profile: str) -> None:
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

    def look(self) -> None:
        """Ask the registry which voices there are now.

        Raises:
            SpeakerRegistryError: The registry cannot be reached or refuses the API key. The voices stay as
                they were.
        """
        manifest = self._client.manifest(self._profile, self._manifest)
        if manifest is not self._manifest:
            self._manifest, self._voices = manifest, {one.voice_id: one for one in manifest}


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
