"""Where a version stands with a profile: derived from its document, the open jobs and the fingerprint that
the profile is made with now. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from services.shared.model.records import ArtifactRecord, Version
from services.shared.model.speaker import Speaker
from speaker_registry.engine import Profile
from speaker_registry.schemas import ArtifactState


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStatus:
    """The state of one version's artifact for one profile."""

    profile: Profile
    state: ArtifactState
    artifact: ArtifactRecord | None = None
    """The ready artifact, if it was made with the profile's current fingerprint or brought by somebody."""
    stale: ArtifactRecord | None = None
    """A ready artifact that was made with an older fingerprint, if there is no current one."""
    job_id: str | None = None
    error: str | None = None
    unsupported: bool = False
    """True if nothing can ever be extracted: the version has no clip, or the profile takes no such one."""


def profile_status(
    speaker: Speaker, version: Version, profile: Profile, fingerprint: str | None
) -> ProfileStatus:
    """Derive the status. Ready wins over an open job, that over failed, and failed over pending.

    Args:
        fingerprint: the one that the profile is made with now; None while no worker has announced it. Then
            any artifact is current.
    """
    job = speaker.open_job(version.vuid, profile.name, fingerprint)
    job_id = job.job_id if job else None
    artifact = version.artifact(profile.name, fingerprint)
    if artifact is not None:
        return ProfileStatus(profile=profile, state="ready", artifact=artifact, job_id=job_id)
    stale = version.artifact(profile.name)
    if reason := unsupported_reason(version, profile):
        return ProfileStatus(profile=profile, state="failed", stale=stale, error=reason, unsupported=True)
    if job is not None:
        state: ArtifactState = "processing" if job.processing else "pending"
        return ProfileStatus(profile=profile, state=state, stale=stale, job_id=job_id)
    failure = version.failures.get(profile.name)
    if failure is not None and fingerprint in {None, failure.fingerprint}:
        error = f"{failure.code}: {failure.message}"
        return ProfileStatus(profile=profile, state="failed", stale=stale, error=error)
    return ProfileStatus(profile=profile, state="pending", stale=stale)


def last_good(version: Version, profile: str, former: Sequence[str]) -> ArtifactRecord | None:
    """Return the artifact to serve while the current encoder has made none.

    It is the one of the encoder that was current last. If there is none of any former encoder, any other one
    is served that was not made ahead of a promotion, for example one that was uploaded before the profile
    had a worker.

    Args:
        former: the fingerprints that were current before, the newest first.
    """
    found = (version.artifact(profile, fingerprint) for fingerprint in former)
    return next((one for one in found if one is not None), None) or version.artifact(profile)


def unsupported_reason(version: Version, profile: Profile) -> str | None:
    """Say why nothing can be extracted for this profile, or return None if it can."""
    if profile.not_extractable:
        return profile.not_extractable
    if version.clip is None:
        return (
            f"version {version.number} was registered with a precomputed speaker embedding of "
            f"{version.embedding_width} numbers; profile '{profile.name}' needs reference audio"
        )
    if profile.ref_text_required and not version.ref_text:
        return f"profile '{profile.name}' needs a transcript; version {version.number} has no ref_text"
    return None
