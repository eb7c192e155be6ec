"""Counts the most frequent reasons why jobs failed within the last hour, for the overview."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from services.registry_api.pages.kept import Kept
from services.shared.view.job_records import JobRecord, JobRecords

HOUR_SECONDS = 3600
MAX_EXAMINED = 200
"""Only this many of the last failures are examined."""
_SHOWN = 5


@dataclass(slots=True)
class Reason:
    """The jobs of one profile that failed with one error code."""

    profile: str
    code: str
    message: str
    """The message of the last failure."""
    jobs: int = 0


def reasons_of(failed: Iterable[JobRecord]) -> list[Reason]:
    """Group failed jobs by profile and error code, the largest group first.

    Args:
        failed: the jobs, the last failure first.
    """
    found: dict[tuple[str, str], Reason] = {}
    for job in failed:
        error = job.error or {}
        code, message = str(error.get("code", "unknown")), str(error.get("message", ""))
        found.setdefault((job.profile, code), Reason(job.profile, code, message)).jobs += 1
    return sorted(found.values(), key=lambda one: -one.jobs)


@dataclass(frozen=True, slots=True)
class Reasons:
    """The reasons why jobs failed, and how many reasons and failures were left out."""

    shown: Sequence[Reason] = ()
    """The most frequent reasons come first."""
    others: int = 0
    """The number of reasons that are not shown."""
    of_last: int | None = None
    """The number of failures that were examined, or None if all were."""


class Failures:
    """Counts reasons, and keeps them for a moment. Safe to use from several threads."""

    def __init__(self, jobs: JobRecords, profiles: Collection[str], now: Callable[[], float]) -> None:
        self._jobs = jobs
        self._profiles = profiles
        self._now = now
        self._kept = Kept(self._count)

    def last_hour(self, namespace: str) -> Reasons:
        """Return the most frequent reasons of the failures of a namespace."""
        return self._kept.of(namespace)

    def _count(self, namespace: str) -> Reasons:
        since = self._now() - HOUR_SECONDS
        return _grouped(self._jobs.failed_since(namespace, self._profiles, since, limit=MAX_EXAMINED))


def _grouped(failed: Sequence[JobRecord]) -> Reasons:
    reasons = reasons_of(failed)
    of_last = MAX_EXAMINED if len(failed) == MAX_EXAMINED else None
    return Reasons(reasons[:_SHOWN], len(reasons[_SHOWN:]), of_last)
