"""Derives the status of a version for a profile from facts, pending extractions and fingerprints.

The functions are pure. `Statuses` applies them with the encoders of profiles.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from services.shared.index.reading import IndexedSpeaker
from services.shared.model.domain import ArtifactRecord, FailureRecord, SpeakerVersion
from services.shared.model.encoders import Encoder
from services.shared.model.profiles import ProfileCatalogue
from services.shared.registry.profile_records import ProfileRecords
from services.shared.registry.served import ServedEncoders
from speaker_registry.engine import Profile
from speaker_registry.errors import CacheUnsupported, Unavailable
from speaker_registry.schemas import ArtifactState

_WORST_FIRST: tuple[ArtifactState, ...] = ("failed", "processing", "pending", "ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStatus:
    """The state of one version's artifact for one profile."""

    profile: Profile
    state: ArtifactState
    """The state for engines: `ready` if there is an artifact to serve, also one of a former encoder."""
    state_of_current: ArtifactState
    """The state of the artifact of the profile's current encoder."""
    artifact: ArtifactRecord | None = None
    """The artifact to serve. It is the current encoder's, and until that is ready the last good one."""
    current: bool = False
    """True if the artifact to serve was made by the profile's current encoder."""
    job_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """Says why the extraction waits; see `waiting_reason`."""
    unsupported: bool = False
    """True if nothing can ever be extracted: the version has no clip, or the profile takes no such one."""
    undecided: bool = False
    """True if there may be an artifact that was published just before Redis was lost, so that it does not
    count yet.
    """

    @property
    def of_former(self) -> bool:
        """Return whether the artifact to serve is not one of the profile's current encoder."""
        return self.artifact is not None and not self.current


def profile_status(
    indexed: IndexedSpeaker,
    version: SpeakerVersion,
    profile: Profile,
    fingerprint: str | None,
    former: Sequence[str] | None = None,
) -> ProfileStatus:
    """Derive the status. Ready wins over a pending extraction, that over failed, and failed over pending.

    Args:
        fingerprint: what the profile is made with. None if that is not known, so that any artifact counts.
        former: the fingerprints before it, the newest first. Until there is an artifact of `fingerprint`, the
            last good one is served. None if only an artifact of `fingerprint` is wanted.
    """
    artifact = version.artifact(profile.name, fingerprint)
    pending = indexed.pending_extraction(version.vuid, profile.name, fingerprint)
    reason = unsupported_reason(version, profile)
    failure = version.failure(profile.name, fingerprint)
    if artifact is not None:
        state: ArtifactState = "ready"
    elif reason:
        state = "failed"
    elif pending is not None:
        state = "processing" if pending.processing else "pending"
    else:
        state = "failed" if failure is not None else "pending"
    served = artifact or (last_good(version, profile.name, former) if former is not None else None)
    return ProfileStatus(
        profile=profile,
        state="ready" if served is not None else state,
        state_of_current=state,
        artifact=served,
        current=artifact is not None,
        job_id=pending.job_id if pending is not None and (artifact or not reason) else None,
        error=_error(reason, failure) if state == "failed" else None,
        unsupported=bool(reason) and artifact is None,
        undecided=indexed.speaker.undecided and served is None and state == "pending" and pending is None,
    )


def last_good(version: SpeakerVersion, profile: str, former: Sequence[str]) -> ArtifactRecord | None:
    """Return the artifact to serve while the current encoder has made none.

    It is the one of the encoder that was current last. If there is none of any former encoder, any other one
    is served, for example one that was uploaded before the profile had a worker.
    """
    found = (version.artifact(profile, fingerprint) for fingerprint in former)
    return next((one for one in found if one is not None), None) or version.artifact(profile)


def _error(reason: str | None, failure: FailureRecord | None) -> str | None:
    if reason:
        return reason
    return f"{failure.code}: {failure.message}" if failure is not None else None


UNDECIDED = "what was published just before Redis was lost is being read again"
"""Says why nothing is known of an artifact that may exist."""


def waiting_reason(profile: str) -> str:
    """Say why an extraction waits although it is in the queue."""
    return f"no worker serves profile '{profile}'"


def cache_unsupported(reason: str) -> CacheUnsupported:
    """Return the error for a reason that one of the functions below gives."""
    return CacheUnsupported(reason[0].upper() + reason[1:] + ".", param="profile")


def unsupported_reason(version: SpeakerVersion, profile: Profile) -> str | None:
    """Say why nothing can be extracted for this profile, or return None if it can."""
    if profile.not_extractable:
        return profile.not_extractable
    if not version.extractable:
        return (
            f"version {version.number} was registered with a precomputed speaker embedding of "
            f"{version.record.embedding_width} numbers; profile '{profile.name}' needs reference audio"
        )
    return missing_transcript(version, profile)


