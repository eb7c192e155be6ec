"""Finds artifacts: by voice, version and profile, one or many, or by the digest of the file.

This module knows no HTTP.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from services.shared.model.records import ArtifactRecord, Version
from services.shared.model.speaker import SpeakerId
from services.shared.model.status import ProfileStatus
from services.shared.registry.lookup import find_version, find_versions
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker, Speakers
from speaker_registry.errors import (
    ArtifactFailed,
    ArtifactNotFound,
    ArtifactStale,
    SpeakerRegistryError,
)
from speaker_registry.names import SpeakerName


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An artifact of a live version, and the speaker as it was found."""

    speaker: FoundSpeaker
    version: Version
    profile: str
    record: ArtifactRecord


@dataclass(frozen=True, slots=True)
class Wanted:
    """Selects one artifact of a version for a profile. By default it is the one to serve."""

    current: bool = False
    """Accept only an artifact of the current encoder."""
    fingerprint: str | None = None
    """Accept only an artifact with this fingerprint."""


ANY = Wanted()


@dataclass(frozen=True, slots=True)
class FoundArtifact:
    """A live version, with the status of its artifact for one profile, which may not exist."""

    speaker: FoundSpeaker
    version: Version
    status: ProfileStatus
    wanted: Wanted
    """The artifact that was asked for."""
    required: bool
    """True if every version must have an artifact for the profile."""

    @property
    def speaker_id(self) -> SpeakerId:
        return self.speaker.id

    @property
    def artifact(self) -> StoredArtifact | None:
        """The artifact to serve, or None if there is none."""
        record = self.status.artifact
        if record is None or (self.wanted.current and not self.status.current):
            return None
        return StoredArtifact(self.speaker, self.version, self.status.profile.name, record)

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
        what = f"version {self.version.number} of voice '{self.version.name}'"
        if status.unsupported:
            return ArtifactNotFound(f"There is no artifact of {what}: {status.error}.", param="profile")
        if status.state_of_current == "failed":
            return ArtifactFailed(
                f"Extracting {what} for profile '{profile}' failed. {status.error}", param="profile"
            )
        return self._why_none_was_made(what)

    def _why_none_was_made(self, what: str) -> SpeakerRegistryError | None:
        status, profile = self.status, self.status.profile.name
        number, name = self.version.number, quote(self.version.name, safe="")
        again = f'POST /v1/voices/{name}/versions/{number}/extractions {{"profiles": ["{profile}"]}}'
        if self.wanted.fingerprint is not None and status.artifact is None:
            return ArtifactNotFound(
                f"No artifact of {what} for profile '{profile}' was made with {self.wanted.fingerprint}. "
                "Without `fingerprint`, the one that is served now is returned.",
                param="fingerprint",
            )
        if status.of_former:
            return ArtifactStale(
                f"The artifact of {what} was not made by the current encoder of '{profile}'. Ask "
                f"without current=true to get it, or extract it again with {again}.",
                param="current",
            )
        if self.required:
            return None
        return ArtifactNotFound(
            f"Nothing was extracted from {what} for profile '{profile}'. Request it with {again}.",
            param="profile",
        )


def find_artifact(
    speakers: Speakers,
    profiles: Profiles,
    namespace: str,
    name: SpeakerName,
    reference: int | str,
    profile: str,
    wanted: Wanted = ANY,
) -> FoundArtifact:
    """Find a version's artifact for a profile.

    Raises:
        VoiceNotFound, VersionNotFound, AliasNotFound, ProfileUnknown, Unavailable.
    """
    profiles.get(profile)
    speaker, version = find_version(speakers, profiles, namespace, name, reference)
    return artifact_of(profiles, speaker, version, profile, wanted)


def artifact_of(
    profiles: Profiles, speaker: FoundSpeaker, version: Version, profile: str, wanted: Wanted
) -> FoundArtifact:
    """Return a version's artifact for a profile. Raises `ProfileUnknown`."""
    status = profiles.status(speaker, version, profiles.get(profile), wanted.fingerprint)
    return FoundArtifact(speaker, version, profiles.explained(status), wanted, profiles.is_required(profile))


def find_each(
    speakers: Speakers, profiles: Profiles, namespace: str, voices: Sequence[str], names: Sequence[str]
) -> list[list[FoundArtifact] | SpeakerRegistryError]:
    """Find the artifacts of many voices for the same profiles, in one round trip to the view.

    Args:
        voices: each a name, `name@version` or `name@alias`.
        names: the names of the profiles.

    Returns:
        For each voice, the result for each profile, or the error that explains why the voice was not found.

    Raises:
        ProfileUnknown, Unavailable.
    """
    for name in names:
        profiles.get(name)
    return [
        one
        if isinstance(one, SpeakerRegistryError)
        else [_of_profile(profiles, one.speaker, one.version, name) for name in names]
        for one in find_versions(speakers, profiles, namespace, voices)
    ]


def of_defaults(profiles: Profiles, speakers: Iterable[FoundSpeaker], profile: str) -> list[FoundArtifact]:
    """Return the status of the artifacts of the default versions of live speakers.

    Raises:
        ProfileUnknown, Unavailable.
    """
    profiles.get(profile)
    return [_of_profile(profiles, one, one.document.default, profile) for one in speakers]


def _of_profile(profiles: Profiles, speaker: FoundSpeaker, version: Version, name: str) -> FoundArtifact:
    status = profiles.status(speaker, version, profiles.get(name))
    return FoundArtifact(speaker, version, status, ANY, profiles.is_required(name))


def find_by_digest(speakers: Speakers, namespace: str, digest: str) -> StoredArtifact:
    """Return the artifact of a live version whose file has this digest (`sha256:…`).

    Raises:
        ArtifactNotFound.
        ViewAway, Unavailable: the view does not know the artifact, and is being rebuilt or cannot be reached.
    """
    speaker_id = speakers.view.speaker_with(namespace, digest)
    if speaker_id is not None:
        speaker = speakers.read(speaker_id)
        for version in speaker.document.versions:
            for profile, made in version.artifacts.items():
                for record in made:
                    if record.digest == digest and not _is_lost(speaker, version, profile, record):
                        return StoredArtifact(speaker, version, profile, record)
    raise not_with_digest(digest)


def _is_lost(speaker: FoundSpeaker, version: Version, profile: str, record: ArtifactRecord) -> bool:
    job = speaker.open_job(version.vuid, profile, record.fingerprint)
    return job is not None and job.mends and not record.brought


def not_with_digest(digest: str) -> ArtifactNotFound:
    return ArtifactNotFound(
        f"No voice has an artifact with the digest {digest}. It may have been deleted or replaced.",
        param="digest",
    )
