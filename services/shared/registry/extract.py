"""Starts extractions, with one job at a time for each artifact. Further requests for the artifact join the
job.
"""

from collections.abc import Callable, Sequence

from services.shared.model.records import Version
from services.shared.model.status import cache_unsupported, unsupported_reason
from services.shared.queue.jobs import Jobs
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import ClipDamaged, QuotaExceeded


def extract(
    jobs: Jobs,
    profiles: Profiles,
    speaker: FoundSpeaker,
    version: Version,
    names: Sequence[str],
    *,
    force: bool = False,
    max_builds: int | None = None,
    count: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Make sure that each profile's artifact exists or is being made.

    Args:
        force: extract again even if there is an artifact or a failure. The existing artifact is served until
            the new one is ready.
        max_builds: the largest number of builds of one artifact.
        count: called once for each job that is forced, or that is opened for a profile that is not required,
            before the first job is opened. Its errors are passed on.

    Returns:
        The id of the job for each profile whose artifact is being made.

    Raises:
        ProfileUnknown. Errors that `before_open` of the jobs raises are passed on.
        CacheUnsupported: nothing can be extracted for one of the profiles. Then no job is opened.
        QuotaExceeded: an artifact already has `max_builds` builds. Then no job is opened.
    """
    for name in names:
        if reason := unsupported_reason(version, profiles.get(name)):
            raise cache_unsupported(reason)
    wanted, counted = {}, 0
    for name in names:
        status = profiles.status(speaker, version, profiles.get(name))
        if force or status.state_of_current not in {"ready", "failed"}:
            wanted[name] = profiles.fingerprint(name)
            check_builds(version, name, wanted[name], max_builds)
            if force or (status.job_id is None and not profiles.is_required(name)):
                counted += 1
    for _ in range(counted):
        count()
    opened = {}
    for name, fingerprint in wanted.items():
        jobs.before_open()
        opened[name] = jobs.open(speaker.id, version, name, fingerprint, forced=force).job_id
    return opened


def extract_missing(
    jobs: Jobs, profiles: Profiles, speaker: FoundSpeaker, version: Version
) -> dict[str, str]:
    """Open a job for each required profile that a version lacks and that was not given up.

    Returns:
        The id of the job for each profile whose artifact is being made.
    """
    opened = {}
    for profile in profiles.required:
        status = profiles.status(speaker, version, profile)
        if status.state_of_current == "pending" and status.job_id is None:
            fingerprint = profiles.fingerprint(profile.name)
            opened[profile.name] = jobs.open(speaker.id, version, profile.name, fingerprint).job_id
        elif status.job_id is not None:
            opened[profile.name] = status.job_id
    return opened


def extract_restored(
    jobs: Jobs, profiles: Profiles, speaker: FoundSpeaker, version: Version
) -> dict[str, str]:
    """Open a job for each artifact that was given up because the bucket had lost the clip. Call this when the
    clip has been uploaded again.

    Returns:
        The id of the job for each profile whose artifact is being made.
    """
    opened = {}
    for name in sorted(version.failures.keys() & profiles.names):
        fingerprint = profiles.fingerprint(name)
        failure = version.failure(name, fingerprint or None)
        is_failed = profiles.status(speaker, version, profiles.get(name)).state_of_current == "failed"
        if is_failed and failure is not None and failure.code == ClipDamaged.code:
            opened[name] = jobs.open(speaker.id, version, name, fingerprint, forced=True).job_id
    return opened


def check_builds(version: Version, profile: str, fingerprint: str, most: int | None) -> None:
    """Raise `QuotaExceeded` if an artifact was made or canceled `most` times already."""
    if most is not None and version.highest_build(profile, fingerprint) >= most:
        raise QuotaExceeded(
            f"The artifact of version {version.number} of voice '{version.name}' for profile '{profile}' was "
            f"made or canceled {most} times already, which is as often as SPEAKER_MAX_BUILDS accepts. "
            "Register the clip as a new version with dedupe=false, or raise the cap.",
            param="profile",
        )
