"""Tries again to make an artifact whose extraction failed or was canceled."""

from services.shared.model.records import Version
from services.shared.queue.jobs import Jobs
from services.shared.registry.extract import extract
from services.shared.registry.profiles import Profiles
from services.shared.registry.speakers import FoundSpeaker
from speaker_registry.errors import Conflict


def retry(
    jobs: Jobs,
    profiles: Profiles,
    speaker: FoundSpeaker,
    version: Version,
    profile: str,
    *,
    forced: bool = False,
    max_builds: int,
) -> None:
    """Open a job for an artifact that a page shows as failed or canceled, or join the one that is open.

    Args:
        forced: the failed extraction was to replace an artifact.
        max_builds: the largest number of builds of one artifact.

    Raises:
        Conflict: the artifact has been made since, so the page is out of date.
        ProfileUnknown, CacheUnsupported, QuotaExceeded, Unavailable.
    """
    status = profiles.status(speaker, version, profiles.get(profile))
    if status.state_of_current == "ready" and not forced:
        raise Conflict(
            "The artifact has been made since its extraction failed or was canceled. Nothing was started."
        )
    extract(jobs, profiles, speaker, version, [profile], force=True, max_builds=max_builds)