def missing_transcript(version: SpeakerVersion, profile: Profile) -> str | None:
    """Say why the profile's engine could not use any artifact of the version, or return None if it can."""
    if profile.ref_text_required and not version.record.ref_text:
        return f"profile '{profile.name}' needs a transcript; version {version.number} has no ref_text"
    return None


def wanted_profiles(version: SpeakerVersion, required: Iterable[str]) -> tuple[str, ...]:
    """Return the profiles that a version needs to be complete.

    These are the required profiles. For a version with a given embedding, they are the profiles of the
    artifacts that came with it.
    """
    if version.extractable:
        return tuple(required)
    return tuple(sorted({record.profile for record in version.record.given}))


def worst(statuses: Iterable[ProfileStatus]) -> ArtifactState:
    """Return the worst of these states, or `ready` if there is none."""
    states = {one.state for one in statuses}
    return next((state for state in _WORST_FIRST if state in states), "ready")


class Statuses:
    """Derives the statuses of versions from the encoders of their profiles."""

    def __init__(self, catalogue: ProfileCatalogue, profiles: ProfileRecords, served: ServedEncoders) -> None:
        self._catalogue = catalogue
        self._profiles = profiles
        self._served = served
        self.required = catalogue.required
        """The names of the required profiles."""

    def of_profile(
        self, indexed: IndexedSpeaker, version: SpeakerVersion, profile: str, fingerprint: str | None = None
    ) -> ProfileStatus:
        """Return the status of a version for one profile. Raises `ProfileUnknown`.

        Args:
            fingerprint: look only at artifacts of this fingerprint.
        """
        known = self._catalogue.get(profile)
        document = self._profiles.read(profile)
        if fingerprint is not None:
            found = profile_status(indexed, version, known, fingerprint)
            return replace(found, current=found.current and document.fingerprint == fingerprint)
        if document.current is None:
            return profile_status(indexed, version, known, None)
        return profile_status(indexed, version, known, document.fingerprint, document.former_fingerprints)

    def of_required(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[ProfileStatus]:
        """Return the status of a version for each required profile."""
        return [self.of_profile(indexed, version, name) for name in self.required]

    def of_wanted(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[ProfileStatus]:
        """Return the status of a version for each profile that it needs to be complete."""
        return [self.of_profile(indexed, version, name) for name in self.wanted(version)]

    def of_version(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[ProfileStatus]:
        """Return the status for each wanted profile and each other one that has an artifact or a job.

        The statuses are `explained`.
        """
        present = {record.profile for record in (*version.record.given, *version.artifacts.values())}
        present |= {
            pending.profile for pending in indexed.pending_extractions if pending.vuid == version.vuid
        }
        names = dict.fromkeys((*self.wanted(version), *sorted(present & self._catalogue.names)))
        return [self.explained(self.of_profile(indexed, version, name)) for name in names]

    def explained(self, status: ProfileStatus) -> ProfileStatus:
        """Add the reason to a status that waits because no worker serves its profile, or that is undecided.

        Meant for answers, because it may ask Redis, once a second for each profile.
        """
        if status.undecided:
            return replace(status, reason=UNDECIDED)
        if status.state_of_current != "pending" or self.is_served(status.profile.name):
            return status
        return replace(status, reason=waiting_reason(status.profile.name))

    def is_served(self, profile: str) -> bool:
        """Return whether a live worker has the current encoder of a profile, as of the last second.

        Returns True also if this cannot be found out.
        """
        try:
            return self._served.holds(profile, self._profiles.fingerprint(profile))
        except Unavailable:
            return True

    def encoder(self, profile: str) -> Encoder | None:
        """Return the current encoder of a profile; None while no worker has announced one."""
        return self._profiles.current(profile)

    def untrained(self, status: ProfileStatus) -> bool:
        """Return whether the artifact was made with random weights, or will be if there is none yet."""
        made = status.artifact
        return made.untrained if made is not None else self.will_be_untrained(status)

    def will_be_untrained(self, status: ProfileStatus) -> bool:
        """Return whether the artifact that the current encoder has yet to make will have random weights."""
        encoder = self.encoder(status.profile.name)
        return encoder is not None and encoder.untrained and not status.unsupported

    def missing(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> list[ProfileStatus]:
        """Return the wanted profiles whose current encoder has made no artifact and has no job.

        Housekeeping starts them.
        """
        statuses = self.of_wanted(indexed, version)
        return [one for one in statuses if one.state_of_current == "pending" and one.job_id is None]

    def state(self, indexed: IndexedSpeaker, version: SpeakerVersion) -> ArtifactState:
        """Return the state of the whole version: the worst state of its wanted profiles."""
        return worst(self.of_wanted(indexed, version))

    def wanted(self, version: SpeakerVersion) -> tuple[str, ...]:
        """Return the profiles that a version needs to be complete, as `wanted_profiles` does."""
        return wanted_profiles(version, self.required)
