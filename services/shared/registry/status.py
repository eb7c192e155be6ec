"""Derives the status of a version for a profile from facts, pending extractions and fingerprints. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from services.shared.index.announcements import Announcement
from services.shared.index.reading import IndexedSpeaker
from services.shared.model.domain import ArtifactRecord, SpeakerVersion
from speaker_registry.engine import Profile
from speaker_registry.errors import CacheUnsupported
from speaker_registry.schemas import ArtifactState

_WORST_FIRST: tuple[ArtifactState, ...] = ("failed", "processing", "pending", "ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStatus:
    """The state of one version's artifact for one profile."""

    profile: Profile
    state: ArtifactState
    artifact: ArtifactRecord | None = None
    """The ready artifact, if it was made with the profile's current fingerprint."""
    stale: ArtifactRecord | None = None
    """A ready artifact that was made with an older fingerprint, if there is no current one."""
    job_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """Says why the extraction waits; see `waiting_reason`."""
    unsupported: bool = False
    """True if nothing can ever be extracted: the version has no clip, or the profile takes no such one."""


def profile_status(
    indexed: IndexedSpeaker, version: SpeakerVersion, profile: Profile, announced: Announcement | None
) -> ProfileStatus:
    """Derive the status. Ready wins over a pending extraction, that over failed, and failed over pending."""
    fingerprint = announced.fingerprint if announced else None
    artifact = version.artifact(profile.name, fingerprint)
    pending = indexed.pending_extraction(version.vuid, profile.name, fingerprint)
    job_id = pending.job_id if pending else None
    if artifact is not None:
        return ProfileStatus(profile=profile, state="ready", artifact=artifact, job_id=job_id)
    stale = version.artifact(profile.name)
    if reason := unsupported_reason(version, profile):
        return ProfileStatus(profile=profile, state="failed", stale=stale, error=reason, unsupported=True)
    if pending is not None:
        state: ArtifactState = "processing" if pending.processing else "pending"
        return ProfileStatus(profile=profile, state=state, stale=stale, job_id=job_id)
    failure = version.failure(profile.name, fingerprint)
    if failure is not None:
        return ProfileStatus(
            profile=profile, state="failed", stale=stale, error=f"{failure.code}: {failure.message}"
        )
    return ProfileStatus(profile=profile, state="pending", stale=stale)


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
            f"version {version.number} was registered with a ready speaker embedding of "
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
