"""Finds artifacts: by voice, version and profile, one or many, or by the digest of the file.

Knows no HTTP.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from services.registry_api.operations.speakers import Speakers
from services.shared.bucket.keys import SpeakerId
from services.shared.index.reading import IndexedSpeaker
from services.shared.index.speaker_index import SpeakerIndex, VersionSelection
from services.shared.model.domain import ArtifactRecord, SpeakerVersion
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.status import UNDECIDED, ProfileStatus, Statuses
from speaker_registry.errors import (
    ArtifactFailed,
    ArtifactNotFound,
    ArtifactStale,
    SpeakerRegistryError,
    Unavailable,
)


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact of a live version, and the speaker as it was found."""

    speaker_id: SpeakerId
    indexed: IndexedSpeaker
    version: SpeakerVersion
    record: ArtifactRecord


@dataclass(frozen=True, slots=True)
class Wanted:
    """Tells which artifact of a version and a profile is asked for. By default it is the one to serve."""

    current: bool = False
    """Only one of the current encoder."""
    fingerprint: str | None = None
    """Only one of this fingerprint."""


ANY = Wanted()


@dataclass(frozen=True, slots=True)
class FoundVersion:
    """A live version and what is known of its artifact for one profile, which may not exist."""

    speaker_id: SpeakerId
    indexed: IndexedSpeaker
    version: SpeakerVersion
    status: ProfileStatus
    wanted: Wanted
    """The artifact that was asked for."""
    required: bool
    """True if every version must have an artifact for the profile."""

    @property
    def artifact(self) -> StoredArtifact | None:
        """The artifact to serve, or None if there is none."""
        record = self.status.artifact
        if record is None or (self.wanted.current and not self.status.current):
            return None
        return StoredArtifact(self.speaker_id, self.indexed, self.version, record)

    @property
    def settled(self) -> bool:
        """True if waiting is pointless: the artifact is ready, or will not be made without a request."""
        return self.artifact is not None or self.fault is not None

    @property
    def fault(self) -> SpeakerRegistryError | None:
        """The error to raise if there is no artifact to serve and none is being made, else None."""
        if self.artifact is not None or self.status.job_id is not None:
            return None
        return self._why_there_is_none()

    def _why_there_is_none(self) -> SpeakerRegistryError | None:
        """Return the error, or None if housekeeping is about to start the extraction."""
        status, profile = self.status, self.status.profile.name
        number, name = self.version.number, self.version.record.name
        what = f"version {number} of voice '{name}'"
        if status.undecided:
            return Unavailable(
                f"It is not known yet if there is an artifact of {what}: {UNDECIDED}.", retry_after_seconds=2
            )
        if status.unsupported:
            return ArtifactNotFound(f"There is no artifact of {what}: {status.error}.", param="profile")
        if status.state_of_current == "failed":
            return ArtifactFailed(
                f"Extracting {what} for profile '{profile}' failed. {status.error}", param="profile"
            )
        return self._why_none_was_made(what)

    def _why_none_was_made(self, what: str) -> SpeakerRegistryError | None:
        status, profile = self.status, self.status.profile.name
        number, name = self.version.number, quote(self.version.record.name, safe="")
        again = f'POST /v1/voices/{name}/versions/{number}/extractions {{"profiles": ["{profile}"]}}'
        if self.wanted.fingerprint is not None and status.artifact is None:
            return ArtifactNotFound(
                f"No artifact of {what} for profile '{profile}' was made with {self.wanted.fingerprint}. "
                "Without `fingerprint`, the one that is served now is returned.",
                param="fingerprint",
            )
        if status.of_former:
            return ArtifactStale(
                f"The artifact of {what} was made by a former encoder of '{profile}'. Ask without "
                f"current=true to get it, or extract it again with {again}.",
                param="current",
            )
        if self.required:
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
        self, namespace: str, name: str, reference: int | str, profile: str, wanted: Wanted = ANY
    ) -> FoundVersion:
        """Find a version's artifact for a profile.

        Raises:
            VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown.
        """
        self._catalogue.get(profile)
        indexed, version = self._speakers.find_version(namespace, name, reference)
        status = self._statuses.of_profile(indexed, version, profile, wanted.fingerprint)
        return self._found(namespace, indexed, version, self._statuses.explained(status), wanted)

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

    def of_defaults(
        self, namespace: str, speakers: Iterable[IndexedSpeaker], profile: str
    ) -> list[FoundVersion]:
        """Return what is known of the artifacts of the default versions of live speakers.

        Raises:
            ProfileUnknown.
        """
        self._catalogue.get(profile)
        return [self._of_profile(namespace, one, one.speaker.default, profile) for one in speakers]

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
        wanted: Wanted = ANY,
    ) -> FoundVersion:
        speaker_id = SpeakerId.of_record(namespace, version.record)
        required = status.profile.name in self._catalogue.required
        return FoundVersion(speaker_id, indexed, version, status, wanted, required)
