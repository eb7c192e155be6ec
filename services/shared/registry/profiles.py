"""The profiles that artifacts are made for, and the fingerprint that each is made with now."""

from typing import Protocol

from services.shared.model.profiles import ProfileCatalogue
from services.shared.model.records import Version
from services.shared.model.speaker import Speaker
from services.shared.model.status import ProfileStatus, profile_status
from speaker_registry.engine import Profile


class Announced(Protocol):
    """Knows what the workers of profiles announced."""

    def fingerprint(self, profile: str) -> str:
        """Return the current fingerprint of a profile; empty while no worker has announced one."""


class Profiles:
    """The catalogue of profiles with what their workers announced."""

    def __init__(self, catalogue: ProfileCatalogue, announced: Announced) -> None:
        self._catalogue = catalogue
        self._announced = announced

    @property
    def required(self) -> list[Profile]:
        """Return the profiles for which every version gets an artifact."""
        return self._catalogue.required_profiles

    def get(self, name: str) -> Profile:
        """Return a profile. Raises `ProfileUnknown`."""
        return self._catalogue.get(name)

    def fingerprint(self, profile: str) -> str:
        """Return the current fingerprint of a profile; empty while no worker has announced one."""
        return self._announced.fingerprint(profile)

    def status(self, speaker: Speaker, version: Version, profile: Profile) -> ProfileStatus:
        """Return where a version stands with a profile."""
        return profile_status(speaker, version, profile, self.fingerprint(profile.name) or None)

    def is_complete(self, speaker: Speaker, version: Version) -> bool:
        """Return whether a version is ready for every required profile that can be made of it."""
        statuses = [self.status(speaker, version, profile) for profile in self.required]
        wanted = [status for status in statuses if not status.unsupported]
        return bool(wanted) and all(status.state == "ready" for status in wanted)
