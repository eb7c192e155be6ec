"""The status of a version with a profile, derived from its document, the open jobs and the encoders of the
profile. Pure.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.shared.model.records import GIVEN_FINGERPRINT, ArtifactRecord, FailureRecord, Version
from services.shared.model.speaker import Speaker
from speaker_registry.engine import Profile
from speaker_registry.errors import CacheUnsupported
from speaker_registry.schemas import ArtifactState

_WORST_FIRST: tuple[ArtifactState, ...] = ("failed", "processing", "pending", "ready")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStatus:
    """The state of one version's artifact for one profile."""

    profile: Profile
    state: ArtifactState
    """The state for engines: `ready` if there is an artifact to serve, even if a former encoder made it."""
    state_of_current: ArtifactState
    """The state of the artifact of the profile's current encoder."""
    artifact: ArtifactRecord | None = None
    """The artifact to serve: that of the current encoder or, until it is ready, the last good one."""
    current: bool = False
    """True if the artifact to serve was made by the profile's current encoder, or was uploaded."""
    job_id: str | None = None
    error: str | None = None
    reason: str | None = None
    """The reason why the extraction waits, see `waiting_reason`."""
    unsupported: bool = False
    """True if nothing can ever be extracted: the version has no clip, or the profile does not accept its
    clip.
    """

    @property
    def of_former(self) -> bool:
        """Return whether there is an artifact to serve that the profile's current encoder did not make."""
        return self.artifact is not None and not self.current


def profile_status(
    speaker: Speaker,
    version: Version,
    profile: Profile,
    fingerprint: str | None,
    former: Sequence[str] | None = None,
) -> ProfileStatus:
    """Derive the status. An artifact takes precedence over an open job, a job over a failure, and a failure
    over pending.

    An artifact whose bytes are lost is not ready, and no artifact of a former encoder replaces it.

    Args:
        fingerprint: that of the profile's current encoder. While no worker has announced one, it is None, and
            any artifact counts as current.
        former: the previous fingerprints, newest first. Until there is an artifact with `fingerprint`, the
            last good one is served. None if only an artifact with `fingerprint` is wanted.
    """
    job = speaker.open_job(version.vuid, profile.name, fingerprint)
    made = version.artifact(profile.name, fingerprint)
    if job is not None and job.mends and (made is None or not made.brought):
        made, former = None, None
    reason = unsupported_reason(version, profile)
    failure = version.failure(profile.name, fingerprint)
    if made is not None:
        state: ArtifactState = "ready"
    elif reason:
        state = "failed"
    elif job is not None:
        state = "processing" if job.processing else "pending"
    else:
        state = "failed" if failure is not None else "pending"
    served = made or (last_good(version, profile.name, former) if former is not None else None)
    return ProfileStatus(
        profile=profile,
        state="ready" if served is not None else state,
        state_of_current=state,
        artifact=served,
        current=made is not None,
        job_id=job.job_id if job is not None and (made or not reason) else None,
        error=_error(reason, failure) if state == "failed" else None,
        unsupported=bool(reason) and made is None,
    )


def last_good(version: Version, profile: str, former: Sequence[str]) -> ArtifactRecord | None:
    """Return the artifact to serve while the current encoder has made none.

    It is the artifact of the former encoder that was current most recently. If no former encoder has made
    one, it is any other artifact that was not made ahead of a promotion, for example one that was uploaded
    before the profile had a worker.

    Args:
        former: the fingerprints that were current before, the newest first.
    """
    found = (version.artifact(profile, fingerprint) for fingerprint in former)
    return next((one for one in found if one is not None), None) or version.artifact(profile)


def _error(reason: str | None, failure: FailureRecord | None) -> str | None:
    if reason:
        return reason
    return f"{failure.code}: {failure.message}" if failure is not None else None


def unsupported_reason(version: Version, profile: Profile) -> str | None:
    """Return the reason why nothing can be extracted for this profile, or None if extraction is possible."""
    if profile.not_extractable:
        return profile.not_extractable
    if version.clip is None:
        return (
            f"version {version.number} was registered with a precomputed speaker embedding of "
            f"{version.embedding_width} numbers; profile '{profile.name}' needs reference audio"
        )
    return missing_transcript(version, profile)


def missing_transcript(version: Version, profile: Profile) -> str | None:
    """Return the reason why the profile's engine could not use any artifact of the version, or None if it
    could.
    """
    if profile.ref_text_required and not version.ref_text:
        return f"profile '{profile.name}' needs a transcript; version {version.number} has no ref_text"
    return None


def cache_unsupported(reason: str) -> CacheUnsupported:
    """Return the error for a reason from `unsupported_reason` or `missing_transcript`."""
    return CacheUnsupported(reason[0].upper() + reason[1:] + ".", param="profile")


def waiting_reason(profile: str) -> str:
    """Return the reason why an extraction waits although it is in the queue: no worker serves the profile."""
    return f"no worker serves profile '{profile}'"


def unknown_encoder_reason(profile: str, problem: str) -> str:
    """Return the reason why an extraction waits if the document of its profile cannot be used. Workers may
    serve the profile nevertheless.
    """
    return f"the current encoder of profile '{profile}' is unknown. {problem}"


def given_profiles(version: Version) -> tuple[str, ...]:
    """Return the profiles of the artifacts that a version was registered with."""
    return tuple(
        sorted(
            profile
            for profile, made in version.artifacts.items()
            if any(one.fingerprint == GIVEN_FINGERPRINT for one in made)
        )
    )


def wanted_profiles(version: Version, required: Iterable[str]) -> tuple[str, ...]:
    """Return the profiles that a version needs to be complete.

    These are the required profiles. For a version with a given embedding, they are the profiles of the
    artifacts that came with it.
    """
    return tuple(required) if version.clip is not None else given_profiles(version)


def worst(statuses: Iterable[ProfileStatus]) -> ArtifactState:
    """Return the worst state of these statuses, or `ready` if there are none."""
    states = {one.state for one in statuses}
    return next((state for state in _WORST_FIRST if state in states), "ready")
