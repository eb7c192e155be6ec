"""Where a version stands with a profile: derived from facts, pending extractions and the profile's
fingerprint. Pure.
"""

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
    """One version and one profile."""

    profile: Profile
    state: ArtifactState
    artifact: ArtifactRecord | None = None
    """Ready, made with the profile's fingerprint."""
    stale: ArtifactRecord | None = None
    """Ready, but made with an older fingerprint."""
    job_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """Why nothing happens with it for now, see `waiting_reason`."""
    unsupported: bool = False
    """Nothing can ever be extracted: the version has no clip, or the profile takes none of its kind."""


def profile_status(
    indexed: IndexedSpeaker, version: SpeakerVersion, profile: Profile, announced: Announcement | None
) -> ProfileStatus:
    """Ready beats in flight beats failed beats pending."""
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
    """Why an extraction waits although the queue holds it."""
    return f"no worker serves profile '{profile}'"


def cache_unsupported(reason: str) -> CacheUnsupported:
    """The error that a reason below is, as a sentence."""
    return CacheUnsupported(reason[0].upper() + reason[1:] + ".", param="profile")


def unsupported_reason(version: SpeakerVersion, profile: Profile) -> str | None:
    """Why nothing can be extracted for this profile; None if it can."""
    if profile.not_extractable:
        return profile.not_extractable
    if not version.extractable:
        return (
            f"version {version.number} was registered with a ready speaker embedding of "
            f"{version.record.embedding_width} numbers; profile '{profile.name}' needs reference audio"
        )
    return missing_transcript(version, profile)


def missing_transcript(version: SpeakerVersion, profile: Profile) -> str | None:
    """Why the profile's engine could not use the version's artifact, whoever made it; None if it can."""
    if profile.ref_text_required and not version.record.ref_text:
        return f"profile '{profile.name}' needs a transcript; version {version.number} has no ref_text"
    return None


def wanted_profiles(version: SpeakerVersion, required: Iterable[str]) -> tuple[str, ...]:
    """What a version must have to be complete: the required profiles; for a ready embedding, what came with
    it.
    """
    if version.extractable:
        return tuple(required)
    return tuple(sorted({record.profile for record in version.record.given}))


def worst(statuses: Iterable[ProfileStatus]) -> ArtifactState:
    """The state of a version as a whole; `ready` if nothing is wanted."""
    states = {one.state for one in statuses}
    return next((state for state in _WORST_FIRST if state in states), "ready")
