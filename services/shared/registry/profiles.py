"""The profiles that artifacts are made for, their current encoders, and the status of versions with them."""

from collections.abc import Set
from dataclasses import replace
from typing import Protocol

from services.shared.model.encoders import Encoder
from services.shared.model.profile_document import ProfileDocument
from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.records import Version
from services.shared.model.speaker import Speaker
from services.shared.model.status import (
    ProfileStatus,
    profile_status,
    unknown_encoder_reason,
    waiting_reason,
    wanted_profiles,
    worst,
)
from speaker_registry.engine import Profile
from speaker_registry.schemas import ArtifactState


class Announced(Protocol):
    """Knows the encoders of profiles."""

    def read(self, profile: str) -> ProfileDocument:
        """Return the document of a profile. The document of a profile without a worker has revision 0."""
        ...

    def read_uncached(self, profile: str) -> ProfileDocument:
        """Return the document of a profile without using a cache."""
        ...

    def problem(self, profile: str) -> str | None:
        """Return why the document of a profile could not be used when it was last read, or None."""
        ...


class Served(Protocol):
    """Knows which encoders live workers have."""

    def holds(self, profile: str, fingerprint: str) -> bool:
        """Return whether a live worker has this encoder, or True if that is unknown."""
        ...


class Profiles:
    """The catalogue of profiles with their encoders. All methods that return a status may read documents."""

    def __init__(self, catalogue: ProfileCatalogue, announced: Announced, served: Served) -> None:
        self._catalogue = catalogue
        self._announced = announced
        self._served = served

    @property
    def required(self) -> list[Profile]:
        """Return the profiles for which every version gets an artifact."""
        return self._catalogue.required_profiles

    @property
    def names(self) -> Set[str]:
        """Return the names of all profiles, required or not."""
        return self._catalogue.names

    def get(self, name: str) -> Profile:
        """Return a profile. Raises `ProfileUnknown`."""
        return self._catalogue.get(name)

    def is_required(self, name: str) -> bool:
        return name in self._catalogue.required

    def encoder(self, profile: str) -> Encoder | None:
        """Return the current encoder of a profile, or None while no worker has announced one."""
        return self._announced.read(profile).current

    def documents(self, names: Set[str]) -> dict[str, ProfileDocument]:
        """Return the documents of those profiles among `names` that are known."""
        return {name: self._announced.read(name) for name in names & self.names}

    def fingerprint(self, profile: str) -> str:
        """Return the current fingerprint of a profile. It is empty while no worker has announced one."""
        return self._announced.read(profile).fingerprint

    def is_ahead(self, profile: str, fingerprint: str) -> bool:
        """Return whether an encoder works ahead of its promotion, because another encoder of its profile is
        current.
        """
        return self.fingerprint(profile) not in {"", fingerprint}

    def is_current_now(self, profile: str, fingerprint: str) -> bool:
        """Return whether this is the current encoder of a profile. The answer replaces an older one in the
        cache.
        """
        return self._announced.read_uncached(profile).fingerprint == fingerprint

    def kept_fingerprints(self) -> dict[str, frozenset[str]]:
        """Return the fingerprints whose artifacts are kept, for each profile that a worker has announced."""
        known = self.documents(self.names)
        return {name: one.kept_fingerprints for name, one in known.items() if one.current}

    def current_fingerprints(self) -> dict[str, str]:
        """Return the current fingerprint of each profile. It is empty while no worker has announced one."""
        return {name: self.fingerprint(name) for name in self.names}

    # Statuses

    def status(
        self, speaker: Speaker, version: Version, profile: Profile, fingerprint: str | None = None
    ) -> ProfileStatus:
        """Return the status of a version with a profile.

        Args:
            fingerprint: look only at artifacts of this fingerprint.
        """
        announced = self._announced.read(profile.name)
        if fingerprint is not None:
            found = profile_status(speaker, version, profile, fingerprint)
            return replace(found, current=found.current and announced.fingerprint == fingerprint)
        if announced.current is None:
            return profile_status(speaker, version, profile, None)
        former = announced.former_fingerprints
        return profile_status(speaker, version, profile, announced.fingerprint, former)

    def wanted(self, version: Version) -> tuple[str, ...]:
        """Return the profiles that a version needs to be complete, as `wanted_profiles` does."""
        return wanted_profiles(version, self._catalogue.required)

    def wanted_statuses(self, speaker: Speaker, version: Version) -> list[ProfileStatus]:
        """Return the status of a version for each profile that it needs to be complete."""
        return [self.status(speaker, version, self.get(name)) for name in self.wanted(version)]

    def all_statuses(self, speaker: Speaker, version: Version) -> list[ProfileStatus]:
        """Return the status for each wanted profile, and for each other profile with an artifact or a job.

        The statuses include the reason for which an extraction waits, see `explained`.
        """
        present = {
            *version.artifacts,
            *(job.profile for job in speaker.open_jobs if job.vuid == version.vuid),
        }
        names = dict.fromkeys((*self.wanted(version), *sorted(present & self.names)))
        return [self.explained(self.status(speaker, version, self.get(name))) for name in names]

    def state(self, speaker: Speaker, version: Version) -> ArtifactState:
        """Return the state of the whole version: the worst state of its wanted profiles."""
        return worst(self.wanted_statuses(speaker, version))

    def is_complete(self, speaker: Speaker, version: Version) -> bool:
        """Return whether a version has an artifact to serve for every profile that it needs."""
        return self.state(speaker, version) == "ready"

    def explained(self, status: ProfileStatus) -> ProfileStatus:
        """Add the reason to the status of an extraction that waits, see `waiting_reason`.

        Use this only for answers to callers, because it asks Redis up to once per second for each profile.
        """
        if status.state_of_current != "pending":
            return status
        return replace(status, reason=self.waiting_reason(status.profile.name))

    def waiting_reason(self, profile: str) -> str | None:
        """Return why an extraction that is in the queue waits: no live worker has the current encoder, or
        which encoder that is cannot be read. Return None if a worker serves the profile, or if that is
        unknown.
        """
        if self.is_served(profile):
            return None
        problem = self._announced.problem(profile)
        return waiting_reason(profile) if problem is None else unknown_encoder_reason(profile, problem)

    def is_served(self, profile: str) -> bool:
        """Return whether a live worker has the current encoder, or True if that is unknown."""
        return self.has_worker(profile, self.fingerprint(profile))

    def has_worker(self, profile: str, fingerprint: str) -> bool:
        """Return whether a live worker has this encoder, or True if that is unknown."""
        return self._served.holds(profile, fingerprint)

    def untrained(self, status: ProfileStatus) -> bool:
        """Return whether the artifact was made with random weights, or will be if there is none yet."""
        made = status.artifact
        return made.untrained if made is not None else self.will_be_untrained(status)

    def will_be_untrained(self, status: ProfileStatus) -> bool:
        """Return whether the artifact that the current encoder has yet to make will have random weights."""
        encoder = self.encoder(status.profile.name)
        return encoder is not None and encoder.untrained and not status.unsupported
