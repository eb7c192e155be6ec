"""Finds artifacts: by voice, version and profile, one or many, or by the digest of the file.

Knows no HTTP.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from services.registry_api.operations.speakers import Speakers
from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from services.shared.model.domain import ArtifactRecord, SpeakerVersion
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.status import ProfileStatus, Statuses
from speaker_registry.errors import ArtifactFailed, ArtifactNotFound, ArtifactStale, SpeakerRegistryError


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact of a live version, and the speaker as it was found."""

    speaker_id: SpeakerId
    indexed: IndexedSpeaker
    version: SpeakerVersion
    record: ArtifactRecord


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A live version and what is known of its artifact for one profile, which may not exist."""

    speaker_id: SpeakerId
    indexed: IndexedSpeaker
    version: SpeakerVersion
    status: ProfileStatus
    allow_stale: bool
    """Whether an artifact that an older encoder made may be served."""
    required: bool
    """Whether every version must have an artifact for the profile."""

    @property
    def artifact(self) -> StoredArtifact | None:
        """The artifact to serve, or None if there is none."""
        record = self.status.artifact or (self.status.stale if self.allow_stale else None)
        if record is None:
            return None
        return StoredArtifact(self.speaker_id, self.indexed, self.version, record)

    @property
    def settled(self) -> bool:
        """True if waiting is pointless: the artifact is ready, or will not be made without a request."""
        return self.artifact is not None or self.fault is not None

    @property
    def fault(self) -> SpeakerRegistryError | None:
        """The error to raise if there is no artifact to serve and none is being made, else None."""
        status, profile = self.status, self.status.profile.name
        name, number = self.version.record.name, self.version.number
        what = f"version {number} of voice '{name}'"
        path = f"/v1/voices/{quote(name, safe='')}/versions/{number}/extractions"
        again = f'POST {path} {{"profiles": ["{profile}"]}}'
        if self.artifact is not None or status.job_id is not None:
            return None
        if status.unsupported:
            return ArtifactNotFound(f"There is no artifact of {what}: {status.error}.", param="profile")
        if status.state == "failed":
            return ArtifactFailed(
                f"Extracting {what} for profile '{profile}' failed. {status.error}", param="profile"
            )
        if status.stale is not None:
            return ArtifactStale(
                f"The artifact of {what} was made by an older encoder of '{profile}'. Pass allow_stale=true "
                f"to get it, or extract it again with {again}.",
                param="profile",
            )
        if self.required:  # housekeeping is about to start the extraction
            return None
        return ArtifactNotFound(
            f"Nothing was extracted from {what} for profile '{profile}'. Request it with {again}.",
            param="profile",
        )


class Artifacts:
    """Finds artifacts. All methods may raise `Unavailable`."""

    def __init__(
        self, speakers: Speakers, index: SpeakerIndex, statuses: Statuses, catalogue: ProfileCatalogue
    ) -> None:
        self._speakers = speakers
        self._index = index
        self._statuses = statuses
        self._catalogue = catalogue

    def find(
        self, namespace: str, name: str, reference: int | str, profile: str, *, allow_stale: bool = False
    ) -> FoundVersion:
        """Find a version's artifact for a profile.

        Raises:
            VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown.
        """
        self._catalogue.get(profile)
        indexed, version = self._speakers.find_version(namespace, name, reference)
        status = self._statuses.explained(self._statuses.of_profile(indexed, version, profile))
        return self._found(namespace, indexed, version, status, allow_stale=allow_stale)

    def find_each(
        self, namespace: str, voices: Sequence[str], profiles: Sequence[str]
    ) -> list[list[FoundVersion] | SpeakerRegistryError]:
        """Find the artifacts of many voices for the same profiles, in one round trip to the index.

        Args:
            voices: each a name, `name@version` or `name@alias`.

        Returns:
            For each voice, what was found for each profile, or the error why the voice was not found.

        Raises:
            ProfileUnknown.
        """
        for profile in profiles:
            self._catalogue.get(profile)
        return [
            one
            if isinstance(one, SpeakerRegistryError)
            else [self._of_profile(namespace, *one, profile) for profile in profiles]
            for one in self._speakers.find_versions(namespace, voices)
        ]

    def _of_profile(
        self, namespace: str, indexed: IndexedSpeaker, version: SpeakerVersion, profile: str
    ) -> FoundVersion:
        return self._found(namespace, indexed, version, self._statuses.of_profile(indexed, version, profile))

    def find_by_digest(self, namespace: str, digest: str) -> StoredArtifact:
        """Return the artifact of a live version whose file has this digest (`sha256:…`).

        Raises:
            ArtifactNotFound. GateClosed: the index does not know the artifact, and is being rebuilt.
        """
        place = self._index.find_blob(namespace, digest)
        if place is not None:
            speaker_id, vuid = place
            indexed = self._speakers.look_up(speaker_id, VersionSelection(vuid=vuid))
            if (version := indexed.speaker.by_vuid(vuid)) is not None:
                for record in version.all_artifacts:
                    if record.digest == digest:
                        return StoredArtifact(speaker_id, indexed, version, record)
        raise ArtifactNotFound(
            f"No voice has an artifact with the digest {digest}. It may have been deleted or replaced.",
            param="digest",
        )

    def _found(
        self,
        namespace: str,
        indexed: IndexedSpeaker,
        version: SpeakerVersion,
        status: ProfileStatus,
        *,
        allow_stale: bool = False,
    ) -> FoundVersion:
        speaker_id = SpeakerId.of_record(namespace, version.record)
        required = status.profile.name in self._catalogue.required
        return FoundVersion(speaker_id, indexed, version, status, allow_stale, required)
